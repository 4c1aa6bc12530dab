"""python -m tests.fuzz FIRST LAST [--native] [--dtype NAME] [--device cuda]: runs the programs of seeds FIRST up to LAST; prints those that differ."""

from __future__ import annotations

import argparse
import logging

import torch

from tests.fuzz.compare import blame, difference
from tests.fuzz.graphs import generate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Compare random programs, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--native", action="store_true", help="run built kernels, not the reference interpreter")
    parser.add_argument(
        "--dtype", choices=("float32", "float64", "bfloat16", "float16"), help="of the inputs; by default float32 for even seeds, float64 for odd ones"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--crashes", action="store_true", help="report exceptions alone, not differences")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        dtype = getattr(torch, given.dtype) if given.dtype else torch.float64 if seed % 2 else torch.float32
        try:
            told = difference(program, dtype, seed % 3 != 0, given.device, options={"reference": not given.native})
            told = None if given.crashes and told and not told.startswith("not compiled") else told
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            told = f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
        if told:
            failed += 1
            print(f"seed {seed}, {dtype}: {told}\n{program.source}{blame(program, dtype, seed % 3 != 0, given.device)}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
