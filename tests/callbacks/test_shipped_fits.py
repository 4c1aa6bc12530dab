"""Whole fits of the shipped experiments, at small sizes, compiled by default options and eager: every logged number, parameter and buffer."""

from __future__ import annotations

import csv
from pathlib import Path

import lightning as L
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import instantiate

import dynacompile
from tests.forked import ROOT

SMALL = (
    "logger=csv",
    "~callbacks.progress",
    "trainer.accelerator=cpu",
    "trainer.max_steps=4",
    "trainer.limit_val_batches=2",
    "trainer.log_every_n_steps=1",
    "+trainer.num_sanity_val_steps=0",
    "+trainer.enable_progress_bar=false",
    "compile.trace=false",
    "compile.measure_steps=0",
)
TEXT = ("data.context=16", "data.batch_size=4", "model.net.width=16", "trainer.val_check_interval=2")
IMAGES = ("data.batch_size=16", "trainer.val_check_interval=2", "trainer.limit_val_batches=2")
VIT = "{layers: 1, width: 16, heads: 2}"
FITS = {
    "vision vit": ("experiment=vision", "model.net.layers=1", "model.net.width=16", *IMAGES),
    "vision resnet": ("experiment=vision", "model=resnet", "model.net.width=8", *IMAGES),
    "distill": ("experiment=distill", "compile.modules=null", f"model.teacher={VIT}", f"model.student={VIT}", *IMAGES),
    "rl": ("experiment=rl", "data.carts=4", "data.steps=16", "data.batch_size=32"),
    "lm": ("experiment=lm", "model.net.layers=1", *TEXT),
    "mlp": ("model=mlp", *TEXT),
    "conv": ("model=conv", "model.net.layers=2", *TEXT),
}
FAST = ("vision resnet", "mlp", "rl")


def fit(folder: Path, *overrides: str) -> tuple[list[dict[str, float]], dict[str, torch.Tensor], int]:
    """The logged rows, the final state, and how many frames were compiled, of a fit as train.py makes it."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("train", [*SMALL, *overrides, f"output={folder}"])
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    compiled: list[dynacompile.events.Compiled] = []
    stop = dynacompile.subscribe(lambda event: compiled.append(event) if isinstance(event, dynacompile.events.Compiled) else None)
    try:
        callbacks = [instantiate(callback) for callback in cfg.callbacks.values()]
        trainer = instantiate(cfg.trainer, callbacks=callbacks, logger=[instantiate(logger) for logger in cfg.logger.values()])
        model = instantiate(cfg.model)
        trainer.fit(model, datamodule=instantiate(cfg.data))
    finally:
        stop()
        dynacompile.reset()
    with (folder / "csv" / "metrics.csv").open(newline="") as lines:
        read = [{name: float(value) for name, value in row.items() if value and not name.startswith("compile/")} for row in csv.DictReader(lines)]
    return [row for row in read if row.keys() - {"step", "epoch"}], model.state_dict(), len(compiled)


def without_bias_of_keys(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A softmax takes no notice of what is added to all keys: that bias has a gradient of rounding errors, which AdamW scales up to whole steps."""
    if not name.endswith("qkv.bias"):
        return tensor
    query, _, value = tensor.chunk(3)
    return torch.cat([query, value])


CASES = [pytest.param(overrides, id=name, marks=() if name in FAST else pytest.mark.slow) for name, overrides in FITS.items()]


@pytest.mark.parametrize("overrides", CASES)
def test_a_compiled_fit_has_the_numbers_of_the_eager_one(tmp_path, overrides):
    rows, state, none = fit(tmp_path / "eager", *overrides, "compile=none")
    found, ours, compiled = fit(tmp_path / "compiled", *overrides)
    assert none == 0 and compiled >= 2
    assert len(rows) == len(found) >= 4
    for row, same in zip(rows, found, strict=True):
        assert same == pytest.approx(row, rel=2e-5, abs=1e-6)
    assert ours.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(
            without_bias_of_keys(name, ours[name]), without_bias_of_keys(name, tensor), rtol=1e-4, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
