"""Validation of distributions: the graph assumes that arguments and samples are valid, and asks after it has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.distributions import Distribution

from dynacompile.capture.tensors.assumptions import assume, may_assume
from dynacompile.capture.tensors.tensor import TensorValue, decides
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.objects import ObjectValue, OpaqueValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Constant
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

VALIDATES: dict[object, tuple[Callable[..., Any], tuple[str, ...]]] = {  # code that asks, the function, and its arguments: attributes, and variables
    Distribution.__init__.__code__: (Distribution.__init__, ("_batch_shape", "_event_shape", "validate_args")),
    Distribution._validate_sample.__code__: (Distribution._validate_sample, ("value",)),
}
ASKS = getattr(Distribution.__init__.__globals__.get("_all_true_or_runtime_assert"), "__code__", None)
"""Code by which both ask, since torch 2.15."""


def assumes_valid(cx: Context, flag: Value) -> bool:
    """Whether a tensor is what a validation asks for, and the frame goes on as if it were true.

    Where it is not, residual code asks again, by the same function on the same values, which raises what eager raises. That is later than in eager: so
    nothing that others see may have changed before, no handler of the program may wait for the error, and what follows has to be harmless.
    """
    frame = cx.frames[-2 if len(cx.frames) > 1 and cx.frames[-1].code is ASKS else -1]
    found = VALIDATES.get(frame.code)
    if found is None or not may_assume(cx):
        return False
    function, names = found
    owner = frame.slots[0]
    if not isinstance(owner, ObjectValue):
        return False
    was = owner
    if owner.source is None:
        was = ObjectValue(owner.cls)
        was.stored = dict(owner.stored)
    given = [owner.get_attr(cx, name) if name.startswith("_") else frame.slots[frame.decoded.slots.index(name)] for name in names]
    assume(cx, flag, function, [was, *(cx.force(value) for value in given if value is not None)])
    return True


@decides
def assumed_valid(cx: Context, condition: TensorValue) -> bool | None:
    return True if condition.source is None and assumes_valid(cx, condition) else None


@handles(of_torch.lazy_property_and_property)
def made_property(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a class gives for an attribute that its objects compute when they are asked: validation looks at its class alone."""
    real = of_torch.lazy_property_and_property(args[0].identity())
    return OpaqueValue(real, Constant(real, "lazy_property"))
