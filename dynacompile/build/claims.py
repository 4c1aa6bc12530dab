"""One process builds what many lack at the same time: the others wait for it, and load.

Processes of one program, as those of torchrun, come to the same kernels together. Whoever gets the lock of an entry's folder builds; the lock is the
system's (flock), so that it ends with its holder, however that ends, and the next process takes over. Locks make builds rare and nothing else: entries are
written whole by any number of processes. So where no lock can be had (a read-only store, a file system without locks, a store that is gone), or none within
the time-out, a process builds for itself. No lock of a kernel is held while that of another one is waited for.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dynacompile.build.store import LOCK, Store
from dynacompile.complaints import COMPLAINTS
from dynacompile.env import wait_seconds
from dynacompile.trusted import Untrusted, checked, open_folder, unlock

OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LONGEST_PAUSE = 0.2


@dataclass(frozen=True)
class Lock:
    """The lock of a folder of entries, open. A file of one byte says that its last holder could not keep what it built, so that it is in vain to take turns."""

    descriptor: int

    def take(self) -> bool:
        """Whether it is this process's now. Raises OSError where the file system has no locks."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_in_vain(self) -> bool:
        return os.fstat(self.descriptor).st_size > 0

    def note(self, kept: bool) -> None:
        if self.is_in_vain() == kept:
            os.ftruncate(self.descriptor, 0 if kept else 1)  # a hole, for which a full disk has room


@contextmanager
def lock_of(store: Store, level: str) -> Iterator[Lock | None]:
    """The lock file of a level of the store, open, and released at the end; None where there can be none."""
    try:
        top = open_folder(store.folder)
        try:
            inside = open_folder(level, top, make=True)
        finally:
            os.close(top)
        try:
            descriptor = checked(os.open(LOCK, OPEN, 0o600, dir_fd=inside), LOCK)
        finally:
            os.close(inside)
    except (OSError, Untrusted):  # what is built can't be kept either, of which the store warns
        yield None
        return
    try:
        yield Lock(descriptor)
    finally:
        unlock(descriptor, LOCK)


def once(store: Store, keys: Sequence[str], find: Callable[[str], bool], make: Callable[[Sequence[str]], None], what: str) -> None:
    """Makes the entries that `find` does not find, each in one of the processes that want it at the same time.

    find: whether an entry is there; the last call for a key that finds it is the one that counts. make: builds entries and puts them into the store. what:
    names them where a process waits for long."""
    levels: dict[str, list[str]] = {}
    for key in keys:
        levels.setdefault(store.level(key), []).append(key)
    others: dict[str, list[str]] = {}
    alone: list[str] = []
    with ExitStack() as held:
        mine: list[tuple[Lock, list[str]]] = []
        for level, group in sorted(levels.items()):
            lock = held.enter_context(lock_of(store, level))
            taken = is_taken(lock)
            if lock is None or taken is None:
                alone += group
            elif taken:
                mine.append((lock, group))
            else:
                others[level] = group
        make_under(store, mine, alone, find, make)
    for level, group in others.items():
        after_others(store, level, group, find, make, what)


def is_taken(lock: Lock | None) -> bool | None:
    """Whether the lock is this process's, None where there is none to be had."""
    try:
        return None if lock is None else lock.take()
    except OSError:
        return None


def make_under(
    store: Store, mine: Sequence[tuple[Lock, Sequence[str]]], alone: Sequence[str], find: Callable[[str], bool], make: Callable[[Sequence[str]], None]
) -> None:
    """What is missing of the locks' keys, which another process may have built before this one had the lock, and of those that have none."""
    wanted = [key for _, group in mine for key in group if not find(key)]
    kept = False
    try:
        if wanted or alone:
            make([*wanted, *alone])
        kept = all(map(store.is_kept, wanted))
    finally:
        for lock, _ in mine:
            if wanted:
                note(lock, kept)


def note(lock: Lock, kept: bool) -> None:
    try:
        lock.note(kept)
    except OSError as error:
        COMPLAINTS.warn(("lock", error.errno), f"a lock of the compile cache can't be written ({error}): processes that lack the same kernels take turns")


def after_others(store: Store, level: str, group: Sequence[str], find: Callable[[str], bool], make: Callable[[Sequence[str]], None], what: str) -> None:
    """Waits until the process that builds at this level has ended or given up, and takes over what it has not built."""
    with lock_of(store, level) as lock:
        if lock is not None and waited_for(lock, what):
            if not lock.is_in_vain():
                return make_under(store, [(lock, group)], (), find, make)
    wanted = [key for key in group if not find(key)]
    if wanted:
        make(wanted)
    return None


def waited_for(lock: Lock, what: str) -> bool:
    """Whether the lock could be had within the time-out."""
    limit, begin, pause = wait_seconds(), time.monotonic(), 0.005
    while True:
        taken = is_taken(lock)
        if taken is not False:
            return bool(taken)
        if time.monotonic() - begin > limit:
            error = TimeoutError(errno.ETIMEDOUT, f"another process has held its lock for {limit:g} s")
            COMPLAINTS.warn(("waited", what), f"{what} is built here, too: {error}. DYNACOMPILE_WAIT_SECONDS says how long is waited")
            return False
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
