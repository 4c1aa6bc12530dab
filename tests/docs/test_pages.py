"""The pages of docs/: their code runs, their links lead somewhere, the navigation names each of them, and the site builds."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dynacompile
from dynacompile import __main__ as command
from dynacompile import conf, events
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.capture.breaks import BREAKS
from dynacompile.config import CompileConfig
from dynacompile.explain_command import SHOWN
from scripts import reference, walk
from scripts.bench_lightning import RECIPES

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


HOW_TO = ("recompiles", "dynamic-shapes", "isolation", "cuda-graphs", "distributed", "sweeps", "memory", "wrong-numbers")


def test_how_to_pages_and_the_quick_start_of_each_kind_of_user_are_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    how_to = navigation.partition("- How to:\n")[2].partition("- How it works:")[0]
    assert all(f"- {name}.md\n" in how_to for name in HOW_TO)
    assert {"a-plain-loop", "lightning", "hugging-faces-trainer"} <= anchors((DOCS / "quickstart.md").read_text())


def test_the_readme_has_the_picture_two_commands_the_tables_and_a_link_to_each_page():
    text = (ROOT / "README.md").read_text()
    links = {target.partition("#")[0] for target in LINK.findall(text)}
    first = text.partition("## Measured")[0]
    assert "](docs/images/report.png)" in first and "\npip install . " in first and "\nmake train " in first
    assert "| training step | machine | eager | torch.compile | dynacompile |" in text
    deeper = {"capture", "guards", "measuring", "caches", "ops", "index"}  # which the map and the pages above lead to
    assert {f"docs/{page.stem}.md" for page in PAGES if page.stem not in deeper} <= links


def section(text: str, heading: str) -> str:
    return text.partition(f"## {heading}\n")[2].partition("\n## ")[0]


CPU = ("The whole training step, recipe gpt, CPU", "The whole training step, other recipes, CPU")


@pytest.mark.parametrize("headings", [("The whole training step under Lightning, H200",), CPU], ids=["H200", "two-cores"])
def test_each_recipe_has_its_speed_up_table(headings):
    """Eager, torch.compile and ours."""
    text = (DOCS / "performance.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for heading in headings for line in section(text, heading).splitlines()]
    systems: dict[str, set[str]] = {}
    for row in rows:
        named = row if len(row) > 8 or row[0] in RECIPES else ["gpt", *row]  # a table of the one recipe does not name it
        if len(named) > 5 and re.fullmatch(r"[\d.]+ ms", named[2]) and re.match(r"[\d.]+x", named[5]):
            systems.setdefault(named[0].partition(",")[0], set()).add(named[1])
    experiments = {name: chosen for name, chosen in RECIPES.items() if chosen[0].startswith("experiment=") and name not in ("distill_whole", "varlen_hot")}
    wanted = set(experiments) - ({"gpt2_small"} if headings is CPU else set())
    assert wanted <= set(systems), f"without a table: {wanted - set(systems)}"
    for name in wanted:
        assert {"eager", "dynacompile"} < systems[name] and any(system.startswith("torch.compile") for system in systems[name]), name


def test_each_recipe_states_what_it_reaches():
    rows = [line.split("|") for line in (DOCS / "recipes.md").read_text().splitlines() if line.startswith("| `")]
    reached = {row[1].strip().strip("`").split()[0]: row[4].strip() for row in reversed(rows)}
    experiments = {path.stem for path in (conf.folder() / "experiment").glob("*.yaml")} - {"gpt2_small"}
    assert experiments == set(reached) and all(re.search(r"\d", reached[name]) for name in experiments), reached


def test_the_walk_is_filled_in():
    page = walk.filled(walk.PAGE.read_text())
    assert "<!-- walk" not in page and not set(walk.shown()) - set(walk.PLACE.findall(walk.PAGE.read_text()))
    for part in ("LOAD_GLOBAL", "captured loss  # example.py:5", "TENSOR_MATCH x", "tangent_0", "gelu_sub(in p0", 'extern "C"', "x.size(0): 256 -> 128"):
        assert part in page
    assert set(SHOWN) <= set(walk.PLACE.findall(walk.PAGE.read_text())), "the page shows each hand-off that the command explain shows"


def words(text: str) -> str:
    """The words of a text, without what Markdown adds."""
    return " ".join(re.sub(r"[\\`|]", "", text).split())


def test_the_reference_has_every_function_with_its_docstring():
    page = reference.pages()["reference/python.md"]
    functions = {name: fn for name in dynacompile.__all__ if callable(fn := getattr(dynacompile, name))}
    assert len(functions) > 20
    for name, fn in functions.items():
        own = page.partition(f"## `dynacompile.{name}`\n")[2].partition("\n## ")[0]
        first = words(inspect.getdoc(fn).split("\n\n")[0].split(". ")[0])
        assert own and first in words(own), name
        assert all(f"{parameter}" in own for parameter in inspect.signature(fn).parameters), name


def test_the_reference_has_every_option_and_setting_with_its_meaning():
    rows = [line for line in reference.pages()["reference/options.md"].splitlines() if line.startswith("| `")]
    fields = {field.name: field for field in (*dataclasses.fields(CompileConfig), *dataclasses.fields(CompileSettings))}
    names = [*(field.name for field in dataclasses.fields(CompileConfig)), *CompileSettings.own_names()]
    assert [re.match(r"\| `(\w+)`", row)[1] for row in rows] == names and len(names) == len(set(names))
    for name, row in zip(names, rows, strict=True):
        assert words(fields[name].metadata["doc"]) in words(row), name


def test_the_reference_has_every_command_break_and_event():
    made = reference.pages()
    commands = set(re.findall(r"## `python -m dynacompile (\w+)`", made["reference/commands.md"]))
    assert commands == set(next(action for action in command.parser()._actions if action.choices).choices) and {"explain", "report", "sweep"} <= commands
    assert set(re.findall(r"^\| `([^`]+)` \|", made["reference/breaks.md"], re.MULTILINE)) == set(BREAKS)
    kinds = {kind.__name__ for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event}
    assert set(re.findall(r"^## `(\w+)`", made["reference/events.md"], re.MULTILINE)) == kinds


def test_the_reference_is_written_for_a_reader():
    made = reference.pages()
    assert "## `dynacompile.compile`" in made["reference/python.md"] and "- `fullgraph`: a graph break raises" in made["reference/python.md"]
    assert "| `memory_budget` | `1.0` | code |" in made["reference/options.md"] and "| `measure_after` |" in made["reference/options.md"]
    assert "python -m dynacompile explain" in made["reference/commands.md"] and "| `print` |" in made["reference/breaks.md"]
    assert "## `Recompiled`" in made["reference/events.md"]


NO_NETWORK = """
import socket

def refuse(*arguments, **options):
    raise OSError("a site is built without a network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="the extra `docs` is not installed")
def test_the_site_builds_and_fetches_nothing(tmp_path):
    (rule,) = re.findall(r"^docs: setup\n\t.*(-m mkdocs build .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "sitecustomize.py").write_text(NO_NETWORK)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(alone), os.environ.get("PYTHONPATH", "")))}
    build = [sys.executable, *rule.split(), "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    built = list(tmp_path.rglob("*.html"))
    assert {f"{Path(page).stem}.html" for page in (*PAGES, *SITE_PAGES)} <= {page.name for page in built}
    walked = (tmp_path / "walk.html").read_text()
    assert "walk:" not in walked and "TENSOR_MATCH" in walked and "gelu_sub" in walked, "the compiler has printed its hand-offs"
    start = (tmp_path / "index.html").read_text()
    for name in (*(page.stem for page in PAGES), *(name.removesuffix(".md") for name in SITE_PAGES)):
        assert f'href="{name}.html"' in start, f"the navigation does not lead to {name}"
    for page in built:
        fetched = re.findall(r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["']?(https?:[^"'> ]+)""", page.read_text())
        assert not fetched, f"{page.name} fetches {fetched}"
