"""Fits as researchers write them: what is compiled, how often, and how the screen tells of it."""

from __future__ import annotations

import re
import signal
import threading

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch.utils.data import DataLoader, Dataset

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.measure import StepMeasurement
from dynacompile.callbacks.paths import as_read
from tests.callbacks.projects import BATCHES, QUIET, SIZE, STEPS, Project, Sgd, fit, left_nothing, loader, same


class Constant(Project):
    """Without a scheduler."""

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Counts(Constant):
    """A number of its own in the step."""

    def __init__(self):
        super().__init__()
        self.steps_seen = 3

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.steps_seen


class Restarts(L.Callback):
    """Makes a scheduler while the fit runs."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            self.schedule = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizers[0], 0.5)
        if trainer.current_epoch >= 1:
            self.schedule.step()


def averages():
    return StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1, annealing_epochs=1)


def test_a_scheduler_that_is_made_in_the_fit_leaves_the_step_compiled(tmp_path):
    """It wraps the optimizer's step, which weight averaging does before the first one."""
    plain, compiled = (fit(Constant, tmp_path / str(on), on, callbacks=lambda: [averages()], max_epochs=3) for on in (False, True))
    same(compiled, plain)
    assert compiled.entries == STEPS
    plain, compiled = (fit(Sgd, tmp_path / str(on), on, callbacks=lambda: [Restarts()], max_epochs=4) for on in (False, True))
    same(compiled, plain)
    assert compiled.entries == STEPS | {"optimizer_step": 2} and compiled.count(events.Recompiled) == 1  # the first rate, and others
    assert plain.trainer.optimizers[0]._opt_called and compiled.trainer.optimizers[0]._opt_called
    left_nothing(compiled)


class Cycles(Project):
    """A schedule of the momentum beside that of the rate."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=self.lr, total_steps=40)
        schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cycle], [2])
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_a_momentum_that_a_scheduler_cycles_does_not_recompile(tmp_path):
    plain, compiled = (fit(Cycles, tmp_path / str(on), on) for on in (False, True))
    same(compiled, plain)
    assert compiled.entries == STEPS and not compiled.count(events.Recompiled)


class Replaces(L.Callback):
    """Puts a step of its own in the place of the optimizer's, and does not call the one before."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        optimizer = trainer.optimizers[0]
        optimizer.step = lambda closure=None: type(optimizer).step(optimizer, closure)


def test_a_step_that_somebody_has_replaced_is_told(tmp_path, capsys):
    compiled = fit(Sgd, tmp_path, True, callbacks=lambda: [Replaces()], max_epochs=1)
    assert "optimizer_step" not in compiled.entries
    assert "another function has taken the place of SGD.step" in " ".join(capsys.readouterr().out.replace("│", " ").split())


class LogsRates(Project):
    def training_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        self.log("rate", self.trainer.optimizers[0].param_groups[1]["lr"], prog_bar=True)
        self.log("own", self.optimizers().param_groups[0]["lr"])
        self.log("last", self.lr_schedulers().get_last_lr()[0])
        return loss


def test_rates_that_a_step_logs_do_not_recompile(tmp_path):
    plain, compiled = (fit(LogsRates, tmp_path / str(on), on) for on in (False, True))
    same(compiled, plain)
    assert compiled.entries == STEPS and not compiled.count(events.Recompiled)


class Named(Dataset):
    """Items with names."""

    def __init__(self, count: int):
        numbers = torch.Generator().manual_seed(1)
        self.x, self.y = torch.randn(count, 8, generator=numbers), torch.randint(0, 3, (count,), generator=numbers)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at):
        return {"image": self.x[at], "label": self.y[at], "path": f"images/{'x' * (at % 3)}{at}.png", "meta": {"index": at}}


class KeepsNames(Project):
    """Predictions beside the names of what they are of."""

    def __init__(self):
        super().__init__()
        self.seen, self.worst, self.outputs = [], [], []

    def training_step(self, batch, batch_idx):
        loss, _ = self.loss((batch["image"], batch["label"]))
        self.seen.extend(batch["path"])
        self.worst += [(batch["path"][0], loss.detach())]
        self.log("train/loss", loss, batch_size=len(batch["path"]))
        return loss

    def validation_step(self, batch, batch_idx):
        loss, _ = self.loss((batch["image"], batch["label"]))
        self.outputs.append({"path": batch["path"], "loss": loss, "title": f"{batch_idx}: {batch['path'][0]}"})

    def on_validation_epoch_end(self):
        self.titles = [out["title"] for out in self.outputs]
        self.log("val/loss", torch.stack([out["loss"] for out in self.outputs]).mean())
        self.outputs.clear()


def test_names_of_items_that_are_kept_do_not_recompile(tmp_path):
    data = lambda: DataLoader(Named(BATCHES * SIZE), batch_size=SIZE)  # noqa: E731
    plain, compiled = (fit(KeepsNames, tmp_path / str(on), on, data=data, validation=data, max_epochs=3) for on in (False, True))
    same(compiled, plain)
    assert compiled.module.seen == plain.module.seen and len(plain.module.seen) == 3 * BATCHES * SIZE
    assert compiled.module.titles == plain.module.titles
    assert [name for name, _ in compiled.module.worst] == [name for name, _ in plain.module.worst]
    assert max(compiled.entries.values()) <= 3 and not compiled.count(events.LimitHit), [str(e) for e in compiled.told]


class Prints(Project):
    """Branches on Lightning's counters, and prints."""

    def training_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        if self.global_step % 4 == 1:
            print("loss", loss.detach())
        if self.current_epoch == 1:
            loss = loss * 2
        if self.trainer.is_last_batch:
            loss = loss + 1
        for step in (2, 3, 5, 7):
            if self.global_step == step:
                loss = loss * 1.5
        return loss


def test_recompiles_are_told_in_the_names_of_the_step(tmp_path, capsys):
    compiled = fit(Prints, tmp_path, True)
    screen = " ".join(capsys.readouterr().out.split("╭")[-1].replace("│", " ").split())
    assert "self.global_step" in screen and "_trainer" not in screen
    assert compiled.count(events.Recompiled) == 8 and " and 4 more " in screen
    assert not compiled.count(events.FrameSkipped), "what a named tuple is made by is no function of the user's"


def test_names_of_a_step():
    below = "self._trainer.fit_loop.epoch_loop"
    known = {
        f"{below}.automatic_optimization.optim_progress.optimizer.step.total.completed % 4 == 0": "self.global_step % 4 == 0",
        f"{below}.manual_optimization.optim_step_progress.total.completed": "self.global_step",
        "self._trainer.fit_loop.epoch_progress.current.completed": "self.current_epoch",
        f"{below}.batch_progress.is_last_batch": "self.trainer.is_last_batch",
        "self._trainer._accelerator_connector.strategy._optimizers[0].param_groups[1]['lr']": "self.trainer.optimizers[0].param_groups[1]['lr']",
        "self._trainer.accumulate_grad_batches": "self.trainer.accumulate_grad_batches",
        "self.my_trainer.x": "self.my_trainer.x",
    }
    assert {path: as_read(path) for path in known} == known


def test_one_graph_is_told_as_one(tmp_path, capsys):
    trainer = L.Trainer(**QUIET, default_root_dir=tmp_path, callbacks=[DynamoCallback(trace=False)])
    trainer.validate(Project(), loader(SIZE), verbose=False)
    assert " for 1 graph, " in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"accumulate_grad_batches": 4, "max_epochs": 3}, {}], ids=["accumulation", "each batch"])
def test_the_first_step_of_an_optimizer_is_not_measured(options, tmp_path):
    """It makes the optimizer's state, which no later step does."""
    callback = DynamoCallback(measure_after=0, measure_steps=1, trace=False)
    compiled = fit(Constant, tmp_path, False, callbacks=lambda: [callback], **options)
    assert callback.outcome.times is not None, callback.outcome.unmeasured
    assert compiled.entries == STEPS and not compiled.count(events.Recompiled)
    assert compiled.count(events.FirstStepLeft) == 1


def test_a_fit_that_ends_with_its_first_optimizer_step_says_what_it_lacked(tmp_path):
    callback = DynamoCallback(measure_after=0, measure_steps=1, trace=False)
    fit(Constant, tmp_path, False, callbacks=lambda: [callback], accumulate_grad_batches=BATCHES, max_epochs=1)
    assert callback.outcome.unmeasured == f"not measured: the fit had no {BATCHES + 1} batches"


def test_under_anomaly_detection_the_reason_is_told_once(tmp_path, capsys):
    fit(Constant, tmp_path, True, detect_anomaly=True, num_sanity_val_steps=0, max_epochs=1)
    screen = " ".join(capsys.readouterr().out.split("╭")[-1].replace("│", " ").split())
    assert "training_step, validation_step, optimizer_step: [active-mode] autograd's anomaly detection is on, which is to see every operation" in screen
    assert screen.count("anomaly detection") == 1 and "left to Python" not in screen


def test_an_optimizers_step_is_told_by_its_own_name(tmp_path, capsys):
    """And not by the function of ours that clips and steps."""
    callback = DynamoCallback(measure_steps=0)
    trainer = L.Trainer(**{**QUIET, "max_epochs": 3}, default_root_dir=tmp_path, callbacks=[Restarts(), callback])
    trainer.fit(Constant(), loader())
    told = [event for event in callback.outcome.ledger.recompiles if event.region == "optimizer_step"]
    assert told and all((event.frame, event.site) == ("optimizer_step", "") for event in told)
    assert told[0].failed[0].startswith("optimizer.param_groups[0]['lr']: ")
    printed = "".join(capsys.readouterr().out.split())
    assert "optimizer_step:optimizer.param_groups[0]['lr']" in printed and "optimizer_step.py" not in printed


def test_what_waits_in_the_background_is_not_told_as_compiled(tmp_path, capsys):
    """The run ends before its programs are built: a step has no graph, though another may have one."""
    release = threading.Event()

    def slow(graph, inputs):
        release.wait(60)
        return graph.forward

    try:
        callback = DynamoCallback(background=True, backend=slow, measure_steps=0)
        trainer = L.Trainer(**QUIET, max_steps=2, default_root_dir=tmp_path, callbacks=[callback])
        trainer.fit(Constant(), loader())
    finally:
        release.set()
        dynacompile.wait(60)
    assert not callback.outcome.compiled
    assert callback.outcome.eager["training_step"] == "its programs were still built in the background when the run ended"


def test_a_name_of_dynamic_that_a_step_does_not_have_is_a_warning(tmp_path, recwarn):
    """Where the step's own options name it. A name for all parts may be that of another."""
    own, shared = {"modules": {"training_step": {"dynamic": {"btch.0": {0: {}}}}}}, {"dynamic": {"batch.0": {0: {}}}, "modules": {"net": {}}}
    for options in (own, shared):
        trainer = L.Trainer(**QUIET, max_steps=3, default_root_dir=tmp_path, callbacks=[DynamoCallback(measure_steps=0, **options)])
        trainer.fit(Constant(), loader(), loader())
    (told,) = [str(warning.message) for warning in recwarn if "dynamic names" in str(warning.message)]
    assert told.startswith("training_step: dynamic names 'btch.0', and no tensor that the program reads is called so: did you mean 'batch.0' or 'batch.1'?")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dynamic": {"batch.0": {0: {}}, "batch.1": {0: {}}}}, ""),
        ({"varying": ["batch_idx", "lr", "steps_seen"]}, ""),
        ({"varying": ["momentum"]}, "compile.varying names 'momentum', and no number that the call reads is called so: "),
        ({"dynamic": {"btch.0": {0: {}}}}, "compile.dynamic names 'btch.0', and no tensor that the program reads is called so: did you mean 'batch.0' or "),
        ({"dynamic": {"batch.0": {7: {}}}}, "compile.dynamic names dimension 7 of 'batch.0', which has 2 dimensions"),
        (
            {"varying": ["self.steps_sen"]},
            "compile.varying names 'self.steps_sen', and no number that the call reads is called so: did you mean 'self.steps_seen'?",
        ),
        ({"modules": {"training_step": {"varying": ["steps_sen"]}}}, "training_step: varying names 'steps_sen', and no number .*: did you mean 'steps_seen'"),
    ],
)
def test_a_name_in_settings_that_no_step_has_is_one_warning(tmp_path, recwarn, options, said):
    trainer = L.Trainer(**QUIET, max_epochs=3, default_root_dir=tmp_path, callbacks=[DynamoCallback(measure_steps=0, **options)])
    trainer.fit(Counts(), loader(), loader())
    told = [str(warning.message) for warning in recwarn if " names " in str(warning.message)]
    assert len(told) == bool(said) and all(re.match(said, text) for text in told), told


def test_under_anomaly_detection_there_is_no_speed_up(tmp_path, capsys):
    """Nothing of the training is compiled, though the sanity check was."""
    callback = DynamoCallback(measure_after=2, measure_steps=2)
    L.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path, callbacks=[callback], detect_anomaly=True).fit(Constant(), loader(), loader())
    shown = capsys.readouterr().out
    assert "step time, eager" in shown and "speed-up" not in shown and "not compiled" in shown
    assert "speedup" not in callback.outcome.metrics()


class Keeps(L.Callback):
    """The module's state before each batch and after an interrupt."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}

    def on_exception(self, trainer, pl_module, exception):
        self.after = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}


def test_an_interrupt_while_steps_are_measured_is_told_and_leaves_the_fit_as_it_was(tmp_path, monkeypatch):
    def timed(self, step, saved, context):
        step.times()
        raise KeyboardInterrupt

    monkeypatch.setattr(StepMeasurement, "timed", timed)
    before = signal.getsignal(signal.SIGINT)
    callback, keeps = DynamoCallback(measure_after=2, measure_steps=3), Keeps()
    with pytest.raises(SystemExit):
        L.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path, callbacks=[keeps, callback]).fit(Constant(), loader(), loader())
    signal.signal(signal.SIGINT, before)  # Lightning has it ignored
    outcome = callback.outcome
    assert outcome.ended == "KeyboardInterrupt" and outcome.unmeasured == "not measured: KeyboardInterrupt ended the run while its steps were measured"
    assert outcome.steps == 2 and len(outcome.measuring) == 1
    for name, tensor in keeps.before.items():
        torch.testing.assert_close(keeps.after[name], tensor, rtol=0, atol=0)
