"""Threads that compile and hit at once, in shared buckets and in their own.

python -X dev -m tests.threads.storm --seconds 60
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import greenlet
import torch

import dynacompile
from dynacompile import native


def make(index: int) -> Callable[..., Any]:
    """A function with a code object of its own."""
    namespace: dict[str, Any] = {"torch": torch}
    exec(f"def fn(x, k):\n    y = x * k + {index}\n    return torch.relu(y) if x.size(0) % 2 else y - 1\n", namespace)
    return namespace["fn"]


def storm(seconds: float, threads: int = 8, seed: int = 0, most: int = 0) -> tuple[int, list[str]]:
    """Runs `threads` for so long, each for at most `most` calls (0: no bound). Gives the number of calls, and what went wrong.

    Half of the threads share one isolated region, the others have a region each of the same functions; shapes and constants vary, so that all compile,
    hit, and now and then drop a region or reset one bucket's entries while others run them."""
    functions = [make(i) for i in range(4)]
    options: dict[str, Any] = {"backend": "eager", "dynamic": False, "recompile_limit": 64, "fallback": "none"}
    shared = [dynacompile.compile(fn, isolate_recompiles=True, **options) for fn in functions]
    calls, wrong = [0] * threads, []
    end = time.perf_counter() + seconds
    start = threading.Barrier(threads)

    def work(index: int) -> None:
        rng = random.Random(seed * 100 + index)
        own = [dynacompile.compile(fn, isolate_recompiles=True, **options) for fn in functions]
        start.wait()
        while time.perf_counter() < end and not wrong and not (most and calls[index] >= most):
            at = rng.randrange(len(functions))
            x, k = torch.randn(rng.randint(1, 6), 3), rng.choice((1, 2, 2.5, True))
            run = (shared if index % 2 else own)[at]
            with torch.set_grad_enabled(rng.random() < 0.5):
                try:
                    same = torch.equal(run(x, k), functions[at](x, k))
                except Exception as error:  # noqa: BLE001  (it is reported)
                    wrong.append(f"thread {index}: {type(error).__name__}: {error}")
                    return
            if not same:
                wrong.append(f"thread {index}: function {at} of {tuple(x.shape)}, {k!r} differs from eager")
            calls[index] += 1
            if index % 2 == 0 and rng.random() < 0.002:
                own[at] = dynacompile.compile(functions[at], isolate_recompiles=True, **options)
            if index == 0 and rng.random() < 0.0005:
                dynacompile.reset()

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if not wrong:
        wrong += lost_entries(shared)
    return sum(calls), wrong


def switching(index: int) -> Callable[..., Any]:
    """A function that leaves its greenlet twice."""
    namespace: dict[str, Any] = {"switch": lambda: greenlet.getcurrent().parent.switch()}
    source = f"def fn(x):\n    y = x * {index + 2}\n    switch()\n    y = y.sin() + {index}\n    switch()\n    return y.cos()\n"
    exec(source, namespace)
    return namespace["fn"]


def switched_in_eager(index: int, x: torch.Tensor) -> torch.Tensor:
    return ((x * (index + 2)).sin() + index).cos()


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x + 1)


def juggle(seconds: float, threads: int = 4, seed: int = 0) -> tuple[int, list[str]]:
    """Threads that each have several greenlets inside of regions at once and switch between them at random, drop some, and run plain functions meanwhile;
    beside a thread that runs long programs without the GIL. Gives the number of calls, and what went wrong."""
    options: dict[str, Any] = {"backend": "eager", "dynamic": False, "isolate_recompiles": True, "recompile_limit": 64}
    regions = [dynacompile.compile(switching(i), **options) for i in range(3)]
    long = dynacompile.compile(product, isolate_recompiles=True, options={"reference": True})
    calls, wrong = [0] * (threads + 1), []
    end = time.perf_counter() + seconds

    def note(error: BaseException, index: int) -> None:
        wrong.append(f"thread {index}: {type(error).__name__}: {error}")

    def work(index: int) -> None:
        rng = random.Random(seed * 100 + index)
        running: list[tuple[Any, int, torch.Tensor]] = []
        try:
            while time.perf_counter() < end and not wrong:
                if len(running) < 6:
                    at, x = rng.randrange(len(regions)), torch.randn(rng.randint(1, 4), 3)
                    made = greenlet.greenlet(regions[at])
                    made.switch(x)
                    running.append((made, at, x))
                if native.core().current_region() is not None:
                    wrong.append(f"thread {index} is in a region")
                made, at, x = running.pop(rng.randrange(len(running)))
                if rng.random() < 0.1:
                    del made
                    continue
                result = made.switch()
                if not made.dead:
                    running.append((made, at, x))
                    continue
                calls[index] += 1
                if not torch.equal(result, switched_in_eager(at, x)):
                    wrong.append(f"thread {index}: function {at} of {tuple(x.shape)} differs from eager")
        except Exception as error:  # noqa: BLE001  (it is reported)
            note(error, index)

    def run_long() -> None:
        x = torch.randn(200, 200) / 14
        expected = product(x)
        try:
            while time.perf_counter() < end and not wrong:
                calls[threads] += 1
                if not torch.allclose(long(x), expected, atol=1e-5):
                    wrong.append("a long program differs from eager")
        except Exception as error:  # noqa: BLE001  (it is reported)
            note(error, threads)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)] + [threading.Thread(target=run_long)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(calls), wrong


def lost_entries(runs: list[Any]) -> list[str]:
    """Calls whose entry is there are served by it: they compile nothing."""
    lost = []
    for run in runs:
        for _ in range(2):
            before = [entry.hits for entry in dynacompile.cache_entries(run)]
            run(torch.ones(3, 3), 2)
        after = [entry.hits for entry in dynacompile.cache_entries(run)]
        if len(after) != len(before) or sum(after) != sum(before) + 1:
            lost.append(f"{run}: hits {before} became {after}")
    return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    args = parser.parse_args()
    calls, wrong = storm(args.seconds, args.threads)
    print(f"{calls} calls on {args.threads} threads, {len(wrong)} wrong")
    calls, more = juggle(args.seconds / 2, args.threads)
    print(f"{calls} calls in greenlets and beside them, {len(more)} wrong")
    wrong += more
    raise SystemExit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
