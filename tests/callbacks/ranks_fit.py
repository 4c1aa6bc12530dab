"""Run by test_ranks.py: fits of two processes, with the callback and without. `python -m tests.callbacks.ranks_fit FOLDER` starts the second by itself."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

from dynacompile import events
from tests.callbacks.projects import STEPS, Manual, Project, fit, left_nothing, loader, same


class PartUnused(Project):
    """Every second step uses a part more."""

    def __init__(self):
        super().__init__()
        self.more = nn.Linear(3, 3)

    def training_step(self, batch, batch_idx):
        out = self.net(batch[0])
        if batch_idx % 2:
            out = self.more(out)
        return nn.functional.cross_entropy(out, batch[1])


class Normed(Project):
    """With batch statistics; without a bias before them, whose gradient is rounding error, which AdamW would make whole steps of."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


CASES = {
    "plain": (Project, {}, {}, STEPS),
    "clipping": (Project, {}, {"gradient_clip_val": 0.5}, STEPS),
    "accumulation, which is no_sync": (Project, {}, {"accumulate_grad_batches": 2}, STEPS),
    "static graph": (Project, {"static_graph": True}, {}, STEPS),
    "buckets are the gradients": (Project, {"gradient_as_bucket_view": True}, {}, STEPS),
    "several small buckets": (Project, {"bucket_cap_mb": 0.0001}, {}, STEPS),
    "unused parameters": (PartUnused, {"find_unused_parameters": True}, {}, STEPS | {"training_step": 2, "optimizer_step": None}),
    "a communication hook": (Project, {"ddp_comm_hook": bf16_compress_hook}, {}, STEPS),
    "a short last batch": (Project, {}, {"data": lambda: loader(27)}, STEPS | {"training_step": 2}),
    "manual optimization": (Manual, {}, {}, None),
    "buffers": (Normed, {}, {}, STEPS),
}


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    for name, (cls, strategy, options, entries) in CASES.items():
        rounds = [fit(cls, folder / str(on), on, devices=2, strategy=DDPStrategy(process_group_backend="gloo", **strategy), **options) for on in (False, True)]
        plain, compiled = rounds
        same(compiled, plain, 2e-2 if "hook" in name else 1e-4)
        for part, count in (entries or {}).items():
            assert count is None or compiled.entries.get(part) == count, (name, compiled.entries)
        assert not compiled.count(events.LimitHit), name
        left_nothing(compiled)
        gathered = [torch.zeros(()) for _ in range(2)]
        torch.distributed.all_gather(gathered, compiled.module.net[0].weight.detach().sum())
        assert gathered[0] == gathered[1], f"{name}: ranks differ"
        with open(folder / f"rank{compiled.trainer.global_rank}", "a") as told:
            told.write(name + "\n")
    torch.distributed.destroy_process_group()  # else gloo's threads may free tensors while the interpreter ends, which aborts the process


if __name__ == "__main__":
    main()
