"""The tiles of attention kernels: how many queries and keys at a time, by kernel, dtype and size of heads; best guess first.

Those of heads of 64 and 128 are in the order of their times on an H200 (`scripts/bench.py attention` prints them)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynacompile.codegen.triton.tiles import power
from dynacompile.ir.schedule import Candidate

SMALLEST = 16  # side of a tile that the tensor cores multiply
SHARED = 220 << 10  # bytes of shared memory that tiles may take
Tile = tuple[int, int, int, int]
"""Queries, keys, warps, stages."""

# By the widest head that they are for.
HALF: dict[str, tuple[tuple[int, tuple[Tile, ...]], ...]] = {
    "attention": (
        (64, ((128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3), (128, 64, 8, 3), (128, 32, 4, 4))),
        (128, ((64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 32, 8, 4))),
        (256, ((128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2))),
        (512, ((64, 32, 8, 1), (32, 32, 8, 2), (16, 32, 4, 2))),
    ),
    "attention_query_gradient": (
        (64, ((64, 64, 4, 3), (128, 32, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3))),
        (128, ((64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 2), (128, 32, 8, 3))),
        (256, ((64, 32, 8, 2), (64, 32, 4, 2), (32, 32, 4, 2))),
        (512, ((32, 16, 8, 1), (16, 16, 4, 1))),
    ),
    "attention_key_gradient": (
        (64, ((32, 128, 4, 3), (64, 64, 4, 3), (64, 128, 8, 3), (128, 128, 8, 2), (64, 128, 8, 2))),
        (128, ((64, 64, 4, 2), (32, 64, 4, 3), (64, 128, 8, 2), (32, 128, 8, 3))),
        (256, ((32, 64, 8, 2), (32, 64, 8, 1), (32, 32, 4, 2))),
        (512, ((16, 32, 8, 1), (16, 16, 4, 1))),
    ),
}
SINGLE: dict[str, tuple[tuple[int, tuple[Tile, ...]], ...]] = {
    "attention": (
        (64, ((128, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2), (64, 32, 8, 2))),
        (128, ((64, 32, 8, 2), (32, 32, 4, 2), (64, 16, 4, 2))),
        (256, ((32, 16, 8, 2), (32, 16, 4, 2), (16, 16, 4, 1))),
        (512, ((16, 16, 8, 1), (16, 16, 4, 1))),
    ),
    "attention_query_gradient": (
        (64, ((64, 32, 4, 2), (32, 32, 4, 2), (64, 32, 8, 2))),
        (128, ((32, 32, 8, 2), (32, 32, 4, 2), (32, 16, 4, 2))),
        (256, ((16, 16, 8, 2), (16, 16, 4, 1))),
        (512, ((16, 16, 8, 1), (16, 16, 4, 1))),
    ),
    "attention_key_gradient": (
        (64, ((32, 64, 4, 2), (32, 32, 4, 2), (32, 64, 8, 2))),
        (128, ((32, 32, 8, 2), (32, 32, 4, 2), (16, 32, 4, 2))),
        (256, ((16, 16, 8, 2), (16, 16, 4, 1))),
        (512, ((16, 16, 8, 1), (16, 16, 4, 1))),
    ),
}


@dataclass(frozen=True)
class Shape:
    """What tiles are chosen by. width, value_width: elements of a head. lengths: queries and keys, in the example. blocks: of a mask."""

    template: str
    dtype: torch.dtype
    width: int
    value_width: int
    lengths: tuple[int, int]
    blocks: tuple[int, int] | None
    precision: str


def candidates_for(shape: Shape) -> tuple[Candidate, ...]:
    table = (HALF if shape.dtype.itemsize == 2 else SINGLE)[shape.template]
    widest = max(shape.width, shape.value_width)
    tiles = next(found for width, found in table if widest <= width)
    limits = [power(n) for n in shape.lengths]
    if shape.blocks is not None:
        limits = [min(limit, power(n)) for limit, n in zip(limits, shape.blocks, strict=True)]
    made: dict[tuple, Candidate] = {}
    for queries, keys, warps, stages in tiles:
        sides = [max(SMALLEST, min(side, limit)) for side, limit in zip((queries, keys), limits, strict=True)]
        if shared(shape, sides[0], sides[1], stages) > SHARED and len(tiles) > 1:
            continue
        if sides[0] * sides[1] < queries * keys // 4:
            warps = min(warps, 4)
        made.setdefault((*sides, warps, stages), Candidate({"MBLOCK": sides[0], "NBLOCK": sides[1]}, warps, stages))
    return tuple(made.values())


def padded(width: int) -> int:
    """How wide the tiles are that hold rows of a head."""
    return max(SMALLEST, power(width))


def shared(shape: Shape, queries: int, keys: int, stages: int) -> int:
    """Bytes of shared memory that the blocks of a program take, about."""
    size = shape.dtype.itemsize
    width, value = padded(shape.width), padded(shape.value_width)
    kept, walked = (keys, queries) if shape.template == "attention_key_gradient" else (queries, keys)
    own = kept * (width if shape.template == "attention" else width + value)
    return size * (own + stages * walked * (width + value))
