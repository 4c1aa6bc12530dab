"""What a core is expected to take for attention of float32 as a kernel of ours and as a call of ATen's, by its extents, without measuring.

Ours skips, with a causal mask, the keys that no query of a few sees; ATen's computes their scores in all but long sequences. Ours computes a few queries
at once, whether they are there or not, which is too much for one query with many keys. The numbers are those of 40 shapes on an AVX-512 core; with AVX2 both
take about twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynacompile.ops.product_costs import Choice

ROWS = 8  # queries that are computed at once
CALL, LIBRARY_CALL = 1.5, 8.0  # microseconds beside the work
RATE, LIBRARY_RATE = 60e3, 45e3  # multiplications in a microsecond
MOVED, LIBRARY_MOVED = 6e3, 4e3  # elements of keys and values that are read, and laid out for the products, in a microsecond
LONG = 512  # keys of a block of ATen's, of which it skips those that no query sees
CLEAR = 0.9  # of ATen's time that ours may take
PRODUCTS = {False: 2, True: 5}  # of matrices, forward and backward
WIDEST = 256  # elements of a head
VECTORS = frozenset({"AVX2", "AVX512"})  # instructions with which ours was measured
WRITTEN_QUERIES, WRITTEN_SCORES = 16, 512  # of a head, from which ours is faster than products and a softmax by themselves


@dataclass(frozen=True)
class Attention:
    """heads: of all matrices of a batch. size: elements of a head."""

    heads: int
    queries: int
    keys: int
    size: int
    causal: bool
    backward: bool


def choose(attention: Attention) -> Choice:
    ours, library = ours_us(attention), library_us(attention)
    if ours < CLEAR * library:
        return Choice(True, "attention in our blocks is expected to take less time than ATen's operator", ours, library)
    return Choice(False, "ATen's operator is expected to take less time than attention in our blocks", ours, library)


def ours_us(of: Attention) -> float:
    rows = -(-of.queries // ROWS) * ROWS
    scores, keys = rows * of.keys, of.keys
    if of.causal:
        keys = min(of.queries, of.keys)
        scores = keys * (keys + ROWS) // 2 + max(0, rows - keys) * keys
    return CALL + PRODUCTS[of.backward] * of.heads * of.size * (scores / RATE + keys / MOVED)


def library_us(of: Attention) -> float:
    scores = of.queries * of.keys
    if of.causal and of.keys > LONG:
        scores = scores * (of.keys + LONG) // (2 * of.keys)
    return LIBRARY_CALL + PRODUCTS[of.backward] * of.heads * of.size * (scores / LIBRARY_RATE + of.keys / LIBRARY_MOVED)


def may_be_ours(dtype: torch.dtype, device: str, size: object) -> bool:
    """Whether heads of so many elements are computed by a kernel of ours, where it is expected to be faster."""
    is_supported = device == "cpu" and dtype == torch.float32 and torch.backends.cpu.get_cpu_capability() in VECTORS
    return is_supported and isinstance(size, int) and 1 <= size <= WIDEST


def beats_written(queries: object, keys: object) -> bool:
    """Whether attention in our blocks is faster than products with a softmax between them, as measured: 42 shapes, forward and in training."""
    return isinstance(queries, int) and isinstance(keys, int) and queries >= WRITTEN_QUERIES and queries * keys >= WRITTEN_SCORES
