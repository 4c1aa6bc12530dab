"""LightningModules over images: one net that learns their labels, and a student that learns from its teacher."""

from __future__ import annotations

import copy
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

from dynacompile.recipes.images import augmented
from dynacompile.recipes.optimizing import adamw
from dynacompile.recipes.text import Batch


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(1) == labels).float().mean()


class Classify(L.LightningModule):
    """Trains `net` on augmented images (augment: false leaves them as they are) with AdamW, a warm-up and a cosine."""

    def __init__(self, net: nn.Module, lr: float = 3e-3, warmup: int = 20, weight_decay: float = 0.05, augment: bool = True):
        super().__init__()
        self.net = net
        self.lr, self.warmup, self.weight_decay, self.augment = lr, warmup, weight_decay, augment

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.net(augmented(images) if self.augment else images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        images, labels = batch
        logits = self.net(images)
        self.log_dict({"val/loss": F.cross_entropy(logits, labels), "val/accuracy": accuracy(logits, labels)}, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        return adamw(self, self.lr, self.warmup, self.weight_decay)


class Distill(L.LightningModule):
    """A teacher that learns the labels, a student that sees none and learns the teacher's logits (softened by `temperature`), and an exponential moving
    average of the student (`decay`): three nets of one class in one step."""

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        lr: float = 3e-3,
        warmup: int = 20,
        weight_decay: float = 0.05,
        temperature: float = 2.0,
        decay: float = 0.98,
    ):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.ema = copy.deepcopy(student).requires_grad_(False)
        self.lr, self.warmup, self.weight_decay, self.temperature, self.decay = lr, warmup, weight_decay, temperature, decay

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        images, labels = batch
        self.follow()
        images = augmented(images)
        taught, learned = self.teacher(images), self.student(images)
        given = F.log_softmax(taught.detach() / self.temperature, 1)
        likeness = F.kl_div(F.log_softmax(learned / self.temperature, 1), given, reduction="batchmean", log_target=True)
        teacher_loss, student_loss = F.cross_entropy(taught, labels), likeness * self.temperature**2
        self.log_dict({"train/teacher_loss": teacher_loss, "train/loss": student_loss}, prog_bar=True)
        return teacher_loss + student_loss

    @torch.no_grad()
    def follow(self) -> None:
        """The average moves towards the student."""
        torch._foreach_lerp_(list(self.ema.parameters()), list(self.student.parameters()), 1 - self.decay)

    def validation_step(self, batch: Batch, index: int) -> None:
        images, labels = batch
        logits = {"teacher": self.teacher(images), "student": self.student(images), "ema": self.ema(images)}
        self.log_dict({f"val/{name}_accuracy": accuracy(found, labels) for name, found in logits.items()}, prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> Any:
        return adamw(self, self.lr, self.warmup, self.weight_decay)
