"""What operations on fakes of symbolic sizes give where the same ones run again and again: the chunks of a loss, which all have one symbolic size.

Torch finds out by its reference implementations what an operation gives for symbolic sizes, milliseconds for each, and keeps nothing of that, since what is
found comes with guards. Within a block that repeats itself the guards of the first run hold for the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.looks import new_fake
from dynacompile.ops.repeating import known_in
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Varies(Exception):
    """An argument by which no result is known again."""


def repeated(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
    """What `run` gives, or, where an operation on fakes that look the same has run in this block, another fake like its result."""
    known = known_in(mode.shape_env)
    if known is None or not isinstance(func, of_torch.OpOverload) or torch.is_inference_mode_enabled() or is_more(func):
        return run()
    try:
        key = func, mode.shape_env.small.free, look(mode, tuple(args)), look(mode, tuple(sorted(kwargs.items())))  # type: ignore[union-attr]
    except Varies:
        return run()
    found = known.get(key)
    if found is not None:
        with of_torch.DisableTorchDispatch():
            return new_fake(mode, *found)
    made = run()
    if is_new(made):
        known[key] = made.size(), made.stride(), made.dtype, made.fake_device
    return made


def is_more(func: Any) -> bool:
    """Whether the operation writes to arguments, gives views of them, or sizes that depend on their values."""
    return torch.Tag.dynamic_output_shape in func.tags or any(v.alias_info is not None for v in (*func._schema.arguments, *func._schema.returns))


def is_new(made: Any) -> bool:
    """Whether the result is one tensor of which nothing but its geometry is to be known."""
    return (
        type(made) is FakeTensor
        and made.constant is None
        and made.layout is torch.strided
        and not (made.requires_grad or made._is_view() or made.is_conj() or made.is_neg())
        and type(made.storage_offset()) is int
        and made.storage_offset() == 0
    )


def look(mode: FakeTensorMode, value: Any) -> Any:
    """All that the result may depend on, without a guard. Raises Varies."""
    if isinstance(value, (tuple, list)):
        return type(value), tuple(look(mode, v) for v in value)
    if isinstance(value, torch.SymInt):
        return torch.SymInt, value.node.expr
    if type(value) is FakeTensor and value.fake_mode is mode and value.constant is None and value.layout is torch.strided and not value.requires_grad:
        return FakeTensor, look(mode, tuple(value.size())), look(mode, tuple(value.stride())), value.dtype, value.fake_device, value.is_conj(), value.is_neg()
    if isinstance(value, PLAIN):
        return type(value), value
    raise Varies
