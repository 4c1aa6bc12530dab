"""The HTML report of one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dynacompile.callbacks.ledger import COLUMNS
from dynacompile.callbacks.outcome import Outcome, facts
from dynacompile.quoting import printable_lines
from dynacompile.run_files import write_whole


@dataclass(frozen=True)
class Part:
    """A module or step that was to be compiled, or another compiled function of the program. runs: "compiled", or "as Python" and why."""

    name: str
    runs: str
    counts: Mapping[str, float]


def parts_of(outcome: Outcome) -> list[Part]:
    counts = outcome.ledger.per_region()
    states = dict.fromkeys(outcome.compiled, "compiled") | {name: f"as Python: {reason}" for name, reason in outcome.eager.items()}
    others = [name for name in counts if name not in states]
    return [Part(name, states.get(name, "compiled, by itself"), counts.get(name, {})) for name in (*states, *others)]


def write_report(outcome: Outcome, target: Path, trace: str = "") -> Path:
    """Renders `outcome` into the new file `target`. trace: the name of the file of events beside it. Raises OSError."""
    environment = Environment(loader=PackageLoader("dynacompile.callbacks"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("report.html.j2")
    shown = [(name, printable_lines(value)) for name, value in facts(outcome)]
    values = {"facts": shown, "parts": parts_of(outcome), "columns": COLUMNS, "rows": outcome.ledger.told(), "trace": trace}
    return write_whole(target, page.render(values), new=True)
