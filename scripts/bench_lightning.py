"""Whole training steps of the recipes under Lightning: eager, torch.compile, thunder and the callback, each as its documentation tells users to do it."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from lightning.pytorch.utilities.data import extract_batch_size

ROOT = Path(__file__).resolve().parent.parent
RECIPES = {
    "gpt": ("experiment=lm",),
    "mlp": ("model=mlp",),
    "conv": ("model=conv",),
    "vision": ("experiment=vision",),
    "resnet": ("experiment=vision", "model=resnet"),
    "distill": ("experiment=distill",),
    "distill_whole": ("experiment=distill", "compile.modules=null"),
    "varlen": ("experiment=varlen",),
    "varlen_hot": ("experiment=varlen", "callbacks=hot_lengths"),
    "rl": ("experiment=rl",),
    "optimizer_bound": ("experiment=optimizer_bound",),
    "gpt2_small": ("experiment=gpt2_small",),
}
DEVICES = {"cpu": tuple(name for name in RECIPES if name != "gpt2_small"), "cuda": tuple(RECIPES)}
BARE = "dynacompile, bare loop"  # the same compiled step without Lightning: what the trainer itself costs
SYSTEMS = ("eager", "torch.compile", "torch.compile, net", "thunder", "dynacompile", BARE)
WARM_UP = 8  # steps, in which everything compiles
STEPS = 30  # steps that are timed in each process


class Stopwatch(L.Callback):
    """Seconds of each training step, from the batch on its device to the hook after the step, and the loss of each."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.losses: list[torch.Tensor] = []
        self.samples = 0
        self.started = 0.0

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.samples = self.samples or extract_batch_size(batch)
        synchronize(pl_module.device)
        self.started = time.perf_counter()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        synchronize(pl_module.device)
        self.seconds.append(time.perf_counter() - self.started)
        self.losses.append(outputs["loss"].detach())


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def why_missing(system: str) -> str:
    return "thunder is not installed" if system == "thunder" and importlib.util.find_spec("thunder") is None else ""


def prepared(system: str, module: L.LightningModule, mode: str, callback: Any) -> tuple[Any, list[L.Callback]]:
    """What is given to fit, and the callbacks. callback: the config of ours. Each system is imported by its own worker alone."""
    if system == "torch.compile":  # the way of Lightning's documentation
        return torch.compile(module, mode=None if mode == "default" else mode), []
    if system == "torch.compile, net":  # where the above fails: forward and backward of the net, and no more
        for net in module.children():
            net.compile(mode=None if mode == "default" else mode)
    if system == "thunder":  # which compiles modules: the loss and the optimizer stay eager
        for name, net in list(module.named_children()):
            setattr(module, name, importlib.import_module("thunder").jit(net))
    if system == "dynacompile":
        return module, [instantiate(callback)]
    return module, []


def worker(system: str, recipe: str, device: str, mode: str) -> dict[str, float]:
    """One fit in this process. first: seconds of the first steps beyond what later ones take, which is what compiling costs."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        options = [f"output={folder}", f"trainer.max_steps={WARM_UP + STEPS}", "trainer.val_check_interval=null", "trainer.check_val_every_n_epoch=1"]
        options += ["trainer.limit_val_batches=0", f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}", "logger=none"]
        options += [f"compile.mode={mode}", "compile.measure_steps=0", "compile.trace=false", *(() if recipe == "rl" else ("data.workers=0",))]
        config = compose("train", [*RECIPES[recipe], *options])
        L.seed_everything(config.seed, workers=True, verbose=False)
        torch.set_float32_matmul_precision(config.matmul_precision)
        watch = Stopwatch()
        module, callbacks = prepared(system, instantiate(config.model), mode, config.callbacks.dynamo)
        trainer = instantiate(config.trainer, callbacks=[*callbacks, watch], logger=False, enable_progress_bar=False)
        if system == BARE:
            bare_loop(trainer, module, instantiate(config.data), watch, mode)
        else:
            trainer.fit(module, datamodule=instantiate(config.data))
    usual = watch.seconds[WARM_UP:]
    median = statistics.median(usual)
    first, _, third = statistics.quantiles(usual, n=4)
    compiling = sum(watch.seconds[:WARM_UP]) - WARM_UP * median
    loss = float(torch.stack(watch.losses[-10:]).mean())
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    return {"step": median, "low": first, "high": third, "samples": watch.samples, "first": compiling, "loss": loss, "peak": peak}


def bare_loop(trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule, watch: Stopwatch, mode: str) -> None:
    """Steps like those of fit, by hand: what the module's step and its optimizer's do, compiled, with nothing around them."""
    dynacompile = importlib.import_module("dynacompile")
    device = trainer.strategy.root_device
    data.prepare_data()
    data.setup("fit")
    module.to(device).train()
    about = types.SimpleNamespace(estimated_stepping_batches=WARM_UP + STEPS, lightning_module=module)
    module.trainer = data.trainer = about  # which the module holds weakly
    module.log = module.log_dict = lambda *args, **kwargs: None
    parts = module.configure_optimizers()
    optimizer, schedule = parts["optimizer"], parts["lr_scheduler"]["scheduler"]
    parameters = list(module.parameters())
    clip = trainer.gradient_clip_val

    def forward(batch: Any, index: int) -> torch.Tensor:
        with trainer.precision_plugin.train_step_context():
            return module.training_step(batch, index)

    def update() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()

    compiled = dynacompile.compile(forward, mode=mode)
    compiled_update = dynacompile.compile(update, mode=mode, options={"varying": ("lr",)})
    for index, batch in zip(range(WARM_UP + STEPS), data.train_dataloader()):
        batch = module.transfer_batch_to_device(batch, device, 0)
        watch.on_train_batch_start(trainer, module, batch, index)
        loss = compiled(batch, index)
        optimizer.zero_grad()
        loss.backward()
        compiled_update()
        schedule.step()
        watch.on_train_batch_end(trainer, module, {"loss": loss}, batch, index)


def measured(system: str, recipe: str, device: str, mode: str) -> dict[str, float] | str:
    """One worker with empty caches; its figures, or the last line of its error."""
    with tempfile.TemporaryDirectory() as caches:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton", "DYNACOMPILE_CACHE_DIR": f"{caches}/ours"}
        command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "lightning", "--worker", system, "--only", recipe, "--device", device, "--mode", mode]
        run = subprocess.run(command, env=env, cwd=caches, capture_output=True, text=True)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or ["no output"]
        return next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[-1])[:160]
    return json.loads(run.stdout.strip().splitlines()[-1])


def rounds_of(recipe: str, device: str, mode: str, rounds: int) -> dict[str, list[dict[str, float]] | str]:
    """The figures of each system, from processes that take turns; why a system has none."""
    figures: dict[str, Any] = {system: why_missing(system) or [] for system in SYSTEMS}
    for number in range(rounds):
        for system in SYSTEMS:
            if isinstance(figures[system], str):
                continue
            result = measured(system, recipe, device, mode)
            print(f"{recipe}, round {number + 1}: {system} {result}", file=sys.stderr, flush=True)
            figures[system] = result if isinstance(result, str) else [*figures[system], result]
    return figures


def table(recipes: list[str], device: str, mode: str, rounds: int) -> str:
    """Markdown: medians over the rounds. A ratio is the median of the rounds' ratios; its range is that of the rounds."""
    has_peaks = device == "cuda"
    columns = ("recipe", "system", "step", "quartiles", "samples/s", "against eager", "compile s", "loss", *(("peak MiB",) if has_peaks else ()))
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for recipe in recipes:
        figures = rounds_of(recipe, device, mode, rounds)
        for system in SYSTEMS:
            got = figures[system]
            if isinstance(got, str):
                lines.append(f"| {recipe} | {system} | {got} |" + " |" * (len(columns) - 3))
                continue
            step = statistics.median(f["step"] for f in got)
            low, high = (statistics.median(f[name] for f in got) for name in ("low", "high"))
            cells = [recipe, system, in_ms(step), f"{in_ms(low)} to {in_ms(high)}", f"{got[0]['samples'] / step:.0f}", against(figures["eager"], got)]
            cells += [f"{max(0.0, statistics.median(f['first'] for f in got)):.1f}", f"{got[0]['loss']:.4f}"]
            cells += [f"{max(f['peak'] for f in got):.0f}"] if has_peaks else []
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def against(eager: list[dict[str, float]] | str, got: list[dict[str, float]]) -> str:
    if isinstance(eager, str):
        return ""
    ratios = [one["step"] / other["step"] for one, other in zip(eager, got)]
    return f"{statistics.median(ratios):.2f}x" + ("" if got is eager or len(ratios) == 1 else f" ({min(ratios):.2f} to {max(ratios):.2f})")
