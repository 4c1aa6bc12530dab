"""What operations are given: the tensors among their arguments, and how a graph writes these."""

from __future__ import annotations

from typing import Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.private import of_torch


def is_asked(cls: type) -> bool:
    """Whether torch's functions ask tensors of a class before they run, so that a graph must not get them."""
    return cls is not torch.Tensor and cls.__torch_function__ is not of_torch.disabled_torch_function_impl  # type: ignore[attr-defined]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists, slices and dicts."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [t for item in tree for t in tensors_in(item)]
    if isinstance(tree, dict):
        return [t for item in tree.values() for t in tensors_in(item)]
    if isinstance(tree, slice):
        return tensors_in((tree.start, tree.stop, tree.step))
    return []


def has_wide_int(value: Any) -> bool:
    """Whether an argument is, or holds, an int of more than 64 bits: fakes and programs would wrap it where eager raises, or takes it for unsigned."""
    if type(value) is int:
        return not -(2**63) <= value < 2**63
    return isinstance(value, (tuple, list)) and any(map(has_wide_int, value))


def as_dtype(target: Any, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """`dtype=int` as the dtype that torch takes it for: a graph can't name a class."""
    dtype = DTYPES.get(pair[1]) if isinstance(pair[1], type) else None
    if dtype is None:
        return pair
    if not isinstance(target, str) and not str(getattr(target, "__module__", None) or "torch").startswith(("torch", "_operator")):
        raise unsupported("unknown-operation", f"{target_name(target)} of the class {pair[1].__name__}")
    return dtype, pair[1]


DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}


def constant_of(value: Any) -> Any:
    return int(value) if isinstance(value, torch.SymInt) else float(value) if isinstance(value, torch.SymFloat) else value


def target_name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def first_line(reason: BaseException) -> str:
    return (str(reason).strip().splitlines() or [""])[0]
