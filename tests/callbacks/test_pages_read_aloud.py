"""What a screen reader says of the pages: a simulated one goes through them in a browser, from the first element to the last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dynacompile import events
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.sweep_page import write_page
from dynacompile.callbacks.sweep_runs import Run
from tests.callbacks import test_report_page
from tests.callbacks.pages import read_aloud, skip_without_browser
from tests.callbacks.test_report_page import ledger, summary, timed

pytestmark = pytest.mark.slow
SITE = f"{test_report_page.__file__}:1 in forward"
SPEED = "A compiled step is 1.25 times as fast as an eager one: 40.0 ms rather than 50.0 ms."
NO_WORDS = re.compile(r"undefined|\bnull\b|\bNaN\b|\[object|^\s*(\{|\[[\[{\"\d])|&\w+;")
AXIS = re.compile(r"[\d.,]+|.* mark\b.*|axis,.*|legend,.*|.*-axis.*")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    skip_without_browser(folder)
    made = timed()
    for batch, event in ledger().seen:
        made.batch = batch
        made(event)
    made(events.FusionDecided(region="net", kernel="add_gelu", members=("sum",), bytes_saved=0, fused=False, reason="other sizes"))
    return write_report(RunRecord(summary(), made, "compile_events.jsonl"), folder / "report.html")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    skip_without_browser(folder)
    numbers = {"step_ms_eager": 50.0, "step_ms_compiled": 40.0, "step_ms_compiled_low": 39.0, "step_ms_compiled_high": 42.0, "speedup": 1.25}
    measured = Run(("compile=default",), {f"compile/{name}": value for name, value in numbers.items()}, folder="0")
    (folder / "0").mkdir()
    (folder / "0" / "compile_report.html").write_text("")
    return folder / write_page([measured, Run(("compile=x",), failed="ConfigError: no", number=1, folder="1")], folder)


@pytest.fixture(scope="module")
def said(report) -> list[str]:
    return read_aloud(report)


@pytest.fixture(scope="module")
def said_of_sweep(sweep) -> list[str]:
    return read_aloud(sweep)


def of_role(phrases: list[str], role: str) -> list[str]:
    return [phrase.removeprefix(f"{role}, ") for phrase in phrases if phrase.startswith(f"{role}, ")]


def table(phrases: list[str], caption: str) -> list[str]:
    """What is said of the table whose caption begins so."""
    begin = next(at for at, phrase in enumerate(phrases) if phrase.startswith(f"table, {caption}"))
    return phrases[begin : phrases.index(f"end of {phrases[begin]}")]


def test_the_headline_comes_first(said):
    until = said.index(f"heading, {SPEED}, level 1")
    assert said[: until + 1] == [
        *["document", "link, To the content", "main", "paragraph", "strong", "dynacompile", "end of strong", "report", "end of paragraph"],
        f"heading, {SPEED}, level 1",
    ]
    assert said[until + 2].startswith("With 90 % confidence the factor lies between 1.20 and 1.30.")


def test_headings_and_landmarks_are_announced(said):
    assert of_role(said, "heading") == [
        f"{SPEED}, level 1",
        "To gain more, level 2",
        "The run, level 2",
        "What the run did when, level 3",
        "How long batches took, level 3",
        "Where time goes, level 2",
        "Steps that were measured, level 3",
        "A compiled step, level 3",
        "Kernels that take longest, level 3",
        "The compiler, level 3",
        "Modules and steps, level 2",
        "What happened, and what to do about it, level 2",
        "Kernels, level 2",
        "Settings, versions, hardware, level 2",
    ]
    landmarks = ["main", "navigation, Parts of this page", "contentinfo"]
    assert [phrase for phrase in said if phrase in landmarks] == landmarks
    assert of_role(said, "region") == ["To gain more", "Modules and steps", "Compiled entries", "What happened", "Kernels"]


def test_a_chart_is_one_image_whose_name_has_its_numbers(said):
    step = "a compiled step: 40 ms, of which net backward: 14.5 ms; Python, autograd, the framework: 13 ms; net forward: 12.5 ms."
    assert of_role(said, "image") == [
        "The run took 29 seconds: eager steps 29. 1 recompile after 29 seconds. 1 graph break after 29 seconds. Half of the batches took at most 40 ms, "
        "the slowest 41 ms. Memory held: 0.25 GiB at first, at most 7.5, 7.5 at the end.",
        "Of 29 batches half are at most 40 ms, nine of ten at most 40 ms, the slowest 40 ms.",
        "eager: 8 steps, median 51 ms, from 50 to 52 ms. compiled: 8 steps, median 40.5 ms, from 40 to 41 ms.",
        f"{step} net backward: 14.5 ms, of which aten.mm.default: 10 ms; add_gelu: 4 ms; memory: 0.5 ms. "
        "net forward: 12.5 ms, of which aten.mm.default: 10 ms; add_gelu: 2 ms; memory: 0.5 ms.",
        "Microseconds of a step. aten.mm.default (net forward): 10,000, of which the machine would need 5,000; "
        "aten.mm.default (net backward): 10,000, of which the machine would need 5,000; add_gelu (net backward): 4,000, of which the machine would need 200; "
        "add_gelu (net forward): 2,000, of which the machine would need 200.",
        "all of compiling: 1 s, of which net: 1 s. net: 1 s, of which build: 0.75 s; capture: 0.25 s.",
    ]


def test_a_figure_says_its_title_what_it_shows_and_nothing_else(said, said_of_sweep):
    for phrases in (said, said_of_sweep):
        begins = [at for at, phrase in enumerate(phrases) if phrase == "figure"]
        assert begins
        for begin in begins:
            whole = phrases[begin : phrases.index("end of figure", begin)]
            assert sum(phrase.startswith("image, ") for phrase in whole) == 1 and whole[-1].startswith("image, ")
            assert not [phrase for phrase in whole if AXIS.fullmatch(phrase)] and len(set(whole)) == len(whole)


@pytest.mark.parametrize(
    ("caption", "headers", "row"),
    [
        (
            "What was to be compiled",
            ["name", "runs", "graphs", "breaks", "recompiles", "compile s", "entries", "guards take", "own options"],
            ["rowheader, net", "cell, compiled", "cell, 1", "link, 1 graph break of net, shown below", "link, 1 recompile of net, shown below"],
        ),
        (
            "A call runs an entry where all of its guards hold.",
            ["function", "module", "graph", "operations", "kernels", "compile s", "guards", "a check", "when cold", "kinds of guards"],
            ["rowheader, forward (a.py:3)", "link, net", "cell, 0", "cell, 4", "cell, 1", "cell, 0.50", "cell, 9", "cell, 120 ns"],
        ),
        (
            "Compiles, recompiles, graph breaks and limits.",
            ["module", "what", "old → new", "your line", "batch", "times", "seconds", "what to do"],
            ["rowheader, net", "new entry", "cell, 16 → 8", f"cell, {SITE}", "cell, 7", "cell, 1", "cell, 0.20", "cell, compile.dynamic=true"],
        ),
        (
            "Kernels and calls of libraries: those that take longest first, then those that move most.",
            ["kernel or call", "program", "launches", "time", "share of the step", "MB", "GB/s", "share of the roof"],
            ["aten.mm.default", "(a library's)", "cell, net forward", "cell, 2", "cell, 10.00 ms", "cell, 37 %", "cell, 1.000", "cell, 0.1", "cell, 50 %"],
        ),
        ("Settings of this run", [], ["rowheader, mode", "cell, default"]),
    ],
    ids=["modules", "entries", "happened", "kernels", "settings"],
)
def test_tables_have_captions_column_headers_and_row_headers(caption, headers, row, said):
    phrases = table(said, caption)
    assert phrases[1] == phrases[0].replace("table, ", "caption, ", 1) and of_role(phrases, "columnheader") == headers
    places = iter(phrases)
    assert all(cell in places for cell in row), phrases  # in this order


def test_every_row_has_a_cell_for_each_column_header(said, said_of_sweep):
    for phrases, caption in ((said, "What was to be compiled"), (said, "Compiles, recompiles"), (said, "A call runs"), (said_of_sweep, "Step times are")):
        whole = table(phrases, caption)
        columns = len(of_role(whole, "columnheader"))
        rows = [at for at, phrase in enumerate(whole) if phrase.startswith("row, ")][1:]
        assert rows
        for begin, end in zip(rows, [*rows[1:], len(whole)]):
            cells = [phrase for phrase in whole[begin:end] if phrase == "cell" or phrase.startswith(("cell, ", "rowheader, "))]
            assert len(cells) == columns or (len(cells) == 1 and cells[0].endswith(", column span 8") and "your source" in whole[begin:end]), cells


def test_links_and_fields_have_names_that_tell_them_apart(said, said_of_sweep):
    fields = ["Show rows with, placeholder a module, a file, a reason", "Show rows with, placeholder an operation, a line, a step"]
    assert of_role(said, "searchbox") == fields
    assert of_role(said, "link")[:7] == ["To the content", "The run", "Where time goes", "Modules", "What happened", "Kernels", "Settings"]
    assert of_role(said_of_sweep, "link") == ["To the content", "Steps", "Jobs", "report of job 0"]
    assert of_role(said_of_sweep, "searchbox") == ["Show rows with, placeholder an override, a reason"]


def test_a_filter_says_how_many_rows_it_shows(report):
    typed = "const field = document.querySelector('#find-events'); field.value = 'move the print'; field.dispatchEvent(new Event('input'));"
    said = read_aloud(report, first=typed)
    assert "searchbox, Show rows with, move the print" in said
    assert said[said.index("status") + 1 :][:2] == ["1 of 2 rows", "end of status"]
    rows = of_role(table(said, "Compiles, recompiles"), "row")
    assert len(rows) == 3 and "move the print" in rows[1] and rows[2].startswith("your source")


def test_no_phrase_is_empty_or_of_a_program(said, said_of_sweep):
    for phrases in (said, said_of_sweep):
        assert phrases[0] == "document" and phrases[-1] == "end of document"
        assert not [phrase for phrase in phrases if not phrase.strip() or NO_WORDS.search(phrase)]
        named = ("image", "link", "table", "heading", "searchbox", "figure, ", "columnheader", "rowheader", "navigation")
        assert not [phrase for phrase in phrases if phrase in named]


def test_the_sweep_says_which_job_gains_most_and_why_one_failed(said_of_sweep):
    assert of_role(said_of_sweep, "heading") == [
        "Job 0 (compile=default) gains most: its compiled steps are 1.25 times as fast as its eager ones., level 1",
        "Steps, level 2",
        "Jobs, level 2",
    ]
    (chart,) = of_role(said_of_sweep, "image")
    assert chart == "Milliseconds of a step. job 0: compile=default, eager: 50 (50 to 50); job 0: compile=default, compiled: 40 (39 to 42)."
    jobs = table(said_of_sweep, "Step times are")
    assert of_role(jobs, "columnheader") == ["job", "overrides", "step ms", "over eager", "outcome", "read more"]
    assert "cell, ConfigError: no" in jobs and "rowheader, 1" in jobs and "cell, 40 (39 to 42)" in jobs


@pytest.mark.parametrize("name", ["report", "sweep"])
def test_a_phone_is_told_the_same(name, request):
    page = request.getfixturevalue(name)
    assert read_aloud(page, "--size", "390x844") == request.getfixturevalue("said" if name == "report" else "said_of_sweep")
