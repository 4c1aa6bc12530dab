"""What the numbers are called, on which axis they lie, and where they go: every logger, `trainer.callback_metrics`, the largest of all ranks, or the sum."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
import torch
from lightning.pytorch.trainer.states import TrainerFn

from dynacompile.callbacks.ledger import Ledger
from dynacompile.complaints import Reporting

MOST_PARTS = 16
PART_KEYS = ("seconds", "graphs", "graph_breaks", "recompiles")
MEASURED = ("step_ms_eager", "step_ms_compiled", "speedup")


def axis(trainer: L.Trainer, in_batch: bool) -> int:
    """Where values lie on Lightning's own axis: batches after which optimizers stepped, however many they are. in_batch: the batch is under way; else
    values are those of the last one, as Lightning has it for values of an epoch."""
    stepped = trainer.fit_loop.epoch_loop._batches_that_stepped
    return stepped if in_batch or trainer.state.fn != TrainerFn.FITTING else max(0, stepped - 1)


def is_due(trainer: L.Trainer) -> bool:
    """Whether Lightning logs values of the batch that ends: at every `log_every_n_steps`th, once its gradients are accumulated."""
    return trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()


def prefixed(numbers: Mapping[str, float], prefix: str, stage: str = "fit") -> dict[str, float]:
    """The numbers under the prefix; outside of fits under the stage before it, as ThroughputMonitor has it, so that they hide none of a fit."""
    before = prefix if stage == "fit" else f"{stage}/{prefix}"
    return {f"{before}{name}": float(value) for name, value in numbers.items()}


def of_parts(ledger: Ledger, parts: Sequence[str]) -> dict[str, float]:
    """`<module>/recompiles` and its like for each part that is compiled. Of more than MOST_PARTS, numbered siblings are one: `net.blocks.N/recompiles`."""
    of_region = ledger.per_region()
    many = len(parts) > MOST_PARTS
    found: dict[str, float] = {}
    for part in parts:
        counts = of_region.get(part, {})
        name = re.sub(r"[^\w. -]", "_", re.sub(r"(?<=\.)\d+(?=\.|$)", "N", part) if many else part)
        for key in PART_KEYS:
            found[f"{name}/{key}"] = found.get(f"{name}/{key}", 0.0) + counts.get(key, 0.0)
    return found


def of_all(of_ranks: Sequence[Mapping[str, float]], prefix: str) -> dict[str, float]:
    """The largest value of each number; of graph breaks the sum. A speed-up is that of the slowest ranks' steps: the step of all is no faster."""
    found: dict[str, float] = {}
    for numbers in of_ranks:
        for name, value in numbers.items():
            found[name] = found.get(name, 0.0) + value if name.endswith("graph_breaks") else max(found.get(name, value), value)
    eager, compiled = (found.get(f"{prefix}{name}") for name in ("step_ms_eager", "step_ms_compiled"))
    if eager is not None and compiled:
        found[f"{prefix}speedup"] = eager / compiled
    return found


def over_ranks(trainer: L.Trainer, numbers: dict[str, float], prefix: str) -> dict[str, float]:
    """The numbers of all ranks together, where there are several; every rank calls this at the same time, and gets the same."""
    if trainer.world_size == 1 or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return numbers
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, numbers)
    return of_all(gathered, prefix)


def offer(trainer: L.Trainer, numbers: Mapping[str, float], unknown: Sequence[str] = ()) -> None:
    """Puts the numbers among `trainer.callback_metrics`, which checkpoints, early stopping and sweepers read. unknown: names whose value is not known
    yet, which are NaN: a checkpoint that monitors one waits, where a name that is missing would end the run."""
    named = {**dict.fromkeys(unknown, float("nan")), **numbers}
    values = torch.tensor(list(named.values()), device=trainer.lightning_module.device)
    offered = dict(zip(named, values.unbind()))
    known, logged = kept(trainer)
    known.update(offered)
    logged.update({name: offered[name] for name in numbers})


def kept(trainer: L.Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dicts of `callback_metrics` and `logged_metrics`. The trainer's own properties would compute what is new for them. A version of Lightning that
    has other names for them is asked by these properties."""
    connector: Any = getattr(trainer, "_logger_connector", None)
    if hasattr(connector, "_callback_metrics") and hasattr(connector, "_logged_metrics"):
        return connector._callback_metrics, connector._logged_metrics
    return trainer.callback_metrics, trainer.logged_metrics


def metrics_now(trainer: L.Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """`callback_metrics` and `progress_bar_metrics` as of now. The trainer's own properties would keep what they compute, so that who reads them
    later, as after an error, would find other values than without this callback."""
    connector: Any = getattr(trainer, "_logger_connector", None)
    names = ("_callback_metrics", "_progress_bar_metrics")
    if not all(hasattr(connector, name) for name in names) or not hasattr(type(connector), "metrics") or not hasattr(type(trainer), "_results"):
        return trainer.callback_metrics, trainer.progress_bar_metrics
    now = connector.metrics if trainer._results else {"callback": {}, "pbar": {}}
    return {**connector._callback_metrics, **now["callback"]}, {**connector._progress_bar_metrics, **now["pbar"]}


def log(trainer: L.Trainer, numbers: Mapping[str, float], step: int) -> None:
    """Sends the numbers to every logger. One that raises is warned of once, and ends nothing."""
    for logger in trainer.loggers:
        with Reporting(f"logging of compile metrics by {type(logger).__qualname__}"):
            logger.log_metrics(dict(numbers), step=step)
