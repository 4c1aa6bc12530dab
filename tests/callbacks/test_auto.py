"""`compile=auto`: what is tried, what verifies, what is kept, and that the fit is the same."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import statistics

import pytest
import torch
import wandb
import yaml
from lightning.pytorch.loggers import WandbLogger

from dynacompile.callbacks import DynamoCallback, auto
from dynacompile.callbacks.auto import as_config, changed, offered, parts_of
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.callbacks.times import StepTimes
from dynacompile.callbacks.trials import COLUMNS, Trial
from dynacompile.callbacks.verified import Results, difference
from dynacompile.errors import ConfigError
from tests.callbacks.conftest import Regression
from tests.callbacks.logged import OfflineRun

SETTINGS = {"backend": "eager", "measure_after": 2, "measure_steps": 1, "auto": 600.0}


def wrong(graph, inputs):
    """A backend whose results are not those of the graph."""

    def run(*values):
        return [value * 1.5 if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in graph(*values)]

    return run


def failing(graph, inputs):
    def run(*values):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    return run


@pytest.mark.slow
def test_a_fit_with_trials_ends_as_one_without_and_tells_what_was_tried(fit, tmp_path, capsys):
    callback = DynamoCallback(SETTINGS)
    module, plain = fit(callback), fit()
    for name, value in plain.state_dict().items():
        assert torch.equal(value, module.state_dict()[name]), name
    trials = callback.outcome.trials
    names = [trial.name for trial in trials if trial.changes.get("enabled") is not False]
    expected = ["as configured", "mode=max-autotune-no-cudagraphs", "step=false modules=net", "step=false modules=net.blocks.*", "dynamic=true"]
    assert len(names) == len(expected) and all(name.endswith(end) for name, end in zip(names, expected)), names
    assert sum(trial.is_kept for trial in trials) == 1
    assert all(trial.is_kept or trial.outcome == "not clearly faster" for trial in trials), [trial.outcome for trial in trials]
    shown = capsys.readouterr().out
    assert "tried" in shown and "as configured" in shown and "chosen.yaml" in shown
    (summary,) = tmp_path.rglob("summary.json")
    assert len(json.loads(summary.read_text())["auto"]) == len(trials)
    (report,) = tmp_path.rglob("compile_report.html")
    page = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", report.read_text())).split())
    assert all(" ".join(trial.line().split()) in page for trial in trials), "the report has the table of what was tried"
    (written,) = tmp_path.rglob("compile/chosen.yaml")
    values = yaml.safe_load(written.read_text())
    assert values.pop("defaults") == ["default"]
    assert CompileSettings.of(values) == callback.run.settings and callback.run.settings.auto == 0.0


@pytest.mark.slow
def test_what_does_not_verify_is_not_kept(fit):
    callback = DynamoCallback({**SETTINGS, "backend": wrong})
    fit(callback)
    *tried, kept = callback.outcome.trials
    assert all("does not verify" in trial.outcome for trial in tried)
    assert kept.changes == {"enabled": False} and kept.is_kept
    assert callback.outcome.times.compiled is None


@pytest.mark.slow
def test_a_trial_that_raises_is_a_row_and_the_fit_goes_on(fit, monkeypatch):
    own = auto.changed
    monkeypatch.setattr(auto, "changed", lambda settings, changes: own(settings, {**changes, "backend": failing} if "mode" in changes else changes))
    callback = DynamoCallback(SETTINGS)
    fit(callback)
    (raised,) = (trial for trial in callback.outcome.trials if "mode" in trial.changes)
    assert "OutOfMemoryError: CUDA out of memory" in raised.outcome and not raised.is_kept


def test_what_does_not_fit_the_budget_is_not_tried(fit):
    callback = DynamoCallback({**SETTINGS, "auto": 1e-9})
    fit(callback)
    first, *others = [trial for trial in callback.outcome.trials if trial.changes.get("enabled") is not False]
    assert first.times is not None
    assert others and all(trial.outcome.startswith("not tried: it would not fit the budget, compile.auto=1e-09 seconds") for trial in others)


def test_a_step_that_cannot_be_repeated_stays_as_it_is_configured(fit, tmp_path):
    class Reads(Regression):
        def on_train_start(self):
            self.file = (tmp_path / "open.txt").open("w")

    callback = DynamoCallback(SETTINGS)
    fit(callback, cls=Reads).file.close()
    (trial,) = callback.outcome.trials
    assert trial.is_kept and "open file" in trial.line()
    assert callback.run.settings == changed(callback.settings, {}) and "training_step" in callback.outcome.compiled


def test_a_step_that_prints_once_is_tried_at_the_next_batch(fit):
    class Prints(Regression):
        def training_step(self, batch, index):
            if index == 2:
                print("once")
            return super().training_step(batch, index)

    callback = DynamoCallback({**SETTINGS, "auto": 1e-9})
    fit(callback, cls=Prints)
    assert callback.outcome.trials[0].times is not None and callback.search.attempts == 2


@pytest.mark.parametrize("budget", [-1.0, float("nan"), "long"])
def test_a_wrong_budget_is_refused(budget):
    with pytest.raises(ConfigError, match="compile.auto must be"):
        CompileSettings.of({"auto": budget})


def test_stages_start_from_the_best_so_far_and_leave_what_the_user_set():
    module = Regression()
    best = {"mode": "max-autotune-no-cudagraphs"}
    assert list(offered("sizes", CompileSettings(), best, module)) == [{**best, "dynamic": True}]
    assert list(offered("sizes", CompileSettings.of({"dynamic": False}), best, module)) == []
    assert list(offered("mode", CompileSettings.of({"mode": "max-autotune-no-cudagraphs"}), {}, module)) == []
    assert list(offered("memory", CompileSettings(), best, module)) == []  # on CPUs
    parts = offered("parts", CompileSettings.of({"modules": {"net.head": {"fuse": False}}}), best, module)
    assert next(parts) == {**best, "step": False}
    assert next(parts) == {**best, "step": False, "modules": {"net.head": {"fuse": False}, "net": {}}}
    own = {"net": {"fuse": False}}
    parts = offered("parts", CompileSettings.of({"modules": own}), {}, module)
    assert list(parts) == [{"step": False}, {"step": False, "modules": {**own, "net.blocks.*": {}}}]  # options of `net` stay, and no trial comes twice
    assert {"step": False} not in offered("parts", CompileSettings.of({"modules": {"training_step": {"fuse": False}}}), {}, module)
    assert list(parts_of(module)) == ["net", "net.blocks.*"]


def test_on_gpus_more_modes_and_a_smaller_budget_of_memory_are_tried():
    module = Regression()
    module._device = torch.device("cuda", 0)
    assert [trial["mode"] for trial in offered("mode", CompileSettings(), {}, module)] == ["reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"]
    best = {"mode": "max-autotune", "dynamic": True}
    assert list(offered("memory", CompileSettings(), best, module)) == [{**best, "memory_budget": 0.5}]
    assert list(offered("memory", CompileSettings.of({"memory_budget": 0.8}), best, module)) == []


def times(eager: float, compiled: float) -> StepTimes:
    return StepTimes(eager, compiled, 1, rounds=((eager, compiled),))


def test_the_config_that_is_written_reproduces_the_choice(tmp_path):
    settings = changed(CompileSettings.of({"auto": 60.0, "recompile_limit": 3}), {"mode": "max-autotune", "step": False, "modules": {"net": {}}})
    trial = Trial({"mode": "max-autotune"}, times(2.0, 1.0), is_kept=True)
    text = as_config(settings, [trial], tmp_path / "run" / "compile" / "chosen.yaml")
    assert f"--config-dir={tmp_path / 'run'} compile=chosen" in text and "2.00x" in text
    values = yaml.safe_load(text)
    assert values.pop("defaults") == ["default"] and "auto" not in values
    assert CompileSettings.of(values) == settings


def with_ratios(*ratios: float) -> Trial:
    return Trial({}, StepTimes(statistics.median(ratios), 1.0, len(ratios), rounds=tuple((ratio, 1.0) for ratio in ratios)))


@pytest.mark.parametrize(
    ("later", "best", "is_faster"),
    [
        ((1.6, 1.6, 1.6, 1.6, 1.6), (1.5, 1.5, 1.5, 1.5, 1.5), True),
        ((1.3, 1.6, 1.6, 1.6, 1.6), (1.5, 1.5, 1.5, 1.5, 1.5), False),  # it may be slower
        ((1.505, 1.505, 1.505, 1.505, 1.505), (1.5, 1.5, 1.5, 1.5, 1.5), False),
        ((4.0,), (3.0,), True),  # nothing is known of noise
    ],
)
def test_a_later_trial_is_kept_where_it_is_faster_beyond_noise(later, best, is_faster):
    assert with_ratios(*later).is_faster_than(with_ratios(*best)) is is_faster
    assert with_ratios(*later).is_faster_than(Trial({}))


def results(**changes: torch.Tensor) -> Results:
    numbers = torch.Generator().manual_seed(0)
    gradients = {"weight": torch.randn(100, generator=numbers), "bias": torch.randn(3, generator=numbers) * 1e-7}
    found = Results(gradients, {"weight": torch.randn(100, generator=numbers)}, {"count": torch.tensor(3), "mean": torch.ones(2)})
    return dataclasses.replace(found, **changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"gradients": {**results().gradients, "bias": torch.zeros(3)}}, ""),  # rounding errors of the others
        ({"gradients": {**results().gradients, "weight": results().gradients["weight"] * 1.0001}}, ""),
        ({"gradients": {**results().gradients, "weight": results().gradients["weight"] * 1.01}}, "the gradient of weight differs by 0.01"),
        ({"gradients": {"weight": results().gradients["weight"]}}, "the gradient of bias is there in one of eager and compiled"),
        ({"gradients": {**results().gradients, "weight": torch.full((100,), float("nan"))}}, "the gradient of weight is not finite in other places"),
        ({"buffers": {"count": torch.tensor(4), "mean": torch.ones(2)}}, "the buffer of count differs"),
        ({"buffers": {"count": torch.tensor(3.0), "mean": torch.ones(2)}}, "the buffer of count is torch.float32"),
        ({"updates": {"weight": torch.zeros(100)}}, "the optimizer's update differs by 1 of its norm"),
        ({"updates": {"weight": torch.full((100,), float("nan"))}}, "the optimizer's update differs by nan"),
    ],
)
def test_what_differs_from_eager_is_said(changes, said):
    told = difference(results(), results(**changes), is_half=False)
    assert said in told if said else told == ""


@pytest.mark.slow
def test_weights_and_biases_gets_the_table_and_the_config(fit, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = DynamoCallback({**SETTINGS, "auto": 1e-9})
    module = fit(callback, logger=WandbLogger(project="p", save_dir=tmp_path, offline=True, mode="offline"))
    run_id = module.trainer.logger.version
    wandb.finish()
    run = OfflineRun(tmp_path)
    columns, rows = run.table("compile/auto")
    assert tuple(columns) == COLUMNS and len(rows) == len(callback.outcome.trials)
    assert rows[0][0] == "as configured" and rows[0][3] == pytest.approx(callback.outcome.trials[0].speedup)
    assert "chosen.yaml" in set(run.artifacts[f"compile-report/compile-{run_id}"])
