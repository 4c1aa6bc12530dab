"""Prints the comparison table of a finished sweep: `python scripts/sweep.py logs/2026-01-31/12-00-00-sweep`."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from dynacompile.callbacks.sweep import comparison, saved_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the sweep's folder")
    folder = parser.parse_args().folder
    runs = list(saved_runs(folder))
    if not runs:
        raise SystemExit(f"no finished runs in {folder}: it should hold 0/run.json, 1/run.json, ...")
    Console().print(comparison(runs))


if __name__ == "__main__":
    main()
