"""The HTML report of one fit."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dynacompile.callbacks.outcome import Outcome, facts


def write_report(outcome: Outcome, target: Path) -> Path:
    """Renders `outcome` into the file `target`."""
    environment = Environment(loader=PackageLoader("dynacompile.callbacks"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.get_template("report.html.j2")
    target.write_text(page.render(facts=facts(outcome), regions=outcome.ledger.per_region(), rows=outcome.ledger.rows()), encoding="utf-8")
    return target
