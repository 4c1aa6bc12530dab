"""Programs that set and unset trace and profile functions, in whichever of their functions, and say what these were told.

    python -m tests.fuzz.watchers FIRST LAST [--show]

A program is its seed: a few functions that call each other, with loops, generators, exceptions, tensors and graph breaks, and statements that begin or end to
watch. Two calls are compared with eager: results, and each event with the name and the line of its frame. Frames of capture itself, of compiled code and of
the functions that go on after a graph break are no frames of the program: none of them may be seen by who began to watch inside of the compiled function.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

WORLD = """
import sys, torch, dynacompile

EVENTS = []

def told(frame, event, argument):
    EVENTS.append((event, frame.f_code.co_name, frame.f_lineno))
    return told

def named(frame, event, argument):
    if not event.startswith("c_"):
        EVENTS.append((event, frame.f_code.co_name))

def some(n):
    for k in range(n):
        yield k

def fails(x):
    raise ValueError(len(EVENTS))
"""

BEGIN = ("sys.settrace(told)", "sys.setprofile(named)")
STEPS = (
    *("x = x + 1", "x = x * 2 if flag else x - 1", "dynacompile.graph_break()", "x = sum(some(3)) + x", "x = max([x, x], key=lambda v: 1)"),
    *("x = [v + x for v in range(2)][0]", "for k in some(2):\n        x = x + k", "try:\n        fails(x)\n    except ValueError:\n        x = x + 2"),
)
END = "sys.settrace(None); sys.setprofile(None)"


def source_of(rng: random.Random) -> str:
    """Functions f0, f1, ..., of which each may call those before it; the last is the program."""
    count = rng.randint(2, 4)
    functions = []
    for index in range(count):
        lines = [rng.choice(STEPS) for _ in range(rng.randint(1, 4))]
        for callee in range(index):
            if rng.random() < 0.7:
                lines.insert(rng.randint(0, len(lines)), f"x = f{callee}(x, flag)")
        if index == count - 1 or rng.random() < 0.2:
            place = rng.randint(0, len(lines))
            lines.insert(place, rng.choice(BEGIN))
            lines.insert(rng.randint(place + 1, len(lines)), END)
        functions.append(f"def f{index}(x, flag):\n    " + "\n    ".join(lines) + "\n    return x\n")
    return WORLD + "\n" + "\n".join(functions) + f"\nprogram = f{count - 1}\n"


def outcome(call: Callable[..., Any], world: dict[str, Any], given: Any, flag: bool) -> Any:
    world["EVENTS"].clear()
    try:
        result = call(given, flag)
        shown = repr(result.tolist()) if isinstance(result, torch.Tensor) else repr(result)
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        shown = f"{type(error).__name__}: {error}"
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return shown, list(world["EVENTS"])


def made_world(source: str) -> dict[str, Any]:
    world: dict[str, Any] = {"__name__": "world"}
    exec(compile(source, "<world>", "exec", dont_inherit=True), world)
    return world


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng = random.Random(seed)
    source = source_of(rng)
    worlds = made_world(source), made_world(source)
    dynacompile.reset()
    compiled = dynacompile.compile(worlds[1]["program"], backend="eager", isolate_recompiles=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for flag in (True, rng.random() < 0.5, False):
            given = rng.choice((lambda: 3, lambda: torch.tensor(2)))()
            want, got = outcome(worlds[0]["program"], worlds[0], given, flag), outcome(compiled, worlds[1], given, flag)
            if want != got:
                return f"{source}\n{given} {flag}\n    eager {want}\n    ours  {got}"
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, lambda seed: source_of(random.Random(seed))))
