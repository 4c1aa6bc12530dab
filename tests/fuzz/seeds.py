"""The command line of fuzzers whose programs are seeds: FIRST LAST [--show]."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable


def run_seeds(description: str | None, difference: Callable[[int], str | None], shown: Callable[[int], str]) -> int:
    """Prints what differs in the programs of the seeds, and how many do. difference: what a seed shows compiled and not in eager; shown: its program.

    Returns the exit status: 1 where any differs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--show", action="store_true", help="print each program before it runs")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore", RuntimeWarning)
    failed = 0
    for seed in range(given.first, given.last):
        if given.show:
            print(f"seed {seed}: {shown(seed)}", flush=True)
        told = difference(seed)
        if told:
            failed += 1
            print(f"seed {seed}: {told}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0
