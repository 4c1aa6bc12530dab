"""The LightningModule of the byte-level recipes: next-byte cross-entropy over any net of `nets`."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from dynacompile.recipes.optimizing import adamw
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
        return adamw(self, self.lr, self.warmup, self.weight_decay, self.betas)
