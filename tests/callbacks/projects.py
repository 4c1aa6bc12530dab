"""Lightning modules of users, loaders, and fits of them that are compared: one with the callback, one without."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torchmetrics
from lightning.pytorch.utilities import CombinedLoader
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback

BATCHES, SIZE = 6, 4


class Project(L.LightningModule):
    """A researcher's module: loss, accuracy, a counter, two learning rates, a scheduler of steps."""

    def __init__(self, width: int = 16, lr: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
        self.losses: list[float] = []
        self.steps = 0

    def loss(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        out = self.net(x)
        return F.cross_entropy(out, y), (out.argmax(-1) == y).float().mean()

    def training_step(self, batch, batch_idx):
        loss, accuracy = self.loss(batch)
        self.steps += 1
        self.log("train/loss", loss, prog_bar=True)
        self.log_dict({"train/accuracy": accuracy, "train/width": self.hparams.width}, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, accuracy = self.loss(batch)
        self.log("val/loss", loss)
        self.log("val/accuracy", accuracy, prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("test/loss", self.loss(batch)[0])

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0]).softmax(-1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if outputs is not None and "loss" in outputs:
            self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        groups = [{"params": self.net[0].parameters(), "lr": self.lr / 2}, {"params": self.net[2].parameters()}]
        optimizer = torch.optim.AdamW(groups, lr=self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9), "interval": "step"}}


class Sgd(Project):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Lbfgs(Project):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class CountsUp(Project):
    """Reads what counts up."""

    def training_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        loss = loss * (1 + 0.01 * self.global_step) + 0.1 * self.current_epoch + 0.001 * batch_idx / self.trainer.num_training_batches
        self.log("progress", self.global_step / self.trainer.max_epochs)
        return loss.to(self.device)


class Metered(Project):
    """With a torchmetrics object."""

    def __init__(self):
        super().__init__()
        self.accuracy = torchmetrics.MeanMetric()

    def training_step(self, batch, batch_idx):
        loss, accuracy = self.loss(batch)
        self.accuracy.update(accuracy)
        self.log("metric", self.accuracy, on_step=False, on_epoch=True)
        return loss


class Skips(Project):
    """Every third batch is skipped."""

    def training_step(self, batch, batch_idx):
        loss, _ = self.loss(batch)
        return None if batch_idx % 3 == 2 else loss


class Gives(Project):
    """Gives more than the loss."""

    def training_step(self, batch, batch_idx):
        loss, accuracy = self.loss(batch)
        return {"loss": loss, "accuracy": accuracy.detach()}


class Manual(Project):
    def __init__(self, **options):
        super().__init__(**options)
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss, _ = self.loss(batch)
        self.manual_backward(loss)
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
        self.lr_schedulers().step()
        self.log("train/loss", loss)
        self.losses.append(float(loss))


class TwoOptimizers(Project):
    """A generator and a critic."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.critic = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        x, y = batch
        self.toggle_optimizer(first)
        loss = F.cross_entropy(self.net(x), y) - 0.1 * self.critic(self.net(x)).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        critic = self.critic(self.net(x).detach()).square().mean()
        second.zero_grad()
        self.manual_backward(critic)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"loss": loss, "critic": critic})
        self.losses.append(float(loss) + float(critic))

    def configure_optimizers(self):
        return [torch.optim.Adam(self.net.parameters(), lr=self.lr), torch.optim.SGD(self.critic.parameters(), lr=self.lr)]


class Accumulates(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss, _ = self.loss(batch)
        self.manual_backward(loss / 2)
        if (batch_idx + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        self.losses.append(float(loss))


class WithClosure(Manual):
    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            loss, _ = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            self.losses.append(float(loss))
            return loss

        optimizer.step(closure=closure)


class BuiltLate(Project):
    """Its modules come in setup and configure_model."""

    def __init__(self):
        super().__init__()
        del self.net

    def setup(self, stage):
        self.head = nn.Linear(16, 3)

    def configure_model(self):
        if not hasattr(self, "net"):
            self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), self.head)


class Pairs(Project):
    """Two loaders in training, two in validation."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch["0"])[0] + 0.5 * self.loss(batch["1"])[0]

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val/loss", self.loss(batch)[0] * (1 + dataloader_idx))


class Ema(Project):
    """Keeps an average of its own."""

    def __init__(self):
        super().__init__()
        self.average = copy.deepcopy(self.net).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        super().on_train_batch_end(outputs, batch, batch_idx)
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.net.parameters()):
                mean.lerp_(parameter, 0.1)


class ClipsItself(Project):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.clip_gradients(optimizer, gradient_clip_val=0.3, gradient_clip_algorithm="norm")
        self.norm = float(torch.stack([p.grad.norm() for p in self.parameters()]).norm())
        assert self.norm < 0.31, "the gradients are clipped here already"


class Stream(IterableDataset):
    def __init__(self, data: TensorDataset):
        self.data = data

    def __iter__(self):
        return iter([self.data[i] for i in range(len(self.data))])


def rows(count: int, seed: int = 1) -> TensorDataset:
    numbers = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 8, generator=numbers), torch.randint(0, 3, (count,), generator=numbers))


def loader(count: int = BATCHES * SIZE, seed: int = 1) -> DataLoader:
    return DataLoader(rows(count, seed), batch_size=SIZE)


QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}


@dataclass
class Ran:
    """What a run came to. told: of the compiler's events."""

    module: Any
    trainer: L.Trainer
    told: list[events.Event] = field(default_factory=list)

    def numbers(self) -> tuple[list[float], dict[str, float]]:
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items() if "compile/" not in name}
        return self.module.losses, metrics

    def count(self, kind: type[events.Event]) -> int:
        return sum(isinstance(event, kind) for event in self.told)

    @property
    def entries(self) -> dict[str, int]:
        """Entries with a graph, by what they are of."""
        found: dict[str, int] = {}
        for event in self.told:
            if isinstance(event, events.Compiled) and event.ops:
                found[event.region] = found.get(event.region, 0) + 1
        return found


def epochs(*loaders: DataLoader) -> Any:
    return CombinedLoader({str(n): one for n, one in enumerate(loaders)}, "max_size_cycle")


def fit(
    cls: Callable[[], Any],
    tmp_path: Path,
    compiled: bool,
    callbacks: Callable[[], list] = list,
    data: Callable = loader,
    validation: Callable = lambda: loader(2 * SIZE, 2),
    mode: str = "default",
    **options: Any,
) -> Ran:
    L.seed_everything(0, verbose=False)
    module = cls()
    own = [DynamoCallback(mode, measure_steps=0, trace=False)] if compiled else []
    ran = Ran(module, L.Trainer(**{**QUIET, "max_epochs": 2, "default_root_dir": tmp_path, **options}, callbacks=[*callbacks(), *own]))
    run(ran, lambda: ran.trainer.fit(module, data(), validation()))
    return ran


def run(ran: Ran, call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        end = dynacompile.subscribe(ran.told.append)
        try:
            return call()
        finally:
            end()


def same(one: Ran, other: Ran, tolerance: float = 1e-4) -> None:
    (losses, metrics), (others, other_metrics) = one.numbers(), other.numbers()
    assert losses == pytest.approx(others, rel=tolerance, abs=tolerance / 100)
    assert metrics == pytest.approx(other_metrics, rel=tolerance, abs=tolerance / 100)
    states = one.module.state_dict(), other.module.state_dict()
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=10 * tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")
    assert one.trainer.global_step == other.trainer.global_step


STEPS = {"training_step": 1, "validation_step": 1, "optimizer_step": 1}
APART = {"training_step": 1, "validation_step": 1}


def left_nothing(ran: Ran) -> None:
    """Nothing of the callback is left at the module, the optimizers and the trainer."""
    assert not [name for name in vars(ran.module) if name.endswith("_step")]
    for optimizer in ran.trainer.optimizers:
        assert "OptimizerStep" not in type(vars(optimizer).get("step")).__name__
    assert not {"clip_grad_by_norm", "clip_grad_by_value", "_clip_gradients"} & set(vars(ran.trainer.precision_plugin))
