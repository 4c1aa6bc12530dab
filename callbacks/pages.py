"""Pages of HTML from the templates: each is one file that fetches nothing."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(template: str, **values: Any) -> str:
    """The page of a template in callbacks/templates; what values say is text, but for Markup."""
    loader = PackageLoader("dynacompile.callbacks")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template(template).render(values)
