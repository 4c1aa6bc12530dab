"""python -m tests.fuzz.inert FIRST LAST: fits of random LightningModules, measured and not, which must leave the same behind, to the bit.

A program is its seed: some states of random kinds, each on the LightningModule or on a layer of its net, that the training step changes and reads into its
loss; an optimizer, with or without a schedule; options of the trainer; automatic or manual optimization. Measuring falls on a random batch. A state that
measuring does not put back changes the loss of every later step.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import logging
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from dynacompile.callbacks import DynamoCallback
from tests.callbacks.equal_fits import Steps, assert_same, batches, left_behind
from tests.fuzz.changed_states import KINDS, WRAPPED, Step, forget, shared

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "logger": False,
    "max_epochs": 1,
    "limit_train_batches": 5,
    "limit_val_batches": 0,
}


WITH_WRAPPED = 100_000
METRICS = ("metric", "list metric", "running metric")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"accumulate_grad_batches": 2},
    {"accumulate_grad_batches": 3},
    {"gradient_clip_val": 0.1},
    {"precision": "bf16-mixed"},
    {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
)


@dataclasses.dataclass(frozen=True)
class Program:
    seed: int
    states: tuple[tuple[str, str, int], ...]  # kind, name, owner: 0 is the module, 1 and 2 are layers
    optimizer: str
    has_schedule: bool
    is_manual: bool
    options: dict[str, Any]
    measured_at: int


class Random(Steps):
    """`program` says what it has and does."""

    program: Program

    def set_up(self) -> None:
        self.automatic_optimization = not self.program.is_manual
        for kind, name, owner in self.program.states:
            setattr(self.owner(kind, owner), name, (KINDS | WRAPPED)[kind][0]())

    def owner(self, kind: str, number: int) -> Any:
        return self if kind in METRICS else (self, self.net[0], self.net[1])[number]

    def training_step(self, batch: Any, index: int) -> Any:
        step = Step(self, batch, index, nn.functional.mse_loss(self.net(batch[0]), batch[1]))
        factor = 1.0
        for kind, name, owner in self.program.states:
            factor += 0.001 * float((KINDS | WRAPPED)[kind][1](self.owner(kind, owner), name, step))
        loss = step.loss * factor
        self.log("loss", loss, on_step=True, on_epoch=True, batch_size=4)
        if not self.program.is_manual:
            return loss
        optimizer = self.optimizers()
        if index % 2:
            optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def configure_optimizers(self) -> Any:
        optimizer = OPTIMIZERS[self.program.optimizer](self.parameters())
        if not self.program.has_schedule:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5), "interval": "step"}}


def generate(seed: int) -> Program:
    r = random.Random(seed)
    kinds = r.sample(list(KINDS), r.randint(1, 5)) if seed < WITH_WRAPPED else r.sample([*KINDS, *WRAPPED], r.randint(0, 3)) + [r.choice(list(WRAPPED))]
    kinds = list(dict.fromkeys(kinds))
    is_manual = r.random() < 0.15
    optimizer = r.choice([name for name in OPTIMIZERS if not is_manual or name != "lbfgs"])
    options = {} if is_manual or optimizer == "lbfgs" else r.choice(OPTIONS)
    states = tuple((kind, f"state{number}", r.randrange(3)) for number, kind in enumerate(kinds))
    return Program(seed, states, optimizer, r.random() < 0.4, is_manual, options, r.randrange(4))


def run(program: Program, *callbacks: L.Callback) -> dict[str, Any]:
    """What a fit of the program leaves behind."""
    forget()
    L.seed_everything(program.seed, verbose=False)
    cls = type("Random", (Random,), {"program": program, "__module__": Random.__module__})
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(**QUIET, **program.options, default_root_dir=folder, callbacks=list(callbacks))
        module = cls()
        trainer.fit(module, batches())
        return left_behind(trainer, module, Path(folder)) | {"globals": shared()}


def check(program: Program, backend: str = "") -> str:
    """How the measuring ended. Raises AssertionError where the measured fit left something else behind. backend: both fits are compiled with it."""
    settings = {"measure_after": program.measured_at, "trace": False} | ({"backend": backend} if backend else {"enabled": False})
    callback = DynamoCallback({**settings, "measure_steps": 2})
    try:
        without = run(program, DynamoCallback({**settings, "measure_steps": 0}))
    except RuntimeError as error:
        return f"no program: {str(error)[:60]}"
    assert_same(without, run(program, callback))
    return "measured" if callback.outcome is not None and callback.outcome.times is not None else callback.measurement.reason


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="", help="compile the steps of both fits with it; without, both are eager")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ended: Counter = Counter()
    differing: list[int] = []
    for seed in range(arguments.first, arguments.last):
        program = generate(seed)
        try:
            with redirect_stdout(io.StringIO()):
                ended[check(program, arguments.backend)] += 1
        except (AssertionError, RuntimeError) as error:
            differing.append(seed)
            print(f"seed {seed}: {error}\n  {program}", flush=True)
    print(f"{arguments.last - arguments.first} programs, {len(differing)} differ: {differing}")
    for how, count in ended.most_common():
        print(f"  {count} {how}")


if __name__ == "__main__":
    main()
