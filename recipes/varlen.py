"""Sequences of many lengths: the paragraphs of the standard library's source, in batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from dynacompile.recipes import corpus
from dynacompile.recipes.text import Batch, as_it_is

IGNORED = -100  # the target of padding, which cross_entropy leaves out
SORTED_TOGETHER = 16  # batches whose paragraphs are sorted by length among each other
NEWLINE = 10
SHORTEST = 16


class Paragraphs(Dataset):
    """Item i: paragraph i (what blank lines separate), at most `context` bytes of it, and the same shifted by one. lengths: of all items."""

    def __init__(self, text: np.ndarray, context: int):
        self.text, self.context = text, context
        (blank,) = np.nonzero((text[:-1] == NEWLINE) & (text[1:] == NEWLINE))
        starts, ends = np.concatenate([[0], blank + 2]), np.concatenate([blank, [len(text) - 1]])
        long_enough = ends - starts >= SHORTEST
        self.starts, self.lengths = starts[long_enough], np.minimum((ends - starts)[long_enough], context)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A batch: tokens and targets, int64 of shape (len(indices), longest), padded with 0 and IGNORED."""
        longest = int(self.lengths[indices].max())
        tokens, targets = np.zeros((len(indices), longest), np.int64), np.full((len(indices), longest), IGNORED, np.int64)
        for row, index in enumerate(indices):
            start, length = self.starts[index], self.lengths[index]
            tokens[row, :length], targets[row, :length] = self.text[start : start + length], self.text[start + 1 : start + length + 1]
        return torch.from_numpy(tokens), torch.from_numpy(targets)


@dataclass(frozen=True)
class SimilarLengths:
    """Batches of indices in an order that `seed` decides. Within each run of SORTED_TOGETHER batches the paragraphs are sorted by length, so that little
    is padded."""

    lengths: np.ndarray
    batch_size: int
    seed: int

    def __len__(self) -> int:
        return len(self.lengths) // (self.batch_size * SORTED_TOGETHER) * SORTED_TOGETHER

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(self.lengths))
        run = self.batch_size * SORTED_TOGETHER
        for first in range(0, len(order) - run + 1, run):
            chosen = order[first : first + run]
            batches = chosen[np.argsort(self.lengths[chosen], kind="stable")].reshape(SORTED_TOGETHER, self.batch_size)
            yield from random.permutation(batches).tolist()


class ParagraphText(L.LightningDataModule):
    """Paragraphs of at most `context` bytes in batches of `batch_size`."""

    def __init__(self, context: int = 128, batch_size: int = 16, seed: int = 0, workers: int = 0):
        super().__init__()
        self.context, self.batch_size, self.seed, self.workers = context, batch_size, seed, workers

    def setup(self, stage: str) -> None:
        self.corpus = corpus.load()
        self.unigram_loss = self.corpus.unigram_loss()

    def train_dataloader(self) -> DataLoader:
        return self.loader(Paragraphs(self.corpus.train, self.context), self.seed)

    def val_dataloader(self) -> DataLoader:
        return self.loader(Paragraphs(self.corpus.validation, self.context), 0)

    def loader(self, paragraphs: Paragraphs, seed: int) -> DataLoader:
        order = SimilarLengths(paragraphs.lengths, self.batch_size, seed)
        return DataLoader(paragraphs, batch_sampler=order, collate_fn=as_it_is, num_workers=self.workers)


class HotLengths:
    """A key for `dispatch`: the length of the batch where it is one of `lengths`, else "tail"."""

    def __init__(self, lengths: Sequence[int]):
        self.lengths = tuple(lengths)

    def __repr__(self) -> str:
        return f"HotLengths({', '.join(map(str, self.lengths))})"

    def __call__(self, batch: Batch, *args: Any) -> int | str:
        length = batch[0].shape[1]
        return length if length in self.lengths else "tail"
