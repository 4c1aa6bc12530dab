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
from dynacompile.callbacks import charts, work_charts
from dynacompile.callbacks.kernel_rows import kernel_rows
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import BUCKETS, Held, RunRecord, timeline
from dynacompile.callbacks.report import page_of, to_gain
from dynacompile.callbacks.report_rows import parts_of
from dynacompile.callbacks.run_charts import distribution, durations, phases, seen_of
from dynacompile.callbacks.run_charts import timeline as timeline_chart
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
        own = {"region": region, "number": batch}
        made(events.Scheduled(device="cpu", kernels=((f"kernel_{batch}", 1, batch, ("add",) * 30, sites),), calls=(), **own))
        made(events.Generated(kernels=((f"kernel_{batch}", "cpp", f"// {batch}\n" + "x = y + z;\n" * 500),), **own))
        steps = ((f"kernel_{batch}", 1, 1.0 + batch, batch, batch),)
        made(events.ProgramTimed(part="forward", device="cpu", runs=1, steps=steps, rest_us=0.5, bandwidth=1e10, flops=1e11, **own))
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
    assert first.startswith("A compiled step is 1.25 times as fast as an eager one: 40.0 ms rather than 50.0 ms.")
    assert "With 90 % confidence the factor lies between 1.20 and 1.30. Compiling took 1.5 s, and would pay off at batch 150; this run had 30." in told
    assert "speed-up of a step 1.25x 1.20x to 1.30x with 90 %" in told and "eager 50.0 ms compiled 40.0 ms" in told


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"compile": {"seconds": 1.0, "graphs": 1}}, "what a step gains was not measured"),
        ({"compile": {"seconds": 0.0, "graphs": 0}}, "Nothing was compiled."),
        ({"compile": {**NUMBERS, "speedup": 0.8}}, "Compiled steps are slower than eager ones"),
        ({"ended": "KeyboardInterrupt"}, "The run was ended by KeyboardInterrupt after 30 batches."),
        ({"times": {**summary()["times"], "within_noise": True}}, "within the noise"),
        ({"compile": {**NUMBERS, "payoff_step": 12}}, "had paid off at batch 12 of 30"),
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
    assert (advice[0].setting, advice[0].text) == ("compile.dynamic=true", "it prevents recompiles (forward (a.py:3), 0.2 s)")
    assert [line.text for line in advice[1:]] == [f"Move the print (graph break at {place})", "spare runs as Python: nobody called it"]
    assert "Set compile.dynamic=true : it prevents recompiles" in text_of(page) and all(line.text in text_of(page) for line in advice)


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
    (row,) = (line for line in re.findall(r'<tr role="row" id="part-net">.*?</tr>', page, re.DOTALL) if "max-autotune" in line)
    assert text_of(row).split() == ["net", "compiled", "1", "1", "1", "1.00", "1", "of", "8", "120", "ns", "mode=max-autotune"]


def test_entries_have_their_guards_and_nanoseconds():
    made = ledger()
    kinds = (("TENSOR_MATCH", 40), ("CONSTANT", 2))
    own = {"graph": 1, "ops": 4, "guards": 42, "kernels": 3, "seconds": 0.25}
    made(events.Compiled(region="net", frame="g (b.py:9)", lookup_ns=12_345.0, cold_ns=400_000.0, kinds=kinds, **own))
    told = text_of(page_of(RunRecord(summary(), made)))
    assert "2 compiled entries and their guards" in told
    assert "g (b.py:9) net 1 4 3 0.25 42 12.3 µs 400.0 µs 40 TENSOR_MATCH, 2 CONSTANT forward (a.py:3) net" in told


def test_entries_are_counted_against_the_limit_of_their_module():
    made = Ledger()
    for bucket, frame in ((1, "f (a.py:1)"), (1, "f (a.py:1)"), (2, "f (a.py:1)"), (1, "g (a.py:9)")):
        made(events.Compiled(region="net", bucket=bucket, frame=frame, graph=0, ops=4, guards=9, kernels=1, seconds=0.5))
    settings = {"settings": {"recompile_limit": 8}, "parts": {"net": {"recompile_limit": 3}}}
    parts = {part.name: (part.entries, part.limit) for part in parts_of(RunRecord(summary(settings=settings), made))}
    assert parts["net"] == (2, 3) and parts["training_step"] == (0, 8)


def test_kernels_have_their_bytes_lines_and_decisions(page):
    told = text_of(page)
    assert "add_gelu add, gelu net 4 2.000 1 line, 1 decision" in told and "fuses add, gelu, which saves 0.00 MB" in told
    assert "aten.mm.default (a library's) net 2" in told


def timed() -> Ledger:
    """A trace in which the programs of a step were timed, and their kernels' code told."""
    made, site = Ledger(), f"{__file__}:1 in forward"
    for number, part in ((1, "forward"), (2, "backward")):
        kernels, own = (("add_gelu", 4, 2_000_000, ("add", "gelu"), (site,)),), {"number": number, "region": "net"}
        calls = {"calls": (("aten.mm.default", 2),), "call_sites": (("aten.mm.default", (site,)),)}
        made(events.Scheduled(device="cpu", kernels=kernels, part=part, **calls, **own))
        made(events.Generated(kernels=(("add_gelu", "cpp", "void add_gelu() {}"),), **own))
        steps = (("add_gelu", 4, 2000.0 * number, 2_000_000, 100), ("aten.mm.default", 2, 10_000.0, 1_000_000, 10**9))
        made(events.ProgramTimed(part=part, device="cpu", runs=1, steps=steps, rest_us=500.0, bandwidth=1e10, flops=2e11, **own))
    return made


def test_measured_kernels_have_their_time_their_share_of_the_step_and_of_the_roof():
    rows = kernel_rows(timed())
    assert [(row.name, row.part, row.microseconds) for row in rows][:3] == [
        ("aten.mm.default", "forward", 10_000.0),
        ("aten.mm.default", "backward", 10_000.0),
        ("add_gelu", "backward", 4000.0),
    ]
    assert rows[0].roof == 0.5 and rows[2].roof == 0.05 and rows[2].share == 4 / 27 and rows[2].rate == 0.5
    told = text_of(page_of(RunRecord(summary(), timed())))
    assert "add_gelu add, gelu net backward 4 4.00 ms 15 % 2.000 0.5 5 % 1 line, code" in told
    assert "The roof is 10 GB/s and 200 GFLOP/s" in told and "from __future__" not in told


def test_code_is_there_on_demand_once():
    page = page_of(RunRecord(summary(), timed()))
    assert page.count("void add_gelu() {}") == 1 and "The code is that of add_gelu of net backward" in text_of(page)


def test_a_step_is_shown_with_its_programs_kernels_and_the_rest():
    spec = work_charts.step(summary(), timed(), 760)
    boxes = {box["said"]: (box["top"], box["begin"], box["end"]) for box in spec["data"]["values"]}
    assert boxes["a compiled step: 40 ms"] == (0, 0.0, 40.0) and boxes["net backward: 14.5 ms"] == (1, 0.0, 14.5)
    assert boxes["Python, autograd, the framework: 13 ms"] == (1, 27.0, 40.0) and boxes["add_gelu: 4 ms"] == (2, 10.0, 14.0)


def test_a_device_that_waits_for_python_is_advice():
    made = timed()
    object.__setattr__(made.seen[0][1], "device", "cuda:0")
    (advice,) = to_gain(RunRecord(summary(eager={}), made))
    assert advice.setting == "compile=reduce_overhead" and "kernels take only 68% of a compiled step" in advice.text
    graphs = {"settings": {"mode": "reduce-overhead"}}
    assert not to_gain(RunRecord(summary(eager={}, settings=graphs), made))


def test_the_timeline_has_what_the_run_did_when():
    made = Ledger()
    made(events.StageFinished(region="net", stage="build", seconds=3.0, at=104.0))
    made(events.Compiled(region="net", frame="f (a.py:1)", graph=0, ops=4, guards=9, kernels=1, seconds=3.0, at=104.0))
    rows = [[i, 106.0 + i, 900.0, 900.0, 0, 900.0] for i in range(12)]
    known = summary(started=100.0, timeline=rows, measuring=[[110.0, 112.0]], compile={**NUMBERS, "fit_seconds": 20.0})
    found = phases(known, made)
    assert found[0] == (0.0, 20.0, "everything else") and (1.0, 4.0, "compiling") in found and (10.0, 12.0, "measuring") in found
    assert [phase for _, _, phase in found].count("compiled steps") == 12
    batches = durations(known, 1.0, {}, 860)
    assert [value["part"] for value in batches["data"]["values"]] == [0] * 6 + [1] * 6, "the line is broken where steps were measured"
    assert batches["layer"][1]["encoding"]["detail"]["field"] == "part"
    eager = phases(known, Ledger())
    assert {phase for _, _, phase in eager} == {"everything else", "eager steps", "measuring"}
    hours = phases({**known, "timeline": timeline([90.0] * 100_000, [100.0 + i / 10 for i in range(100_000)])}, made)
    assert len(hours) < 10


def test_recompiles_breaks_and_limits_are_marks_on_the_timeline_where_they_happened():
    made = Ledger()
    own = {"region": "net", "frame": "f (a.py:1)", "limit": 2, "override": ""}
    for at in (101.0, 104.0):
        made(events.Recompiled(entries=2, failed=("x: 1 -> 2",), site="", seconds=0.5, at=at, **own))
    made(events.GraphBroke(region="net", code="print", reason="print", hint="", site="a.py:1", at=102.0))
    made(events.LimitHit(guard="x", at=106.0, **own))
    rows = [[i, 101.0 + i, 40.0, 41.0, (1 + i) << 28] for i in range(12)]
    known = summary(started=100.0, timeline=rows, compile={**NUMBERS, "fit_seconds": 20.0})
    spec = timeline_chart(known, made, 860)
    (_, marks) = spec["vconcat"][0]["layer"]
    wanted = [(1.0, "recompile"), (4.0, "recompile"), (2.0, "graph break"), (6.0, "limit hit")]
    assert [(mark["when"], mark["event"]) for mark in marks["data"]["values"]] == wanted
    assert "2 recompiles from 1 to 4 seconds. 1 graph break after 2 seconds. 1 limit hit after 6 seconds." in spec["description"]


def test_the_memory_that_is_held_is_shown_over_time():
    rows = [[i, 101.0 + i, 40.0, 41.0, (1 + i) << 28] for i in range(12)]
    spec = timeline_chart(summary(started=100.0, timeline=rows), Ledger(), 860)
    held = spec["vconcat"][-1]["data"]["values"]
    assert [(value["when"], value["GiB"]) for value in held] == [(1.0 + i, (1 + i) / 4) for i in range(12)]
    without = [row[:4] for row in rows]
    assert len(timeline_chart(summary(timeline=without), Ledger(), 860)["vconcat"]) == len(spec["vconcat"]) - 1


def test_the_distribution_is_of_batches_that_compiled_nothing_without_the_slowest_hundredth():
    made = Ledger()
    made.batch = 3
    made(events.StageFinished(region="net", stage="capture", seconds=0.25))
    rows = [[i, 101.0 + i, 900.0 if i == 3 else 500.0 if i == 7 else 40.0 + i % 2, 41.0, 0] for i in range(200)]
    spec = distribution(summary(timeline=rows), made, 860)
    times = [value["ms"] for value in spec["data"]["values"]]
    assert len(times) == 198 and set(times) == {40.0, 41.0}
    assert spec["description"] == "Of 198 batches half are at most 40 ms, nine of ten at most 41 ms, the slowest 41 ms."


def test_the_compilers_seconds_are_shown_by_module_and_stage():
    made = Ledger()
    for region, stage, seconds in (("net", "build", 2.0), ("net", "capture", 1.0), ("head", "capture", 0.5)):
        made(events.StageFinished(region=region, stage=stage, seconds=seconds))
    boxes = [(box["top"], box["said"], box["begin"], box["end"]) for box in work_charts.stages(made, 860)["data"]["values"]]
    assert boxes == [
        (0, "all of compiling: 3.5 s", 0.0, 3.5),
        (1, "net: 3 s", 0.0, 3.0),
        (2, "capture: 1 s", 0.0, 1.0),
        (2, "build: 2 s", 1.0, 3.0),
        (1, "head: 0.5 s", 3.0, 3.5),
        (2, "capture: 0.5 s", 3.0, 3.5),
    ]


def test_of_stretches_that_lie_over_one_another_the_last_is_seen():
    stretches = [(0.0, 20.0, "everything else"), (2.0, 12.0, "eager steps"), (4.0, 6.0, "compiling"), (5.0, 6.0, "measuring"), (18.0, 20.0, "eager steps")]
    assert seen_of(stretches) == {"eager steps": 10.0, "everything else": 8.0, "compiling": 1.0, "measuring": 1.0}


def test_like_events_are_one_row_with_what_they_cost(page):
    made = ledger()
    again = {"region": "net", "frame": "forward (a.py:3)", "entries": 2, "limit": 8, "site": "a.py:3 in forward", "override": "compile.dynamic=true"}
    for batch in range(1, 8):
        made.batch = batch
        made(events.Recompiled(failed=(f"L['x'].size(0): {batch} -> {batch + 1}",), seconds=0.5, **again))
    told = text_of(page_of(RunRecord(summary(), made)))
    assert "net L['x'].size(0) new entry 1 → 2; 2 → 3; 3 → 4; 4 → 5 and 3 more a.py:3 in forward 1 to 7 7 3.50 compile.dynamic=true" in told


def test_tuned_kernels_have_their_time_and_why_others_stay_apart_is_said():
    made = ledger()
    made(events.KernelTuned(region="net", kernel="add_gelu", winner="b", candidates=(("a", 500.0), ("b", 250.0))))
    made(events.FusionDecided(region="net", kernel="add_gelu", members=("sum",), bytes_saved=0, fused=False, reason="other sizes"))
    told = text_of(page_of(RunRecord(summary(), made)))
    assert "add_gelu add, gelu net 4 1.00 ms 2.000 2.0 1 line, 3 decisions" in told and "tuned: b of 2 (b 250.0 µs, a 500.0 µs)" in told
    assert "Why kernels were not joined: 1 reason " in told and "other sizes 1" in told


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
    assert page.count('tabindex="0" role="region" aria-label="') == 4  # tables that may scroll
    assert page.count("<figure>") == page.count("<figcaption>") and page.count('<svg role="img"') == 2 * page.count("<figure>")
    for name in re.findall(r'<input [^>]*id="([\w-]+)"', page):
        assert f'<label for="{name}">' in page and f'<output for="{name}" aria-live="polite">' in page
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1 and levels.count(1) == 1


def test_what_a_program_says_is_text(page):
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page


def test_the_page_needs_no_network_and_is_small(page):
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#)""", page) and "url(" not in page and len(page) < 300_000


def test_charts_are_drawn_with_words(page):
    assert page.count('<svg role="img"') == 2 * 5 and page.count("<title>") > 40
    assert "the milliseconds of its batches" in page and "currentColor" in page
    assert page.count('class="for-wide"') == page.count('class="for-phones"') == 5


def test_few_batches_have_no_charts_and_a_missing_package_is_named(monkeypatch):
    assert "The run was too short for charts over time." in page_of(RunRecord(summary(timeline=summary()["timeline"][:5]), ledger()))
    monkeypatch.setattr(charts, "DRAWS", "no_such_package")
    assert "pip install vl-convert-python" in page_of(RunRecord(summary(), ledger()))


def test_a_long_run_has_as_many_points_as_a_short_one():
    rows = timeline([1.0 + (i == 5000) * 99 for i in range(10_007)], [float(i) for i in range(10_007)])
    assert len(rows) <= BUCKETS and rows[0][0] == 0 and rows[-1][1] == 10_006 and max(row[3] for row in rows) == 100.0
    assert timeline([], []) == ()


def test_the_most_memory_of_each_point_is_kept():
    assert timeline([1.0, 2.0], [0.0, 1.0], [5, 7]) == ((0, 0.0, 1.0, 1.0, 5, 1.0), (1, 1.0, 2.0, 2.0, 7, 2.0))
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


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "has no summary.json"),
        ("summary.json", "there is no"),
        ("summary-2.json", "is no summary of a run"),
        ("nothere", "nothere is no folder of a run, nor a file of one"),
    ],
)
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
