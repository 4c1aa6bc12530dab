"""The LightningModule of the byte-level recipes: next-byte cross-entropy over any net of `nets`."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from dynacompile.recipes.text import Batch


class NextByte(L.LightningModule):
    """Trains `net` with AdamW: `warmup` optimizer steps up to `lr`, then a cosine down to a tenth of it. Losses are nats per byte."""

    def __init__(self, net: nn.Module, lr: float = 3e-3, warmup: int = 20, weight_decay: float = 0.1, betas: tuple[float, float] = (0.9, 0.95)):
        super().__init__()
        self.net = net
        self.lr, self.warmup, self.weight_decay, self.betas = lr, warmup, weight_decay, (betas[0], betas[1])

    def loss(self, batch: Batch) -> torch.Tensor:
        tokens, targets = batch
        return F.cross_entropy(self.net(tokens).flatten(0, 1), targets.flatten())

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        self.log("val/loss", self.loss(batch), prog_bar=True, batch_size=len(batch[0]))

    def on_validation_epoch_end(self) -> None:
        unigram = getattr(getattr(self.trainer, "datamodule", None), "unigram_loss", None)
        if unigram is not None:
            self.log("val/unigram_loss", unigram)

    def configure_optimizers(self) -> Any:
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.lr, betas=self.betas)
        total = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_share(step, self.warmup, total))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def learning_rate_share(step: int, warmup: int, total: int) -> float:
    """The share of the peak rate at optimizer step `step` (0-based) of `total`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress))
