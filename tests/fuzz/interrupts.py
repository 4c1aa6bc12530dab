"""python -m tests.fuzz.interrupts FIRST LAST [--scenario NAME] [--every]: interrupts a compile at one place for each number from FIRST up to LAST.

A scenario is a call that compiles. CPython looks for signals at some ten thousand places of it, of the compiler and of torch below it; at the chosen one
an exception is raised, as by a signal handler. It must reach the caller as it is; torch's state must be as before; and the next call must compile, and give
what eager gives. The numbers go through the scenarios and, in a fixed order that looks random, through each one's places; --every takes these in turn.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _python_dispatch, checkpoint

import dynacompile
from dynacompile.events import Event, FrameSkipped
from dynacompile.threads import Helper
from tests.fuzz.ticking import MANY, Outcome, interrupted

SETTING = "TESTS_FUZZ_INTERRUPTS"
CHUNK = 250
CASE_SECONDS = 60.0
"""How long an interrupt may take, with the calls around it; as a rule that is a second. A case that takes longer hangs."""
COUNT_SECONDS = 900.0
"""How long the counting of a scenario's places may take: the first one may build the native core."""
HELPERS = ("dynacompile-build", "dynacompile-helper", "dynacompile-probe")
HANGS = "Timeout ("
"""Begins what faulthandler writes where the time is over."""


class Stopped(BaseException):
    """Of a handler that ends the program."""


class TooLate(Exception):
    """Of a handler that limits a call's time, which the program catches as any other error. No OSError: the standard library takes some of them for
    answers of the system, as where `Path.mkdir` looks whether the folder is there."""


class Broken(RuntimeError):
    """Of a handler; torch's own errors are of its class, too."""


class Plain(Exception):
    """Of a handler."""


ERRORS: tuple[type[BaseException], ...] = (Stopped, TooLate, Broken, Plain)


@dataclass
class Case:
    """A fresh program. run: the call that is interrupted, and later made again. eager: what it gives. entries: how many there are to be after it; None: any.

    compiled: whose entries these are."""

    run: Callable[[], Any]
    eager: Callable[[], Any]
    compiled: Any
    entries: int | None = 1


def source(text: str, **names: Any) -> Callable[..., Any]:
    """A function of code of its own, which no other compile has seen."""
    scope: dict[str, Any] = {"torch": torch, "os": os, "dynacompile": dynacompile, "__name__": "program", **names}
    exec(compile(text, "<program>", "exec"), scope)
    return scope["f"]


def compiled(fn: Callable[..., Any], **options: Any) -> Any:
    return dynacompile.compile(fn, **{"isolate_recompiles": True, "backend": "eager", **options})


def first_call() -> Case:
    fn = source("def f(x, y):\n    z = torch.sin(x) * 2 + y\n    return z, [z.sum(), x.shape[0]]")
    c, x, y = compiled(fn), torch.ones(3), torch.ones(3)
    return Case(lambda: c(x, y), lambda: fn(x, y), c)


def recompile() -> Case:
    fn = source("def f(x, k):\n    return (x * k).relu() if k > 1 else x")
    c, x = compiled(fn), torch.ones(3)
    c(x, 1)
    return Case(lambda: c(x, 2), lambda: fn(x, 2), c, 2)


def dynamic() -> Case:
    fn = source("def f(x):\n    return x.reshape(-1, 2).sum(0) + x.shape[0]")
    c = compiled(fn)
    c(torch.ones(4))
    x = torch.ones(6)
    return Case(lambda: c(x), lambda: fn(x), c, 2)


def break_and_resume() -> Case:
    fn = source("def f(x):\n    y = x * 2\n    dynacompile.graph_break()\n    with torch.no_grad():\n        z = y + 1\n    return z.cos()")
    c, x = compiled(fn), torch.ones(3, requires_grad=True)
    return Case(lambda: c(x), lambda: fn(x), c, 2)


def modes() -> Case:
    fn = source("def f(x):\n    with torch.autocast('cpu', torch.bfloat16):\n        y = x @ x\n    with torch.no_grad():\n        return y.float() + 1")
    c, x = compiled(fn), torch.eye(3, requires_grad=True)
    return Case(lambda: c(x), lambda: fn(x), c)


def default_device() -> Case:
    fn = source("def f(x):\n    return x * torch.arange(3) + torch.zeros(3)")
    c, x = compiled(fn), torch.ones(3)

    def run() -> Any:
        with torch.device("cpu"):
            return c(x)

    return Case(run, lambda: fn(x), c)


def refused() -> Case:
    """Errors that capture takes for facts."""
    fn = source(
        "def f(x):\n    try:\n        int('x')\n    except ValueError:\n        y = x + 1\n    try:\n        y = y @ torch.ones(7)\n    except RuntimeError:\n"
        "        y = y * 3\n    return y"
    )
    c, x = compiled(fn), torch.ones(3)
    return Case(lambda: c(x), lambda: fn(x), c, None)


def module() -> Case:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.LayerNorm(4))
    fn = source("def f(x):\n    return net(x).sum()", net=net)
    c, x = compiled(fn), torch.ones(2, 3)
    return Case(lambda: c(x), lambda: fn(x), c)


def ahead_of_time() -> Case:
    fn = source("def f(x, w):\n    return torch.nn.functional.gelu(x @ w).softmax(-1)")
    c, x, w = compiled(fn, backend="aot_eager"), torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)
    return Case(lambda: c(x, w), lambda: fn(x, w), c)


def backward() -> Case:
    """The backward is compiled at its first use."""
    fn = source("def f(x, w):\n    return ((x @ w).relu() ** 2).sum()")
    c, x, w = compiled(fn, options={"reference": True}, backend="default"), torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)
    c(x, w)
    return Case(lambda: torch.autograd.grad(c(x, w), w), lambda: torch.autograd.grad(fn(x, w), w), c)


def kernels() -> Case:
    global built
    built += 1
    fn = source(f"def f(x):\n    return torch.sin(x) * {built % 7 + 0.5} + {built}")
    c, x = compiled(fn, backend="default"), torch.ones(9)
    return Case(lambda: c(x), lambda: fn(x), c)


built = os.getpid() * 1000


def tuning() -> Case:
    fn = source("def f(x):\n    return (x.exp() * 2).sum(-1)")
    c, x = compiled(fn, backend="default", mode="max-autotune-no-cudagraphs", options={"reference": True}), torch.ones(4, 33)
    return Case(lambda: c(x), lambda: fn(x), c)


def guards() -> Case:
    """A call that an entry serves, whose guards call Python."""
    fn = source("def f(x):\n    return x * 2 if os.environ.get('TESTS_FUZZ_INTERRUPTS') == '1' else x")
    os.environ[SETTING] = "1"
    c, x = compiled(fn), torch.ones(3)
    c(x)
    return Case(lambda: c(x), lambda: fn(x), c)


def checkpointed() -> Case:
    fn = source("def f(x):\n    return checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False).sum()", checkpoint=checkpoint.checkpoint)
    c, x = compiled(fn, backend="aot_eager"), torch.ones(3, requires_grad=True)
    return Case(lambda: torch.autograd.grad(c(x), x), lambda: torch.autograd.grad(fn(x), x), c, None)


def in_place() -> Case:
    net = torch.nn.Linear(3, 3)

    def run() -> Any:
        dynacompile.compile(net, inplace=True, isolate_recompiles=True, backend="eager")
        try:
            return net(torch.ones(2, 3))
        finally:
            dynacompile.restore(net)

    return Case(run, lambda: net(torch.ones(2, 3)), None, None)


def reset() -> Case:
    fn = source("def f(x):\n    return x.tanh() + 1")
    c, x = compiled(fn), torch.ones(3)
    c(x)

    def run() -> Any:
        dynacompile.reset()
        return c(x)

    return Case(run, lambda: fn(x), c)


def user_backend() -> Case:
    fn = source("def f(x):\n    return x.tanh() + 1")
    c, x = compiled(fn, backend=lambda graph, inputs: graph.forward), torch.ones(3)
    return Case(lambda: c(x), lambda: fn(x), c)


def subclass() -> Case:
    class Marked(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    fn = source("def f(x):\n    return (x + 1).sin()")
    c, x = compiled(fn), torch.ones(3).as_subclass(Marked)
    return Case(lambda: c(x), lambda: fn(x), c, None)


def in_the_background() -> Case:
    """The call that queues a compile, the waiting for it, and the call that finds its entry."""
    fn = source("def f(x, y):\n    z = torch.cos(x) * 2 + y\n    return z, [z.sum(), x.shape[0]]")
    c, x, y = compiled(fn, options={"background": True}), torch.ones(3), torch.ones(3)

    def run() -> Any:
        c(x, y)
        dynacompile.wait()
        return c(x, y)

    return Case(run, lambda: fn(x, y), c)


def varying() -> Case:
    """Numbers in lists, in texts and where functions take doubles, at their second values."""
    fn = source("def f(x, i, p):\n    y = torch.nn.functional.celu(x, p) * torch.tensor([i, i + 1.0]).sum()\n    return y, f'step {i}: {round(p, 2)}'")
    c, x = compiled(fn), torch.linspace(-1, 1, 4)
    c(x, 1, 0.25)
    return Case(lambda: c(x, 2, 0.5), lambda: fn(x, 2, 0.5), c, 2)


SCENARIOS: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        first_call,
        recompile,
        dynamic,
        break_and_resume,
        modes,
        refused,
        module,
        ahead_of_time,
        backward,
        kernels,
        tuning,
        guards,
        checkpointed,
        in_place,
        reset,
        user_backend,
        subclass,
        in_the_background,
        default_device,
        varying,
    )
}
ABORTS = ("instance of 'python_error'", "instance of 'pybind11::error_already_set'")
"""What is printed where torch asks a fake for its device, by Python, in a function that may not throw (`Node::add_input_metadata`)."""
SLOW = frozenset({"kernels", "tuning"})


def torch_state() -> dict[str, Any]:
    """What a compile must leave as it was."""
    casts = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    tracing = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    torch._C._autograd._saved_tensors_hooks_set_tracing(tracing)
    return {
        "dispatch modes": [type(m).__name__ for m in _python_dispatch._get_current_dispatch_mode_stack()],
        "mode flags": [v for k, v in vars(_python_dispatch).items() if k.startswith("_is_in_")],
        "function modes": torch._C._len_torch_function_stack(),
        "function state": str(torch._C._get_torch_function_state()),
        "functorch": torch._C._functorch.maybe_current_level(),
        "keys": (str(torch._C._dispatch_tls_local_include_set()), str(torch._C._dispatch_tls_local_exclude_set())),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_multithreading_enabled()),
        "autocast": (casts, torch.is_autocast_cache_enabled(), nesting),
        "hooks": tracing,
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory),
        "lifting": torch._C._only_lift_cpu_tensors(),
        "garbage": sys.modules["gc"].isenabled(),
        "warnings": list(warnings.filters),
        "dynamo": type(vars(torch).get("_dynamo")).__name__,
        "log": logging.getLogger("torch._subclasses.fake_tensor").disabled,
        "main thread": threading.main_thread().is_alive(),
        "threads": sorted(t.name for t in threading.enumerate() if not t.name.startswith(HELPERS)),
        "files": len(os.listdir("/proc/self/fd")),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.allclose(left, right, rtol=1e-4, equal_nan=True)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return left == right


DROP = ("_static_eval_sym_bool symbolic_shapes.py",)
"""Functions of torch that go on whatever Exception is raised in them."""


def check(name: str, place: int, error: type[BaseException], handler: str = "") -> tuple[str, Outcome]:
    """What is wrong after that interrupt, or nothing."""
    case = SCENARIOS[name]()
    wanted = case.eager()
    events: list[Event] = []
    before = torch_state()
    raised = error("late")
    outcome = interrupted(case.run, place, raised)
    dynacompile.wait()
    while Helper.running:  # builds that the interrupted call began
        time.sleep(0.001)
    after = torch_state()
    wrong = []
    if outcome.raised is None and issubclass(error, Exception) and any(name in outcome.where for name in DROP):
        outcome.ignored.append("torch drops what is raised there")
    if outcome.fired and outcome.raised is not raised and not outcome.ignored:
        wrong.append(f"the exception became {outcome.raised!r}" if outcome.raised is not None else "the exception was swallowed")
    if not outcome.fired and outcome.raised is not None:
        wrong.append(f"raised {outcome.raised!r} by itself")
    outcome.raised = None
    raised.__traceback__ = None
    later = torch_state()
    wrong += [f"{what}: {value} became {after[what]}" for what, value in before.items() if after[what] != value]
    wrong += [f"{what}, later: {value} became {later[what]}" for what, value in after.items() if later[what] != value and what != "files"]
    end = dynacompile.subscribe(events.append)
    try:
        result = case.run()
    except BaseException as bad:  # noqa: BLE001 - it is what is looked for
        wrong.append(f"the next call raises {type(bad).__name__}: {str(bad)[:200]}")
    else:
        wrong += [] if same(wanted, result) else [f"the next call gives {result}, eager {wanted}"]
        wrong += [f"the next call is left to Python: {e.reason}" for e in events if isinstance(e, FrameSkipped)]
        found = len(dynacompile.cache_entries(case.compiled)) if case.entries is not None else None
        wrong += [f"{found} entries, not {case.entries}"] if found != case.entries else []
    finally:
        end()
    return "; ".join([*wrong, *([outcome.where] if wrong else [])]), outcome


def places_of(name: str) -> int:
    """How many places a call of the scenario has, once caches are warm."""
    return max(check(name, MANY, Stopped)[1].places for _ in range(3))


def points(first: int, last: int, names: list[str], every: bool) -> list[tuple[str, int, type[BaseException]]]:
    found, counts = [], {}
    for name in names:
        faulthandler.dump_traceback_later(COUNT_SECONDS, exit=True)
        counts[name] = places_of(name)
    for number in range(first, last):
        name, turn = names[number % len(names)], number // len(names)
        place = turn if every else turn * 2654435761
        found.append((name, 1 + place % counts[name], ERRORS[turn % len(ERRORS)]))
    return found


def work(first: int, last: int, names: list[str], every: bool) -> None:
    """What a child does. Where a case hangs, also with the interpreter's lock held, faulthandler's thread writes the stacks of all threads and ends it."""
    faulthandler.enable()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    for number, (name, place, error) in enumerate(points(first, last, names, every), first):
        print(f"begin {number} {name} {place} {error.__name__}", flush=True)
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        told, outcome = check(name, place, error)
        ignored = f"ignored {outcome.ignored}" if outcome.ignored else ""
        ignored += outcome.where if ignored else ""
        print(f"end {number} {1 if told else 0} {' '.join((told or ignored).split())[:1500]}", flush=True)


def watch(first: int, last: int, names: list[str], every: bool) -> int:
    """Runs children over the numbers; prints and counts what is wrong, a child that ended or hung included. What finalizers dropped is counted alone,
    and so are aborts of torch's own."""
    wrong = ignored = aborts = 0
    while first < last:
        options = [f"--scenario={name}" for name in names] + (["--every"] if every else [])
        command = [sys.executable, "-m", "tests.fuzz.interrupts", str(first), str(min(last, first + CHUNK)), "--child", *options]
        child = subprocess.run(command, capture_output=True, text=True)
        at, begun = first - 1, ""
        for line in child.stdout.splitlines():
            word, _, rest = line.partition(" ")
            if word == "begin":
                begun = rest
            elif word == "end":
                number, bad, *told = rest.split(" ", 2)
                at = int(number)
                wrong += int(bad)
                ignored += bad == "0" and bool(told) and bool(told[0])
                if bad == "1":
                    print(f"{begun}: {told[0]}", flush=True)
        if child.returncode:
            at += 1
            hung = child.stderr.find(HANGS)
            known = hung < 0 and any(text in child.stderr for text in ABORTS)
            aborts, wrong = aborts + known, wrong + (not known)
            told = f"the process ended with {child.returncode}: {' '.join(child.stderr.split())[:400]}" if hung < 0 else f"hangs:\n{child.stderr[hung:]}"
            print(f"{begun or 'counting places'}: {told}", flush=True)
            if not begun:
                break
        first = at + 1
    print(f"{ignored} were raised where Python drops exceptions, as in finalizers; at {aborts}, torch ended the process")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.interrupts", description="Interrupt compiles at every place.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--scenario", action="append", choices=tuple(SCENARIOS))
    parser.add_argument("--every", action="store_true", help="take the places of each scenario in turn")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.scenario or list(SCENARIOS)
    if given.child:
        work(given.first, given.last, names, given.every)
        return 0
    wrong = watch(given.first, given.last, names, given.every)
    print(f"{given.last - given.first} interrupts, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
