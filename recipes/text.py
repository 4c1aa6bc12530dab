"""The DataModule of the byte-level recipes: windows over the corpus, shuffled by a seed of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from dynacompile.recipes import corpus

Batch = tuple[torch.Tensor, torch.Tensor]


class Windows(Dataset):
    """Item i: the bytes [i * length, (i + 1) * length) and the same shifted by one, each an int64 tensor of shape (length,)."""

    def __init__(self, text: np.ndarray, length: int):
        self.text, self.length = text, length

    def __len__(self) -> int:
        return max((len(self.text) - 1) // self.length, 0)

    def __getitem__(self, index: int) -> Batch:
        inputs, targets = self.__getitems__([index])
        return inputs[0], targets[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch at once: two int64 tensors of shape (len(indices), length)."""
        starts = np.asarray(indices)[:, None] * self.length
        rows = torch.from_numpy(self.text[starts + np.arange(self.length + 1)].astype(np.int64))
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def as_it_is(batch: Any) -> Any:
    """Windows make whole batches: there is nothing to collate."""
    return batch


class ByteText(L.LightningDataModule):
    """Windows of `context` bytes in batches of `batch_size`; `seed` alone decides the order, whatever else uses random numbers."""

    def __init__(self, context: int = 128, batch_size: int = 16, seed: int = 0, workers: int = 0):
        super().__init__()
        self.context, self.batch_size, self.seed, self.workers = context, batch_size, seed, workers

    def setup(self, stage: str) -> None:
        self.corpus = corpus.load()
        self.unigram_loss = self.corpus.unigram_loss()

    def train_dataloader(self) -> DataLoader:
        windows = Windows(self.corpus.train, self.context)
        return self.loader(windows, RandomSampler(windows, generator=torch.Generator().manual_seed(self.seed)))

    def val_dataloader(self) -> DataLoader:
        """The same windows every time, spread over the whole validation text."""
        windows = Windows(self.corpus.validation, self.context)
        return self.loader(windows, torch.randperm(len(windows), generator=torch.Generator().manual_seed(0)).tolist())

    def loader(self, windows: Windows, order: RandomSampler | list[int]) -> DataLoader:
        return DataLoader(windows, batch_size=self.batch_size, sampler=order, collate_fn=as_it_is, drop_last=True, num_workers=self.workers)
