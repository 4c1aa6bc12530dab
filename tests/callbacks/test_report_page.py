"""The page of a run: what it says first, its charts, the same from the run's files, and its filter in a browser."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path

import pytest
import torch

from dynacompile import __main__ as command
from dynacompile import events
from dynacompile.callbacks import charts
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import BUCKETS, Held, RunRecord, timeline
from dynacompile.callbacks.report import page_of, to_gain
from dynacompile.callbacks.source_lines import source

NUMBERS = {"speedup": 1.25, "step_ms_eager": 50.0, "step_ms_compiled": 40.0, "payoff_step": 150, "seconds": 1.5, "graphs": 1}


def summary(**changed) -> dict:
    rounds = [[50.0 + i % 3, 40.0 + i % 2] for i in range(8)]
    times = {"eager": 50.0, "compiled": 40.0, "rounds": rounds, "interval": [1.2, 1.3], "within_noise": False}
    rows = [[i, 100.0 + i, 40.0, 41.0, (1 + i) << 28] for i in range(30)]
    settings = {"settings": {"mode": "default"}, "parts": {"net": {"mode": "max-autotune"}}, "versions": {"torch": "2"}}
    whole = {"modules": ["net", "training_step"], "eager": {"spare": "nobody called it"}, "steps": 30, "ended": "", "facts": [["compiled", "net"]]}
    return {**whole, "compile": NUMBERS, "times": times, "timeline": rows, "settings": settings, **changed}


def ledger() -> Ledger:
    """A trace of a run in which something of everything happened."""
    made = Ledger()
    site = f"{__file__}:1 in forward"
    kernels = (("add_gelu", 4, 2_000_000, ("add", "gelu"), (site,)),)
    made(events.Compiled(region="net", frame="forward (a.py:3)", graph=0, ops=4, guards=9, kernels=1, seconds=0.5, lookup_ns=120.0))
    made(events.StageFinished(region="net", stage="capture", seconds=0.25))
    made(events.StageFinished(region="net", stage="build", seconds=0.75))
    made(events.Scheduled(region="net", device="cpu", kernels=kernels, calls=(("aten.mm.default", 2),)))
    made(events.FusionDecided(region="net", kernel="add_gelu", members=("add", "gelu"), bytes_saved=1000, fused=True))
    made.batch = 7
    again = {"frame": "forward (a.py:3)", "entries": 2, "limit": 8, "seconds": 0.2}
    made(events.Recompiled(region="net", failed=("L['x'].size(0): 16 -> 8",), site=site, override="compile.dynamic=true", **again))
    made(events.GraphBroke(region="net", code="print", reason="<script>alert(1)</script>", hint="move the print", site=site))
    return made


def long_run() -> RunRecord:
    """A run of hours: very many of everything."""
    made, site = ledger(), f"{__file__}:1 in forward"
    for batch in range(5000):
        made.batch = batch
        region = f"net.blocks.{batch % 40}"
        made(events.StageFinished(region=region, stage="capture", seconds=0.25))
        failed = (f"L['x'].size(0): {batch} -> {batch + 1}",)
        made(events.Recompiled(region=region, frame="f (a.py:3)", entries=2, limit=8, seconds=0.2, failed=failed, site=site, override="compile.dynamic=true"))
        made(events.GraphBroke(region=region, code="print", reason=f"reason {batch % 900}", hint="move it", site=site))
        sites = tuple(f"{__file__}:{line} in forward" for line in range(batch % 60))
        made(events.Scheduled(region=region, device="cpu", kernels=((f"kernel_{batch}", 1, batch, ("add",) * 30, sites),), calls=()))
        made(events.FusionDecided(region=region, kernel=f"kernel_{batch}", members=("a" * 100,) * 40, bytes_saved=0, fused=False, reason="other sizes"))
        made(events.KernelTuned(region=region, kernel=f"kernel_{batch}", winner="w", candidates=(("w", 2.0), ("v", 3.0))))
    rows = timeline([1.0 + i % 7 for i in range(100_000)], [float(i) for i in range(100_000)], [i << 10 for i in range(100_000)])
    return RunRecord(summary(timeline=rows, steps=100_000), made, "compile_events.jsonl")


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<(style|script|svg|title).*?</\1>|<[^>]*>", " ", page, flags=re.DOTALL)).split())


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(RunRecord(summary(), ledger(), "compile_events.jsonl"))


def test_the_speed_up_and_when_it_paid_off_come_first(page):
    told = text_of(page)
    first = told.removeprefix("To the content dynacompile report ")
    assert first.startswith("A compiled step takes 40.0 ms, an eager one 50.0: 1.25 times as fast, between 1.20 and 1.30 with 90 %.")
    assert "Compiling took 1.5 s and would pay off at batch 150; this run had 30." in told


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compile": {"seconds": 1.0, "graphs": 1}}, "what a step gains was not measured"),
        ({"compile": {"seconds": 0.0, "graphs": 0}}, "Nothing was compiled."),
        ({"ended": "KeyboardInterrupt"}, "The run was ended by KeyboardInterrupt after 30 batches."),
        ({"times": {**summary()["times"], "within_noise": True}}, "within the noise"),
        ({"compile": {**NUMBERS, "payoff_step": 12}}, "paid off at batch 12"),
    ],
)
def test_what_else_is_said_first(changed, said):
    assert said in text_of(page_of(RunRecord(summary(**changed), ledger())))


def test_a_run_without_advice_says_so():
    made = Ledger()
    made(events.Compiled(region="net", frame="forward (a.py:3)", graph=0, ops=4, guards=9, kernels=1, seconds=0.5))
    assert "Nothing was in the way: no graph break" in text_of(page_of(RunRecord(summary(eager={}), made)))


def test_advice_stands_together(page):
    advice = to_gain(RunRecord(summary(), ledger()))
    place = f"{__file__}:1 in forward"
    assert advice[0] == "Set compile.dynamic=true (recompiles of forward (a.py:3); 0.2 s)" and advice[1] == f"Move the print (graph break at {place})"
    assert advice[2] == "spare runs as Python: nobody called it"
    assert all(line in text_of(page) for line in advice)


def test_the_users_lines_are_shown(page):
    assert source(f"{__file__}:6 in forward").splitlines()[2] == ">     6  import json" and "from __future__ import annotations" in page
    assert source("nowhere.py:3 in forward") == source(f"{__file__}:100000 in forward") == source("no place") == ""


def test_what_strings_and_comments_of_the_users_lines_say_is_left_out(tmp_path):
    file = tmp_path / "secret.py"
    file.write_text('key = "abc def" + f"ghi {x} jkl"  # mno\ny = \'pqr\'\nz = """\nstu\n"""\n')
    told = source(f"{file}:2 in f")
    assert told.splitlines()[0].startswith('      1  key = "... ..." + ') and told.splitlines()[1] == ">     2  y = '...'"
    assert not re.search("abc|def|ghi|jkl|mno|pqr|stu", told + source(f"{file}:4 in f"))
    (tmp_path / "torn.py").write_text("def (")
    assert source(f"{tmp_path}/torn.py:1 in f") == ""


def test_parts_have_their_options_entries_and_guards(page):
    (row,) = (line for line in re.findall(r'<tr id="part-net">.*?</tr>', page, re.DOTALL) if "max-autotune" in line)
    assert text_of(row).split() == ["net", "compiled", "1", "1", "1", "1.00", "1", "of", "8", "120", "mode=max-autotune"]


def test_kernels_have_their_bytes_lines_and_decisions(page):
    told = text_of(page)
    assert "add_gelu net 4 2.000 add, gelu 1 of your lines, 1 of the scheduler's decisions" in told and "fuses add, gelu, which saves 0.00 MB" in told
    assert "aten.mm.default (a library's) net 2" in told


def test_like_events_are_one_row_with_what_they_cost(page):
    made = ledger()
    again = {"region": "net", "frame": "forward (a.py:3)", "entries": 2, "limit": 8, "site": "a.py:3 in forward", "override": "compile.dynamic=true"}
    for batch in range(1, 8):
        made.batch = batch
        made(events.Recompiled(failed=(f"L['x'].size(0): {batch} -> {batch + 1}",), seconds=0.5, **again))
    told = text_of(page_of(RunRecord(summary(), made)))
    assert "net 7 1 to 7 L['x'].size(0) 1 -> 2; 2 -> 3; 3 -> 4; 4 -> 5 and 3 more a.py:3 in forward 3.50 new entry compile.dynamic=true" in told


def test_tuned_kernels_have_their_time_and_why_others_stay_apart_is_said():
    made = ledger()
    made(events.KernelTuned(region="net", kernel="add_gelu", winner="b", candidates=(("a", 500.0), ("b", 250.0))))
    made(events.FusionDecided(region="net", kernel="add_gelu", members=("sum",), bytes_saved=0, fused=False, reason="other sizes"))
    told = text_of(page_of(RunRecord(summary(), made)))
    assert "add_gelu net 4 2.000 250.0 2 add, gelu" in told and "tuned: b of 2 (b 250.0 us, a 500.0 us)" in told
    assert "Why kernels were not joined: 1 reasons" in told and "other sizes 1" in told


def test_a_page_of_hours_is_below_two_megabytes_and_soon_made():
    started = time.process_time()
    page = page_of(long_run())
    assert len(page.encode()) < 2_000_000 and time.process_time() - started < 20
    assert "rows more are in the trace" in page and "others: " in page


def test_links_within_the_page_have_their_places():
    made = ledger()
    made(events.FrameSkipped(region="elsewhere", site="b.py:1 in f", reason="a generator"))
    page = page_of(RunRecord(summary(), made))
    assert "elsewhere" in page and {f'id="{name}"' for name in re.findall(r'href="#([^"]+)"', page)} <= set(re.findall(r'id="[^"]+"', page))


def test_tables_and_charts_are_told_to_who_cannot_see_them(page):
    assert page.count("<table") == page.count("<caption>") and not re.search(r"<th>|<th class", page)
    assert page.count('tabindex="0" role="region" aria-label="') == 6 + 3
    for name in re.findall(r'<input [^>]*id="([\w-]+)"', page):
        assert f'<label for="{name}">' in page and f'<output for="{name}" aria-live="polite">' in page
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and levels.count(1) == 1


def test_what_a_program_says_is_text(page):
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_the_page_needs_no_network_and_is_small(page):
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", page) and "url(" not in page and len(page) < 300_000


def test_charts_are_drawn_with_words(page):
    assert page.count('<svg role="img"') == 6 and page.count("<title>") > 40
    assert "Milliseconds of each training batch" in page and "currentColor" in page


def test_few_batches_have_no_charts_and_a_missing_package_is_named(monkeypatch):
    assert "<svg" not in page_of(RunRecord(summary(timeline=summary()["timeline"][:5]), ledger()))
    monkeypatch.setattr(charts, "DRAWS", "no_such_package")
    assert "pip install vl-convert-python" in page_of(RunRecord(summary(), ledger()))


def test_a_long_run_has_as_many_points_as_a_short_one():
    rows = timeline([1.0 + (i == 5000) * 99 for i in range(10_007)], [float(i) for i in range(10_007)])
    assert len(rows) <= BUCKETS and rows[0][0] == 0 and rows[-1][1] == 10_006 and max(row[3] for row in rows) == 100.0
    assert timeline([], []) == ()


def test_the_most_memory_of_each_point_is_kept():
    assert timeline([1.0, 2.0], [0.0, 1.0], [5, 7]) == ((0, 0.0, 1.0, 1.0, 5), (1, 1.0, 2.0, 2.0, 7))
    rows = timeline([1.0] * 1000, [0.0] * 1000, [int(i == 500) for i in range(1000)])
    assert max(row[4] for row in rows) == 1
    held = Held()
    held.note(torch.device("cpu"))
    held.note(torch.device("cpu"))
    assert held.at_ends[0] == held.at_ends[1] > 1 << 20


def written(folder: Path) -> RunRecord:
    trace = folder / "compile_events.jsonl"
    trace.write_text("".join(json.dumps({"batch": batch, **events.to_json(event)}) + "\n" for batch, event in ledger().seen))
    record = RunRecord(summary(), ledger(), trace.name)
    record.write(folder / "summary.json")
    return record


def test_the_page_is_the_same_from_the_runs_files(tmp_path, capsys):
    first = page_of(written(tmp_path))
    command.main(["report", str(tmp_path), "--to", str(tmp_path / "again.html")])
    assert capsys.readouterr().out.strip().endswith("again.html") and (tmp_path / "again.html").read_text() == first
    for place in ("summary.json", "compile_events.jsonl", "compile_report.html"):
        assert page_of(RunRecord.read(tmp_path / place)) == first


@pytest.mark.parametrize(("place", "said"), [("", "has no summary.json"), ("summary.json", "there is no"), ("summary-2.json", "is no summary of a run")])
def test_what_is_no_run_is_named(place, said, tmp_path):
    if place == "summary-2.json":
        (tmp_path / place).write_text("{")
    with pytest.raises(SystemExit, match=said):
        command.main(["report", str(tmp_path / place)])


def test_a_file_that_is_there_stays(tmp_path):
    written(tmp_path)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(SystemExit, match="exists|mine.html"):
        command.main(["report", str(tmp_path), "--to", str(tmp_path / "mine.html")])
    assert (tmp_path / "mine.html").read_text() == "mine"
