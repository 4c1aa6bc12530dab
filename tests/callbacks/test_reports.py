"""The numbers of a fit: their axis, their names, and who can read them when."""

from __future__ import annotations

import csv
import json
import math
import os
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import Logger

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks import numbers as told
from dynacompile.callbacks.ledger import Ledger
from dynacompile.errors import ConfigError
from dynacompile.events import Compiled
from tests.callbacks.conftest import FakeCompiler, Regression, loader
from tests.forked import LIGHTNING, run

QUICK = {"measure_after": 2, "measure_steps": 1, "step": False, "modules": {"net": {}}}


class Kept(Logger):
    """A logger that keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, dict[str, float]]] = []

    name, version = "kept", "0"

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass

    def steps_of(self, name: str) -> list[int]:
        return [step for step, row in self.rows if name in row]


class Busy(L.Callback):
    """Has the compiler tell of one more graph of "net" in the batches that it names, as a recompile would be."""

    def __init__(self, compiler: FakeCompiler, *batches: int):
        self.compiler, self.batches, self.count = compiler, batches, 0

    def on_train_batch_end(self, *args: Any) -> None:
        if self.count in self.batches:
            self.compiler.tell("net", 2)
        self.count += 1


class Two(Regression):
    """Manual optimization with two optimizers that both step in each batch: global_step counts by twos."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.net.blocks, self.net.head)]

    def training_step(self, batch, index):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
            optimizer.zero_grad()


# the axis


@pytest.mark.parametrize("cls", [Regression, Two], ids=["one-optimizer", "two-optimizers"])
@pytest.mark.parametrize("options", [{}, {"log_every_n_steps": 4}], ids=["each-batch", "each-fourth"])
def test_values_lie_where_lightning_has_its_own(cls, options, fit, compiler):
    kept = Kept()
    fit(Busy(compiler, 1, 2, 7), DynamoCallback({**QUICK, "measure_steps": 0}), cls=cls, logger=kept, **options)
    own = kept.steps_of("train/loss")
    assert own == ([3, 7, 11, 15] if options else list(range(16)))
    wanted = [3, 7, 15] if options else [0, 1, 2, 7, 15]  # where the counts had changed, and the end
    assert kept.steps_of("compile/graphs") == wanted and set(wanted) <= set(own)


def test_values_of_accumulated_batches_lie_at_their_step(fit, compiler):
    kept = Kept()
    fit(Busy(compiler, 4), DynamoCallback({**QUICK, "measure_steps": 0}), LearningRateMonitor(), logger=kept, accumulate_grad_batches=4)
    assert kept.steps_of("compile/graphs") == [0, 1, 3] and kept.steps_of("train/loss") == [0, 1, 2, 3]
    assert set(kept.steps_of("lr-SGD")) == {0, 1, 2, 3}


def test_a_resumed_fit_goes_on_on_the_axis(compiler, tmp_path):
    def trained(ckpt: str | None, epochs: int) -> Kept:
        kept = Kept()
        checkpoint = ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=11, save_top_k=-1)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}
        callbacks = [Busy(compiler, 0), DynamoCallback({**QUICK, "measure_steps": 0}), checkpoint]
        trainer = L.Trainer(max_epochs=epochs, logger=kept, callbacks=callbacks, default_root_dir=tmp_path, num_sanity_val_steps=0, **quiet)
        trainer.fit(Regression(), loader(), loader(), ckpt_path=ckpt, weights_only=False)
        return kept

    first = trained(None, 1)
    assert first.steps_of("compile/graphs") == [0, 15]
    again = trained(str(tmp_path / "at.ckpt"), 2)
    own = again.steps_of("train/loss")
    assert own[0] == 11 and again.steps_of("compile/graphs")[0] == 11 and again.steps_of("compile/graphs")[-1] == own[-1]


def test_values_that_did_not_change_are_not_logged_again(fit, compiler):
    kept = Kept()
    fit(DynamoCallback({**QUICK, "measure_steps": 0}), logger=kept, limit_val_batches=0)
    assert kept.steps_of("compile/graphs") == [0, 15]
    assert "compile/fit_seconds" not in kept.rows[0][1] and "compile/fit_seconds" in kept.rows[-1][1]


# the names


def test_each_part_has_numbers_of_its_own(fit, compiler):
    kept = Kept()
    fit(Busy(compiler, 1), DynamoCallback({**QUICK, "measure_steps": 0, "modules": {"net": {}, "net.head": {}}}), logger=kept)
    last = kept.rows[-1][1]
    assert last["compile/net/graphs"] == 3 and last["compile/net/recompiles"] == 2 and last["compile/net.head/graphs"] == 2
    assert last["compile/net/seconds"] + last["compile/net.head/seconds"] == last["compile/seconds"]
    of_parts = {name for name in last if name.count("/") == 2}
    assert len(of_parts) == 2 * len(told.PART_KEYS)


def test_many_numbered_parts_are_one():
    ledger = Ledger()
    names = [f"net.blocks.{i}.mlp" for i in range(20)]
    for name in names[:3]:
        ledger(Compiled(region=name, frame="f", graph=0, ops=1, guards=1, kernels=0, seconds=1.0))
    assert told.of_parts(ledger, names)["net.blocks.N.mlp/graphs"] == 3.0 and len(told.of_parts(ledger, names)) == len(told.PART_KEYS)
    assert told.of_parts(ledger, names[:4])["net.blocks.3.mlp/graphs"] == 0.0
    assert set(told.of_parts(ledger, ["a<b>*c"])) == {f"a_b__c/{key}" for key in told.PART_KEYS}, "names that every logger takes"


@pytest.mark.parametrize("prefix", ["", "dyna-", "a/b/"])
def test_the_prefix_is_the_users(prefix, fit, compiler):
    kept = Kept()
    module = fit(DynamoCallback({**QUICK, "log_prefix": prefix}), logger=kept)
    for name in ("graphs", "speedup", "net/recompiles"):
        assert prefix + name in kept.rows[-1][1] and prefix + name in module.trainer.callback_metrics


def test_a_prefix_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="compile.log_prefix must be a str"):
        DynamoCallback({"log_prefix": 3})


def test_numbers_of_other_loops_have_their_stage_before_them():
    assert told.prefixed({"seconds": 1}, "compile/", "test") == {"test/compile/seconds": 1.0}


# what callbacks can read


class Look(L.Callback):
    """What callback_metrics holds in each hook, by the hook's name; the last time that it ran."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[str, float]] = {}

    def look(self, hook: str, trainer: L.Trainer) -> None:
        self.seen[hook] = {name: float(value) for name, value in trainer.callback_metrics.items()}

    def on_train_start(self, trainer, module):
        self.look("train_start", trainer)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        self.look(f"batch {index}", trainer)

    def on_validation_end(self, trainer, module):
        self.look("sanity" if trainer.sanity_checking else "validation_end", trainer)

    def on_train_epoch_end(self, trainer, module):
        self.look("epoch_end", trainer)

    def on_fit_end(self, trainer, module):
        self.look("fit_end", trainer)


def test_callback_metrics_hold_the_numbers_in_every_hook(fit, compiler):
    look = Look()
    module = fit(Busy(compiler, 3), DynamoCallback(QUICK), look, num_sanity_val_steps=2)
    graphs = {hook: values["compile/graphs"] for hook, values in look.seen.items() if hook != "sanity"}
    assert graphs["train_start"] == 0 and graphs["batch 0"] == 1 and graphs["batch 2"] == 1 and graphs["batch 3"] == 2
    assert graphs["validation_end"] == graphs["epoch_end"] == graphs["fit_end"] == 3
    assert math.isnan(look.seen["batch 1"]["compile/speedup"]) and look.seen["batch 2"]["compile/speedup"] > 0
    after = module.trainer.callback_metrics
    assert {"compile/speedup", "compile/fit_seconds", "compile/net/recompiles", "train/loss", "val/loss"} <= set(after)
    assert all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in after.values())
    assert float(module.trainer.logged_metrics["compile/graphs"]) == 3


def test_a_checkpoint_may_monitor_the_speedup(compiler, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path, monitor="compile/speedup", mode="max", filename="{step}", every_n_train_steps=2, save_top_k=1)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    callbacks = [checkpoint, DynamoCallback({**QUICK, "trace": False})]
    trainer = L.Trainer(max_epochs=1, callbacks=callbacks, default_root_dir=tmp_path, val_check_interval=1, **quiet)  # validated before it is known
    trainer.fit(Regression(), loader(), loader())
    assert float(checkpoint.best_model_score) == pytest.approx(float(trainer.callback_metrics["compile/speedup"]))


def test_early_stopping_may_monitor_recompiles(fit, compiler):
    stop = EarlyStopping("compile/recompiles", mode="min", stopping_threshold=-1.0, divergence_threshold=1.5, check_on_train_epoch_end=True, patience=100)
    module = fit(Busy(compiler, 2, 3, 18), DynamoCallback({**QUICK, "measure_steps": 0}), stop, max_epochs=4, limit_val_batches=0)
    assert module.trainer.current_epoch == 1 and "compile/recompiles" in stop.state_key


def test_nothing_is_computed_for_a_batch_without_news(fit, compiler, monkeypatch):
    counted = []
    whole = Ledger.metrics
    monkeypatch.setattr(Ledger, "metrics", lambda ledger: counted.append(1) or whole(ledger))
    fit(DynamoCallback({**QUICK, "measure_steps": 0}), max_epochs=3, limit_val_batches=0)
    assert len(counted) <= 10  # the start, the first batch, the ends of epochs and fit, each report; of 48 batches


# several ranks


def test_the_largest_of_all_ranks_and_the_speed_up_of_the_slowest():
    one = {"c/recompiles": 3.0, "c/graph_breaks": 2.0, "c/step_ms_eager": 10.0, "c/step_ms_compiled": 5.0, "c/speedup": 2.0}
    other = {"c/recompiles": 1.0, "c/graph_breaks": 1.0, "c/step_ms_eager": 9.0, "c/step_ms_compiled": 8.0, "c/speedup": 1.125, "c/x/graphs": 1.0}
    both = told.of_all([one, other], "c/")
    assert both == {"c/recompiles": 3.0, "c/graph_breaks": 3.0, "c/step_ms_eager": 10.0, "c/step_ms_compiled": 8.0, "c/speedup": 1.25, "c/x/graphs": 1.0}


@pytest.mark.slow
def test_two_ranks_know_the_same_and_the_first_alone_writes(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = run(LIGHTNING, "-m", "tests.callbacks.two_ranks", str(tmp_path), env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    known = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [of["compile/recompiles"] for of in known] == [1.0, 1.0] and known[0]["compile/fit_seconds"] == known[1]["compile/fit_seconds"]
    with open(tmp_path / "csv" / "metrics.csv", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["compile/recompiles"]]
    assert [(row["step"], row["compile/recompiles"]) for row in rows] == [("1", "1.0"), ("7", "1.0")]
    assert len(list(tmp_path.rglob("compile_report*"))) == len(list(tmp_path.rglob("summary*"))) == 1
    assert done.stdout.count("─ dynacompile ─") == 1
