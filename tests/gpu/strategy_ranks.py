"""Run by test_nccl.py in two processes with a GPU each: fits under the strategies that Lightning has on GPUs alone, with the callback and without. Prints the
name of each case that held, and of each whose strategy is not installed.

`python -m tests.gpu.strategy_ranks [CASE]...`, started once for each rank.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, Strategy

from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.projects import QUIET, SIZE, Ran, loader, run
from tests.callbacks.strategies_fit import Block, Deep

KINDS = (events.GraphBroke, events.Recompiled, events.FrameSkipped)


class OfDeepSpeed(Deep):
    """Its optimizer is the strategy's to wrap."""

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def deepspeed(stage: int) -> Callable[[], Strategy]:
    return lambda: DeepSpeedStrategy(stage=stage)


CASES: dict[str, tuple[Callable[[], Strategy], dict]] = {
    "ddp": (lambda: DDPStrategy(), {}),
    "fsdp": (lambda: FSDPStrategy(), {}),
    "fsdp, blocks": (lambda: FSDPStrategy(auto_wrap_policy={Block}), {}),
    "fsdp, blocks named": (lambda: FSDPStrategy(auto_wrap_policy={Block}), {"modules": ["net.blocks.*"], "step": False}),
    "fsdp, bfloat16": (lambda: FSDPStrategy(auto_wrap_policy={Block}), {"precision": "bf16-mixed"}),
    "deepspeed_stage_1": (deepspeed(1), {}),
    "deepspeed_stage_2": (deepspeed(2), {}),
    "deepspeed_stage_2, bfloat16": (deepspeed(2), {"precision": "bf16-mixed"}),
    "deepspeed_stage_3": (deepspeed(3), {}),
}


def fit(name: str, folder: Path, compiled: bool) -> tuple[Ran, DynamoCallback | None]:
    make, given = CASES[name]
    given = dict(given)
    what = {key: given.pop(key) for key in ("modules", "step") if key in given}
    callback = DynamoCallback(what or "default", trace=False) if compiled else None
    L.seed_everything(0, verbose=False)
    module = (OfDeepSpeed if "deepspeed" in name else Deep)()
    options = {**QUIET, "max_epochs": 2, "default_root_dir": folder, "accelerator": "gpu", "enable_checkpointing": False, **given}
    trainer = L.Trainer(**options, devices=2, strategy=make(), callbacks=[callback] if callback else [])
    ran = Ran(module, trainer)
    run(ran, lambda: trainer.fit(module, loader(18 * SIZE), loader(4 * SIZE, 2)))
    return ran, callback


def check(name: str) -> None:
    plain, _ = fit(name, Path(tempfile.mkdtemp()), False)
    ran, callback = fit(name, Path(tempfile.mkdtemp()), True)
    tolerance = 2e-2 if "bfloat16" in name else 1e-3
    (losses, metrics), (others, other_metrics) = ran.numbers(), plain.numbers()
    told = sorted({f"{type(e).__name__}: {e.site} {getattr(e, 'reason', '') or getattr(e, 'failed', '')}" for e in ran.told if isinstance(e, KINDS)})
    print(f"{name}: entries {ran.entries}; {told}", flush=True)
    assert losses and losses == pytest.approx(others, rel=tolerance)
    assert metrics == pytest.approx(other_metrics, rel=tolerance)
    assert sum(ran.entries.values()) > 0 and not ran.count(events.LimitHit), ran.entries
    assert callback is not None and callback.outcome is not None
    left = dict(callback.outcome.notes).get("left to Python", "")
    assert ("is no torch.optim.Optimizer" in left) if "deepspeed" in name else not left, left


def main(names: list[str]) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    failed = False
    for name in names or CASES:
        if "deepspeed" in name and importlib.util.find_spec("deepspeed") is None:
            print(f"not installed {name}", flush=True)
            continue
        try:
            check(name)
            print(f"held {name}", flush=True)
        except Exception:  # noqa: BLE001  (it is printed, and the next case runs on all ranks)
            failed = True
            print(f"{name}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
