"""Tensors where a number is meant: `x.add_(y, alpha=t)` reads the value of t in eager; the graph computes with t itself, rounding as eager does.
And floats that vary from call to call, where torch has another operation that takes them as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.shapes import unbacked
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

Rewrite = Callable[["Context", str, list[Value], Value], Value]


def scaled(cx: Context, name: str, args: list[Value], scale: Value) -> Value:
    """x.add(y, alpha=scale)."""
    x, y = args
    if has_one_dtype(args):
        signed: dict[str, Value] = {"value": ConstantValue(-1)} if name.startswith("sub") else {}
        if on_cpu(x):  # whose kernel has the number in the type of the tensors
            scale = cast(cx, scale, x.sample.dtype)  # type: ignore[attr-defined]
        return rounded_once(cx, name, args, scale, lambda method, x, y, t: cx.op("call_method", method("addcmul"), [x, y, t], signed))
    return cx.op("call_method", name, [x, cx.op("call_function", torch.mul, [y, scale], {})], {})


def combined(cx: Context, name: str, args: list[Value], scale: Value) -> Value:
    """x.addcmul(y, z, value=scale) and x.addcdiv(...)."""
    x, y, z = args
    join, add = torch.mul if "addcmul" in name else torch.div, "add_" if name.endswith("_") else "add"
    if has_one_dtype(args):

        def joined(method: Callable[[str], str], x: Value, y: Value, z: Value, t: Value) -> Value:
            if on_cpu(y):  # whose kernel scales the first factor, where CUDA's scales the product
                return cx.op("call_method", method(name.removesuffix("_")), [x, cx.op("call_function", torch.mul, [y, t], {}), z], {})
            return cx.op("call_method", method("addcmul"), [x, cx.op("call_function", join, [y, z], {}), t], {})

        return rounded_once(cx, name, args, scale, joined)
    if on_cpu(y):
        return cx.op("call_method", add, [x, cx.op("call_function", join, [cx.op("call_function", torch.mul, [y, scale], {}), z], {})], {})
    return scaled(cx, add, [x, cx.op("call_function", join, [y, z], {})], scale)


def has_one_dtype(args: Sequence[Value]) -> bool:
    """Whether all are tensors of one floating-point type."""
    samples = [getattr(value, "sample", None) for value in args]
    return all(isinstance(s, torch.Tensor) and s.is_floating_point() and s.dtype == samples[0].dtype for s in samples)  # type: ignore[union-attr]


def rounded_once(cx: Context, name: str, args: list[Value], scale: Value, compute: Callable[..., Value]) -> Value:
    """What torch's kernels compute, where a number scales an operand: in float32 for types of 16 bits, rounded at the end, with a product and a sum that are
    one instruction. compute(the name that a method has here, *args, scale): the operation."""
    dtype = args[0].sample.dtype  # type: ignore[attr-defined]
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    if wide is dtype:
        return compute((lambda method: method + "_") if name.endswith("_") else str, *args, cast(cx, scale, wide))
    result = cast(cx, compute(str, *(cast(cx, value, wide) for value in args), cast(cx, scale, wide)), dtype)
    return cx.op("call_method", "copy_", [args[0], result], {}) if name.endswith("_") else result


def cast(cx: Context, value: Value, dtype: torch.dtype) -> Value:
    return cx.op("call_method", "to", [value, ConstantValue(dtype)], {})


def scaled_lists(cx: Context, name: str, args: list[Value], scale: Value) -> Value:
    return cx.op("call_function", getattr(torch, name), [args[0], cx.op("call_function", of_torch.foreach_mul, [args[1], scale], {})], {})


def combined_lists(cx: Context, name: str, args: list[Value], scale: Value) -> Value:
    """scale: a tensor of one number for each of the tensors, or a list of such numbers."""
    join = of_torch.foreach_mul if "addcmul" in name else of_torch.foreach_div
    scales = cx.op("call_function", torch.unbind, [scale], {}) if isinstance(getattr(scale, "fake", None), torch.Tensor) else scale
    if all(map(on_cpu, args[1].elements(cx))):
        joined = cx.op("call_function", join, [cx.op("call_function", of_torch.foreach_mul, [args[1], scales], {}), args[2]], {})
    else:
        joined = cx.op("call_function", of_torch.foreach_mul, [cx.op("call_function", join, args[1:], {}), scales], {})
    return cx.op("call_function", of_torch.foreach_add_ if name.endswith("_") else of_torch.foreach_add, [args[0], joined], {})


# name of the operation -> (how many arguments come before the number, the number's name, the rewrite)
ROWS: dict[str, tuple[int, str, Rewrite]] = {
    **dict.fromkeys(("add", "add_", "sub", "sub_"), (2, "alpha", scaled)),
    **dict.fromkeys(("addcmul", "addcmul_", "addcdiv", "addcdiv_"), (3, "value", combined)),
    **dict.fromkeys(("_foreach_add", "_foreach_add_", "_foreach_sub", "_foreach_sub_"), (2, "alpha", scaled_lists)),
    **dict.fromkeys(("_foreach_addcmul", "_foreach_addcmul_", "_foreach_addcdiv", "_foreach_addcdiv_"), (3, "scalars", combined_lists)),
}


def with_tensor_scalar(cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of an operation whose number is given as a tensor; None for all others."""
    if name == "pad":
        return padded_by_varying(cx, args, kwargs)
    row = ROWS.get(name)
    if row is None:
        return None
    count, keyword, rewrite = row
    if len(args) == count and set(kwargs) == {keyword} and is_number(kwargs[keyword], keyword):
        return rewrite(cx, name, args, kwargs[keyword])
    if len(args) == count + 1 and keyword != "alpha" and not kwargs and is_number(args[count], keyword):
        return rewrite(cx, name, args[:count], args[count])
    return None


def padded_by_varying(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """F.pad with a number that varies, which torch's own operation makes a constant; None for all others."""
    given = {**dict(zip(("input", "pad", "mode", "value"), args)), **kwargs}
    mode = given.get("mode", ConstantValue("constant"))
    if not isinstance(given.get("value"), (SymbolicFloat, SymbolicInt)) or not isinstance(mode, ConstantValue) or mode.value != "constant":
        return None
    if given.keys() - {"mode"} != {"input", "pad", "value"}:
        return None
    fill = given["value"]
    if isinstance(fill, SymbolicInt) and not unbacked(fill.sym):  # torch's own takes a float
        fill = cx.operator("mul", [fill, ConstantValue(1.0)])
    return cx.op("call_function", torch.constant_pad_nd, [given["input"], given["pad"], fill], {})


def is_number(value: Value, keyword: str) -> bool:
    fake = getattr(value, "sample", None)
    if keyword == "scalars" and value.pytype() is list:  # as an optimizer has them, whose counts of steps are tensors
        return bool(value.children()) and all(is_number(item, "scalar") for item in value.children())
    return isinstance(fake, torch.Tensor) and fake.dim() == (keyword == "scalars")


def on_cpu(value: Value) -> bool:
    fake = getattr(value, "sample", None)
    return isinstance(fake, torch.Tensor) and fake.device.type == "cpu"


def double_tensor(cx: Context, number: Value) -> Value:
    """A number as a tensor of as many digits as Python has."""
    return cx.op("call_function", torch.full, [TupleValue([]), number], {"dtype": ConstantValue(torch.float64)})
