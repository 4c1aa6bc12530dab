"""Operations in place with a result that is larger than the tensor that they are to be written to: eager refuses them, which part of the fakes don't."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "xor")
PLAIN = {getattr(operator, f"i{name}"): getattr(operator, name) for name in OPERATORS}
PLAIN |= {operator.iand: operator.and_, operator.ior: operator.or_}
"""Operators in place, and the same with a new result."""


def without_write(kind: str, target: Any) -> tuple[str, Any] | None:
    """(kind, target) of the operation that gives a new tensor, for one that writes to its first operand."""
    if target in PLAIN:
        return kind, PLAIN[target]
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not name.endswith("_") or name.endswith("__"):
        return None
    method = name[:-1]
    return ("call_method", method) if callable(getattr(torch.Tensor, method, None)) else None


def is_wider(written: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor has elements that an elementwise operation finds no place for in the one that it writes."""
    if other.dim() > written.dim():
        return True
    pairs = zip(written.shape[written.dim() - other.dim() :], other.shape, strict=True)
    return any(isinstance(n, int) and isinstance(m, int) and m not in (1, n) for n, m in pairs)


def may_outgrow(operands: Sequence[torch.Tensor]) -> bool:
    return len(operands) > 1 and any(is_wider(operands[0], other) for other in operands[1:])
