"""str(), repr() and format() of tracked values, as Python writes them."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import UnboundMethod
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import BuiltinValue, handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import is_int, symbolic_operator
from dynacompile.capture.values.tensor import TensorValue
from dynacompile.capture.values.torch_functions import TorchFunction
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


def text(cx: Trace, value: Value, conversion: str = "str") -> str:
    """str(value), repr(value) or ascii(value)."""
    if conversion == "ascii":
        return text(cx, value, "repr").encode("ascii", "backslashreplace").decode("ascii")
    if isinstance(value, TensorValue):
        raise unsupported("to-python", f"{conversion} of {value.describe()}")
    if isinstance(value, ExceptionValue) and conversion == "str":
        return value.text(cx)
    if isinstance(value, ExceptionValue) and value.cls.__repr__ is BaseException.__repr__ and not issubclass(value.cls, ImportError):
        return value.cls.__name__ + "(" + ", ".join(text(cx, part, "repr") for part in value.get_attr(cx, "args").elements(cx)) + ")"
    if isinstance(value, ObjectValue) or isinstance(value, TupleValue) and value.cls is not tuple:
        return by_class(cx, value, conversion)
    if isinstance(value, DictValue) and value.cls is dict:
        return "{" + ", ".join(f"{text(cx, k, 'repr')}: {text(cx, v, 'repr')}" for k, v in pairs_of(cx, value)) + "}"
    if isinstance(value, ListValue) and value.cls is list:
        return "[" + ", ".join(text(cx, item, "repr") for item in value.elements(cx)) + "]"
    if isinstance(value, TupleValue):
        shown = ", ".join(text(cx, item, "repr") for item in value.elements(cx))
        return f"({shown},)" if len(value.items) == 1 else f"({shown})"
    if isinstance(value, (TorchFunction, BuiltinValue, UnboundMethod)):
        value = ConstantValue(value.identity())  # guarded as that object
    return cx.pure(str if conversion == "str" else repr, [value], {}).constant()


def by_class(cx: Trace, value: ObjectValue | TupleValue, conversion: str) -> str:
    """What the class of the value defines in Python."""
    cls = value.pytype()
    for name in ("__str__", "__repr__") if conversion == "str" else ("__repr__",):
        owner = next(base for base in cls.__mro__ if name in base.__dict__)
        raw, inner = owner.__dict__[name], getattr(owner.__dict__[name], "__wrapped__", None)
        if isinstance(value, TupleValue) and "_fields" in owner.__dict__ and name == "__repr__" and "_make" in owner.__dict__:
            shown = ", ".join(f"{field}={text(cx, item, 'repr')}" for field, item in zip(value.fields(), value.elements(cx)))
            return f"{cls.__name__}({shown})"
        if isinstance(raw, types.FunctionType):
            guarded = inner is not None and raw.__code__.co_filename.endswith("dataclasses.py")  # against recursion
            found = cx.call_real(inner, Constant(inner, name), [value]) if guarded else cx.call_real(raw, class_source(cls, name), [value])  # type: ignore[arg-type]
            return text_of(found, name)
        if raw is not object.__str__:
            break
    raise unsupported("unknown-operation", f"{conversion}({value.describe()})")


def text_of(found: Value, name: str) -> str:
    if not issubclass(found.pytype(), str):
        raise raises(TypeError, f"{name} returned non-string (type {found.pytype().__name__})")
    return found.constant()


def formatted(cx: Trace, value: Value, spec: str) -> str:
    """format(value, spec)."""
    if isinstance(value, TensorValue):
        raise unsupported("to-python", f"formatting {value.describe()}")
    if isinstance(value, ConstantValue):
        return cx.pure(format, [value, ConstantValue(spec)], {}).constant()
    raw = cx.lookup(value.pytype(), "__format__")
    if isinstance(raw, types.FunctionType):
        return text_of(cx.call_real(raw, class_source(value.pytype(), "__format__"), [value, ConstantValue(spec)]), "__format__")
    if raw is not object.__format__ or spec:
        return cx.pure(format, [value, ConstantValue(spec)], {}).constant()
    return text(cx, value)


@handles(str)
def row_str(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(text(cx, args[0])) if len(args) == 1 and not kwargs else cx.pure(str, args, kwargs)


@handles(repr)
def row_repr(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return ConstantValue(text(cx, value, "repr"))


@handles(ascii)
def row_ascii(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return ConstantValue(text(cx, value, "ascii"))


@handles(format)
def row_format(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(formatted(cx, args[0], args[1].constant() if len(args) > 1 else ""))


def special_row(real: object, name: str) -> None:
    """A builtin that calls a method of objects and computes on constants."""

    @handles(real)
    def row(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(args[0], ObjectValue) and cx.lookup(args[0].cls, name) is not MISSING:
            return args[0].method(cx, name, args[1:], kwargs)
        if any(isinstance(a, TensorValue) for a in args):
            raise unsupported("to-python", f"{name} of {next(a for a in args if isinstance(a, TensorValue)).describe()}")
        if real is divmod and len(args) == 2 and all(map(is_int, args)):
            quotient, remainder = (symbolic_operator(cx, part, args) for part in ("floordiv", "mod"))
            if quotient is not None and remainder is not None:
                return TupleValue([quotient, remainder])
        return cx.pure(real, args, kwargs)  # type: ignore[arg-type]


special_row(divmod, "__divmod__")
special_row(hash, "__hash__")
special_row(complex, "__complex__")
special_row(bytes, "__bytes__")
