"""python -m tests.fuzz.background FIRST LAST [--reference]: the programs of `language/`, compiled in the background, with calls that do not wait, wait a
little, or wait until all is compiled.

A program is its seed, and so is what each call waits for; where the compile is by then is chance. Results, exceptions, arguments, globals, printed text and
random state are compared with eager's after every call, as `language/` does it.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import time
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from tests.fuzz.language.observe import TooSlow, compare, limited, tell
from tests.fuzz.language.programs import Program, generate

SECONDS = 120
LATE = re.compile(r"^call \d+, globals: .* ends'")
"""What a finalizer writes: an object whose last reference a queued call was given lives until the compile has ended, which docs/background.md says."""
PAUSES = (None, None, 0.0, 0.0, 0.001, 0.003, 0.01, 60.0)  # before a call; None: no pause, 0.0: other threads may run


def in_the_background(rng: random.Random, reference: bool) -> Callable[[Any], Any]:
    """How a function is compiled; its calls wait as `rng` has it."""
    backend: dict[str, Any] = {"backend": "default"} if reference else {"backend": "eager"}
    options = {"background": True, "fallback": "none", **({"reference": True} if reference else {})}

    def wrap(fn: Any) -> Any:
        made = dynacompile.compile(fn, isolate_recompiles=True, options=options, **backend)

        def call(*args: Any, **kwargs: Any) -> Any:
            pause = rng.choice(PAUSES)
            if pause == 60.0:
                dynacompile.wait(pause)
            elif pause is not None:
                time.sleep(pause)
            return made(*args, **kwargs)

        return call

    return wrap


def difference(program: Program, reference: bool = False) -> str | None:
    """What differs between the eager program and the one that is compiled in the background, None if nothing does."""
    try:
        with limited(SECONDS // 2):
            want = tell(program, lambda fn: fn)
    except TooSlow:
        return None
    except Exception:  # noqa: BLE001  (no program)
        return None
    dynacompile.reset()
    try:
        with limited(SECONDS):
            got = tell(program, in_the_background(random.Random(program.seed), reference))
    except TooSlow:
        return "too slow"
    except Exception as error:  # noqa: BLE001  (it is what is looked for)
        return f"outside of a call: {type(error).__name__}: {error}"
    finally:
        torch.set_grad_enabled(True)
    if not dynacompile.wait(60):
        return "compiles do not end"
    told = compare(got, want, reference)
    return None if told is not None and LATE.match(told) else told


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.background", description="Compare random Python programs, compiled in the background and eager."
    )
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--reference", action="store_true", help="through all stages, with interpreted kernels; otherwise capture alone")
    parser.add_argument("--show", action="store_true", help="print the programs that differ")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    start, found = time.monotonic(), 0
    for seed in range(given.first, given.last):
        told = difference(generate(seed), given.reference)
        if told is not None:
            found += 1
            print(f"seed {seed}: {' '.join(told.split())[:600]}", flush=True)
            if given.show:
                print(generate(seed).source, flush=True)
    print(f"{given.last - given.first} programs, {found} differ; {time.monotonic() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
