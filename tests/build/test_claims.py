"""Many processes that lack the same kernels: one builds, the others wait and load, whatever becomes of the builder, of its lock and of the store."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dynacompile.build import claims
from dynacompile.build.claims import lock_of, once
from dynacompile.build.store import Store
from dynacompile.complaints import COMPLAINTS

KEYS = ["aa0000001", "aa0000002", "bb0000001", "cc0000001"]


@pytest.fixture(autouse=True)
def complaints_are_new(monkeypatch):
    monkeypatch.setattr(COMPLAINTS, "known", set())


class World:
    """A store, and a file to which every process writes what it builds and what it has found in the end."""

    def __init__(self, folder: Path):
        self.store = folder / "store"
        self.told = folder / "told"
        self.told.touch()

    def tell(self, *words: object) -> None:
        with open(self.told, "a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self, word: str) -> list[str]:
        return [line for line in self.told.read_text().splitlines() if line.split()[0] == word]

    def want(self, keys: Sequence[str], seconds: float = 0.05, before: Callable[[], object] = lambda: None) -> dict[str, bytes]:
        """Gets the entries as a build does. before: called as the building begins."""
        store = Store(self.store)
        found: dict[str, bytes] = {}

        def find(key: str) -> bool:
            content = store.get(key)
            if content is not None:
                found[key] = content
            return content is not None

        def make(missing: Sequence[str]) -> None:
            for key in missing:
                self.tell("builds", key, os.getpid())
            before()
            time.sleep(seconds)
            for key in missing:
                found[key] = key.encode()
                store.put(key, found[key])

        missing = [key for key in keys if not find(key)]
        once(store, missing, find, make, "a kernel")
        return found

    def process(self, keys: Sequence[str], **options) -> int:
        """A process of its own, which tells in the end whether it has all."""
        pid = os.fork()
        if pid:
            return pid
        try:
            found = self.want(keys, **options)
            self.tell("has", all(found[key] == key.encode() for key in keys))
        finally:
            os._exit(0)


def ended(processes: Sequence[int], seconds: float = 30) -> None:
    """Waits for them. None may take longer."""
    end = time.monotonic() + seconds
    for pid in processes:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                for other in processes:
                    os.kill(other, signal.SIGKILL)
                raise AssertionError("a process waits for ever")
            time.sleep(0.01)


def wait_for(world: World, word: str) -> None:
    end = time.monotonic() + 10
    while not world.lines(word):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_each_entry_is_built_by_one_of_many_processes(tmp_path):
    world = World(tmp_path)
    ended([world.process(KEYS[i % 4 :] + KEYS[: i % 4]) for i in range(16)])
    assert world.lines("has") == ["has True"] * 16
    assert sorted(line.split()[1] for line in world.lines("builds")) == KEYS


def test_a_process_takes_over_from_one_that_was_killed(tmp_path):
    world = World(tmp_path)
    dying = world.process(KEYS, seconds=60)
    wait_for(world, "builds")
    others = [world.process(KEYS) for _ in range(4)]
    time.sleep(0.1)
    os.kill(dying, signal.SIGKILL)
    os.waitpid(dying, 0)
    ended(others)
    assert world.lines("has") == ["has True"] * 4
    assert len(world.lines("builds")) == 2 * len(KEYS)


def test_who_has_waited_long_enough_builds_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNACOMPILE_WAIT_SECONDS", "0.2")
    world = World(tmp_path)
    slow = world.process(KEYS[:1], seconds=60)
    wait_for(world, "builds")
    try:
        with pytest.warns(RuntimeWarning, match="another process has held its lock for 0.2 s"):
            assert world.want(KEYS[:1]) == {KEYS[0]: KEYS[0].encode()}
    finally:
        os.kill(slow, signal.SIGKILL)
        os.waitpid(slow, 0)


@pytest.mark.filterwarnings("ignore:.*can't be")
def test_processes_do_not_take_turns_where_nothing_can_be_kept(tmp_path, monkeypatch):
    """As where the disk is full: who waited builds at once, beside the others."""
    monkeypatch.setattr(Store, "write", lambda self, key, content: False)
    world = World(tmp_path)
    begin = time.monotonic()
    ended([world.process(KEYS[:1], seconds=0.5) for _ in range(12)])
    assert world.lines("has") == ["has True"] * 12
    assert time.monotonic() - begin < 6 * 0.5, "one after the other"


def test_turns_are_taken_again_once_there_is_room(tmp_path, monkeypatch):
    world = World(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(Store, "write", lambda self, key, content: False)
        world.want(KEYS[:1])
    with lock_of(Store(world.store), "aa") as lock:
        assert lock is not None and lock.is_in_vain()
    world.want(["aa0000009"])
    with lock_of(Store(world.store), "aa") as lock:
        assert lock is not None and not lock.is_in_vain()


@pytest.mark.filterwarnings("ignore:.*can't be")
@pytest.mark.skipif(os.getuid() == 0, reason="the administrator writes everywhere")
def test_a_store_that_may_not_be_written_is_read(tmp_path):
    world = World(tmp_path)
    world.want(KEYS[:2])
    for folder in (*world.store.iterdir(), world.store):
        folder.chmod(0o500)
    try:
        assert set(world.want(KEYS)) == set(KEYS)
    finally:
        for folder in (world.store, *world.store.iterdir()):
            folder.chmod(0o700)
    assert [line.split()[1] for line in world.lines("builds")] == KEYS


@pytest.mark.filterwarnings("ignore:.*can't be")
@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), OSError(28, "No space left on device"), OSError(37, "No locks available")], ids=str)
def test_a_file_system_without_locks(tmp_path, monkeypatch, error):
    """A read-only one, a full one that has no lock file yet, a network file system that has none."""

    def fails(*_: object) -> None:
        raise error

    world = World(tmp_path)
    world.want(KEYS[:2])
    if "locks" in str(error):
        monkeypatch.setattr(claims.fcntl, "flock", fails)
    else:
        opened = os.open
        monkeypatch.setattr(claims.os, "open", lambda path, *rest, **more: fails() if path == ".lock" else opened(path, *rest, **more))
    assert set(world.want(KEYS)) == set(KEYS)
    assert [line.split()[1] for line in world.lines("builds")] == KEYS


@pytest.mark.filterwarnings("ignore:.*can't be")
def test_the_store_disappears_while_one_builds_and_others_wait(tmp_path):
    world = World(tmp_path)
    first = world.process(KEYS, before=lambda: shutil.rmtree(world.store), seconds=0.3)
    wait_for(world, "builds")
    others = [world.process(KEYS) for _ in range(3)]
    ended([first, *others])
    assert world.lines("has") == ["has True"] * 4


def test_an_error_of_the_builder_is_its_own(tmp_path):
    world = World(tmp_path)

    def fails() -> None:
        raise ValueError("no compiler")

    with pytest.raises(ValueError, match="no compiler"):
        world.want(KEYS[:1], before=fails)
    assert world.want(KEYS[:1]) == {KEYS[0]: KEYS[0].encode()}


def test_processes_that_want_them_in_other_orders_make_no_circle(tmp_path):
    world = World(tmp_path)
    ended([world.process(order) for order in (KEYS, KEYS[::-1], KEYS[2:] + KEYS[:2], KEYS[1:3])])
    assert sorted(line.split()[1] for line in world.lines("builds")) == KEYS
