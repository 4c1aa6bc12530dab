"""Which functions of NumPy agree with operations of torch, on arrays of the same types: arithmetic, comparisons, reductions, changes of shape.

The type of a result is what NumPy gives for arrays of these types; operands are converted to it, or to the type in which NumPy compares, before. Sums
and functions such as exp agree within rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue, SequenceValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

Row = Callable[["Context", list[Value], dict[str, Value]], Value]
OPERATORS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "truediv": np.true_divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "matmul": np.matmul,
    "and_": np.bitwise_and,
    "or_": np.bitwise_or,
    "xor": np.bitwise_xor,
    "lshift": np.left_shift,
    "rshift": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "neg": np.negative,
    "pos": np.positive,
    "abs": np.absolute,
    "invert": np.invert,
}
OF_TENSORS = (torch.maximum, torch.minimum, torch.logical_and, torch.logical_or)  # alone
ROWS: dict[Any, Row] = {}
METHOD_ROWS: dict[str, Row] = {}


def is_array(value: Value) -> bool:
    """Whether a value is an array, or a number that comes of one."""
    return hasattr(value, "as_tensor")


def refuse(name: str) -> NoReturn:
    raise unsupported("unknown-function", f"numpy.{name} of this form")


def type_of(value: Value) -> Any:
    """A number or an array of one element of the type of a value, for NumPy to say what the result is."""
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return dtype.type(1) if value.is_scalar else np.ones(1, dtype)  # type: ignore[attr-defined]
    return value.constant()


def tensor_for(cx: Context, value: Value, dtype: np.dtype, all_tensors: bool = False) -> Value:
    """An operand in the type that NumPy computes in."""
    if not is_array(value):
        number = ConstantValue(dtype.type(value.constant()).item())
        return cx.op("call_function", torch.full, [cx.of(()), number], {"dtype": ConstantValue(torch_type(dtype))}) if all_tensors else number
    tensor = value.as_tensor(cx)  # type: ignore[attr-defined]
    wanted = torch_type(dtype)
    return tensor if tensor.fake.dtype is wanted else cx.op("call_method", "to", [tensor, ConstantValue(wanted)], {})


def torch_type(dtype: np.dtype) -> torch.dtype:
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or dtype.name.startswith("uint") and dtype.name != "uint8" or dtype.name == "float16":
        raise unsupported("unknown-function", f"an array of {dtype.name}")
    return found


def made(cx: Context, result: Value, like: Sequence[Value], dtype: np.dtype, is_scalar: bool | None = None) -> Value:
    """The array that a tensor of the graph stands for. is_scalar: None where it is one if all operands are."""
    from_arrays = next(type(v) for v in like if is_array(v))
    if isinstance(result, TensorValue) and result.fake.dtype is not torch_type(dtype):
        result = cx.op("call_method", "to", [result, ConstantValue(torch_type(dtype))], {})
    scalar = all(getattr(v, "is_scalar", True) for v in like) if is_scalar is None else is_scalar
    return from_arrays(None, result, is_scalar=scalar)  # type: ignore[call-arg]


def elementwise(function: Any, target: Any, compares: bool = False, allowed: Callable[[np.dtype, list[Value]], bool] | None = None) -> None:
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            samples = [type_of(a) for a in args]
        except NotConstant as reason:
            raise unsupported("unknown-function", f"numpy.{function.__name__} of a {reason}") from reason
        if kwargs or len(args) != function.nin or not all(isinstance(s, (int, float, bool, np.generic, np.ndarray)) for s in samples):
            refuse(function.__name__)
        try:
            with np.errstate(all="ignore"):
                result = function(*samples).dtype
        except (TypeError, ValueError) as reason:
            raise unsupported("would-raise", f"numpy.{function.__name__}: {type(reason).__name__}: {reason}") from reason
        inner = np.result_type(*samples) if compares else result
        if allowed is not None and not allowed(inner, args):
            raise unsupported("unknown-function", f"numpy.{function.__name__} of {inner.name}")
        operands = [tensor_for(cx, a, inner, target in OF_TENSORS) for a in args]
        found = cx.op("call_function", target, operands, {})
        return made(cx, found, args, result, is_scalar=not found.fake.dim())  # type: ignore[attr-defined]

    ROWS[function] = row


def is_float(dtype: np.dtype, args: list[Value]) -> bool:
    return dtype.kind == "f"


def is_number(dtype: np.dtype, args: list[Value]) -> bool:
    return dtype.kind in "fi"


def divides(dtype: np.dtype, args: list[Value]) -> bool:
    """Where torch raises for a divisor of 0, it has to be known."""
    divisor = args[1]
    return dtype.kind == "f" or isinstance(divisor, ConstantValue) and bool(divisor.value)


def is_power(dtype: np.dtype, args: list[Value]) -> bool:
    exponent = args[1]
    if args[0].pytype() is bool or getattr(args[0], "dtype", dtype).kind == "b":  # of which `**` and np.power make several types
        return False
    return dtype.kind == "f" or isinstance(exponent, ConstantValue) and exponent.value >= 0


_target: Any
for _name, _target in {"add": operator.add, "multiply": operator.mul, "maximum": torch.maximum, "minimum": torch.minimum}.items():
    elementwise(getattr(np, _name), _target, allowed=is_number)
for _function, _target in ((np.subtract, operator.sub), (np.negative, torch.neg), (np.absolute, torch.abs), (np.square, torch.square)):
    elementwise(_function, _target, allowed=is_number)
elementwise(np.sign, torch.sign, allowed=lambda dtype, args: dtype.kind == "i")  # of NaN, torch's is 0
elementwise(np.true_divide, torch.true_divide, allowed=is_float)
elementwise(np.floor_divide, operator.floordiv, allowed=divides)
elementwise(np.remainder, torch.remainder, allowed=lambda dtype, args: dtype.kind != "f" and divides(dtype, args))  # zeros of floats have other signs
elementwise(np.power, torch.pow, allowed=is_power)
elementwise(np.matmul, torch.matmul, allowed=is_float)
elementwise(np.left_shift, operator.lshift)
elementwise(np.right_shift, operator.rshift)
for _name in "exp exp2 expm1 log log2 log10 log1p sqrt sin cos tan sinh cosh tanh floor ceil trunc".split():
    elementwise(getattr(np, _name), getattr(torch, _name), allowed=is_float)
for _name, _target in {"arcsin": torch.asin, "arccos": torch.acos, "arctan": torch.atan, "rint": torch.round}.items():
    elementwise(getattr(np, _name), _target, allowed=is_float)
for _name in ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal"):
    _short = {"less": "lt", "less_equal": "le", "equal": "eq", "not_equal": "ne", "greater": "gt", "greater_equal": "ge"}[_name]
    elementwise(getattr(np, _name), getattr(torch, _short), compares=True)
for _name in ("isnan", "isinf", "isfinite"):
    elementwise(getattr(np, _name), getattr(torch, _name), compares=True)
for _name, _target in {"bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "invert": torch.bitwise_not}.items():
    elementwise(getattr(np, _name), _target)
for _name in ("logical_and", "logical_or", "logical_not"):
    elementwise(getattr(np, _name), getattr(torch, _name), compares=True)


def bound(function: str, names: str, args: list[Value], kwargs: dict[str, Value], **defaults: Any) -> list[Any]:
    """Arguments by name, as constants but for the first, which is an array. NumPy itself takes what else it makes arrays of: deques, lists that hold arrays."""
    listed = names.split()
    given = dict(zip(listed, args)) | kwargs
    if len(args) > len(listed) or set(kwargs) - set(listed) or listed[0] not in given or not is_array(given[listed[0]]):
        refuse(function)
    try:
        return [given[listed[0]], *(given[name].constant() if name in given else defaults.get(name) for name in listed[1:])]
    except NotConstant as reason:
        raise unsupported("unknown-function", f"numpy.{function} of a {reason}") from reason


def reduction(name: str, target: Any, extra: str = "") -> None:
    """np.name(a, axis, dtype, out, keepdims), and the method."""

    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        array, axis, *more = bound(name, f"a axis{extra} keepdims", args, kwargs, keepdims=False, ddof=0)
        keepdims = bool(more[-1])
        tensor = array.as_tensor(cx)
        if not tensor.fake.numel() or array.is_scalar:
            raise unsupported("unknown-function", f"numpy.{name} of an empty array or of a number")
        result = getattr(np, name)(np.ones(1, array.dtype)).dtype
        options: dict[str, Value] = {}
        if name in ("var", "std"):
            options["correction"] = ConstantValue(more[0])
        inner = tensor_for(cx, array, result if name in ("sum", "prod", "mean", "var", "std") else array.dtype)
        if axis is None and (name not in ("sum", "mean", "max", "min", "all", "any", "var", "std")):
            inner = cx.op("call_method", "reshape", [inner, ConstantValue(-1)], {})
            axis, keepdims = (0, keepdims) if not keepdims or tensor.fake.dim() == 1 else (refuse(name), False)
        dims = tuple(range(tensor.fake.dim())) if axis is None else axis
        found = cx.op("call_function", target, [inner, cx.of(dims)], {**options, "keepdim": ConstantValue(keepdims)})
        return made(cx, found, [array], result, is_scalar=not found.fake.dim())  # type: ignore[attr-defined]

    ROWS[getattr(np, name)] = METHOD_ROWS[name] = row


for _name, _target in {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin, "all": torch.all, "any": torch.any}.items():
    reduction(_name, _target)
reduction("var", torch.var, " ddof")
reduction("std", torch.std, " ddof")
reduction("prod", torch.prod)
reduction("argmax", torch.argmax)
reduction("argmin", torch.argmin)


def dot(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of matrices and vectors, where it is their product."""
    if kwargs or len(args) != 2 or not all(is_array(a) and 0 < a.as_tensor(cx).fake.dim() < 3 for a in args):  # type: ignore[attr-defined]
        refuse("dot")
    return ROWS[np.matmul](cx, args, kwargs)


def cumsum(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array, axis = bound("cumsum", "a axis", args, kwargs)
    if array.is_scalar:
        refuse("cumsum")
    result = np.cumsum(np.ones(1, array.dtype)).dtype
    tensor = tensor_for(cx, array, result)
    if axis is None:
        tensor, axis = cx.op("call_method", "reshape", [tensor, ConstantValue(-1)], {}), 0
    return made(cx, cx.op("call_function", torch.cumsum, [tensor, ConstantValue(axis)], {}), [array], result, False)


def rounded(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array, decimals = bound("round", "a decimals", args, kwargs, decimals=0)
    if array.dtype.kind != "f" or type(decimals) is not int or decimals or not array.as_tensor(cx).fake.dim():  # NumPy multiplies and divides by a power of ten
        refuse("round")
    return made(cx, cx.op("call_function", torch.round, [array.as_tensor(cx)], {}), [array], array.dtype)


ROWS[np.dot] = METHOD_ROWS["dot"] = dot
ROWS[np.cumsum] = METHOD_ROWS["cumsum"] = cumsum
ROWS[np.round] = ROWS[np.around] = METHOD_ROWS["round"] = rounded
ROWS[np.amax], ROWS[np.amin] = ROWS[np.max], ROWS[np.min]


def shaped(name: str, method: str, names: str, change: Callable[..., list[Any]], *functions: Any) -> None:
    """A function that gives the same elements in another shape: np.name(a, ...), and the method."""

    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or not args or not is_array(args[0]) or args[0].is_scalar:  # type: ignore[attr-defined]
            refuse(name)
        array, rest = args[0], [a.constant() for a in args[1:]]
        tensor: TensorValue = array.as_tensor(cx)  # type: ignore[attr-defined]
        found = cx.op("call_method", method, [tensor, *map(cx.of, change(tensor, rest))], {})
        return made(cx, found, [array], array.dtype, is_scalar=False)  # type: ignore[attr-defined]

    ROWS.update(dict.fromkeys(functions, row))
    METHOD_ROWS[name] = row


def sizes(tensor: TensorValue, rest: list[Any]) -> list[Any]:
    return [rest[0] if len(rest) == 1 and isinstance(rest[0], tuple) else tuple(rest)]


def axes(tensor: TensorValue, rest: list[Any]) -> list[Any]:
    return [tuple(range(tensor.fake.dim()))[::-1]] if not rest else sizes(tensor, rest)


shaped("reshape", "reshape", "shape", sizes, np.reshape)
shaped("ravel", "reshape", "", lambda tensor, rest: [-1], np.ravel)
shaped("transpose", "permute", "axes", axes, np.transpose)
shaped("squeeze", "squeeze", "axis", lambda tensor, rest: rest, np.squeeze)
shaped("expand_dims", "unsqueeze", "axis", lambda tensor, rest: rest, np.expand_dims)


def copied(method: str) -> Row:
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        array: Any = args[0]
        if kwargs or len(args) > 1:
            refuse(method)
        tensor = cx.op("call_method", "clone", [array.as_tensor(cx)], {"memory_format": ConstantValue(torch.contiguous_format)})
        return made(cx, cx.op("call_method", "reshape", [tensor, ConstantValue(-1)], {}) if method == "flatten" else tensor, [array], array.dtype)

    return row


METHOD_ROWS["copy"], METHOD_ROWS["flatten"] = copied("copy"), copied("flatten")


def astype(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array, dtype = bound("astype", "a dtype", args, kwargs)
    wanted = np.dtype(dtype)
    if array.dtype.kind == "f" and wanted.kind not in "fb":  # what is no int, C decides
        refuse("astype")
    tensor = cx.op("call_method", "to", [array.as_tensor(cx), ConstantValue(torch_type(wanted))], {"copy": ConstantValue(True)})
    return made(cx, tensor, [array], wanted)


METHOD_ROWS["astype"] = astype


def joined(name: str, target: Any) -> None:
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if set(kwargs) - {"axis"} or not 1 <= len(args) <= 2 - len(kwargs) or not isinstance(args[0], SequenceValue):
            refuse(name)
        arrays: Any = args[0].elements(cx)  # type: ignore[attr-defined]
        axis = next((value.constant() for value in (*args[1:], *kwargs.values())), 0)
        if not all(is_array(a) and not a.is_scalar for a in arrays) or axis is None:
            refuse(name)
        result = np.result_type(*(a.dtype for a in arrays))
        found = cx.op("call_function", target, [ListValue([tensor_for(cx, a, result) for a in arrays]), ConstantValue(axis)], {})
        return made(cx, found, arrays, result)

    ROWS[getattr(np, name)] = row


joined("concatenate", torch.cat)
joined("stack", torch.stack)


def where(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 3 or kwargs or not is_array(args[0]):
        refuse("where")
    result = np.where(np.ones(1, bool), type_of(args[1]), type_of(args[2])).dtype
    condition = tensor_for(cx, args[0], np.dtype(bool))
    return made(cx, cx.op("call_function", torch.where, [condition, tensor_for(cx, args[1], result), tensor_for(cx, args[2], result)], {}), args, result, False)


def clip(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    array, low, high = bound("clip", "a a_min a_max", args, kwargs)
    result = np.clip(np.ones(1, array.dtype), low, high).dtype
    if not array.as_tensor(cx).fake.dim():
        refuse("clip")
    limits = [ConstantValue(None if n is None else result.type(n).item()) for n in (low, high)]
    return made(cx, cx.op("call_function", torch.clamp, [tensor_for(cx, array, result), *limits], {}), [array], result)


ROWS[np.where] = where
ROWS[np.clip] = METHOD_ROWS["clip"] = clip
