"""Numbers that the program reads from tensors, by `item()`, `float()` and `tolist()`: the graph computes with a tensor that holds the number.

Such a number costs nothing where it is only computed with, returned, stored, or shown in a text: residual code reads it after the graph. Where Python
itself needs it (a branch, a size, a key), the graph ends there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operator_names import COMPARISONS, INPLACE
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.entry_conditions import known_number
from dynacompile.capture.tensors.tensor import METHODS, READERS, TensorValue, decided
from dynacompile.capture.values.base import Value, builtin_attribute
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.ir.namespaces import defines
from dynacompile.ops.python_numbers import NAMES, PYTHON_NUMBER, call_text

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

EXACT = frozenset({"add", "sub", "mul", "neg", "abs", "pos"})  # of float64 tensors as of Python's floats
BITS = frozenset({"and_", "or_", "xor"})  # of two bools a bool
WITH_TENSORS = frozenset({"add", "sub", "mul", "truediv"})
EXACT_INT = 2**53  # up to which a float knows each int
NARROW = (torch.float16, torch.bfloat16)
MOST_ITEMS = 16  # of a tensor that becomes a list


class ReadNumber(Value):
    """tensor: holds the number, in float64, int64 or bool, or an int in float64; nobody writes it, and autograd does not follow it. cls: what Python has.
    unwritten: gives an input that holds the same number, while it does. told: gives the number, where guards may tell it."""

    def __init__(
        self,
        tensor: TensorValue,
        cls: type,
        unwritten: Callable[[], TensorValue | None] = lambda: None,
        most: int | None = None,
        told: Callable[[], int | None] = lambda: None,
    ):
        self.tensor, self.cls, self.unwritten, self.most, self.told = tensor, cls, unwritten, 1 if cls is bool else most, told

    def describe(self) -> str:
        return f"a number read from {self.tensor.describe()}"

    def pytype(self) -> type:
        return self.cls

    def constant(self) -> Any:
        number = self.told() if self.cls is int else None
        if number is None:
            raise unsupported("to-python", self.describe())
        return number

    identity = constant

    def truth(self, cx: Context) -> bool:
        condition = self.asked(cx)
        answer = decided(cx, condition)
        if answer is None:
            raise unsupported("data-dependent-branch", self.describe())
        return answer

    def asked(self, cx: Context) -> TensorValue:
        """Whether it is true, as a tensor."""
        if self.cls is bool:
            return self.tensor
        found = cx.op("call_function", operator.ne, [self.tensor, ConstantValue(0)], {})
        assert isinstance(found, TensorValue)
        return found

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "real" and self.cls is not bool:
            return self
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.cls, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("to-python", f"{name}() of {self.describe()}")

    def argument(self) -> tuple[Any, Any]:
        number = self.constant()
        return number, number

    def with_tensors(self, cx: Context) -> bool:
        """Whether operations of torch may take it, as far as the number itself goes."""
        return True

    def shown(self) -> TensorValue:
        """What residual code reads the number from."""
        return self.unwritten() or self.tensor

    def children(self) -> Sequence[Value]:
        return (self.shown(),)

    def rebuild(self, out: Writer) -> None:
        out.value(self.shown())
        out.load_method("item")
        out.call(0)


def read_number(cx: Context, tensor: TensorValue, cls: type | None = None) -> Value | None:
    """The number of a tensor, as `cls` or as item() gives it; None where it is no float, int or bool."""
    dtype = tensor.fake.dtype
    kind = float if dtype.is_floating_point else bool if dtype is torch.bool else int
    if dtype.is_complex or cls not in (None, kind) and (cls, kind) != (float, int):
        return None
    before = len(cx.recorder.nodes)
    kept = cx.op("call_method", "detach", [tensor], {})
    wanted = torch.bool if kind is bool else torch.int64 if (cls or kind) is int else torch.float64
    kept = cx.op("call_method", "to", [kept, ConstantValue(wanted)], {"copy": ConstantValue(True)})
    if tensor.fake.dim():
        kept = cx.op("call_method", "reshape", [kept, TupleValue([])], {})
    assert isinstance(kept, TensorValue)
    cx.recorder.optional.update(dict.fromkeys(cx.recorder.nodes[before:]))
    if tensor.source is None or tensor.new_data is not None or type(tensor) is not TensorValue or cls not in (None, kind):
        return ReadNumber(kept, cls or kind, told=lambda: known_number(cx, kept))
    return ReadNumber(kept, kind, while_unwritten(cx, tensor), told=lambda: known_number(cx, kept))


def while_unwritten(cx: Context, tensor: TensorValue) -> Callable[[], TensorValue | None]:
    """Gives an input until the frame writes it: a number that is read from it alone needs no graph."""
    version, fake = cx.recorder.version, tensor.fake
    before = version(fake)
    cx.recorder.shown.add(storage_of(fake))
    return lambda: tensor if version(fake) == before else None


def read_list(cx: Context, tensor: TensorValue) -> Value | None:
    """tensor.tolist(), of a tensor of few elements."""
    sizes = tuple(tensor.fake.shape)
    if not sizes:
        return read_number(cx, tensor)
    if (known := counted(cx, tensor)) is not None:
        return ListValue([ConstantValue(number) for number in known])
    if not all(type(size) is int for size in sizes) or tensor.fake.numel() > MOST_ITEMS or tensor.fake.dtype.is_complex:
        return None
    rows = [cx.op("call_function", operator.getitem, [tensor, ConstantValue(i)], {}) for i in range(sizes[0])]
    return ListValue([row.method(cx, "tolist", [], {}) for row in rows])


def counted(cx: Context, tensor: TensorValue) -> range | None:
    """The numbers of `torch.arange` of known ints, which nobody has written."""
    node, plain = tensor.node, type(tensor) is TensorValue and tensor.new_data is None and tensor.fake.dtype is torch.int64
    if not plain or node.target is not torch.arange or node.kwargs or cx.recorder.version(tensor.fake) or not all(type(arg) is int for arg in node.args):
        return None
    return range(*node.args)  # type: ignore[arg-type]


NO_NUMBERS = (str, bytes, type(None), type(...), type, range, frozenset, torch.dtype, torch.device, torch.Size)
"""Types of constants that equal no number."""


def is_number(value: Value) -> bool:
    return isinstance(value, ReadNumber) or isinstance(value, ConstantValue) and type(value.value) in (int, float, bool)


def is_float(value: Value) -> bool:
    return value.pytype() is float and is_number(value)


def read_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """operator.name(*args), of which one is such a number; None where Python has to compute it."""
    if any(isinstance(a, TensorValue) for a in args):
        return into_tensor(cx, name, args) if name in INPLACE and isinstance(args[0], TensorValue) else with_tensor(cx, INPLACE.get(name, name), args)
    name = INPLACE.get(name, name)
    if not all(map(is_number, args)):
        if name in ("eq", "ne") and any(isinstance(a, ConstantValue) and type(a.value) in NO_NUMBERS for a in args):
            return ConstantValue(name == "ne")
        return None
    if name in COMPARISONS:
        return compared(cx, name, args)
    if not any(map(is_float, args)):
        return of_ints(cx, name, args)
    if name in EXACT:
        return made(cx.op("call_function", getattr(operator, name), [in_double(a) for a in args], {}), float)
    return computed(cx, getattr(operator, name), args)


def of_ints(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Python's ints have any number of bits, those of tensors 64."""
    if name in BITS and all(a.pytype() is bool for a in args):
        return made(cx.op("call_function", getattr(operator, name), [operand(a) for a in args], {}), bool)
    sizes = [a.most if isinstance(a, ReadNumber) else abs(a.constant()) for a in args]
    if name not in EXACT or None in sizes:
        return None
    most = math.prod(sizes) if name == "mul" else sum(sizes)  # type: ignore[arg-type]
    if most >= 2**63:
        return None
    ints = [cast(cx, a.tensor, torch.int64) if isinstance(a, ReadNumber) else ConstantValue(int(a.constant())) for a in args]
    return made(cx.op("call_function", getattr(operator, name), ints, {}), int, most)


def computed(cx: Context, function: Callable, args: Sequence[Value]) -> Value | None:
    """function(*args) by Python, while the graph runs; None for functions that give no float of floats. It may raise: nothing that others see has changed."""
    name = NAMES.get(function)
    known = name in ("round", "max", "min")
    if name is None or not any(isinstance(a, ReadNumber) for a in args) or not all(map(is_number, args)) or cx.effects.outside:
        return None
    if not is_float(args[0]) or known and not all(map(is_float, args[: 1 if name == "round" else None])) or name == "round" and len(args) != 2:
        return None
    if name == "pow" and (not isinstance(args[1], ConstantValue) or args[1].value < 0 or args[1].value != int(args[1].value)):  # may be complex, or raise
        return None
    numbers = ListValue([a.tensor for a in args if isinstance(a, ReadNumber)])
    text = call_text(name, [None if isinstance(a, ReadNumber) else +a.constant() for a in args])  # +True is 1
    return made(cx.op("call_function", PYTHON_NUMBER, [numbers, ConstantValue(text)], {}), float)


def is_wide(number: ReadNumber) -> bool:
    """Whether it is an int in float64."""
    return number.cls is int and number.tensor.fake.dtype is torch.float64


def converted(cx: Context, number: ReadNumber, cls: type) -> Value | None:
    """int(number) or float(number); None where that rounds, or may raise."""
    if number.cls is cls:
        return number
    if cls is float:
        return made(cast(cx, number.tensor, torch.float64), float)
    return made(cast(cx, number.tensor, torch.int64), int, 1) if number.cls is bool else None


def compared(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Python compares ints with floats exactly, tensors do not."""
    if len({is_float(a) for a in args}) > 1 and any(isinstance(a, ReadNumber) and not is_float(a) for a in args):
        return None
    if any(isinstance(a, ReadNumber) and is_wide(a) for a in args) and not all(isinstance(a, ReadNumber) or abs(a.constant()) <= EXACT_INT for a in args):
        return None
    return made(cx.op("call_function", getattr(operator, name), [operand(a) for a in args], {}), bool)


def with_tensor(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """A tensor and a number: of a number torch takes the value alone, and rounds it to the type that it computes in."""
    if name not in WITH_TENSORS and name not in COMPARISONS or len(args) != 2:
        return None
    tensor, number = args if isinstance(args[0], TensorValue) else (args[1], args[0])
    if type(tensor) is not TensorValue or tensor.is_number or not isinstance(number, ReadNumber) or number.cls is bool:
        return None
    dtype = tensor.fake.dtype
    result = torch.result_type(tensor.fake, 1.0 if number.cls is float else 1)
    if is_wide(number) and not (result.is_floating_point and number.with_tensors(cx)):
        return None
    if result.is_complex or name in COMPARISONS and result in NARROW or not result.is_floating_point and (name == "truediv" or number.cls is float):
        return None
    if name == "truediv" and (number is args[0] or tensor.fake.device.type != "cpu"):  # which GPUs do by the reciprocal
        return None
    wide = torch.float32 if result in NARROW else result
    operands = [a if a is tensor and dtype is wide else cast(cx, a.tensor if isinstance(a, ReadNumber) else a, wide) for a in args]
    found = cx.op("call_function", getattr(operator, name), operands, {})
    return found if wide is result or name in COMPARISONS else cast(cx, found, result)


def into_tensor(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """tensor += number"""
    tensor, number = args
    assert isinstance(tensor, TensorValue)
    plain = type(tensor) is TensorValue and not tensor.is_number and isinstance(number, ReadNumber) and number.cls is not bool
    if not plain or INPLACE[name] not in WITH_TENSORS or tensor.fake.dtype not in (torch.float32, torch.float64):
        return None
    if name == "itruediv" and tensor.fake.device.type != "cpu":
        return None
    return cx.op("call_function", getattr(operator, name), [tensor, cast(cx, number.tensor, tensor.fake.dtype)], {})  # type: ignore[attr-defined]


def cast(cx: Context, value: Value, dtype: torch.dtype) -> Value:
    return cx.op("call_method", "to", [value, ConstantValue(dtype)], {})


def operand(value: Value) -> Value:
    return value.tensor if isinstance(value, ReadNumber) else value


def in_double(value: Value) -> Value:
    """An operand of float64; constants are ints that floats know, too."""
    return operand(value) if not isinstance(value, ConstantValue) else ConstantValue(float(value.value))


def made(result: Value, cls: type, most: int | None = None) -> Value:
    assert isinstance(result, TensorValue)
    return ReadNumber(result, cls, most=most)


def whether(cx: Context, condition: Value) -> Value:
    """What item() of a tensor of one bool gives."""
    return condition.method(cx, "item", [], {})


def equal(cx: Context, left: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torch.equal"""
    (right,) = args
    if not isinstance(right, TensorValue) or left.fake.dtype != right.fake.dtype or left.fake.device != right.fake.device:
        raise unsupported("to-python", "torch.equal of tensors of several types")
    if left.fake.shape != right.fake.shape:
        return ConstantValue(False)
    return whether(cx, cx.op("call_method", "all", [cx.op("call_function", operator.eq, [left, right], {})], {}))


def allclose(cx: Context, left: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torch.allclose"""
    return whether(cx, cx.op("call_method", "all", [cx.op("call_function", torch.isclose, [left, *args], kwargs)], {}))


def is_nonzero(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    number = value.method(cx, "item", [], {})
    return cx.operator("ne", [number, ConstantValue(0)])


READERS |= {"item": read_number, "tolist": read_list}
METHODS |= {"equal": equal, "allclose": allclose, "is_nonzero": is_nonzero}
