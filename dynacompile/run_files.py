"""Files that a run writes for its user: traces and reports. They may tell of the user's program, so that others read them no more than the run's folder.

A trace may be read while it is written, and may be a pipe or a terminal; writing to it never waits.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dynacompile.trusted import write_all

APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


def open_for_lines(path: Path, follow: bool, new: bool = False) -> int:
    """A descriptor that appends to `path`. follow: links of the user's or the administrator's are followed, as a path that the user gave asks for. new: what
    is there already is a FileExistsError. Raises OSError; also for a regular file of another user, who would read what is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, APPEND | os.O_NOFOLLOW | (os.O_EXCL if new else 0), 0o600)
    except OSError:
        if new or not follow or not path.is_symlink() or path.lstat().st_uid not in (0, os.getuid()):
            raise
        descriptor = os.open(path, APPEND, 0o600)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user (uid {status.st_uid})")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Lines:
    """A file that lines are appended to. It is opened for each, so that none is lost in a buffer, and nothing is held open. follow: also through links."""

    def __init__(self, path: Path, follow: bool = False):
        self.path, self.follow = path, follow
        self.is_torn: bool | None = None  # not looked at yet: another process may have begun the file

    def begin(self) -> None:
        """Makes the file, with the mode that its folder asks for. Raises OSError, a FileExistsError where it is there already."""
        descriptor = open_for_lines(self.path, self.follow, new=True)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, mode_in(self.path.parent))
        finally:
            os.close(descriptor)

    def append(self, line: str) -> None:
        """Raises OSError. The line after one that was torn by an error begins anew, so that a reader loses one line at most."""
        if self.is_torn is None:
            self.is_torn = ends_torn(self.path)
        descriptor = open_for_lines(self.path, self.follow)
        try:
            before = b"\n" if self.is_torn else b""
            write_all(descriptor, before + line.encode("utf-8", "backslashreplace") + b"\n")
            self.is_torn = False
        except BaseException:
            self.is_torn = True
            raise
        finally:
            os.close(descriptor)


def ends_torn(path: Path) -> bool:
    """Whether a regular file ends within a line."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        return stat.S_ISREG(status.st_mode) and status.st_size > 0 and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
    except OSError:
        return True  # an empty line is no loss
    finally:
        os.close(descriptor)


def mode_in(folder: Path) -> int:
    """The mode of a new file in a run's folder: who may read and write the one may read and write the other."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o666 | 0o600


def write_whole(path: Path, text: str, new: bool = False) -> Path:
    """Writes a report in a run's folder; readers see the old one or the whole new one. new: an old one is a FileExistsError. Raises OSError."""
    temporary = path.with_name(f".new-{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(descriptor, mode_in(path.parent))
            write_all(descriptor, text.encode("utf-8", "backslashreplace"))
        finally:
            os.close(descriptor)
        if new:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))  # the name is ours from here on
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path
