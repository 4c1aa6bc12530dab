"""The persistent store of binaries: bytes by key, shared by the user's processes, written atomically, verified when read. Nothing is unpickled.

What is kept is sealed under the user's key. What can't be kept is built all the same: a store never raises for what lies, or does not, on the disk.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from dynacompile.complaints import COMPLAINTS
from dynacompile.env import cache_bytes, secret_key
from dynacompile.errors import BuildError
from dynacompile.libraries import Library, load_library
from dynacompile.trusted import Untrusted, drop, open_folder, private_folder, read_own, sealed, touch, unsealed, write_own

KEY = re.compile(r"[0-9A-Za-z_.-]{8,128}")
LOCK = ".lock"  # a file of a level, which processes that build its entries lock
STALE_SECONDS = 3600.0  # after which a temporary file belongs to a process that has died
KEPT_SHARE = 0.8  # of the bound, after an eviction
COUNTED_SHARE = 16  # a process that wrote this part of the bound looks again how large the store is


class Store:
    """A folder of entries. An entry's file is its content and its seal: what reads a library or a cubin by its own headers ignores the tail. An entry
    that is damaged, sealed under another key, or not what only the user can have written, counts as absent, and is replaced by the next `put`.

    Raises ConfigError where other users could write into the folder.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.key = secret_key()
        try:
            self.folder = private_folder(folder, "DYNACOMPILE_CACHE_DIR")
        except OSError as error:
            self.complain("made", error)

    def file(self, key: str) -> Path:
        if not KEY.fullmatch(key) or key.startswith("."):
            raise ValueError(f"a key is 8 to 128 letters, digits, '_', '.', '-', not {key!r}")
        return self.folder / key[:2] / key[2:]

    def level(self, key: str) -> str:
        """The folder of an entry below the store's own."""
        return self.file(key).parent.name

    def is_kept(self, key: str) -> bool:
        """Whether an entry that this process has put is there for others."""
        account = account_of(self.folder)
        return key not in account.unkept and key not in account.libraries

    def complain(self, what: str, error: OSError | Untrusted) -> None:
        """Warns once for each kind of error and what could not be done."""
        kind = error.errno if isinstance(error, OSError) else Untrusted
        fix = "remove what is there, or set DYNACOMPILE_CACHE_DIR to a folder of your own with room in it"
        COMPLAINTS.warn(("store", str(self.folder), what, kind), f"the compile cache {self.folder} can't be {what} ({error}): what it lacks is compiled. {fix}")

    def find(self, key: str) -> bytes | None:
        """The content of an intact entry."""
        path = self.file(key)
        try:
            inside = open_folder(path.parent)
        except FileNotFoundError:
            return None
        except (OSError, Untrusted) as error:
            self.complain("read", error)
            return None
        try:
            descriptor, raw = read_own(path.name, inside)
        except FileNotFoundError:
            return None
        except (OSError, Untrusted) as error:
            self.complain("read", error)
            return None
        finally:
            os.close(inside)
        try:
            content = unsealed(raw, key, self.key)
            if content is not None:
                touch(descriptor)
            return content
        finally:
            os.close(descriptor)

    def get(self, key: str) -> bytes | None:
        """The content, or None where there is no intact entry."""
        content = self.find(key)
        return account_of(self.folder).unkept.get(key) if content is None else content

    def library(self, key: str) -> Library | None:
        """The library that is an intact entry, loaded; None where there is none, or it is no library."""
        content = self.find(key)
        if content is None:
            return account_of(self.folder).libraries.get(key)
        try:
            return load_library(content, self.file(key))
        except BuildError as error:
            COMPLAINTS.warn(("store", "load", str(self.folder)), f"{error}. It is built anew")
            return None

    def put(self, key: str, content: bytes) -> None:
        """Stores `content`, where that is possible. Readers see the old entry or the whole new one."""
        if not self.write(key, content):
            account_of(self.folder).unkept[key] = content

    def put_library(self, key: str, content: bytes) -> Library:
        """Stores a library, where that is possible, and loads it. Raises BuildError where it does not load."""
        kept = self.write(key, content)
        loaded = load_library(content, self.file(key))
        if not kept:
            account_of(self.folder).libraries[key] = loaded
        return loaded

    def write(self, key: str, content: bytes) -> bool:
        """Whether an entry could be written."""
        path = self.file(key)
        raw = sealed(content, key, self.key)
        try:
            inside = open_folder(self.folder)
            try:
                place = open_folder(path.parent.name, inside, make=True)
            finally:
                os.close(inside)
            try:
                write_own(path.name, raw, place)
            finally:
                os.close(place)
        except (OSError, Untrusted) as error:
            self.complain("written", error)
            return False
        self.keep_within_bound(len(raw))
        return True

    def keep_within_bound(self, written: int) -> None:
        """Evicts where the store has outgrown its bound, by what this process knows: at its first write, and whenever it has written a part of it."""
        bound = cache_bytes()
        account = account_of(self.folder)
        account.since += written
        if bound and (not account.counted or account.since * COUNTED_SHARE > bound):
            account.counted, account.since = True, 0
            try:
                evict(self.folder, bound)
            except (OSError, Untrusted) as error:
                self.complain("kept within its bound", error)


@dataclass
class Account:
    """What this process knows of a store's size: whether it has counted, and the bytes written since. unkept, libraries: what could not be written."""

    counted: bool = False
    since: int = 0
    unkept: dict[str, bytes] = field(default_factory=dict)
    libraries: dict[str, Library] = field(default_factory=dict)


@functools.cache
def account_of(folder: Path) -> Account:
    return Account()


def evict(folder: Path, bound: int) -> None:
    """Removes the entries used least recently where all are larger than `bound` bytes together, and temporary files that were left behind. Who has an
    entry open, or loaded, keeps it. Processes that evict at once choose the same entries. Raises OSError, Untrusted."""
    found: list[tuple[float, int, str, str]] = []
    top = open_folder(folder)
    try:
        for level in sorted(os.listdir(top)):
            if len(level) != 2:
                continue
            try:
                inside = open_folder(level, top)
            except (OSError, Untrusted):  # nothing that a store has made; reading names it
                continue
            try:
                found += [(used, size, level, name) for used, size, name in files_in(inside)]
            finally:
                os.close(inside)
        total = sum(size for _, size, _, _ in found)
        if total <= bound:
            return
        for _, size, level, name in sorted(found):
            if total <= bound * KEPT_SHARE:
                return
            inside = open_folder(level, top)
            try:
                drop(name, inside)
            finally:
                os.close(inside)
            total -= size
    finally:
        os.close(top)


def files_in(inside: int) -> list[tuple[float, int, str]]:
    """(when it was used, bytes on the disk, name) of the entries in a folder; what processes that died have left is removed."""
    found, now = [], time.time()
    for name in os.listdir(inside):
        try:
            status = os.stat(name, dir_fd=inside, follow_symlinks=False)
        except OSError:  # another process has removed it
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        if name == LOCK:
            continue
        if not name.startswith("."):
            found.append((min(status.st_mtime, now), max(status.st_blocks * 512, status.st_size), name))
        elif now - status.st_mtime > STALE_SECONDS:
            drop(name, inside)
    return found
