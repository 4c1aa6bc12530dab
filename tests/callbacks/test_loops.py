"""A project of its own through the loops of Lightning: with `DynamoCallback()` it trains as without, in as many entries and recompiles as are stated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.tuner import Tuner
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from dynacompile.errors import ConfigError
from tests.callbacks.projects import (
    APART,
    BATCHES,
    QUIET,
    SIZE,
    STEPS,
    Accumulates,
    BuiltLate,
    ClipsItself,
    CountsUp,
    Ema,
    Gives,
    Lbfgs,
    Manual,
    Metered,
    Pairs,
    Project,
    Ran,
    Sgd,
    Skips,
    Stream,
    TwoOptimizers,
    WithClosure,
    epochs,
    fit,
    left_nothing,
    loader,
    rows,
    run,
    same,
)


@dataclass
class Case:
    """Options of `fit`, and what is expected: entries with graphs by part, recompiles, breaks of graphs that are compiled once each."""

    cls: type = Project
    options: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=lambda: STEPS)
    recompiles: int = 0
    breaks: int = 0
    tolerance: float = 1e-4


CASES = {
    "three lines": Case(),
    "clipping by norm": Case(options={"gradient_clip_val": 0.5}),
    "clipping by value": Case(options={"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}),
    "a configure_gradient_clipping of its own": Case(ClipsItself, entries=STEPS | {"optimizer_step": 2}),  # clipping, and the step
    "momentum": Case(Sgd),
    # Its closure is called several times in one step, which is left to Python; its searches make much of a rounding.
    "LBFGS": Case(Lbfgs, options={"precision": "64-true"}, entries=APART),
    "what counts up": Case(CountsUp),
    "torchmetrics": Case(Metered, breaks=1),  # it asks whether there are NaN
    "skipped batches": Case(Skips, entries=STEPS | {"training_step": 2}, recompiles=2),  # another branch, and a step without gradients
    "outputs": Case(Gives),
    "accumulation": Case(options={"accumulate_grad_batches": 2}),
    "scheduled accumulation": Case(options={"callbacks": lambda: [GradientAccumulationScheduler({0: 1, 1: 2})]}),
    "manual optimization": Case(Manual, entries=STEPS | {"training_step": 3}, breaks=2),
    "two optimizers": Case(
        TwoOptimizers, entries={"validation_step": 1, "training_step": 3, "optimizer_step.0": 1, "optimizer_step.1": 1}, breaks=3
    ),  # the recompile: numbers that Python adds up are another one in each step
    "manual accumulation": Case(Accumulates, recompiles=1, breaks=1),  # the other branch of `if`
    "a closure": Case(WithClosure, breaks=2),
    "modules of setup and configure_model": Case(BuiltLate),
    "an average of its own": Case(Ema),
    "bf16-mixed": Case(options={"precision": "bf16-mixed"}, tolerance=2e-2),
    "bf16-true": Case(options={"precision": "bf16-true"}, tolerance=2e-2),
    "64-true": Case(options={"precision": "64-true"}),
    "stochastic weight averaging": Case(options={"max_epochs": 4, "callbacks": lambda: [StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=2)]}),
    "weight averaging": Case(options={"callbacks": lambda: [WeightAveraging(avg_fn=get_ema_avg_fn(0.9))]}),
    "early stopping": Case(options={"max_epochs": 5, "callbacks": lambda: [EarlyStopping("val/loss", patience=0, min_delta=10.0)]}),
    "fast_dev_run": Case(options={"fast_dev_run": True}, entries=APART),  # one step of the optimizer, in which it makes its state
    "overfit_batches": Case(options={"overfit_batches": 2}),
    "no sanity check": Case(options={"num_sanity_val_steps": 0}),
    "validation every second batch": Case(options={"val_check_interval": 2}),
    "a partial batch": Case(options={"data": lambda: loader(BATCHES * SIZE + 3)}, entries=STEPS | {"training_step": 2}, recompiles=1),
    "an IterableDataset": Case(options={"data": lambda: DataLoader(Stream(rows(22)), batch_size=SIZE)}, entries=STEPS | {"training_step": 2}, recompiles=1),
    "several loaders": Case(Pairs, options={"data": lambda: epochs(loader(), loader(8, 3)), "validation": lambda: [loader(8, 2), loader(4, 5)]}),
    "anomaly detection": Case(options={"detect_anomaly": True}, entries={"validation_step": 1}),  # which is to see every operation of training
    "no inference mode": Case(options={"inference_mode": False}),
}
QUICK = ("three lines", "clipping by norm", "two optimizers", "what counts up")  # the others are slow


@pytest.mark.whole
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES])
def test_a_fit_is_as_without_the_callback(name, tmp_path):
    case = CASES[name]
    plain, compiled = (fit(case.cls, tmp_path / str(on), on, **case.options) for on in (False, True))
    same(compiled, plain, case.tolerance)
    assert compiled.module.losses, "it trained"
    assert compiled.entries == {part: count for part, count in case.entries.items() if count}
    assert (compiled.count(events.Recompiled), compiled.count(events.GraphBroke)) == (case.recompiles, case.breaks), [str(e) for e in compiled.told]
    assert not compiled.count(events.LimitHit)
    frames = [event.frame for event in compiled.told if isinstance(event, events.Compiled)]
    assert not [frame for frame in frames if "/lightning/" in frame or "/torchmetrics/" in frame], "no frame of a framework is compiled by itself"
    left_nothing(compiled)


# other loops


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_loops_without_training(stage, tmp_path):
    def ran(compiled):
        L.seed_everything(0, verbose=False)
        callbacks = [DynamoCallback(trace=False)] if compiled else []
        made = Ran(Project(), L.Trainer(**QUIET, default_root_dir=tmp_path, callbacks=callbacks))
        call = getattr(made.trainer, stage)
        return made, run(made, lambda: call(made.module, loader(10, 3), **({} if stage == "predict" else {"verbose": False})))

    (_, given), (compiled, found) = ran(False), ran(True)
    if stage == "predict":
        torch.testing.assert_close(found, given)
    else:
        assert found == [pytest.approx(given[0], rel=1e-5)]
    assert compiled.entries == {f"{'validation' if stage == 'validate' else stage}_step": 2} and compiled.count(events.Recompiled) == 1  # the partial batch
    left_nothing(compiled)


@pytest.mark.slow
def test_resuming_in_the_middle_of_an_epoch(tmp_path):
    def trained(compiled, **options):
        saves = lambda: [ModelCheckpoint(tmp_path / str(compiled), every_n_train_steps=4, save_top_k=-1, filename="{step}")]  # noqa: E731
        return fit(Project, tmp_path, compiled, callbacks=saves, **{"enable_checkpointing": True, **options})

    trained(True)
    trained(False)
    saved = {on: torch.load(tmp_path / str(on) / "step=4.ckpt", weights_only=False) for on in (True, False)}
    assert saved[True].keys() - {"callbacks"} == saved[False].keys() - {"callbacks"} and list(saved[True]["state_dict"]) == list(saved[False]["state_dict"])

    def resumed(compiled, source):
        L.seed_everything(0, verbose=False)
        own = [DynamoCallback(measure_steps=0, trace=False)] if compiled else []
        made = Ran(Project(), L.Trainer(**QUIET, max_epochs=2, default_root_dir=tmp_path, callbacks=own))
        run(made, lambda: made.trainer.fit(made.module, loader(), loader(2 * SIZE, 2), ckpt_path=tmp_path / str(source) / "step=4.ckpt", weights_only=False))
        return made

    crossed = [resumed(compiled, source) for compiled, source in ((False, False), (False, True), (True, False), (True, True))]
    for other in crossed[1:]:
        same(other, crossed[0], 1e-3)
    assert crossed[-1].entries == STEPS and not crossed[-1].count(events.Recompiled)


@pytest.mark.slow
def test_the_ninth_fit_of_a_process_compiles_like_the_first(tmp_path):
    for _ in range(9):
        ran = fit(Project, tmp_path, True, max_epochs=1)
        assert ran.entries == STEPS and not ran.count(events.Recompiled) and not ran.count(events.LimitHit)
        left_nothing(ran)


class Raises(Project):
    error: type[BaseException] = RuntimeError

    def on_train_batch_end(self, outputs, batch, batch_idx):
        super().on_train_batch_end(outputs, batch, batch_idx)
        if len(self.losses) == 3:
            raise self.error("in the middle")


class Interrupted(Raises):
    error = KeyboardInterrupt


class Stops(Project):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        super().on_train_batch_end(outputs, batch, batch_idx)
        self.trainer.should_stop = len(self.losses) >= 3


@pytest.mark.parametrize(("cls", "raised"), [(Raises, RuntimeError), (Interrupted, SystemExit), (Stops, None)])
def test_everything_is_put_back_and_told_however_a_fit_ends(cls, raised, tmp_path, capsys):
    L.seed_everything(0, verbose=False)
    callback = DynamoCallback(measure_steps=0)
    module = cls()
    earlier = dynacompile.compile(module.net, inplace=True, name="mine")._compiled_call_impl
    own = module.training_step = dynacompile.compile(module.training_step, name="mine, too")
    made = Ran(module, L.Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path, callbacks=[callback]))

    def call():
        made.trainer.fit(module, loader(), loader(2 * SIZE, 2))

    if raised is None:
        run(made, call)
    else:
        with pytest.raises(raised):
            run(made, call)
    assert callback.outcome is not None and callback.outcome.steps == 3
    assert (tmp_path / "summary.json").exists() and (tmp_path / "compile_report.html").exists()
    assert "dynacompile" in capsys.readouterr().out
    assert vars(module)["training_step"] is own and module.net._compiled_call_impl is earlier, "the user's own compiles are back"
    del module.training_step
    left_nothing(made)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["lr_find", "scale_batch_size"])
def test_tuning(what, tmp_path):
    class Tuned(Project):
        batch_size = 2

        def train_dataloader(self):
            return DataLoader(rows(64), batch_size=self.batch_size)

        def val_dataloader(self):
            return loader(2 * SIZE, 2)

    def ran(compiled):
        L.seed_everything(0, verbose=False)
        callbacks = [DynamoCallback(measure_steps=0, trace=False)] if compiled else []
        made = Ran(Tuned(), L.Trainer(**QUIET, max_epochs=1, default_root_dir=tmp_path, callbacks=callbacks))
        tuner = Tuner(made.trainer)
        if what == "lr_find":
            found = run(made, lambda: tuner.lr_find(made.module, num_training=12))
            result = found.results["loss"]
        else:
            result = run(made, lambda: tuner.scale_batch_size(made.module, max_trials=3, steps_per_trial=2))
        run(made, lambda: made.trainer.fit(made.module))
        return made, result

    (plain, given), (compiled, found) = ran(False), ran(True)
    assert found == pytest.approx(given, rel=1e-3)
    same(compiled, plain, 1e-3)
    assert compiled.entries["training_step"] <= 2 and not compiled.count(events.LimitHit)
    left_nothing(compiled)


class Hooked(Project):
    """Its optimizer has a hook; Python counts the steps."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        self.told: list[int] = []
        optimizer.register_step_post_hook(lambda *_: self.told.append(1))
        return optimizer


class NoOptimizer(Project):
    def configure_optimizers(self):
        return None


LEFT = [
    (Lbfgs, "LBFGS calls its closure several times"),
    (Hooked, "SGD has hooks that run before or after its steps"),
    (NoOptimizer, "the fit has no optimizer"),
]


@pytest.mark.parametrize(("cls", "said"), LEFT)
def test_optimizers_that_stay_python_are_told(cls, said, tmp_path, capsys):
    ran = fit(cls, tmp_path, True, max_epochs=1)
    assert "optimizer_step" not in ran.entries
    assert said in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert len(getattr(ran.module, "told", [1] * BATCHES)) == BATCHES


class Around:
    """What a strategy puts around an optimizer, as DeepSpeed does."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.steps = optimizer, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("param_groups", "state", "defaults", "state_dict", "load_state_dict", "zero_grad"):
            return getattr(self.optimizer, name)
        raise AttributeError(name)

    def step(self, closure=None):
        self.steps += 1
        return self.optimizer.step(closure)


class Wraps(SingleDeviceStrategy):
    def setup_optimizers(self, trainer):
        super().setup_optimizers(trainer)
        self.optimizers = [Around(optimizer) for optimizer in self.optimizers]


def test_an_optimizer_that_a_strategy_has_wrapped_stays_python_and_is_told(tmp_path, capsys):
    plain, compiled = (fit(Sgd, tmp_path / str(on), on, accelerator="auto", strategy=Wraps("cpu")) for on in (False, True))
    same(compiled, plain)
    assert compiled.entries == APART and compiled.trainer.optimizers[0].steps == 2 * BATCHES
    assert "Around is no torch.optim.Optimizer" in " ".join(capsys.readouterr().out.replace("│", " ").split())
    left_nothing(compiled)


class Own(torch.optim.Optimizer):
    """A user's optimizer: signs of gradients, scaled; it calls its closure after it has counted."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.count += 1
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])
        return loss


class WithOwn(Project):
    def configure_optimizers(self):
        optimizer = Own(self.parameters())
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9), "interval": "step"}}


def test_an_optimizer_of_the_users_own(tmp_path):
    plain, compiled = (fit(WithOwn, tmp_path, on, gradient_clip_val=0.5) for on in (False, True))
    same(compiled, plain)
    assert compiled.trainer.optimizers[0].count == plain.trainer.optimizers[0].count
    assert compiled.entries["optimizer_step"] == 2 and not compiled.count(events.LimitHit), "clipping, and the step"


class Clamped(torch.optim.AdamW):
    """A subclass of torch's that does more after its step."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = super().step(closure)
        for group in self.param_groups:
            torch._foreach_clamp_min_(group["params"], -0.5)
        return loss


class WithClamped(Project):
    def configure_optimizers(self):
        return Clamped(self.parameters(), lr=self.lr)


class WithOwnAndNoSchedule(Project):
    def configure_optimizers(self):
        return Own(self.parameters())


class WithAdafactor(Project):
    """Its class says `torch.optim` where it is from, and not the file."""

    def configure_optimizers(self):
        return torch.optim.Adafactor(self.parameters(), lr=self.lr)


class StepIsWrapped(Project):
    """Somebody has wrapped the optimizer's step: it sees gradients before the closure, and what the closure gave."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        step = optimizer.step

        def wrapped(closure=None):
            self.losses.append(float(sum(p.grad is not None for p in self.parameters())))
            loss = step(closure)
            self.losses.append(float(loss))
            return loss

        optimizer.step = wrapped
        return optimizer


@pytest.mark.parametrize("cls", [WithClamped, WithOwnAndNoSchedule, WithAdafactor, StepIsWrapped], ids=lambda cls: cls.__name__)
def test_steps_of_any_optimizer_see_what_they_see_in_eager_and_do_not_recompile_in_each_call(cls, tmp_path):
    plain, compiled = (fit(cls, tmp_path, on, gradient_clip_val=0.5) for on in (False, True))
    same(compiled, plain, 1e-3)
    assert not compiled.count(events.LimitHit) and compiled.count(events.Recompiled) <= 1
    assert compiled.entries["optimizer_step"] >= 1


class Scales(L.Callback):
    """Wraps the training step, and takes its wrapper away again at the end."""

    def on_fit_start(self, trainer, pl_module):
        step = pl_module.training_step
        pl_module.training_step = lambda *args, **kwargs: step(*args, **kwargs) * 1.5

    def on_fit_end(self, trainer, pl_module):
        del pl_module.training_step


def test_what_a_callback_took_away_from_a_step_stays_away(tmp_path):
    plain, compiled = (fit(Project, tmp_path, on, callbacks=lambda: [Scales()]) for on in (False, True))
    same(compiled, plain)
    assert "training_step" not in vars(compiled.module)


def test_two_callbacks_of_ours_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="several DynamoCallbacks"):
        fit(Project, tmp_path, True, callbacks=lambda: [DynamoCallback()])


class FailsInBackward(Project):
    def on_after_backward(self):
        if self.global_step == 3:
            raise ValueError("deliberate")


class FailsInValidation(Project):
    def on_validation_epoch_end(self):
        raise ValueError("deliberate")


@pytest.mark.parametrize("cls", [FailsInBackward, FailsInValidation], ids=lambda cls: cls.__name__)
def test_metrics_after_an_error_are_those_without_the_callback(cls, tmp_path):
    found = []
    for callbacks in ([], [DynamoCallback(measure_steps=0, trace=False, backend="eager")]):
        L.seed_everything(0, verbose=False)
        trainer = L.Trainer(**QUIET, max_epochs=2, num_sanity_val_steps=0, default_root_dir=tmp_path, callbacks=callbacks)
        with pytest.raises(ValueError, match="deliberate"):
            trainer.fit(cls(), loader(), loader(2 * SIZE, 2))
        of_trainer = trainer.callback_metrics, trainer.logged_metrics, trainer.progress_bar_metrics
        found.append([{name: float(value) for name, value in metrics.items() if "compile/" not in name} for metrics in of_trainer])
    assert found[0] == found[1]
