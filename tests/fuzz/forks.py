"""python -m tests.fuzz.forks FIRST LAST [--scenario NAME]: forks the process in the midst of a compile, at one place for each number from FIRST up to LAST.

A compile stops at the chosen place, as those of `interrupts` are; meanwhile another thread forks. The child has that thread alone: it compiles the
program that the other one was at, and another one, differentiates, collects its garbage, and ends by itself within a bounded time. The parent goes on.
The parent sees no CUDA device where it can be without: torch refuses a backward in a child of a process whose autograd keeps threads for devices, and
then has to refuse it in eager, too.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import select
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

import dynacompile
from tests.fuzz.devices import hide_devices
from tests.fuzz.interrupts import SCENARIOS, Case, compiled, places_of, same, source
from tests.fuzz.ticking import interrupted

REFUSAL = "autograd's threading in combination with fork-based multiprocessing"
PATIENCE = float(os.environ.get("FORK_PATIENCE", 60.0))  # seconds for a child
NAMES = ("first_call", "recompile", "break_and_resume", "modes", "module", "ahead_of_time", "backward", "kernels", "checkpointed", "reset", "subclass")


def outcome_of(call: Callable[[], Any]) -> Any:
    """What the call gives, or the text of torch's refusal to differentiate in a child of a process that has device threads."""
    try:
        return call()
    except RuntimeError as error:
        if REFUSAL not in str(error):
            raise
        return REFUSAL


def agree(eager: Callable[[], Any], run: Callable[[], Any]) -> bool:
    wanted, found = outcome_of(eager), outcome_of(run)
    return wanted is found if wanted is REFUSAL or found is REFUSAL else same(wanted, found)


def in_child(case: Case) -> str:
    """What is wrong in a forked process, or nothing."""
    if not agree(case.eager, case.run):
        return "the program that was being compiled differs from eager"
    fn = source("def f(x):\n    return (x.sin() * 2).sum()")
    x = torch.ones(3, requires_grad=True)
    for backend in ("eager", "aot_eager"):
        c = compiled(fn, backend=backend)
        if not agree(lambda: torch.autograd.grad(fn(x), x)[0], lambda: torch.autograd.grad(c(x), x)[0]):  # noqa: B023
            return f"another program differs from eager, with backend={backend!r}"
    if "_dynamo" in vars(torch) and "torch._dynamo" not in sys.modules:
        return "torch has the stand-in for its compiler"

    class Cycle:
        pass

    cycle: Any = Cycle()
    cycle.itself = cycle
    gone = weakref.ref(cycle)
    del cycle
    kept = [[] for _ in range(5000)]  # which sets collections off
    if not gc.isenabled() or gone() is not None and kept and gc.collect() < 0:
        return "garbage is not collected"
    dynacompile.reset()
    return ""


def forked(case: Case) -> str:
    """Forks; what the child says is wrong, or how it ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told = "ended early"
        faulthandler.dump_traceback_later(PATIENCE / 2, exit=True)
        try:
            told = in_child(case)
        except BaseException:  # noqa: BLE001 - it is what is looked for
            told = traceback.format_exc()
        finally:
            os.write(writing, told.encode()[-3000:])
            os._exit(1 if told else 0)
    os.close(writing)
    ready, _, _ = select.select([reading], [], [], PATIENCE)
    if not ready:
        os.kill(child, signal.SIGKILL)
    told = os.read(reading, 3000).decode() if ready else f"the child was silent for {PATIENCE:.0f} s"
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return told or (f"the child ended with {status}" if status else "")


def check(name: str, place: int) -> str:
    """What is wrong in a child that is forked at that place of the scenario, or in its parent."""
    case = SCENARIOS[name]()
    wanted = case.eager()
    told: list[str] = []
    threads = threading.active_count()
    with ThreadPoolExecutor(1) as other:
        outcome = interrupted(case.run, place, None, then=lambda: told.append(other.submit(forked, case).result()))
    if outcome.raised is not None:
        told.append(f"the parent raised {outcome.raised!r}")
    elif not same(wanted, outcome.result):
        told.append("the parent's result differs from eager")
    if threading.active_count() > threads + 1:
        told.append("threads are left")
    wrong = [text for text in told if text]
    return "; ".join([*wrong, outcome.where] if wrong else [])


def run(first: int, last: int, names: list[str]) -> int:
    wrong = 0
    counts = {name: places_of(name) for name in names}
    for number in range(first, last):
        name, turn = names[number % len(names)], number // len(names)
        place = 1 + turn * 2654435761 % counts[name]
        told = check(name, place)
        if told:
            wrong += 1
            print(f"{number} {name} {place}: {told}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.forks", description="Fork in the midst of compiles.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--scenario", action="append", choices=NAMES)
    given = parser.parse_args()
    hide_devices()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    wrong = run(given.first, given.last, given.scenario or list(NAMES))
    print(f"{given.last - given.first} forks, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
