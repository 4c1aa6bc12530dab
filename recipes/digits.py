"""Images that are always at hand: scikit-learn's 1797 handwritten digits of 8x8 pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import lightning as L
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset, RandomSampler

from dynacompile.recipes.text import Batch, as_it_is

VALIDATION_IMAGES = 360
ENDLESS = 1 << 30  # images drawn in an epoch: the trainer says how many batches it takes


class Images(Dataset):
    """Item i: image i, float32 of shape (1, 8, 8) from 0 to 1, and its digit, int64."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor):
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once."""
        chosen = torch.as_tensor(indices)
        return self.images[chosen], self.labels[chosen]


class Digits(L.LightningDataModule):
    """Batches of `batch_size` images drawn with replacement, without an end; a fifth of the images is for validation. `seed` alone decides the order."""

    def __init__(self, batch_size: int = 64, seed: int = 0, workers: int = 0):
        super().__init__()
        self.batch_size, self.seed, self.workers = batch_size, seed, workers

    def setup(self, stage: str) -> None:
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        images, digits = torch.from_numpy(pixels).float().view(-1, 1, 8, 8)[order] / 16, torch.from_numpy(labels).long()[order]
        self.validation = Images(images[:VALIDATION_IMAGES], digits[:VALIDATION_IMAGES])
        self.training = Images(images[VALIDATION_IMAGES:], digits[VALIDATION_IMAGES:])

    def train_dataloader(self) -> DataLoader:
        drawn = torch.Generator().manual_seed(self.seed)
        return self.loader(self.training, RandomSampler(self.training, replacement=True, num_samples=ENDLESS, generator=drawn))

    def val_dataloader(self) -> DataLoader:
        return self.loader(self.validation, range(VALIDATION_IMAGES))

    def loader(self, images: Images, order: Iterable[int]) -> DataLoader:
        return DataLoader(images, batch_size=self.batch_size, sampler=order, collate_fn=as_it_is, drop_last=True, num_workers=self.workers)
