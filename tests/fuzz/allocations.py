"""Allocations of the native core that fail: the n-th of each step of a program's life, for all n, alone and with all that follow.

    python -m tests.fuzz.allocations 0 20000

A point is a step, the number of the allocation that fails, and whether all later ones fail too. Where a step compiles, garbage is collected every few
objects. After the point, the step either gave what eager gives or raised, nothing was aborted, a collection of garbage went well, no collection and no
compile is under way, the same step gives what eager gives, and the arguments have as many references as before.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import dynacompile
from dynacompile import native
from tests.fuzz.devices import NONE
from tests.fuzz.interrupts import torch_state

SOURCE = Path(__file__).with_name("failing_new.cpp")
ROOT = SOURCE.parents[2]
LIBRARY = "DYNACOMPILE_FAILING_NEW"
CHILD_POINTS = 400
OFTEN = 40  # objects between two collections


class Failing:
    """The preloaded library."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.PyDLL(path)
        self.library.failing_seen.restype = self.library.failing_failed.restype = ctypes.c_long
        self.watched = native.core().__loader__.path.encode()  # the name that the loader was given, which is that of a descriptor

    def run(self, step: Callable[[], Any], number: int = -1, *, onward: bool = False, collecting: bool = False) -> tuple[Any, str]:
        """The step's result, and what it raised; collecting: garbage, often."""
        usual = gc.get_threshold()
        if collecting:
            gc.set_threshold(OFTEN, 1 << 30)
        self.library.failing_arm(self.watched, ctypes.c_long(number), int(onward))
        try:
            return step(), ""
        except (MemoryError, RuntimeError) as error:
            self.library.failing_disarm()
            return None, f"{type(error).__name__}: {error}"
        finally:
            self.library.failing_disarm()
            gc.set_threshold(*usual)

    @property
    def seen(self) -> int:
        return self.library.failing_seen()

    @property
    def failed(self) -> int:
        return self.library.failing_failed()


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(helper(x)))).sin()


def function(x: torch.Tensor, y: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.sin(x) * factor + y
    return z, z.sum(0)


def broken(x: torch.Tensor, *more: torch.Tensor, scale: int = 2) -> torch.Tensor:
    y = x * scale
    dynacompile.graph_break()
    return y + sum(more)


def writes(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x[1:] * 2


@dataclass
class Step:
    """name; prepare: what is done before, with no failures; it gives what is run and compared. cheap: no compile is in it."""

    name: str
    prepare: Callable[[], Callable[[], Any]]
    eager: Callable[[], Any]
    cheap: bool
    arguments: tuple[torch.Tensor, ...] = ()


def steps() -> list[Step]:
    options: dict[str, Any] = {"isolate_recompiles": True, "options": {"reference": True}}
    x, y, wide = torch.linspace(-1, 1, 12).reshape(3, 4), torch.ones(3, 4), torch.ones(7, 4)

    def trained(call: Callable[[torch.Tensor], torch.Tensor], model: Model) -> list[torch.Tensor]:
        model.zero_grad()
        call(x).sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def eager_gradients() -> list[torch.Tensor]:
        model = Model()
        return trained(model, model)

    def compiled(fn: Callable[..., Any], *calls: tuple, **more: Any) -> Any:
        made = dynacompile.compile(fn, **(options | more))
        for args in calls:
            made(*args)
        return made

    def hit(fn: Callable[..., Any], *args: Any, **more: Any) -> Callable[[], Callable[[], Any]]:
        def prepare() -> Callable[[], Any]:
            made = compiled(fn, args, args, **more)
            return lambda: made(*args)

        return prepare

    def several() -> Callable[[], Any]:
        made = compiled(function, *((x, y, k) for k in (1, 2.5, True, 7)), dynamic=False)
        return lambda: made(x, y, 2.5)

    def missed() -> Callable[[], Any]:
        made = compiled(function, (x, y, 2.0))
        return lambda: made(wide, wide, 3)

    def first() -> Callable[[], Any]:
        made = dynacompile.compile(function, **options)
        return lambda: made(x, y, 2.0)

    def chosen() -> Callable[[], Any]:
        made = compiled(function, (x, y, 2.0), dispatch=lambda x, y, k: k)
        return lambda: made(x, y, 2.0)

    def backward() -> Callable[[], Any]:
        model = Model()
        made = compiled(model)
        trained(made, model)
        return lambda: trained(made, model)

    def first_backward() -> Callable[[], Any]:
        model = Model()
        made = compiled(model, (x,))
        return lambda: trained(made, model)

    def dropped() -> Callable[[], Any]:
        made = [compiled(broken, (x, y), (wide, wide))]

        def drop() -> Any:
            made.clear()
            return broken(x, y)

        return drop

    def entries() -> Callable[[], Any]:
        own = types.FunctionType(function.__code__.replace(), globals())  # with entries of its own alone, so that their number is the same each time
        made = compiled(own, (x, y, 2.0), (wide, wide, 2.0))
        return lambda: len(dynacompile.cache_entries(made)) and own(x, y, 2.0)

    def reset() -> Callable[[], Any]:
        made = compiled(function, (x, y, 2.0))

        def run() -> Any:
            native.core().reset_code(function.__code__)
            native.core().remove_bucket(function.__code__, 0)
            return function(x, y, 2.0)

        return lambda: made and run()

    model = Model()
    step = functools.partial(Step, arguments=(x, y, wide))
    return [
        step("hit", hit(function, x, y, 2.0), lambda: function(x, y, 2.0), True),
        step("hit of a model", lambda: (lambda made: lambda: made(x))(compiled(model, (x,))), lambda: model(x), True),
        step("hit with a break", hit(broken, x, y, y), lambda: broken(x, y, y), True),
        step("hit among several", several, lambda: function(x, y, 2.5), True),
        step("hit that writes", lambda: (lambda made: lambda: made(x.clone()))(compiled(writes, (x.clone(),))), lambda: writes(x.clone()), True),
        step("hit of symbolic sizes", hit(function, wide, wide, 2.0, dynamic=True), lambda: function(wide, wide, 2.0), True),
        step("dispatched", chosen, lambda: function(x, y, 2.0), True),
        step("backward", backward, eager_gradients, True),
        step("entries", entries, lambda: function(x, y, 2.0), True),
        step("reset", reset, lambda: function(x, y, 2.0), True),
        step("dropped", dropped, lambda: broken(x, y), True),
        step("first call", first, lambda: function(x, y, 2.0), False),
        step("miss", missed, lambda: function(wide, wide, 3), False),
        step("first backward", first_backward, eager_gradients, False),
        step("first call with a break", lambda: (lambda made: lambda: made(x, y))(dynacompile.compile(broken, **options)), lambda: broken(x, y), False),
    ]


def leaves(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else list(value)


def differs(result: Any, expected: Any) -> bool:
    return len(leaves(result)) != len(leaves(expected)) or any(not torch.allclose(a, b) for a, b in zip(leaves(result), leaves(expected), strict=True))


@dataclass(frozen=True)
class Point:
    step: int
    number: int
    onward: bool


def points(failing: Failing, all_steps: list[Step], cheap_only: bool = False) -> list[Point]:
    """All of them: the cheap steps' first. A step that ran after all others allocates what it always does: its function's entries are shared."""
    found = []
    for step in all_steps:
        if step.cheap:
            step.prepare()()
    for index, step in enumerate(all_steps):
        if cheap_only and not step.cheap:
            continue
        run = step.prepare()
        if step.cheap:
            run()
            run = step.prepare()
        failing.run(run, collecting=not step.cheap)
        found += [Point(index, number, onward) for number in range(failing.seen) for onward in (False, True)]
    return found


def collects() -> bool:
    """Collects all garbage; whether that was done."""

    class Cycle:
        pass

    cycle: Any = Cycle()
    cycle.itself = cycle
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    return gone() is None


def references(step: Step) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in step.arguments]


def check(failing: Failing, step: Step, point: Point) -> str | None:
    """What is wrong at a point; None: nothing."""
    run = step.prepare()
    expected = step.eager()
    references_before, before = references(step), torch_state()
    result, raised = failing.run(run, point.number, onward=point.onward, collecting=not step.cheap)
    if not raised and differs(result, expected):
        return f"gave {result}, eager {expected}"
    if raised and not raised.startswith("MemoryError") and "bad_alloc" not in raised:
        return f"raised {raised}"
    del result
    if not collects():
        return "the collector takes itself to be at work"
    if native.core().is_compiling_frame() or native.core().current_region() is not None:
        return "a compile or a region is taken to be open"
    later, after = references(step), torch_state()
    if later != references_before:
        return f"references to the arguments: {references_before}, then {later}"
    changed = [f"{what}: {value} became {after[what]}" for what, value in before.items() if after[what] != value]
    again = run()
    if differs(again, expected):
        return f"after it, gave {again}, eager {expected}"
    return "; ".join(changed) or None


def child(first: int, last: int, cheap_only: bool) -> None:
    failing = Failing(os.environ[LIBRARY])
    all_steps = steps()
    every = points(failing, all_steps, cheap_only)
    gc.freeze()  # so that collections look at what came since
    print("points", len(every), flush=True)
    for index in range(first, min(last, len(every))):
        point = every[index]
        print("at", index, all_steps[point.step].name, point.number, point.onward, flush=True)
        told = check(failing, all_steps[point.step], point)
        if not failing.failed:
            print("idle", flush=True)
        if told:
            print("wrong", told.replace("\n", " ")[:300], flush=True)
        if index % 100 == 0:
            dynacompile.reset()
            gc.collect()
    print("kept", references_kept(failing, all_steps), flush=True)


def references_kept(failing: Failing, all_steps: list[Step]) -> int:
    """References to the arguments that failures of a hit leave behind."""
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    made = dynacompile.compile(function, isolate_recompiles=True, options={"reference": True})
    made(x, y, 2.0)
    failing.run(lambda: made(x, y, 2.0))
    count, before = failing.seen, sys.getrefcount(x)
    for number in range(count):
        failing.run(lambda: made(x, y, 2.0), number)
    gc.collect()
    return sys.getrefcount(x) - before


def build(folder: Path) -> Path:
    """The library that is preloaded. Raises FileNotFoundError without a compiler."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise FileNotFoundError("no C++ compiler")
    path = folder / "failing_new.so"
    subprocess.run([compiler, "-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-o", str(path), str(SOURCE), "-ldl"], check=True)
    return path


def run_child(library: Path, first: int, last: int, cheap_only: bool) -> tuple[int, int, list[str]]:
    """How many points there are in all, at how many from first to last nothing failed since the step made fewer allocations than when they were counted
    (indices are keyed by addresses, and collections of garbage come where they may), and what went wrong."""
    env = dict(os.environ | NONE, LD_PRELOAD=str(library), PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), OMP_NUM_THREADS="1")
    env[LIBRARY] = str(library)
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", "tests.fuzz.allocations", str(first), str(last), "--child"]
    done = subprocess.run(command + ["--cheap"] * cheap_only, env=env, capture_output=True, text=True, cwd=ROOT)
    at, count, idle, wrong = "start", 0, 0, []
    for line in done.stdout.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "points":
            count = int(rest)
        elif kind == "at":
            at = rest
        elif kind == "idle":
            idle += 1
        elif kind == "wrong":
            wrong.append(f"{at}: {rest}")
        elif kind == "kept" and rest != "0":
            wrong.append(f"{rest} references are left")
    if done.returncode:
        wrong.append(f"{at}: ended with {done.returncode}: {done.stderr[-1500:]}")
    return count, idle, wrong


def run(first: int, last: int, cheap_only: bool = False) -> Iterator[tuple[int, int, list[str]]]:
    """(points at which an allocation failed, points there are, what went wrong) of each child."""
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for start in range(first, last, CHILD_POINTS):
            end = min(start + CHILD_POINTS, last)
            count, idle, wrong = run_child(library, start, end, cheap_only)
            yield max(min(end, count) - start - idle, 0), count, wrong
            if end >= count:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--cheap", action="store_true", help="only steps without a compile")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.first, args.last, args.cheap)
    total, wrong = 0, []
    for ran, count, told in run(args.first, args.last, args.cheap):
        total += ran
        wrong += told
        print(f"an allocation failed at {total} of {count} points, {len(wrong)} wrong", *told, sep="\n", flush=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
