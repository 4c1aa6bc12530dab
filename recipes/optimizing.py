"""The optimizer of the recipes: AdamW with a warm-up and a cosine."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch


def adamw(module: L.LightningModule, lr: float, warmup: int, weight_decay: float, betas: tuple[float, float] = (0.9, 0.95)) -> dict[str, Any]:
    """What `configure_optimizers` gives: AdamW over what requires gradients, decay on matrices alone; `warmup` optimizer steps up to `lr`, then a cosine
    down to a tenth of it at the last step of the fit."""
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() >= 2]
    vectors = [p for p in trained if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas)
    total = int(module.trainer.estimated_stepping_batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_share(step, warmup, total))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def learning_rate_share(step: int, warmup: int, total: int) -> float:
    """The share of the peak rate at optimizer step `step` (0-based) of `total`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
