"""What decomposition rules are written with: rows of a table, and the words they share.

A rule takes an op's arguments and gives its result in terms of simpler ATen ops; it runs on fake tensors while a graph is traced, and on
real ones in tests. NotImplemented leaves the op as it is. Rules compute float16 and bfloat16 in float32 and round once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dynacompile.private import of_torch

aten = torch.ops.aten
Rule = Callable[..., object]
Table = dict[of_torch.OpOverload, Rule]


def row(table: Table, *ops: of_torch.OpOverload) -> Callable[[Rule], Rule]:
    """Adds the decorated rule to `table` for each of `ops`."""

    def add(rule: Rule) -> Rule:
        for op in ops:
            if op in table:
                raise ValueError(f"{op} has two decompositions")
            table[op] = rule
        return rule

    return add


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in the dtype that it is computed in: float32 for float16 and bfloat16."""
    return cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


def scalar(value: float | int | bool, like: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor of like's dtype and device."""
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def where(condition: torch.Tensor, a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """aten.where with a number allowed on either side (not on both)."""
    if not isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        a = scalar(a, b)
    if not isinstance(b, torch.Tensor):
        b = scalar(b, a)
    return aten.where.self(condition, a, b)


def add(a, b):
    return aten.add.Tensor(a, b)


def sub(a, b):
    return aten.sub.Tensor(a, b)


def mul(a, b):
    return aten.mul.Tensor(a, b)


def div(a, b):
    return aten.div.Tensor(a, b)


def exp(x: torch.Tensor) -> torch.Tensor:
    return aten.exp.default(x)


def total(x: torch.Tensor, dims: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """Sum over `dims`; no dims: x itself (unlike ATen, which then sums over all)."""
    return aten.sum.dim_IntList(x, list(dims), keepdim) if dims else x


def one_minus(x: torch.Tensor) -> torch.Tensor:
    return aten.add.Tensor(aten.neg.default(x), 1)
