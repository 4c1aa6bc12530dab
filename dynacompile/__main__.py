"""The compiler's own commands: `python -m dynacompile explain` tells what is made of a call, `report` and `sweep` write the pages of a run
and of a sweep again."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dynacompile import explain_command
from dynacompile.errors import DynacompileError

REPORT, SWEEP = "dynacompile.callbacks.report", "dynacompile.callbacks.sweep"  # they need what the extra `train` installs


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m dynacompile", description="The compiler's own commands.")
    commands = made.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="write the HTML report of a run again, from its summary and trace")
    report.add_argument("run", type=Path, help="the run's folder, or its summary.json")
    report.add_argument("--to", type=Path, default=Path("compile_report.html"), help="the new file (default: ./compile_report.html)")
    sweep = commands.add_parser("sweep", help="make the table, plot and page of a sweep again, also while its jobs run")
    sweep.add_argument("folder", type=Path, help="the sweep's folder")
    explain_command.add_arguments(commands.add_parser("explain", help="tell what the compiler makes of a call: graphs, breaks, guards, kernels, memory"))
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = parser().parse_args(arguments)
    try:
        match chosen.command:
            case "explain":
                print(explain_command.run(chosen))
            case "report":
                print(importlib.import_module(REPORT).report_again(chosen.run, chosen.to))
            case "sweep":
                importlib.import_module(SWEEP).show_again(chosen.folder)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough; what the exit would flush goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (DynacompileError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
