"""Steps of a running fit that leave no trace: all that a training step can change is saved before and put back after them, to the bit.

Saved are parameters and gradients, buffers, the optimizers' and the scaler's state, schedulers, the random numbers of all devices and of generator objects,
metrics, Lightning's result collections and progress counters, the batch, the plain Python attributes of the LightningModule, of its submodules and of the
callbacks that take part in a step, class attributes, and the globals that their methods name. Each is put back in the object that held it.
Room is needed for one copy of all tensors that can be reached from there, on the devices where they are.

Not saved: what other processes and libraries keep outside of Python's objects. Where the module holds such a thing, no step is run (Unrepeatable).
The order of a set to which a step added, and which was put back, may be another.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from dynacompile.callbacks.saveable import Unrepeatable, is_library
from dynacompile.callbacks.snapshot import Snapshot

STEP_HOOKS = ("on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step")
SHARE_OF_FREE = 0.9  # of the memory that is free, how much copies may take
ACCELERATORS = ("cuda", "xpu", "mps")


@dataclass(frozen=True)
class RandomNumbers:
    """The state of Python's, NumPy's and torch's generators, all devices."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    devices: tuple[tuple[str, Any], ...]

    @classmethod
    def now(cls) -> RandomNumbers:
        devices = tuple((name, random_states(name)) for name in ACCELERATORS if is_in_use(name))
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), devices)

    def put_back(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        for name, states in self.devices:
            module = getattr(torch, name)
            if name == "mps":
                module.set_rng_state(states)
            else:
                module.set_rng_state_all(states)


def is_in_use(name: str) -> bool:
    module = getattr(torch, name, None)
    return module is not None and module.is_available() and (name == "mps" or module.is_initialized())


def random_states(name: str) -> Any:
    module = getattr(torch, name)
    return module.get_rng_state() if name == "mps" else module.get_rng_state_all()


@dataclass(frozen=True)
class Inert:
    """`rewind` makes everything as it was when the block was entered, any number of times. copied: the bytes of the copies, by device."""

    snapshot: Snapshot
    numbers: RandomNumbers
    copied: Mapping[torch.device, int]
    grad_mode: bool
    default_dtype: torch.dtype

    def rewind(self) -> None:
        torch.set_grad_enabled(self.grad_mode)
        torch.set_default_dtype(self.default_dtype)
        self.snapshot.put_back()
        self.numbers.put_back()

    def peak(self, device: torch.device) -> int:
        """CUDA bytes of the step that just ran, at their peak: without the copies, and without the gradients that it dropped and that are kept here."""
        if device.type != "cuda":
            return 0
        dropped = [kept.grad for kept in self.snapshot.tensors if kept.grad is not None and kept.tensor.is_leaf and kept.tensor.grad is not kept.grad]
        return torch.cuda.max_memory_allocated(device) - self.copied.get(device, 0) - sum(grad.untyped_storage().nbytes() for grad in dropped)


@contextmanager
def inert(trainer: Any, arguments: Mapping[str, Any]) -> Iterator[Inert]:
    """Whatever steps run inside leave no trace. arguments: what training_step takes, the batch among it.

    Raises Unrepeatable, before anything ran, with the reason why the steps of this fit can't be repeated. The profiler sees nothing of them.
    """
    if reason := refusal(trainer, arguments):
        raise Unrepeatable(reason)
    snapshot = walked(trainer, arguments)
    copied = snapshot.storages.sizes()
    cpu = torch.device("cpu")
    copied[cpu] = copied.get(cpu, 0) + snapshot.array_bytes
    check_memory(copied)
    saved = Inert(snapshot, RandomNumbers.now(), copied, torch.is_grad_enabled(), torch.get_default_dtype())
    snapshot.copy()
    profiler = trainer.profiler
    trainer.profiler = PassThroughProfiler()
    try:
        yield saved
    finally:
        saved.rewind()
        trainer.profiler = profiler


def refusal(trainer: L.Trainer, arguments: Mapping[str, Any]) -> str:
    """Why no step of this fit can be repeated, as far as Lightning's own objects tell; empty where it can."""
    if type(trainer.strategy) not in (SingleDeviceStrategy, DDPStrategy):
        return f"{type(trainer.strategy).__qualname__} keeps parts of the state to itself"
    if trainer.world_size > 1:
        return f"on {trainer.world_size} devices, a step that is ended in one process would leave the others waiting"
    if "batch" not in arguments:
        return "training_step draws its batches from the data loader itself (dataloader_iter)"
    return ""


def walked(trainer: Any, arguments: Mapping[str, Any]) -> Snapshot:
    """A snapshot, without copies yet, of all that a step of `trainer` can change."""
    snapshot = Snapshot()
    snapshot.add(trainer.lightning_module, "")
    snapshot.add(dict(arguments), "training_step's arguments")
    epoch_loop = trainer.fit_loop.epoch_loop
    for owner in (trainer, trainer.fit_loop, epoch_loop, trainer.strategy, trainer._logger_connector):
        snapshot.add_shallow(owner)
    for loop in (epoch_loop.automatic_optimization, epoch_loop.manual_optimization):
        snapshot.add_shallow(loop)
        for name, value in vars(loop).items():
            snapshot.add(value, f"{type(loop).__qualname__}.{name}")
    strategy, connector = trainer.strategy, trainer._logger_connector
    for name, root in (
        ("the trainer's state", trainer.state),
        ("epoch progress", trainer.fit_loop.epoch_progress),
        ("batch progress", epoch_loop.batch_progress),
        ("scheduler progress", epoch_loop.scheduler_progress),
        ("logged results", epoch_loop._results),
        ("logged results", trainer._results),
        ("metrics", (connector._progress_bar_metrics, connector._logged_metrics, connector._callback_metrics)),
        ("optimizers", strategy._optimizers),
        ("optimizers", strategy._lightning_optimizers),
        ("schedulers", strategy.lr_scheduler_configs),
        ("the precision plugin", strategy.precision_plugin),
    ):
        snapshot.add(root, name)
    if trainer.datamodule is not None:
        snapshot.add_shallow(trainer.datamodule)
    for callback in trainer.callbacks:
        if takes_part(callback):
            snapshot.add(callback, f"callback {type(callback).__qualname__}")
        elif not is_library(type(callback).__module__):
            snapshot.add_shallow(callback)
    snapshot.add_deferred()
    return snapshot


def takes_part(callback: Callback) -> bool:
    """Whether Lightning calls a hook of this callback inside a step."""
    return any(getattr(type(callback), name) is not getattr(Callback, name) for name in STEP_HOOKS)


def check_memory(copied: Mapping[torch.device, int]) -> None:
    """Raises Unrepeatable where the copies would not fit."""
    for device, size in copied.items():
        free = free_bytes(device)
        if free is not None and size > SHARE_OF_FREE * free:
            raise Unrepeatable(f"the copy that is put back takes {size / 2**20:.0f} MiB on {device}, where {free / 2**20:.0f} MiB are to spare")


def free_bytes(device: torch.device) -> int | None:
    """What is free beside a step like those so far; None where nothing tells."""
    if device.type == "cuda":
        allocated = torch.cuda.memory_allocated(device)
        cached = torch.cuda.memory_reserved(device) - allocated
        return max(0, torch.cuda.mem_get_info(device)[0] + cached - (torch.cuda.max_memory_allocated(device) - allocated))
    meminfo = Path("/proc/meminfo")
    if device.type == "cpu" and meminfo.exists():
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None
