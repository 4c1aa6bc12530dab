from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.ledger import Ledger, read_trace
from dynacompile.callbacks.outcome import Outcome
from dynacompile.callbacks.report import write_report
from dynacompile.callbacks.screen import facts, show
from dynacompile.callbacks.times import StepTimes
from dynacompile.errors import ConfigError
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, LimitHit, Recompiled, StageFinished
from tests.callbacks.conftest import FakeCompiler

QUICK = {"measure_after": 2, "measure_steps": 1, "step": False, "modules": {"net": {}}}


def test_compiles_what_the_globs_name_with_their_options(fit, compiler):
    fit(
        DynamoCallback(
            {**QUICK, "fuse": False, "modules": {"net.blocks.*": {"isolate_recompiles": True, "recompile_limit": 4, "mode": "max-autotune"}, "net.head": {}}}
        )
    )
    block = {"mode": "max-autotune", "isolate_recompiles": True, "recompile_limit": 4, "options": {"fuse": False}}
    assert compiler.asked == {"net.blocks.0": block, "net.blocks.1": block, "net.blocks.2": block, "net.head": {"options": {"fuse": False}}}


def test_modules_are_given_back_and_nothing_stays_subscribed(fit, compiler):
    module = fit(DynamoCallback(QUICK))
    assert module.net._compiled_call_impl is None
    assert not compiler.bus._subscribers


def test_a_failing_fit_releases_everything_too(fit, compiler):
    callback = DynamoCallback(QUICK)
    with pytest.raises(RuntimeError, match="a failing step"):
        fit(callback, fail_at=1)
    assert not compiler.bus._subscribers and not callback.run.names and callback.outcome.steps == 0


def test_an_unmatched_glob_stops_the_fit_before_any_step(fit, compiler):
    with pytest.raises(ConfigError, match="no module matches 'nett': did you mean 'net'"):
        fit(DynamoCallback({"modules": {"nett": {}}}))
    assert not compiler.asked


def test_the_sanity_check_does_not_seed_the_first_entry(fit, compiler):
    fit(DynamoCallback(QUICK), num_sanity_val_steps=2)
    assert compiler.compiled_calls[0] == ("net", True)


def test_disabled_compiles_nothing_and_measures_eager(fit, compiler):
    callback = DynamoCallback({**QUICK, "enabled": False})
    fit(callback)
    assert not compiler.asked and not compiler.compiled_calls
    assert callback.outcome.times.eager > 0 and callback.outcome.times.compiled is None
    assert "nothing (compile=none)" in dict(facts(callback.outcome))["compiled"]


def test_a_second_fit_of_the_same_callback_starts_over(fit, compiler):
    callback = DynamoCallback(QUICK)
    fit(callback)
    fit(callback)
    assert callback.outcome.ledger.graphs == 2 and callback.outcome.steps == 16


def test_loggers_get_the_numbers(fit, compiler, tmp_path):
    fit(DynamoCallback(QUICK))
    with open(tmp_path / "csv" / "metrics.csv", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["compile/graphs"]]
    assert [row["compile/graphs"] for row in rows][0] == "1.0"
    last = rows[-1]
    assert (last["compile/graphs"], last["compile/recompiles"], last["compile/seconds"], last["compile/kernels"]) == ("2.0", "1.0", "2.0", "6.0")
    assert float(last["compile/speedup"]) > 0 and float(last["compile/train_step_ms"]) > 0


def test_files_beside_the_logs(fit, compiler, tmp_path):
    fit(DynamoCallback(QUICK))
    folder = tmp_path / "csv"
    events = [json.loads(line) for line in (folder / "compile_events.jsonl").read_text().splitlines()]
    assert [e["event"] for e in events] == ["StageFinished", "StageFinished", "Compiled", "StageFinished", "StageFinished", "Compiled", "Recompiled"]
    assert [e["batch"] for e in events] == [0, 0, 0, 16, 16, 16, 16]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["modules"] == ["net"] and summary["steps"] == 16 and summary["compile"]["recompiles"] == 1
    assert "L[&#39;self&#39;].training: True -&gt; False" in (folder / "compile_report.html").read_text()


def test_a_trace_reads_back_as_the_ledger_that_wrote_it(fit, compiler, tmp_path):
    callback = DynamoCallback(QUICK)
    fit(callback)
    assert read_trace(tmp_path / "csv" / "compile_events.jsonl").seen == callback.outcome.ledger.seen


def outcome(compiled_ms: float = 5.0, steps: int = 200) -> Outcome:
    ledger = Ledger()
    for event in (
        StageFinished(region="net", stage="capture", seconds=0.5),
        Compiled(region="net", frame="f (a.py:1)", graph=0, ops=3, guards=2, kernels=0, seconds=0.5),
        GraphBroke(region="net", code="print", reason="print() has an effect", hint="remove it", site="a.py:4 in f"),
        LimitHit(region="net", frame="f (a.py:1)", limit=8, guard="x", override="compile.modules={net: {recompile_limit: 16}}"),
    ):
        ledger(event)
    for new in (1, 1, 2):
        ledger(Recompiled(region="net", frame="f (a.py:1)", entries=2, limit=8, failed=(f"n: 0 -> {new}",), site="", seconds=0.1, override=""))
    times = StepTimes(eager=10.0, compiled=compiled_ms, steps=5)
    return Outcome(
        modes=("default",),
        modules=("net",),
        losses={"val/loss": 1.25},
        steps=steps,
        fit_seconds=12.0,
        train_step_ms=7.0,
        times=times,
        unmeasured="",
        ledger=ledger,
        logs=("logs/csv",),
    )


def test_payoff():
    assert outcome().payoff_step == 100
    assert outcome(compiled_ms=10.0).payoff_step is None


def test_the_screen_tells_everything_on_one_screen():
    text = io.StringIO()
    show(outcome(), console=Console(file=text, width=80))
    shown = text.getvalue()
    for fact in (
        "val/loss",
        "1.2500",
        "net in mode default",
        "0.50 s for 1 graph",
        "[print] print() has an effect at a.py:4",
        "n: 0 -> 1 (2 times)",
        "10.0 ms",
        "5.0 ms",
        "2.00x",
        "at step 100 of 200",
        "logs/csv",
    ):
        assert fact in shown, fact
    assert len(shown.splitlines()) <= 28


def test_the_report_escapes_what_users_wrote(tmp_path):
    made = outcome()
    made.ledger(GraphBroke(region="<b>", code="x", reason="<script>", hint="", site="s"))
    page = write_report(made.record(), tmp_path / "r.html").read_text()
    assert page.count("<script>") == 1 and "&lt;script&gt;" in page  # the page's own


def test_events_of_a_region_are_counted_apart():
    ledger = Ledger()
    fake = FakeCompiler()
    fake.bus.subscribe(ledger)
    fake.tell("a", 0)
    fake.tell("b", 0)
    fake.tell("b", 1)
    assert ledger.per_region() == {"a": {"seconds": 1.0, "graphs": 1}, "b": {"seconds": 2.0, "graphs": 2, "recompiles": 1}}


def test_why_a_part_runs_as_python():
    ledger = Ledger()
    assert ledger.why_eager("step") == "the run ended before it was compiled"
    ledger(Compiled(region="step", frame="f", graph=0, ops=0, guards=1, kernels=0, seconds=0.1))
    assert ledger.why_eager("step") == "it has no operations on tensors"
    ledger(FrameSkipped(region="step", site="f", reason="[generator] a generator"))
    assert ledger.why_eager("step") == "[generator] a generator"
