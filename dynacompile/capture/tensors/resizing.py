"""`torch.nn.functional.interpolate` of symbolic sizes: what computes them is followed as Python, and the graph calls ATen's operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from dynacompile.capture.polyfills import interpolation
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction, is_replaced, rely_on_names
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import call_polyfill
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, SequenceValue
from dynacompile.capture.values.symbolic import SymbolicFloat
from dynacompile.ops.resizing import OPERATORS, resized

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

NONE = ConstantValue(None)
PARAMETERS = ["input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias"]
DEFAULTS: dict[str, Value | None] = {
    "size": NONE,
    "scale_factor": NONE,
    "mode": ConstantValue("nearest"),
    "align_corners": NONE,
    "recompute_scale_factor": NONE,
    "antialias": ConstantValue(False),
}


@handles(F.interpolate)
def interpolate(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    followed = None
    if cx.symbols is not None and not cx.overrides.is_watched() and not is_replaced(cx, F.interpolate):
        followed = by_sizes(cx, *bind_arguments("interpolate", PARAMETERS, args, kwargs, DEFAULTS))
    if followed is None:
        return TorchFunction(F.interpolate).call(cx, args, kwargs)
    rely_on_names(cx, F.interpolate)  # type: ignore[arg-type]
    return followed


def by_sizes(cx: Context, x: Value, size: Value, factor: Value, *options: Value) -> Value | None:
    """The result, also of sizes that are numbers: torch's rules would take it apart beside symbols, too, and autocast casts what the operator takes. None where
    the arguments are such as torch refuses."""
    if not isinstance(x, TensorValue) or is_none(size) == is_none(factor) or not all(isinstance(o, ConstantValue) for o in options):
        return None
    mode, corners, recomputes, antialias = (o.constant() for o in options)
    by_factor = is_none(size)
    given = for_each(cx, factor if by_factor else size, x.fake.dim() - 2)
    if by_factor and given is not None:  # a factor that varies is a constant: how many elements there are follows from it
        given = [ConstantValue(v.constant()) if isinstance(v, SymbolicFloat) else v for v in given]
    if given is None or antialias or (recomputes and not by_factor) or not is_taken(x.fake, given, mode, corners, by_factor):
        return None
    chosen = [x, ListValue(given), *options[:2]]
    if by_factor:
        return call_polyfill(cx, interpolation.by_factors, [*chosen, ConstantValue(bool(recomputes))])
    return call_polyfill(cx, interpolation.to_sizes, chosen)


def is_none(value: Value) -> bool:
    return isinstance(value, ConstantValue) and value.constant() is None


def for_each(cx: Context, given: Value, dimensions: int) -> list[Value] | None:
    """One for each dimension; None where they are not as many, or no numbers."""
    each = given.elements(cx) if isinstance(given, SequenceValue) else [given] * dimensions
    return each if len(each) == dimensions and all(v.pytype() in (int, float) for v in each) else None


def is_taken(x: torch.Tensor, given: list[Value], mode: Any, corners: Any, by_factor: bool) -> bool:
    """Whether the arguments are such as torch takes; it says of others what is wrong."""
    constant = all(isinstance(v, ConstantValue) for v in given)
    known = ((mode, x.dim() - 2) in OPERATORS or (mode == "area" and by_factor)) and (constant or not by_factor)
    agrees = corners is None or not str(mode).startswith(("nearest", "area"))
    deterministic = x.device.type != "cpu" and torch.are_deterministic_algorithms_enabled()
    return known and agrees and not deterministic


@handles(resized)
def call_resized(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.op("call_function", resized, args, kwargs)
