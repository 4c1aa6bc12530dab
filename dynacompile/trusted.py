"""Folders and files that nobody but the user can have written: what we load from a disk comes from such folders and matches a digest under the user's key.

A folder is trusted where no other user could have put it there, replaced it, or written into it. A file in it is read by a descriptor that was opened
without following links and without waiting, and what is loaded are the bytes that were checked.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import hmac
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dynacompile.complaints import COMPLAINTS
from dynacompile.errors import ConfigError

MAGIC = b"dynacompile-sealed-2\n"
TAIL = len(MAGIC) + 32
KEY_BYTES = 32
OTHERS = stat.S_IWGRP | stat.S_IWOTH
MOST_LINKS = 40
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO in a file's place is opened without waiting for its writer
TOUCH_SECONDS = 3600.0
LOCK_SECONDS = 600.0
SCRATCH = "dynacompile-"
SCRATCH_SECONDS = 86400.0


class Untrusted(Exception):
    """A file or folder is not what only the user can have written; the message says why."""


# folders


def private_folder(folder: Path, variable: str) -> Path:
    """Makes `folder`, an absolute path, with mode 0700 where it does not exist; its path without the links of the user's that lead to it.

    Raises ConfigError, which names the place and the fix, where another user could write into the folder or put another in its place: code from it
    runs as the user. Raises OSError where it can't be made.
    """
    check_way(folder, variable)
    make_folders(folder)
    check_way(folder, variable)
    status = os.stat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if status.st_uid != os.getuid():
        raise ConfigError(f"cache folder {folder} belongs to another user (uid {status.st_uid}): set {variable} to a folder of your own")
    if status.st_mode & OTHERS:
        raise ConfigError(f"cache folder {folder} can be written by other users: `chmod go-w {folder}`, or set {variable} to a private folder")
    return Path(os.path.realpath(folder))


def make_folders(folder: Path) -> None:
    """`folder` and the missing folders above it, all of mode 0700, whatever the umask."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)


def check_way(folder: Path, variable: str) -> None:
    """Raises ConfigError where another user could replace `folder`, or a folder or link on the way to it."""
    for place, status in way(folder):
        if is_foreign(status.st_uid):
            raise ConfigError(
                f"{place}, on the way to the cache folder {folder}, belongs to another user (uid {status.st_uid}), who could replace what lies below it: "
                f"set {variable} to a folder below folders of your own"
            )
        replaceable = stat.S_ISDIR(status.st_mode) and status.st_mode & OTHERS and not status.st_mode & stat.S_ISVTX
        if replaceable:
            raise ConfigError(
                f"{place}, on the way to the cache folder {folder}, can be written by other users, who could replace what lies below it: "
                f"`chmod go-w {place}`, or set {variable} to a folder elsewhere"
            )


def way(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every folder and every link that is passed on the way to `folder`, and itself, as far as they exist."""
    done, links = "/", 0
    yield done, os.lstat(done)
    ahead = list(reversed(folder.parts[1:]))
    while ahead:
        name = ahead.pop()
        if name == "..":
            done = os.path.dirname(done)
            continue
        place = os.path.join(done, name)
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            done = place
            continue
        links += 1
        if links > MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        target = Path(os.readlink(place))
        done = "/" if target.is_absolute() else done
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)


def is_foreign(uid: int) -> bool:
    """Whether files of `uid` can be changed by somebody who is neither this user nor the administrator."""
    return uid not in (0, os.getuid(), unmapped_user())


@functools.cache
def unmapped_user() -> int | None:
    """The user that owns what a user namespace does not map, the administrator's own files first; None outside of such a namespace."""
    try:
        whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
        return None if whole else int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def open_folder(path: str | Path, inside: int | None = None, *, make: bool = False) -> int:
    """A descriptor of a folder of the user's that nobody else can write. inside: the descriptor of the folder that a relative `path` starts at.
    Raises Untrusted, OSError."""
    if make:
        try:
            os.mkdir(path, 0o700, dir_fd=inside)
        except FileExistsError:
            pass  # checked below, whoever made it
    descriptor = os.open(path, READ | os.O_DIRECTORY, dir_fd=inside)
    return checked(descriptor, str(path), stat.S_ISDIR)


def checked(descriptor: int, name: str, kind: object = stat.S_ISREG) -> int:
    """The descriptor of what only the user can have written, of that kind; closed where it is not."""
    try:
        status = os.fstat(descriptor)
        if not kind(status.st_mode):  # type: ignore[operator]
            raise Untrusted(f"{name} is no {'folder' if kind is stat.S_ISDIR else 'regular file'}")
        if status.st_uid != os.getuid():
            raise Untrusted(f"{name} belongs to another user (uid {status.st_uid})")
        if status.st_mode & OTHERS:
            raise Untrusted(f"{name} can be written by other users")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


# files


def read_own(name: str | Path, inside: int | None = None) -> tuple[int, bytes]:
    """A descriptor of a regular file that only the user can have written, and its content. Raises FileNotFoundError, other OSErrors, Untrusted."""
    descriptor = checked(os.open(name, READ, dir_fd=inside), str(name))
    try:
        return descriptor, read_all(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def read_all(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 24):
        parts.append(part)
    return b"".join(parts)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def temporary_name() -> str:
    """A name in a folder that sweeps know as one of a file that is there for a while."""
    return f".new-{os.getpid()}-{os.urandom(8).hex()}"


def write_own(name: str, content: bytes, inside: int) -> None:
    """Writes a file of the folder `inside`, under a name of its own that is then changed to `name`, so that readers see the old file or the whole new
    one. Raises OSError."""
    temporary = temporary_name()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=inside)
    try:
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        drop(temporary, inside)
        raise


def drop(name: str, inside: int | None = None) -> None:
    """Removes a file where that works; the age of what stays behind will have it swept."""
    try:
        os.unlink(name, dir_fd=inside)
    except OSError:
        return


def touch(descriptor: int) -> None:
    """Marks a file as used, at most once an hour. A file system that refuses, being read-only, keeps no order of use."""
    try:
        if time.time() - os.fstat(descriptor).st_mtime > TOUCH_SECONDS:
            os.utime(descriptor)
    except OSError:
        return


@contextmanager
def locked(name: str, inside: int) -> Iterator[None]:
    """Holds the lock that is the file `name` of a folder: one process works, the others wait. The work has to be right without it, too: where there
    is no such lock to be had, after a warning, or within LOCK_SECONDS, it begins nevertheless."""
    descriptor = None
    try:
        descriptor = checked(os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=inside), name)
        wait_for_lock(descriptor)
    except (OSError, Untrusted) as error:
        COMPLAINTS.warn(("lock", type(error)), f"the lock file {name!r} of the cache can't be used ({error}): two processes may do the same work")
    try:
        yield
    finally:
        if descriptor is not None:
            unlock(descriptor, name)


def unlock(descriptor: int, name: str) -> None:
    """Closing alone is not enough where a process that was forked meanwhile has the file open, too. Where unlocking fails, others wait no longer than
    LOCK_SECONDS: the work is done, so it is only warned of."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError as error:
        COMPLAINTS.warn(("unlock", type(error)), f"the lock file {name!r} of the cache can't be unlocked ({error}): other processes may wait for it")
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int) -> None:
    """Raises TimeoutError after LOCK_SECONDS."""
    end, pause = time.monotonic() + LOCK_SECONDS, 0.01
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, f"another process has held it for {LOCK_SECONDS:.0f} s") from None
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


# seals


@functools.cache
def secret(folder: Path) -> bytes:
    """The user's key, which `folder` keeps in a file of mode 0600, made at the first use.

    Where there is no such file to be had, the process has a key of its own: what it keeps is then no other's, and a warning says so.
    """
    try:
        inside = open_folder(private_folder(folder, "XDG_CACHE_HOME"))
    except (OSError, ConfigError, Untrusted) as error:
        return own_secret(folder, error)
    try:
        for _ in range(3):
            try:
                return read_secret(inside)
            except FileNotFoundError:
                make_secret(inside)
        raise Untrusted("the file is removed again and again")
    except (OSError, Untrusted) as error:
        return own_secret(folder, error)
    finally:
        os.close(inside)


def own_secret(folder: Path, error: Exception) -> bytes:
    COMPLAINTS.warn(
        ("key", str(folder)),
        f"the key {folder / 'key'}, under which compiled code is kept, can't be used: {error}. What is compiled is not kept for other processes. "
        f"Make {folder} a folder of your own with mode 0700, without that file, or set XDG_CACHE_HOME",
    )
    return os.urandom(KEY_BYTES)


def read_secret(inside: int) -> bytes:
    descriptor, content = read_own("key", inside)
    try:
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    if mode & 0o077:
        raise Untrusted("its mode lets others read it (remove it, and a new one will be made)")
    if len(content) != KEY_BYTES:
        raise Untrusted(f"it has {len(content)} bytes and not {KEY_BYTES} (remove it, and a new one will be made)")
    return content


def make_secret(inside: int) -> None:
    """Makes the file, whole or not at all; another process may be first."""
    temporary = temporary_name()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=inside)
    try:
        try:
            write_all(descriptor, os.urandom(KEY_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.link(temporary, "key", src_dir_fd=inside, dst_dir_fd=inside, follow_symlinks=False)
    except FileExistsError:
        return
    finally:
        drop(temporary, inside)


def sealed(content: bytes, purpose: str, key: bytes) -> bytes:
    """`content` with its seal behind it. purpose: what it is kept as, so that one kept thing can't stand in another's place."""
    return content + MAGIC + seal(content, purpose, key)


def seal(content: bytes | memoryview, purpose: str, key: bytes) -> bytes:
    name = purpose.encode()
    made = hmac.new(key, len(name).to_bytes(8, "big") + name, "sha256")
    made.update(content)
    return made.digest()


def unsealed(raw: bytes, purpose: str, key: bytes) -> bytes | None:
    """The content, or None where the seal is not that of the content, the purpose and the key."""
    content = memoryview(raw)[:-TAIL] if len(raw) >= TAIL else memoryview(b"")
    if len(raw) < TAIL or raw[-TAIL:-32] != MAGIC or not hmac.compare_digest(raw[-32:], seal(content, purpose, key)):
        return None
    return bytes(content)


# folders for a while


@functools.cache
def sweep_scratch(above: Path) -> None:
    """Removes the scratch folders of processes that died, once per process."""
    for path in above.glob(f"{SCRATCH}*"):
        try:
            status = path.lstat()
        except OSError:  # another process has removed it
            continue
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and time.time() - status.st_mtime > SCRATCH_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in that for temporary files, the user's alone, for the length of the block. Raises OSError, ConfigError."""
    above = Path(os.path.abspath(tempfile.gettempdir()))
    check_way(above, "TMPDIR")
    sweep_scratch(above)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=above, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
