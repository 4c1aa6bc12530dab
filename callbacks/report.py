"""The HTML report of one fit."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dynacompile.callbacks.outcome import Outcome, facts
from dynacompile.run_files import write_whole


def write_report(outcome: Outcome, target: Path) -> Path:
    """Renders `outcome` into the new file `target`. Raises OSError."""
    environment = Environment(loader=PackageLoader("dynacompile.callbacks"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("report.html.j2")
    return write_whole(target, page.render(facts=facts(outcome), regions=outcome.ledger.per_region(), rows=outcome.ledger.rows()), new=True)
