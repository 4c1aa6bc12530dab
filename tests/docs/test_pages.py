"""The pages of docs/: their code runs, their links lead somewhere, the navigation names each of them, and the site builds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import reference, walk

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "dynacompile" / "README.md"]
CODE = re.compile(r"(?P<mark><!-- not run: [^>]+ -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
SITE_PAGES = {"map.md", "contributing.md", *reference.pages()}  # those that the site is given as it is built


def program(page: Path) -> str:
    """The Python of a page as one program, each line where it stands in the page. Blocks behind `<!-- not run: why -->` are left out."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for found in CODE.finditer(text):
        if not found["mark"]:
            start = text.count("\n", 0, found.start("code"))
            for at, line in enumerate(found["code"].splitlines()):
                lines[start + at] = line
    return "\n".join(lines) if any(lines) else ""


def anchors(text: str) -> set[str]:
    """The names that headings get in a page."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", [page for page in (*PAGES, ROOT / "README.md") if program(page)], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(program(page), str(page), "exec"), {"__name__": page.stem})


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        if page.parent == DOCS and file in SITE_PAGES:
            continue
        assert place.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(place.read_text()), f"{page.name} links to {target}"


def test_programs_of_the_quick_start_stand_by_themselves():
    """Each is copied into a file of its own: it imports and makes what it uses."""
    programs = [found["code"] for found in CODE.finditer((DOCS / "quickstart.md").read_text()) if not found["mark"]]
    assert len(programs) == 2
    for text in programs:
        undefined = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
        checked = subprocess.run(undefined, input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_navigation_names_pages_that_are_there_each_once():
    named = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(named) == len(set(named)) > 20
    assert set(named) <= {page.name for page in PAGES} | SITE_PAGES and SITE_PAGES <= set(named)


def test_the_walk_is_filled_in():
    page = walk.filled(walk.PAGE.read_text())
    assert "<!-- walk" not in page and not set(walk.shown()) - set(walk.PLACE.findall(walk.PAGE.read_text()))
    for part in ("LOAD_GLOBAL", "captured loss  # example.py:5", "TENSOR_MATCH x", "tangent_0", "gelu_sub(in p0", 'extern "C"', "x.size(0): 256 -> 128"):
        assert part in page


def test_the_reference_has_every_function_option_command_and_event():
    made = reference.pages()
    assert "## `dynacompile.compile`" in made["reference/python.md"] and "- `fullgraph`: a graph break raises" in made["reference/python.md"]
    assert "| `memory_budget` | `1.0` | code |" in made["reference/options.md"] and "| `measure_after` |" in made["reference/options.md"]
    assert "python -m dynacompile explain" in made["reference/commands.md"] and "| `print` |" in made["reference/breaks.md"]
    assert "## `Recompiled`" in made["reference/events.md"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="the extra `docs` is not installed")
def test_the_site_builds_and_fetches_nothing(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    built = list(tmp_path.rglob("*.html"))
    assert {f"{Path(page).stem}.html" for page in (*PAGES, *SITE_PAGES)} <= {page.name for page in built}
    start = (tmp_path / "index.html").read_text()
    for name in (*(page.stem for page in PAGES), *(name.removesuffix(".md") for name in SITE_PAGES)):
        assert f'href="{name}.html"' in start, f"the navigation does not lead to {name}"
    for page in built:
        fetched = re.findall(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(https?:[^"'> ]+)""", page.read_text())
        assert not fetched, f"{page.name} fetches {fetched}"
