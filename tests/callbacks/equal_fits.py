"""Runs a fit and states all that it left behind, so that two fits can be compared to the bit."""

from __future__ import annotations

import collections
import csv
import io
import random
import types
import weakref
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "max_epochs": 2,
    "limit_train_batches": 6,
    "limit_val_batches": 2,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
}


def batches() -> DataLoader:
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(48, 4, generator=numbers), torch.randn(48, 1, generator=numbers)), batch_size=4, shuffle=True)


class Steps(L.LightningModule):
    """A small regression with batch norm and dropout; subclasses add what a step may change besides."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 1))
        self.set_up()

    def set_up(self) -> None:
        pass

    def extra(self, batch: Any, index: int, loss: torch.Tensor) -> Any:
        """What the training step does besides; what it returns is returned by the step."""
        return loss

    def training_step(self, batch: Any, index: int) -> Any:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return self.extra(batch, index, loss)

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val/loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """`value` with tensors as their dtype and bytes, and objects as their attributes. above: the identities of what holds it, where cycles end."""
    if id(value) in above:
        return "cycle", len(above) - above.index(id(value))
    inside = (*above, id(value))
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return "tensor", str(value.dtype), tuple(value.shape), value.to_dense().contiguous().reshape(-1).view(torch.uint8).tolist() if value.numel() else []
    if isinstance(value, np.ndarray):
        return "array", value.shape, plain(value.tolist(), inside) if value.dtype.hasobject else value.tobytes()
    if isinstance(value, torch.Generator):
        return plain(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, io.IOBase | types.GeneratorType | weakref.WeakKeyDictionary | weakref.ref):
        return type(value)
    if isinstance(value, types.FunctionType):
        return [plain(cell.cell_contents, inside) for cell in value.__closure__ or ()]
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [(str(key) if isinstance(key, str | int) else type(key), plain(held, inside)) for key, held in value.items()]
    elif isinstance(value, list | tuple | collections.deque | set):
        parts = [plain(held, inside) for held in value]
    elif not type(value).__module__.startswith(("tests.", "__main__")):
        return value if type(value).__eq__ is not object.__eq__ else type(value)
    names = (*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", ()))
    return type(value).__name__, parts, [(name, plain(getattr(value, name), inside)) for name in names if hasattr(value, name)]


def left_behind(trainer: L.Trainer, module: L.LightningModule, folder: Path) -> dict[str, Any]:
    kept = {name: value for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, nn.Module)}
    file = folder / "csv" / "metrics.csv"
    return {
        "state": plain(module.state_dict()),
        "gradients": [plain(p.grad) for p in module.parameters()],
        "flags": [(p.requires_grad, p._version, len(p._backward_hooks or ())) for p in module.parameters()],
        "modes": [part.training for part in module.modules()],
        "hooks": [len(part._forward_hooks) for part in module.modules()],
        "optimizers": [plain(optimizer.state_dict()) for optimizer in trainer.optimizers],
        "schedulers": [plain(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
        "scaler": plain(trainer.precision_plugin.state_dict()),
        "metrics": plain(without_ours(trainer.callback_metrics)),
        "logged": plain(without_ours(trainer.logged_metrics)),
        "bar": plain(without_ours(trainer.progress_bar_metrics)),
        "attributes": plain({name: value for name, value in kept.items() if name != "trainer"}),
        "loops": plain(trainer.fit_loop.state_dict()),
        "completed": trainer.fit_loop.epoch_loop.batch_progress.total.completed,
        "random": (random.getstate(), plain(np.random.get_state()), plain(torch.get_rng_state())),
        "random on devices": plain(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else [],
        "lines": logged_lines(file) if file.exists() else [],
    }


def without_ours(metrics: Any) -> dict[str, Any]:
    """Without what the callback offers of its own."""
    return {name: value for name, value in metrics.items() if not name.startswith("compile/")}


def logged_lines(file: Path) -> list[dict[str, str]]:
    """The rows of a CSV logger, without the callback's own columns."""
    with file.open(newline="") as lines:
        rows = [{name: value for name, value in row.items() if value and not name.startswith("compile/")} for row in csv.DictReader(lines)]
    return [row for row in rows if row.keys() - {"step", "epoch"}]


def fit(cls: type[L.LightningModule], folder: Path, *callbacks: L.Callback, **options: Any) -> dict[str, Any]:
    """What the fit of a fresh module from seed 0 leaves behind."""
    L.seed_everything(0, verbose=False)
    module = cls()
    trainer = L.Trainer(**{**QUIET, "logger": CSVLogger(folder, name="csv", version=""), **options}, default_root_dir=folder, callbacks=list(callbacks))
    trainer.fit(module, batches(), batches())
    return left_behind(trainer, module, folder)


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    unlike = [name for name, value in one.items() if other[name] != value]
    lines = [pair for pair in zip(one["lines"], other["lines"], strict=False) if pair[0] != pair[1]]
    assert not unlike, f"{', '.join(unlike)}; the first of the lines that differ: {lines[:1]}"
