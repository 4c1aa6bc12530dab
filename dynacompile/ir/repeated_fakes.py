"""What operations on fakes of symbolic sizes give where the same ones run again and again: in layers that are alike, in chunks of a loss.

Torch finds out by its reference implementations what an operation gives for symbolic sizes, milliseconds for each, and keeps nothing of that, since what is
found comes with guards. Within one ShapeEnv, whose guards all belong to one entry, those of the first time hold for the others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from dynacompile.ir.looks import new_fake
from dynacompile.ir.view_fakes import aliased, is_view
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

OF_TORCH = frozenset({"aten", "prims", "dynacompile"})


class Varies(Exception):
    """An argument by which no result is known again."""


def repeated(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
    """What `run` gives, or, where an operation on fakes that look the same has run in this ShapeEnv, other fakes like its results."""
    env: Any = mode.shape_env
    if not isinstance(func, of_torch.OpOverload) or torch.is_inference_mode_enabled():
        return run()
    views = is_view(func) and bool(args) and type(args[0]) is FakeTensor
    if not views and is_more(func):
        return run()
    try:
        place = look(mode, args[0].storage_offset()) if views else 0
        key = func, place, env.small.free, torch.get_default_dtype(), look(mode, tuple(args)), look(mode, tuple(sorted(kwargs.items())))
    except Varies:
        return run()
    found = env.repeats.get(key)
    if found is not None:
        return found.again(mode, args[0]) if views else anew(mode, found)
    made = run()
    results = made if type(made) in (tuple, list) else (made,)
    if not results or not (all(is_within(args[0], t) for t in results) if views else are_new(results)):
        return made
    kept: Any = tuple((Part if views else One)(t.size(), t.stride(), t.storage_offset() if views else t.dtype, t.fake_device) for t in results)
    if symbols_in([one[:3] for one in kept]) <= symbols_in(key):  # else the operation makes symbols, new ones each time
        env.repeats[key] = kept[0] if made is results[0] else Several(type(made), kept)
    return made


class One(NamedTuple):
    """The geometry of a result."""

    size: torch.Size
    stride: tuple
    dtype: torch.dtype
    device: torch.device

    def again(self, mode: FakeTensorMode, of: Any) -> FakeTensor:
        return new_fake(mode, *self)


class Part(NamedTuple):
    """The geometry of a view."""

    size: torch.Size
    stride: tuple
    offset: Any
    device: torch.device

    def again(self, mode: FakeTensorMode, of: FakeTensor) -> FakeTensor:
        return aliased(mode, of, self.size, self.stride, self.offset)


class Several(NamedTuple):
    kind: type
    results: tuple[Any, ...]

    def again(self, mode: FakeTensorMode, of: Any) -> Any:
        return self.kind([one.again(mode, of) for one in self.results])


def anew(mode: FakeTensorMode, found: Any) -> Any:
    with of_torch.DisableTorchDispatch():
        return found.again(mode, None)


def symbols_in(value: Any) -> set[Any]:
    """The symbols of sizes, or of what they look like, in tuples of tuples."""
    if isinstance(value, (tuple, list)):
        return set().union(*map(symbols_in, value))
    found = value.node.expr if isinstance(value, torch.SymInt) else value
    return set(getattr(found, "free_symbols", ()))


def is_more(func: Any) -> bool:
    """Whether the operation writes to arguments, gives views of them, or sizes that depend on their values, or is a user's, whose fake may do anything."""
    return (
        func.namespace not in OF_TORCH
        or torch.Tag.dynamic_output_shape in func.tags
        or any(v.alias_info is not None for v in (*func._schema.arguments, *func._schema.returns))
    )


def is_within(x: FakeTensor, made: Any) -> bool:
    """Whether a view is another tensor in the memory of `x`, of the same type, of which nothing but its geometry is to be known."""
    plain = type(made) is FakeTensor and made is not x and made.constant is None and made.layout is torch.strided and made.dtype is x.dtype
    alike = plain and made.is_conj() == x.is_conj() and made.is_neg() == x.is_neg() and not made.requires_grad
    return alike and made.untyped_storage()._cdata == x.untyped_storage()._cdata


def are_new(results: Sequence[Any]) -> bool:
    return all(map(is_new, results)) and len({t.untyped_storage()._cdata for t in results}) == len(results)


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
    if type(value) is FakeTensor and value.fake_mode is mode and value.constant is None and value.layout is torch.strided:
        geometry = look(mode, tuple(value.size())), look(mode, tuple(value.stride()))
        return FakeTensor, *geometry, value.dtype, value.fake_device, value.requires_grad, value.is_conj(), value.is_neg()
    if isinstance(value, PLAIN):
        return type(value), value
    raise Varies
