"""Tells what a trace holds: `python scripts/report.py logs/2026-01-31/12-00-00`, the folder of a run or its `compile_events.jsonl`, or a file of
DYNACOMPILE_TRACE."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dynacompile.callbacks.ledger import Ledger, read_trace

COUNTS = ("graphs", "graph_breaks", "recompiles", "seconds")


def tables(ledger: Ledger) -> list[Table]:
    """The compiled regions with their counts, and the events in order."""
    regions = Table("region", *COUNTS, title="compiled regions", title_justify="left")
    for name, counts in ledger.per_region().items():
        regions.add_row(Text(name), *(f"{counts.get(count, 0):.4g}" for count in COUNTS))
    happened = Table("batch", "event", "region", "what", title="events", title_justify="left")
    for batch, event, region, what in ledger.rows():
        happened.add_row(str(batch), event, Text(region), Text(what))
    return [regions, happened]


def latest(folder: Path) -> Path | None:
    """The trace in a folder, or below it, that was written last."""
    return max(folder.rglob("compile_events*.jsonl"), key=lambda path: path.stat().st_mtime, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    given = parser.parse_args().trace
    trace = latest(given) if given.is_dir() else given
    if trace is None or not trace.is_file():
        raise SystemExit(f"error: {given} is no trace, and no folder of a run that has one: name `logs/DATE/TIME`, or its compile_events.jsonl")
    for table in tables(read_trace(trace)):
        Console().print(table)


if __name__ == "__main__":
    main()
