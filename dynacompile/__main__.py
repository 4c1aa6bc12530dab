"""python -m dynacompile report RUN: the report of a run again, from the files in its folder."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dynacompile.errors import ConfigError

REPORT = "dynacompile.callbacks.report"  # it needs what the extra `train` installs


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m dynacompile", description="The compiler's own commands.")
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="write the HTML report of a run again, from its summary and trace")
    report.add_argument("run", type=Path, help="the run's folder, or its summary.json")
    report.add_argument("--to", type=Path, default=Path("compile_report.html"), help="the new file (default: ./compile_report.html)")
    chosen = parser.parse_args(arguments)
    try:
        print(importlib.import_module(REPORT).report_again(chosen.run, chosen.to))
    except (ConfigError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
