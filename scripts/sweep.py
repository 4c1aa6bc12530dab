"""Makes the comparison of a sweep again, from its folder alone: the table, sweep.md, sweep.csv and the plot.

`python scripts/sweep.py logs/2026-01-31/12-00-00-sweep`, also while its jobs run, and after it was killed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dynacompile.callbacks.sweep import show_sweep
from dynacompile.callbacks.sweep_runs import FILE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the sweep's folder")
    folder = parser.parse_args().folder
    if not any(folder.rglob(FILE)):
        raise SystemExit(f"error: no jobs in {folder}: it should hold 0/{FILE}, 1/{FILE}, ...")
    show_sweep(folder.absolute())


if __name__ == "__main__":
    main()
