"""With measuring on or off, a fit leaves the same behind, to the bit."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import datetime
import functools
import logging
import queue
import random
import re
import threading
import types
import weakref
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
import torchmetrics
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from dynacompile.callbacks import DynamoCallback, inert
from tests.callbacks.equal_fits import Steps, assert_same, fit

MEASURED = {"enabled": False, "measure_after": 3, "measure_steps": 2, "trace": False}


class WithMetric(Steps):
    def set_up(self) -> None:
        self.mae = torchmetrics.MeanAbsoluteError()
        self.collection = torchmetrics.MetricCollection({"mse": torchmetrics.MeanSquaredError(), "cat": torchmetrics.CatMetric()})

    def extra(self, batch, index, loss):
        out = self.net(batch[0]).detach()
        self.mae(out, batch[1])
        self.collection["mse"].update(out, batch[1])
        self.collection["cat"].update(out)
        self.log("train/mae", self.mae, on_step=True, on_epoch=True)
        return {"loss": loss, "out": out}


class WithCounters(Steps):
    seen_by_all = 0

    def set_up(self) -> None:
        self.count = 0
        self.history: list[Any] = []
        self.table: dict[str, Any] = {"first": [1]}
        self.names: set[int] = set()
        self.last: collections.deque[float] = collections.deque(maxlen=3)
        self.totals = collections.Counter()
        self.net.calls = 0

    def extra(self, batch, index, loss):
        self.count += 1
        self.net.calls += 1
        type(self).seen_by_all += 1
        self.history.append(loss.item())
        self.table["first"].append(self.count)
        self.table[f"new{self.count}"] = loss.detach()
        self.names.add(self.count)
        self.last.append(loss.item())
        self.totals["steps"] += 1
        self.log("count", float(self.count))
        return loss * (1 + 0.01 * len(self.history) + 0.001 * type(self).seen_by_all)


@dataclasses.dataclass
class Window:
    mean: float = 0.0
    values: list[float] = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("value", "late")

    def __init__(self) -> None:
        self.value = 1


class WithObjects(Steps):
    def set_up(self) -> None:
        self.window = Window()
        self.slotted: Any = Slotted()
        self.values = np.zeros(3)
        self.tensor = torch.zeros(3)
        self.view = self.tensor[1:]
        self.pair = ([0], {"n": 0})

    def extra(self, batch, index, loss):
        self.window.values.append(loss.item())
        self.window.mean = sum(self.window.values) / len(self.window.values)
        self.slotted.value += 1
        self.slotted.late = self.window.mean
        self.values += 1
        self.tensor += loss.item()
        self.view *= 2
        self.pair[0][0] += 1
        self.pair[1]["n"] += 1
        return loss * (1 + 0.1 * self.values[0] + 0.01 * self.slotted.value) + 1e-6 * self.view.sum() + self.pair[0][0]


class Momentum(Steps):
    """A second encoder that follows the first inside the step."""

    def set_up(self) -> None:
        self.teacher = copy.deepcopy(self.net)
        for parameter in self.teacher.parameters():
            parameter.requires_grad_(False)
        self.register_buffer("queue", torch.zeros(16, 1))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def extra(self, batch, index, loss):
        with torch.no_grad():
            for slow, fast in zip(self.teacher.parameters(), self.net.parameters()):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            keys = self.teacher(batch[0])
            self.queue[self.at : self.at + 4] = keys
            self.at.add_(4).remainder_(16)
        return loss + nn.functional.mse_loss(self.net(batch[0]), keys)


class WithRandomNumbers(Steps):
    def set_up(self) -> None:
        self.numbers = torch.Generator().manual_seed(3)
        self.python = random.Random(4)
        self.numpy = np.random.default_rng(5)
        self.seen: list[Any] = []

    def extra(self, batch, index, loss):
        noise = torch.randn(1, generator=self.numbers) + torch.rand(1)
        self.seen.append((self.python.random(), self.numpy.random(), random.random(), np.random.rand(), noise.item()))
        return loss * (1 + sum(self.seen[-1]))


class WithFlags(Steps):
    """Freezes, hooks and modes that the step itself changes."""

    def set_up(self) -> None:
        self.added = 0

    def extra(self, batch, index, loss):
        self.net[0].weight.requires_grad_(index % 2 == 0)
        self.net[2].train(index % 3 == 0)
        self.net[4].register_forward_hook(lambda module, given, out: out * 1.01)
        self.net[4].weight.register_hook(lambda grad: grad * 1.01)
        self.net[1].extra_attribute = index
        self.added += 1
        return loss


class WithGlobals(Steps):
    def extra(self, batch, index, loss):
        global STEPS
        STEPS += 1
        SEEN.append(loss.item())
        return loss * (1 + STEPS * 0.01 + 0.001 * len(SEEN) + 0.01 * self.closure())

    def set_up(self) -> None:
        global STEPS
        STEPS = 0
        SEEN.clear()
        state = 0

        def closure() -> int:
            nonlocal state
            state += 1
            return state

        self.closure = closure


STEPS = 0
SEEN: list[float] = []


class ChangesTheBatch(Steps):
    def training_step(self, batch, index):
        batch[0].mul_(1.5)
        batch.append(torch.zeros(1))
        assert len(batch) == 3
        return super().training_step(batch, index)


class HoldsWhatIsHarmless(Steps):
    """Objects with state that is not Python's, which steps don't change."""

    def set_up(self) -> None:
        self.traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(1, 1), nn.ReLU()))
        self.lock = threading.Lock()
        self.pattern = re.compile("a")
        self.notes = logging.getLogger("notes")
        self.queue: queue.Queue[float] = queue.Queue()
        self.space = types.SimpleNamespace(count=0)
        self.config = argparse.Namespace(rate=0.1)
        self.pick = functools.partial(sorted, reverse=True)
        self.when = datetime.datetime(2020, 1, 1)
        self.ref = weakref.ref(self.net)

    def extra(self, batch, index, loss):
        with self.lock:
            self.queue.put(loss.item())
            self.space.count += 1
        return loss + self.traced(loss.reshape(1, 1)).mean() * self.space.count * self.queue.qsize()


class KeepsTheLoss(Steps):
    def set_up(self) -> None:
        self.losses: list[torch.Tensor] = []

    def extra(self, batch, index, loss):
        self.losses.append(loss)
        return loss


class WithScheduler(Steps):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 20), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": steps}


class Lbfgs(Steps):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class SparseGradients(Steps):
    def set_up(self) -> None:
        self.table = nn.Embedding(8, 1, sparse=True)

    def extra(self, batch, index, loss):
        return loss + self.table((batch[0][:, 0].abs() * 2).long().clamp(max=7)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class TwoOptimizers(Steps):
    def set_up(self) -> None:
        self.critic = nn.Linear(1, 1)
        self.automatic_optimization = False
        self.turns = 0

    def training_step(self, batch, index):
        one, two = self.optimizers()
        schedule = self.lr_schedulers()
        self.turns += 1
        self.toggle_optimizer(one)
        loss = nn.functional.mse_loss(self.critic(self.net(batch[0])), batch[1])
        one.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(one, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        one.step()
        self.untoggle_optimizer(one)
        if self.turns % 2:
            two.zero_grad()
            self.manual_backward(nn.functional.mse_loss(self.critic(self.net(batch[0]).detach()), batch[1]))
            two.step()
        schedule.step()
        self.log("train/loss", loss)

    def configure_optimizers(self):
        one = torch.optim.Adam(self.net.parameters(), lr=0.01)
        two = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.5)
        return [one, two], [torch.optim.lr_scheduler.ExponentialLR(one, 0.9)]


class Counting(L.Callback):
    """Takes part in the step and keeps what it sees."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.norms: list[float] = []

    def on_before_zero_grad(self, trainer, pl_module, optimizer) -> None:
        self.calls.append("zero")

    def on_after_backward(self, trainer, pl_module) -> None:
        self.calls.append("backward")

    def on_before_optimizer_step(self, trainer, pl_module, optimizer) -> None:
        self.norms.append(float(pl_module.net[0].weight.grad.norm()))
        optimizer.param_groups[0]["lr"] *= 0.9


CASES = [
    Steps,
    WithMetric,
    WithCounters,
    WithObjects,
    Momentum,
    WithRandomNumbers,
    WithFlags,
    WithGlobals,
    ChangesTheBatch,
    HoldsWhatIsHarmless,
    KeepsTheLoss,
    WithScheduler,
    Lbfgs,
    SparseGradients,
    TwoOptimizers,
]


def reset(cls: type) -> None:
    if hasattr(cls, "seen_by_all"):
        cls.seen_by_all = 0


def both(cls: type[Steps], tmp_path, **options: Any) -> DynamoCallback:
    """Fits with and without measuring and compares what they leave behind."""
    reset(cls)
    without = fit(cls, tmp_path / "without", **options)
    reset(cls)
    callback = DynamoCallback(MEASURED)
    assert_same(without, fit(cls, tmp_path / "with", callback, **options))
    return callback


@pytest.mark.parametrize("cls", CASES, ids=lambda cls: cls.__name__)
def test_a_measured_fit_equals_one_without(cls, tmp_path):
    callback = both(cls, tmp_path)
    assert callback.outcome.times is not None, callback.outcome.unmeasured


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate_grad_batches": 2},
        {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1},
        {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
        {"precision": "bf16-mixed"},
        {"precision": "16-mixed"},
        {"precision": "bf16-true"},
        {"profiler": "simple"},
        {"val_check_interval": 2},
        {"max_steps": 5, "max_epochs": -1},
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [WithMetric, WithCounters], ids=lambda cls: cls.__name__)
def test_a_measured_fit_equals_one_without_under_trainer_options(cls, options, tmp_path):
    callback = both(cls, tmp_path, **options)
    assert callback.outcome.times is not None, callback.outcome.unmeasured


class Overflows(Steps):
    """Some steps have gradients that are not finite, which the scaler skips and answers with a smaller scale."""

    def extra(self, batch, index, loss):
        return loss * float("inf") if index % 3 == 1 else loss


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_scaler_of_half_precision_is_put_back(at, tmp_path):
    def fitted(folder: str, *callbacks: L.Callback) -> dict[str, Any]:
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2))
        return fit(Overflows, tmp_path / folder, *callbacks, plugins=[plugin])

    callback = DynamoCallback({**MEASURED, "measure_after": at})
    without = fitted("without")
    assert without["scaler"] and "256" not in str(without["scaler"])
    assert_same(without, fitted("with", callback))
    assert callback.outcome.times is not None, callback.outcome.unmeasured


def test_callbacks_that_take_part_in_a_step_are_put_back(tmp_path):
    one, other = Counting(), Counting()
    without = fit(Steps, tmp_path / "without", one)
    callback = DynamoCallback(MEASURED)
    assert_same(without, fit(Steps, tmp_path / "with", other, callback))
    assert callback.outcome.times is not None
    assert other.calls == one.calls and other.norms == one.norms


class Reaches(Steps):
    """The step counts on a callback of the user's that takes no part in it, and asks the trainer to stop."""

    def extra(self, batch, index, loss):
        idle = next(callback for callback in self.trainer.callbacks if isinstance(callback, Idle))
        idle.count += 1
        self.trainer.should_stop = index >= 3
        return loss * idle.count


class Idle(L.Callback):
    count = 0


def test_attributes_of_other_callbacks_and_of_the_trainer_are_put_back(tmp_path):
    without = fit(Reaches, tmp_path / "without", Idle())
    callback = DynamoCallback(MEASURED)
    assert_same(without, fit(Reaches, tmp_path / "with", Idle(), callback))
    assert callback.outcome.times is not None


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (Steps, {}),
        (Steps, {"accumulate_grad_batches": 2}),
        (WithMetric, {}),
        (WithCounters, {}),
        (Momentum, {"gradient_clip_val": 0.1}),
        (WithScheduler, {}),
        (TwoOptimizers, {}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else " ".join(value),
)
def test_a_compiled_fit_is_the_same_with_and_without_measuring(cls, options, tmp_path):
    """To the bit, and with as many entries."""

    def compiled(steps: int, folder: str) -> tuple[dict[str, Any], dict[str, float]]:
        reset(cls)
        callback = DynamoCallback({"measure_after": 3, "measure_steps": steps, "trace": False})
        left = fit(cls, tmp_path / folder, callback, **options)
        assert (callback.outcome.times is not None) == bool(steps), callback.outcome.unmeasured
        return left, {name: value for name, value in callback.ledger.metrics().items() if name in ("entries", "graphs", "graph_breaks", "recompiles")}

    without, entries = compiled(0, "without")
    measured, measured_entries = compiled(2, "with")
    assert_same(without, measured)
    assert measured_entries == entries


def test_the_objects_that_held_a_value_hold_it_again(tmp_path):
    """Whoever else holds a container or tensor of the module sees what was there before."""

    class Watching(WithCounters):
        def on_train_batch_start(self, batch, index):
            if index == 3:
                self.held = (self.history, self.table, self.names, self.net[0].weight, self.net[0].weight.grad, self.net[0].weight.data_ptr())

        def extra(self, batch, index, loss):
            if index == 3:
                now = (self.history, self.table, self.names, self.net[0].weight, self.net[0].weight.grad, self.net[0].weight.data_ptr())
                self.same = all(a is b for a, b in zip(now[:-1], self.held[:-1])) and now[-1] == self.held[-1]
                self.held = ()
            return super().extra(batch, index, loss)

    both(Watching, tmp_path)


# steps that are not measured


class SkipsABatch(Steps):
    skipped = (3,)

    def extra(self, batch, index, loss):
        return None if index in self.skipped else loss


class SkipsAll(SkipsABatch):
    skipped = (3, 4, 5)


class Prints(Steps):
    def extra(self, batch, index, loss):
        print("a line")
        return loss


class PrintsInBackward(Steps):
    def extra(self, batch, index, loss):
        loss.register_hook(lambda grad: print("a line"))
        return loss


class WritesAFile(Steps):
    def extra(self, batch, index, loss):
        with open(self.trainer.default_root_dir + "/losses.txt", "a") as file:
            file.write(f"{loss.item()}\n")
        return loss


class UsesTheLogger(Steps):
    def extra(self, batch, index, loss):
        self.logger.log_metrics({"by hand": loss.item()}, step=self.global_step)
        return loss


class DrawsABatch(Steps):
    def extra(self, batch, index, loss):
        other = next(iter(self.trainer.train_dataloader))
        return loss + self.net(other[0]).square().mean()


class HoldsAGenerator(Steps):
    def set_up(self) -> None:
        self.net.stream = (i for i in range(1000))

    def extra(self, batch, index, loss):
        return loss * (1 + next(self.net.stream))


class HoldsAFile(Steps):
    def set_up(self) -> None:
        self.file = open("/dev/null", "w")


class HoldsAGraph(Steps):
    def extra(self, batch, index, loss):
        self.hidden = self.net(batch[0])
        return loss


STREAM = iter(range(10_000))


class NamesAGlobalIterator(Steps):
    def extra(self, batch, index, loss):
        return loss * (1 + next(STREAM) * 0)


@pytest.mark.parametrize(
    ("cls", "reason"),
    [
        (SkipsAll, "training_step skipped the batch: it returned None"),
        (Prints, "prints (Prints.extra, test_inert.py:"),
        (PrintsInBackward, "prints (PrintsInBackward.extra.<locals>.<lambda>, test_inert.py:"),
        (WritesAFile, "losses.txt (WritesAFile.extra, test_inert.py:"),
        (UsesTheLogger, "uses a logger (UsesTheLogger.extra, test_inert.py:"),
        (DrawsABatch, "draws from a data loader (DrawsABatch.extra, test_inert.py:"),
        (HoldsAGenerator, "`net.stream` is an iterator (generator), which can't be rewound"),
        (HoldsAFile, "`file` is an open file"),
        (HoldsAGraph, "`hidden` holds a graph that no backward has run through yet, which can run once only: detach() what is kept or given to a metric"),
        (NamesAGlobalIterator, "`the global STREAM` is an iterator (range_iterator), which can't be rewound"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_step_that_cannot_be_repeated_is_not_measured_and_the_fit_is_the_same(cls, reason, tmp_path, capsys):
    callback = both(cls, tmp_path)
    assert callback.outcome.times is None and reason in callback.outcome.unmeasured
    for file in ("losses.txt",):
        one, other = tmp_path / "without" / file, tmp_path / "with" / file
        assert one.exists() == other.exists() and (not one.exists() or one.read_text() == other.read_text())
    printed = capsys.readouterr().out
    assert printed.count("a line") in (0, 24)
    assert reason in " ".join(printed.replace("│", " ").split()), "the screen names the reason"


def test_beside_another_profiler_of_calls_nothing_breaks(tmp_path):
    """Before CPython 3.12 there is but one at a time."""
    callback = both(Steps, tmp_path, profiler="advanced")
    assert (callback.outcome.times is None) == ("calls are watched by another profiler" in callback.outcome.unmeasured)


def test_where_the_copy_does_not_fit_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(inert, "free_bytes", lambda device: 100)
    callback = both(Steps, tmp_path)
    assert callback.outcome.times is None and "the copy that is put back takes 0 MiB on cpu, where 0 MiB are to spare" in callback.outcome.unmeasured


def test_several_processes_are_not_measured(tmp_path):
    """A step that is ended in one process would leave the others waiting; told by the trainer's world size, before anything runs."""
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    assert inert.refusal(trainer, {"batch": None}) == "on 2 devices, a step that is ended in one process would leave the others waiting"


def test_a_batch_that_the_step_skips_is_passed_over_for_the_next(tmp_path):
    callback = both(SkipsABatch, tmp_path)
    assert callback.outcome.times is not None
