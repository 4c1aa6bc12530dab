"""A file system that fails at the n-th call, for all n, and odd things in the place of each file: compiling, loading, evicting and reporting go on.

A point is its number: `python -m tests.fuzz.files 0 20000`. The first numbers go through every call of every scenario, with every error, once and from there
on; then each kind of odd thing stands in the place of each file; later numbers combine two faults at random. At each point results are right, nothing is
raised, a cause is warned of once, nothing outside of the folders that are in use changes, no descriptor is left open, and the next process, without the
fault, finds a cache that works.
"""

from __future__ import annotations

import _ctypes
import argparse
import ctypes
import errno
import fcntl
import io
import itertools
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from lightning.pytorch.trainer.states import TrainerFn

import dynacompile
from dynacompile import native, trusted
from dynacompile.build import cpp, store
from dynacompile.build.store import Store
from dynacompile.callbacks.dynamo import DynamoCallback
from dynacompile.callbacks.ledger import read_trace
from dynacompile.compilers import Finished
from dynacompile.complaints import COMPLAINTS
from dynacompile.env import cache_dir
from dynacompile.events import Bus, CacheLooked, Guarded
from dynacompile.observe.trace import jsonl
from tests.fuzz.devices import hide_devices

ERRORS = (errno.ENOSPC, errno.EACCES, errno.EIO, errno.EMFILE, errno.EROFS, errno.ENOENT, errno.ESTALE, errno.EDQUOT)
CALLS = ("open", "read", "write", "rename", "replace", "mkdir", "stat", "lstat", "fstat", "listdir", "unlink", "utime", "link", "fsync", "fchmod", "readlink")
TEXT = 'extern "C" int seven(void* const*) { return 7; }\n'
KEYS = ("aa000000000000", "aa111111111111", "bb000000000000")
SECONDS = 20.0
COMPILE = cpp.compile_unit


class World:
    """The folders of a point: `used`, which the environment names, and `outside`, which nothing may touch, and `elsewhere`, to which a link may lead
    in the place of a folder that the environment names. library: prebuilt bytes."""

    def __init__(self, root: Path):
        self.root, self.used, self.outside, self.elsewhere = root, root / "used", root / "outside", root / "elsewhere"
        self.outside.mkdir(parents=True)
        (self.outside / "precious").write_text("content")
        source = root / "seven.cpp"
        source.write_text(TEXT)
        subprocess.run(["g++", "-shared", "-fPIC", "-o", str(root / "seven.so"), str(source)], check=True)
        self.library = (root / "seven.so").read_bytes()
        self.units: dict[str, bytes] = {}
        self.is_spoilt = False

    def fresh(self) -> None:
        """Folders with nothing in them, and a process that knows nothing."""
        self.is_spoilt = False
        for folder in (self.used, self.elsewhere):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
        (self.elsewhere / "precious").write_text("")
        self.forget()

    def forget(self) -> None:
        COMPLAINTS.known.clear()
        trusted.secret.cache_clear()
        store.account_of.cache_clear()

    def state_outside(self) -> list[tuple]:
        return [(p.name, p.lstat().st_mode, p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in sorted(self.outside.rglob("*"))]

    def compiled(self, text: str, flags: list[str]) -> bytes:
        """What the compiler gives, compiled once for all points."""
        key = f"{text}{flags}"
        if key not in self.units:
            self.units[key] = COMPILE(text, flags)
        return self.units[key]


# scenarios: each does work and checks its results; what it returns checks what is on the disk, when the fault is over


def check_library(library: Any) -> None:
    assert ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(library.address("seven"))(None) == 7
    if library.path.name != "kept":
        _ctypes.dlclose(library.handle)


def build(world: World) -> None:
    """Two entries and a library: stored, or not, and got, as one process does."""
    kept = Store(cache_dir() / "binaries")
    for key in KEYS[:2]:
        if kept.get(key) is None:
            kept.put(key, key.encode() * 50)
        assert kept.get(key) in (key.encode() * 50, None)
    library = kept.library(KEYS[2]) or kept.put_library(KEYS[2], world.library)
    check_library(library)
    store.account_of(kept.folder).libraries.clear()


def eviction(world: World) -> None:
    kept = Store(cache_dir() / "binaries")
    for i in range(4):
        kept.put(f"cc{i}000000000", b"x" * 5000)
    with mock.patch.dict(os.environ, {"DYNACOMPILE_CACHE_BYTES": "12K"}):
        store.account_of(kept.folder).counted = False
        kept.put(KEYS[0], b"y" * 5000)
    assert kept.get(KEYS[0]) in (b"y" * 5000, None)


def core(world: World) -> None:
    """The native core, by a compiler that copies."""

    def copies(command: list[str], doing: str) -> Finished:
        shutil.copyfile(world.root / "seven.so", command[command.index("-o") + 1])
        return Finished(0, "")

    parts = {"run_compiler": copies, "sources": lambda: [world.root / "seven.cpp"], "shared_key": lambda: "key", "headers": list}
    with mock.patch.multiple(native, progress=lambda text: None, **parts):
        content, _ = native.library()
    assert content == world.library


def trace(world: World) -> Check:
    bus, seen = Bus(), []
    bus.subscribe(jsonl(world.used / "traces" / "trace.jsonl"))
    bus.subscribe(seen.append)
    for i in range(3):
        bus.emit(Guarded(region="r", frame=f"f{i}", guards=i, lookup_ns=1.0, cold_ns=2.0))
    assert [e.guards for e in seen] == [0, 1, 2]

    def check() -> None:
        path = world.used / "traces" / "trace.jsonl"
        if path.is_file():
            whole = [line for line in path.read_text(errors="replace").splitlines() if line.startswith("{") and line.endswith("}")]
            assert all(json.loads(line)["frame"].startswith("f") for line in whole)

    return check


def report(world: World) -> Check:
    """A fit without steps: events, summary, page."""
    callback = DynamoCallback({"enabled": False, "measure_steps": 0})
    run, told = world.used / "run", []
    trainer: Any = SimpleNamespace(
        callbacks=[], checkpoint_callbacks=[],
        loggers=[SimpleNamespace(log_dir=str(run), save_dir=None, log_metrics=lambda metrics, step: told.append(metrics))],
        default_root_dir=str(run), is_global_zero=True, callback_metrics={}, logged_metrics={}, progress_bar_metrics={}, global_step=0, world_size=1,
        fast_dev_run=False, accumulate_grad_batches=1, lightning_module=SimpleNamespace(device=torch.device("cpu")), strategy=SimpleNamespace(model=None),
        state=SimpleNamespace(fn=TrainerFn.FITTING), fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=0)),
    )  # fmt: skip
    module: Any = SimpleNamespace(device=torch.device("cpu"), modules=lambda: ())
    callback.on_fit_start(trainer, module)
    callback.ledger(CacheLooked(tier="binaries", key="k", hit=True))
    callback.on_fit_end(trainer, module)
    callback.release()
    assert callback.outcome is not None and callback.outcome.metrics()["cache_hits"] == 1 and told[-1]["compile/cache_hits"] == 1

    def check() -> None:
        if (run / "compile_events.jsonl").is_file():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert len(read_trace(run / "compile_events.jsonl").seen) <= 1
        if (run / "compile_report.html").is_file() and not world.is_spoilt:
            assert (run / "compile_report.html").read_text().rstrip().endswith("</html>")

    return check


def program(world: World) -> None:
    """A function compiled and called; its kernels come from a compiler that remembers."""
    dynacompile.reset()
    with mock.patch.object(cpp, "compile_unit", world.compiled):
        x = torch.arange(6.0)
        assert torch.equal(dynacompile.compile(doubled)(x), x + x + 1)
    dynacompile.reset()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x + 1


Check = Callable[[], None]
SCENARIOS: dict[str, Callable[[World], Check | None]] = {
    "build": build, "eviction": eviction, "core": core, "trace": trace, "report": report, "program": program,
}  # fmt: skip


# faults


class Faults:
    """Counts the calls that concern the folder, and fails those that `fails` names, by number; `torn`: writes write a part first."""

    def __init__(self, folder: Path, error: int = 0, first: int = 0, last: int = 0, torn: bool = False):
        self.folder, self.error, self.first, self.last, self.torn = str(folder), error, first, last, torn
        self.count = 0
        self.real = {name: getattr(os, name) for name in CALLS}
        self.flock, self.io_open = fcntl.flock, io.open

    def concerns(self, args: tuple, kwargs: dict) -> bool:
        for place in (*args[:1], kwargs.get("dir_fd"), kwargs.get("src_dir_fd")):
            if isinstance(place, int) and not isinstance(place, bool):
                try:
                    place = self.real["readlink"](f"/proc/self/fd/{place}")
                except OSError:
                    continue
            if isinstance(place, (str, os.PathLike)) and os.path.isabs(place) and os.fspath(place).startswith(self.folder):
                return True
        return False

    def wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.concerns(args, kwargs):
                self.count += 1
                if self.first <= self.count <= self.last:
                    if name == "write" and self.torn:
                        real(args[0], bytes(args[1])[: len(args[1]) // 2])
                    raise OSError(self.error, os.strerror(self.error), str(args[0]))
            return real(*args, **kwargs)

        return call

    @contextmanager
    def at_work(self) -> Iterator[None]:
        patches = [mock.patch.object(os, name, self.wrapped(name, real)) for name, real in self.real.items()]
        patches += [mock.patch.object(fcntl, "flock", self.wrapped("flock", self.flock)), mock.patch.object(io, "open", self.wrapped("open", self.io_open))]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in patches:
                patch.stop()


ODD: dict[str, Callable[[Path, Any], Any]] = {
    "gone": lambda path, world: None,
    "folder": lambda path, world: path.mkdir(),
    "full folder": lambda path, world: (path.mkdir(), (path / "x").write_text("")),
    "fifo": lambda path, world: os.mkfifo(path),
    "loop": lambda path, world: path.symlink_to(path.name),
    "dangling": lambda path, world: path.symlink_to(world.outside / "nothing"),
    "link to a file": lambda path, world: path.symlink_to(world.outside / "precious"),
    "link to a folder": lambda path, world: path.symlink_to(world.outside),
    "empty": lambda path, world: path.write_bytes(b""),
    "device": lambda path, world: path.symlink_to("/dev/zero"),
    "garbage": lambda path, world: path.write_bytes(os.urandom(3000)),
    "garbage library": lambda path, world: path.write_bytes(world.library[:2000]),
    "open to all": lambda path, world: (path.write_bytes(world.library), path.chmod(0o666)),
    "unreadable": lambda path, world: (path.write_bytes(world.library), path.chmod(0)),
}
KEEPING = {  # what is done to a file or folder that stays
    "half": lambda path, other: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one bit": lambda path, other: path.write_bytes(bytes([(path.read_bytes() or b"x")[0] ^ 1]) + path.read_bytes()[1:]),
    "longer": lambda path, other: path.write_bytes(path.read_bytes() + b"\0"),
    "another's content": lambda path, other: path.write_bytes(other.read_bytes()),
    "others can write": lambda path, other: path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o022),
    "sticky": lambda path, other: path.chmod(0o1777),
    "group can write": lambda path, other: path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o020),
    "of long ago": lambda path, other: os.utime(path, (0, 0)),
    "of tomorrow": lambda path, other: os.utime(path, (0, time.time() + 1e6)),
}


def places(world: World) -> list[Path]:
    """Every file and folder that a scenario has made, the same in each run."""
    return sorted(p for p in world.used.rglob("*") if not p.name.startswith(".new-"))


def spoil(world: World, number: int, kind: str) -> str:
    """Puts something odd in the place of the file or folder of that number."""
    found = places(world)
    if not found:
        return "nothing is there"
    path = found[number % len(found)]
    if kind in KEEPING:
        files = [p for p in found if p.is_file() and p != path]
        if path.is_file() or kind in ("others can write", "sticky", "group can write", "of long ago", "of tomorrow"):
            KEEPING[kind](path, files[number % len(files)] if files else path)
    else:
        was_folder = path.is_dir()
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        is_named = path.name == "trace.jsonl" or kind == "link to a folder" and was_folder and len(path.relative_to(world.used).parts) < 3
        ODD[kind](path, SimpleNamespace(outside=world.elsewhere, library=world.library) if is_named else world)
    return f"{kind} at {path.relative_to(world.used)}"


# points


def environment(world: World) -> dict[str, str]:
    used = str(world.used)
    return {"XDG_CACHE_HOME": f"{used}/xdg", "DYNACOMPILE_CACHE_DIR": f"{used}/cache", "DYNACOMPILE_NATIVE_DIR": f"{used}/native"}


def open_files() -> Counter[str]:
    """What the descriptors of this process stand for. Pipes and the like are numbered, and one is as good as another."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor by which the folder was listed
            found[re.sub(r":\[\d+\]$", "", os.readlink(f"/proc/self/fd/{name}"))] += 1
    return found


def attempt(world: World, scenario: str, faults: Faults | None) -> str:
    """Runs a scenario under the faults; what is wrong, or an empty string."""
    descriptors, before, start = open_files(), world.state_outside(), time.monotonic()
    with warnings.catch_warnings(record=True) as given, mock.patch.dict(os.environ, environment(world)):
        warnings.simplefilter("always")
        try:
            with faults.at_work() if faults is not None else warnings.catch_warnings():
                check = SCENARIOS[scenario](world)
            if check is not None:
                check()
        except dynacompile.errors.ConfigError as error:
            if "chmod go-w" not in str(error) and "belongs to another user" not in str(error):
                return f"ConfigError without a fix: {error}"
        except Exception:  # noqa: BLE001
            return "".join(traceback.format_exc().splitlines(True)[-7:])
    texts = [str(w.message) for w in given if issubclass(w.category, RuntimeWarning)]
    if len(texts) != len(set(texts)):
        return f"warned twice: {texts}"
    if time.monotonic() - start > SECONDS:
        return f"took {time.monotonic() - start:.0f} s"
    if world.state_outside() != before:
        return "touched what is outside"
    left = open_files() - descriptors
    return f"{left.total()} descriptors are left open: {', '.join(sorted(left.elements()))}" if left else ""


def calls(world: World, scenario: str, warm: bool) -> int:
    """How many calls of a scenario can fail."""
    world.fresh()
    if warm:
        attempt(world, scenario, None)
        world.forget()
    faults = Faults(world.used)
    wrong = attempt(world, scenario, faults)
    assert not wrong, wrong
    return faults.count


def numbered(world: World) -> list[tuple]:
    """The points that are not random: (scenario, whether the cache is warm, error, number of the call, whether later calls fail, too), and odd files."""
    points: list[tuple] = []
    for scenario, warm in itertools.product(SCENARIOS, (False, True)):
        for n in range(1, calls(world, scenario, warm) + 1):
            few = ERRORS[n % len(ERRORS) :][:1] + (errno.ENOSPC,) if scenario == "program" else ERRORS
            points += [("fault", scenario, warm, error, n, on) for error in few for on in (False, True)]
    for scenario in SCENARIOS:
        world.fresh()
        attempt(world, scenario, None)
        points += [("odd", scenario, number, kind) for number in range(len(places(world))) for kind in (*ODD, *KEEPING)]
    return points


def point(world: World, points: list[tuple], seed: int) -> str:
    """Runs one point; what is wrong, or an empty string."""
    world.fresh()
    if seed < len(points):
        what, scenario, *rest = points[seed]
    else:
        chosen = random.Random(seed)
        scenario = chosen.choice([s for s in SCENARIOS if s != "program"] * 4 + ["program"])
        what, rest = "both", [chosen.randrange(100), chosen.choice([*ODD, *KEEPING]), chosen.choice(ERRORS), chosen.randrange(1, 90), chosen.random() < 0.4]
    faults, said = None, ""
    if what == "fault":
        warm, error, n, on = rest
        faults = Faults(world.used, error, n, 1 << 30 if on else n, torn=seed % 2 == 0)
        if warm:
            said = attempt(world, scenario, None)
    else:
        said = attempt(world, scenario, None)
        spoilt, world.is_spoilt = spoil(world, *rest[:2]), True
        if what == "both":
            error, n, on = rest[2:]
            faults = Faults(world.used, error, n, 1 << 30 if on else n, torn=seed % 2 == 0)
    world.forget()
    told = f"point {seed} {(what, scenario, *rest)}" + (f": {spoilt}" if what != "fault" else "")
    said = said or attempt(world, scenario, faults)
    if said:
        return f"{told}: {said}"
    world.forget()
    said = attempt(world, scenario, None)
    return f"{told}: the next process: {said}" if said else ""


def run(first: int, last: int, step: int = 1, show: bool = False) -> list[str]:
    """Runs the points, every `step`-th; gives what was wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="files-fuzz-") as folder:
        world = World(Path(folder))
        native.core()
        torch.ones(1, requires_grad=True).sum().backward()  # autograd asks the driver for devices, which opens files of its own for good
        points = numbered(world)
        if show:
            print(f"{len(points)} points are numbered", flush=True)
        for seed in range(first, last, step):
            said = point(world, points, seed)
            if said:
                wrong.append(said)
                print(said, flush=True)
            if show and (seed + 1 - first) % 500 == 0:
                print(f"{seed + 1 - first} points, {len(wrong)} wrong", flush=True)
        dynacompile.reset()
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.files", description="A file system that fails.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--step", type=int, default=1, help="run every STEP-th point")
    given = parser.parse_args()
    hide_devices()
    wrong = run(given.first, given.last, given.step, show=True)
    print(f"{len(range(given.first, given.last, given.step))} points: {len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
