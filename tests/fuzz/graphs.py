"""Random programs of tensor operations, by seed: the source of a function, and inputs for it.

Each statement is kept only if eager gives a finite, moderate result for it, so that a difference between two ways to run the program is the way's.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

from tests.fuzz.builder import DIMS, LARGEST, Builder, Program
from tests.fuzz.numeric import binary, norm, reduction, scan, unary, whole_reduction
from tests.fuzz.structure import combine, create, index, matrices, view, whole_numbers, write

KINDS: tuple[tuple[Callable[[Builder], str | None], int], ...] = (
    (unary, 6),
    (binary, 8),
    (reduction, 4),
    (whole_reduction, 1),
    (scan, 3),
    (norm, 1),
    (view, 7),
    (combine, 3),
    (index, 3),
    (matrices, 2),
    (create, 2),
    (whole_numbers, 1),
)


def layout(pick: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """The same values, perhaps with other strides."""
    way = pick.randrange(6)
    if way == 0 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 1:
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if way == 2:
        long = torch.zeros(tensor.shape[0] + 2, *tensor.shape[1:], dtype=tensor.dtype)
        long[1:-1] = tensor
        return long[1:-1]
    if way == 3 and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def generate(seed: int, statements: int | None = None) -> Program:
    """The program of a seed: 4 to 30 statements over 2 to 4 inputs."""
    b = Builder(seed)
    pick = b.pick
    generator = torch.Generator().manual_seed(seed)
    pool = [pick.choice(DIMS) for _ in range(3)]
    if pick.random() < 0.05:
        pool[0] = 0
    for _ in range(pick.randint(2, 4)):
        shape = [pick.choice([*pool, 1]) if pick.random() < 0.9 else pick.choice(DIMS) for _ in range(pick.randint(1, 4))]
        while torch.Size(shape).numel() > LARGEST // 3:
            shape.pop()
        b.add_input(layout(pick, torch.randn(shape, generator=generator, dtype=torch.float64)))
    b.add_input(torch.randint(0, 9, (pick.choice((3, 5, 8)),), generator=generator))
    torch.manual_seed(seed)
    kinds, weights = zip(*KINDS, strict=True)
    wanted = statements or pick.randint(4, 30)
    for _ in range(10 * wanted):
        if len(b.lines) >= wanted:
            break
        if pick.random() < 0.06:
            write(b)
            continue
        expression = pick.choices(kinds, weights)[0](b)
        if expression:
            b.add(expression)
    made = [v for v in b.values if not v.name.startswith("x")] or b.values
    outputs = list(dict.fromkeys([made[-1].name, *(pick.choice(made).name for _ in range(pick.randint(0, 3)))]))
    names = ", ".join(f"x{i}" for i in range(len(b.inputs)))
    body = "\n".join(f"    {line}" for line in b.lines)
    return Program(seed, f"def program({names}):\n{body}\n    return {', '.join(outputs)},\n", b.inputs, len(outputs))
