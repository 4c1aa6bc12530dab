"""Fakes that are views of fakes: with ATen's own strides, and made without torch's rules where a view of the same geometry was made before.

torch's rule in Python for `view` gives dimensions of one element other strides than ATen's kernel does. Nothing is read by them, but operations choose a
memory format by all strides. With symbolic sizes a rule takes milliseconds.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from dynacompile.ir.looks import MAKE_SUBCLASS, new_fake
from dynacompile.ir.shape_envs import SYMBOLIC
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode

VIEWS = frozenset({torch.ops.aten.view.default, of_torch.aten_unsafe_view})


def view_fake(mode: FakeTensorMode, func: Any, args: Sequence[Any], made: Any = None) -> FakeTensor | None:
    """The result of a view, with what is known of sizes for all calls; None where that is too little, for all other operations, and for what ATen refuses.

    made: what torch's rule gives, where that was asked. Where ATen gives other strides for sizes that are more than 1 in this call, guards say that they are.
    """
    if func not in VIEWS or len(args) != 2 or type(args[0]) is not FakeTensor:
        return None
    x, asked = args
    if x.fake_mode is not mode or x.constant is not None or x.layout is not torch.strided:
        return None
    rule = by_all_calls if made is None else by_this_call
    shape, old, asked = (tuple(map(as_known, numbers)) for numbers in (x.shape, x.stride(), asked if made is None else made.shape))
    size = inferred(shape, asked) if all(map(rule.counts, (*shape, *asked))) else None
    stride = None if size is None else strides_of_view(shape, old, size, rule.differ)
    if size is None or stride is None:
        return None
    if made is not None:
        if [*map(hint, stride)] == [*map(hint, made.stride())]:
            return None
        if not all(bool(n >= 2) for n in (*shape, *size) if type(n) is not int and not statically(n >= 2)):
            return None
    return aliased(mode, x, size, stride, x.storage_offset())


def as_known(size: Any) -> Any:
    """A number where guards leave no other."""
    if type(size) is int or not isinstance(size, torch.SymInt):
        return size
    known = size.node.maybe_as_int()
    return size if known is None else known


class Rule(NamedTuple):
    """counts: whether a size is a number, or at least 2. differ: whether two sizes are two numbers."""

    counts: Callable[[Any], bool]
    differ: Callable[[Any, Any], bool]


def inferred(shape: Sequence[Any], asked: Sequence[Any]) -> tuple[Any, ...] | None:
    """The sizes that are asked for, with what -1 stands for; None where they are not known to be sizes of as many elements."""
    elements, known = prod(shape), prod(n for n in asked if not is_number(n, -1))
    unknown = sum(is_number(n, -1) for n in asked)
    if unknown > 1 or any(type(n) is int and n < -1 for n in asked):
        return None
    if not unknown:
        return tuple(asked) if same(known, elements) else None
    if is_number(known, 0):
        return None
    rest = elements // known
    return tuple(rest if is_number(n, -1) else n for n in asked) if same(rest * known, elements) else None


def strides_of_view(
    shape: tuple[Any, ...], stride: Sequence[Any], size: tuple[Any, ...], differ: Callable[[Any, Any], bool] = operator.ne
) -> tuple[Any, ...] | None:
    """As ATen finds them (computeStride): runs of dimensions of `shape` that are one in memory are divided up anew. None where a dimension of `size`
    lies across two of them, or where a call decides what is one."""
    if not shape:
        return (1,) * len(size)
    if any(is_number(n, 0) for n in shape):
        return tuple(stride) if shape == size else tuple(prod(max(n, 1) for n in size[d + 1 :]) for d in range(len(size)))
    found: list[Any] = [0] * len(size)
    place, base, elements, made = len(size) - 1, stride[-1], 1, 1
    for d in range(len(shape) - 1, -1, -1):
        elements = elements * shape[d]
        if d and (is_number(shape[d - 1], 1) or same(stride[d - 1], elements * base)):
            continue
        if d and not differ(stride[d - 1], elements * base):
            return None
        while place >= 0 and (not same(made, elements) or is_number(size[place], 1)):
            found[place] = made * base
            made = made * size[place]
            place -= 1
        if not same(made, elements):
            return None
        if d:
            base, elements, made = stride[d - 1], 1, 1
    return tuple(found) if place == -1 else None


def is_number(value: Any, number: int) -> bool:
    return type(value) is int and value == number


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are one expression."""
    return bool((a if type(a) is int else a.node.expr) == (b if type(b) is int else b.node.expr))


def statically(condition: Any) -> bool:
    """Whether it holds in every call, by what is known already."""
    return condition if type(condition) is bool else sys.modules[SYMBOLIC].statically_known_true(condition)


def hint(size: Any) -> int | None:
    """What a size is in this call, without a guard; None where values decide."""
    return size if type(size) is int else int(size.node.hint) if size.node.has_hint() else None


def is_plural(size: Any) -> bool:
    known = hint(size)
    return known is not None and known >= 2


by_all_calls = Rule(lambda n: type(n) is int or isinstance(n, torch.SymInt) and statically(n >= 2), lambda a, b: statically(a != b))
by_this_call = Rule(lambda n: type(n) is int or isinstance(n, torch.SymInt) and is_plural(n), lambda a, b: hint(a) != hint(b))


def is_view(func: Any) -> bool:
    """Whether the operation gives views of its first argument, of whose elements it writes none, and reads none."""
    arguments, returns = func._schema.arguments, func._schema.returns
    if not arguments:
        return False
    own, *others = arguments
    seen = own.alias_info is not None and not own.alias_info.is_write and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return bool(returns) and seen and func.namespace == "aten" and all(a.alias_info is None for a in others)


def aliased(mode: FakeTensorMode, x: FakeTensor, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> FakeTensor:
    """A fake in the memory of `x`."""
    device = x.fake_device
    with of_torch.in_kernel_invocation_manager(mode):
        elements = torch.ops.aten.as_strided.default(x, size, stride, offset)
    attributes = mode.__dict__.get("_dynacompile_fakes", {}).get(device)
    with of_torch.DisableTorchDispatch():
        if attributes is None:
            new_fake(mode, (0,), (1,), torch.float32, device)
            attributes = mode.__dict__["_dynacompile_fakes"].get(device)
        if attributes is None:
            return FakeTensor(mode, elements, device)
        made = MAKE_SUBCLASS(FakeTensor, elements, False, dispatch_device=True, device_for_backend_keys=device)
        of_torch.set_throw_on_mutable_data_ptr(made)
        made.__dict__.update(attributes, fake_mode=mode)
    return made
