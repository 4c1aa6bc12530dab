"""A tiny fit, and a compiler that compiles nothing but says what it was asked, for tests that are about the callback alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynacompile
from dynacompile.build import cpp
from dynacompile.events import Bus, Compiled, Event, Recompiled, StageFinished


class Net(nn.Module):
    """Without biases before the batch norms: their gradients are rounding errors, which AdamW would scale up to whole steps."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(3))
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Regression(L.LightningModule):
    """`calls` counts what reaches training_step; `seen` keeps every logged training loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.calls = 0
        self.fail_at: int | None = None

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("a failing step")
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.log("val/loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)  # Adam would magnify the rounding of a bias before a norm, whose gradient is 0


def loader() -> DataLoader:
    numbers = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(64, 4, generator=numbers), torch.randn(64, 1, generator=numbers)), batch_size=4)


@dataclass
class FakeCompiler:
    """Puts a call that runs the module as it is into the slot, and tells subscribers what a compile would."""

    bus: Bus = field(default_factory=Bus)
    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    compiled_calls: list[tuple[str, bool]] = field(default_factory=list)

    def compile(self, module: Any, *, inplace: bool = False, name: str = "", **options: Any) -> Any:
        if not inplace:
            return module
        self.asked[name] = options
        modes: set[bool] = set()

        def call(*args: Any, **kwargs: Any) -> Any:
            self.compiled_calls.append((name, module.training))
            if module.training not in modes:
                self.tell(name, len(modes))
                modes.add(module.training)
            return module._call_impl(*args, **kwargs)

        module._compiled_call_impl = call
        return module

    def tell(self, name: str, entries: int) -> None:
        told: list[Event] = [
            StageFinished(region=name, stage="capture", seconds=0.25),
            StageFinished(region=name, stage="schedule", seconds=0.75, facts=(("launches", 3),)),
            Compiled(region=name, frame="Net.forward (net.py:1)", graph=entries, ops=7, guards=5, kernels=0, seconds=1.0),
        ]
        if entries:
            told.append(
                Recompiled(
                    region=name,
                    frame="Net.forward (net.py:1)",
                    entries=entries + 1,
                    limit=8,
                    failed=("L['self'].training: True -> False",),
                    site="",
                    seconds=1.0,
                    override="",
                )
            )
        for event in told:
            self.bus.emit(event)

    def restore(self, module: nn.Module) -> nn.Module:
        assert module._compiled_call_impl is not None
        module._compiled_call_impl = None
        return module


@pytest.fixture(scope="module", autouse=True)
def kernels_are_optimised_less() -> Iterator[None]:
    """Compiling kernels at -O3 takes longer than these fits, and is what tests of `codegen`, `build`, `lower`, `programs` and `fuzz` are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp, "FLAGS", tuple(flag.replace("-O3", "-O1") for flag in cpp.FLAGS))
        yield


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCompiler]:
    fake = FakeCompiler()
    monkeypatch.setattr(dynacompile, "compile", fake.compile)
    monkeypatch.setattr(dynacompile, "restore", fake.restore)
    monkeypatch.setattr(dynacompile, "subscribe", fake.bus.subscribe)
    yield fake


Fit = Callable[..., Regression]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """fit(*callbacks, fail_at=None, cls=Regression, **trainer options): trains a fresh one from seed 0 for 16 batches and returns it."""

    def run(*callbacks: L.Callback, fail_at: int | None = None, cls: type[Regression] = Regression, **options: Any) -> Regression:
        L.seed_everything(0, verbose=False)
        module = cls()
        module.fail_at = fail_at
        fixed = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
        logger = CSVLogger(tmp_path, name="csv", version="")
        trainer = L.Trainer(**{**fixed, "logger": logger, "log_every_n_steps": 1, "default_root_dir": tmp_path, **options}, callbacks=list(callbacks))
        trainer.fit(module, loader(), loader())
        return module

    return run
