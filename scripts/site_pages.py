"""What MkDocs adds to the pages of docs/ as it builds the site: the walk's hand-offs, the reference, and the pages that lie beside the code. A page that
mkdocs.yml does not name comes last in the navigation."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # MkDocs runs its hooks as files

from scripts import reference, walk  # noqa: E402

BESIDE = {"map.md": "dynacompile/README.md", "contributing.md": "CONTRIBUTING.md"}


def beside(file: str) -> str:
    """A page that lies beside the code, with its links as the site has them."""
    return re.sub(r"\]\((?:\.\./)?docs/", "](", (ROOT / file).read_text())


def on_files(files: Files, config: Any) -> Files:
    pages = {name: beside(file) for name, file in BESIDE.items()} | reference.pages()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    listed = set(named(config.nav))
    if further := sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in listed):
        config.nav = [*config.nav, {"Further": further}]
    return files


def named(nav: Any) -> Iterator[str]:
    """Every page that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for item in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(item)


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    return walk.filled(markdown) if page.file.src_uri == walk.PAGE.name else markdown
