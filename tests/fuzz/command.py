"""The command line of a topic whose programs are made by number: `python -m tests.fuzz.TOPIC FIRST LAST [options] [--show] [--trace]`."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any


def main(topic: str, description: str, generate: Callable[[int], Any], check: Callable[..., None], **options: str) -> int:
    """Runs the programs, each of which says by `source` and its own text what it is, and tells of those that differ. check: takes a program, a counter and
    the options. options: of the command, with their defaults. Gives the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{topic}", description=description)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    for name, default in options.items():
        parser.add_argument(f"--{name}", default=default)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--trace", action="store_true", help="writes each seed to stderr before its program runs: the last one is that of a crash")
    given = parser.parse_args()
    faulthandler.enable()
    failed, counts = 0, Counter()
    warnings.simplefilter("ignore")
    for seed in range(given.first, given.last):
        if given.trace:
            print(f"seed {seed}", file=sys.stderr, flush=True)
        program = generate(seed)
        if given.show:
            print(f"{program.source}{program}", flush=True)
        try:
            check(program, counts, **{name: getattr(given, name) for name in options})
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:900]}\n{program.source}{program}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ: {dict(sorted(counts.items()))}")
    return 1 if failed else 0
