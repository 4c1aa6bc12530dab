"""str(), repr() and format() of tracked values, as Python writes them."""

from __future__ import annotations

import dataclasses
import reprlib
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.tensors.deferred_texts import (
    DeferredText,
    Formatted,
    UnreadText,
    concat,
    is_filled,
    is_shown_later,
    may_defer,
    unread,
    varies,
)
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.values.answers import ASKED, answered, is_undecided
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import ClassValue, UnboundMethod
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import class_source
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.mapping import DictLike, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.own_methods import refuse_own
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.sequence_objects import TupleObjectValue
from dynacompile.capture.values.symbolic import is_int, symbolic_operator
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import MISSING
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def text(cx: Context, value: Value, conversion: str = "str") -> Value:
    """str(value), repr(value) or ascii(value)."""
    if may_defer(cx, value):
        return value if isinstance(value, DeferredText) and conversion == "str" else DeferredText(cx, Formatted(conversion, ""), [value])
    if (
        varies(value)
        and (made := value if isinstance(value, UnreadText) and conversion == "str" else unread(cx, Formatted(conversion, ""), [value])) is not None
    ):
        return made
    if conversion == "ascii":
        return ConstantValue(text(cx, value, "repr").constant().encode("ascii", "backslashreplace").decode("ascii"))
    if isinstance(value, TensorValue):
        raise unsupported("to-python", f"{conversion} of {value.describe()}")
    if isinstance(value, ExceptionValue) and conversion == "str":
        return value.text(cx)
    if isinstance(value, ExceptionValue):
        refuse_own(cx, value.cls, "__repr__")
    if isinstance(value, ExceptionValue) and value.cls.__repr__ is BaseException.__repr__ and not issubclass(value.cls, ImportError):
        return listed(cx, value.cls.__name__ + "(", value.get_attr(cx, "args").elements(cx), ")")
    if isinstance(value, ObjectValue) or isinstance(value, TupleValue) and value.cls is not tuple:
        return by_class(cx, value, conversion)
    if isinstance(value, DictLike) and value.cls is dict:
        pairs = [concat(cx, [text(cx, k, "repr"), ": ", text(cx, v, "repr")]) for k, v in pairs_of(cx, value)]
        return separated(cx, "{", pairs, "}")
    if isinstance(value, ListValue) and value.cls is list:
        return listed(cx, "[", value.elements(cx), "]")
    if isinstance(value, TupleValue):
        return listed(cx, "(", value.elements(cx), ",)" if len(value.items) == 1 else ")")
    if isinstance(value, (TorchFunction, BuiltinValue, UnboundMethod)):
        value = ConstantValue(value.identity())  # guarded as that object
    if isinstance(value, FunctionValue) and value.real is not None and value.source is not None:
        cx.guard("ID", value.source, identity(value.real))
        value = ConstantValue(value.real)
    if is_shown_later(cx, value):
        return DeferredText(cx, Formatted(conversion, ""), [value])
    return cx.pure(str if conversion == "str" else repr, [value], {})


def listed(cx: Context, begin: str, items: Sequence[Value], end: str) -> Value:
    return separated(cx, begin, [text(cx, item, "repr") for item in items], end)


def separated(cx: Context, begin: str, parts: Sequence[Value], end: str) -> Value:
    pieces: list[Value | str] = [begin]
    for i, part in enumerate(parts):
        pieces += [", ", part] if i else [part]
    return concat(cx, [*pieces, end])


GUARDS_AGAINST_RECURSION = (dataclasses.dataclass.__code__.co_filename, reprlib.recursive_repr.__code__.co_filename)
"""Files of the decorator around the representations of data classes: `dataclasses` up to CPython 3.12. Where nothing recurs, it gives what it wraps."""


def by_class(cx: Context, value: ObjectValue | TupleValue, conversion: str) -> Value:
    """What the class of the value defines in Python."""
    cls = value.pytype()
    for name in ("__str__", "__repr__") if conversion == "str" else ("__repr__",):
        raw = cx.lookup(cls, name)
        owner = next(base for base in cls.__mro__ if name in base.__dict__)
        inner = getattr(raw, "__wrapped__", None)
        if isinstance(value, (TupleValue, TupleObjectValue)) and "_fields" in owner.__dict__ and name == "__repr__" and "_make" in owner.__dict__:
            items = (value if isinstance(value, TupleValue) else value.table).elements(cx)
            fields = [concat(cx, [f"{field}=", text(cx, item, "repr")]) for field, item in zip(owner.__dict__["_fields"], items)]
            return separated(cx, f"{cls.__name__}(", fields, ")")
        if isinstance(raw, types.FunctionType):
            guarded = inner is not None and raw.__code__.co_filename in GUARDS_AGAINST_RECURSION
            found = cx.call_real(inner, Constant(inner, name), [value]) if guarded else cx.call_real(raw, class_source(cls, name), [value])  # type: ignore[arg-type]
            return text_of(found, name)
        if raw is not object.__str__:
            break
    if is_shown_later(cx, value):
        return DeferredText(cx, Formatted(conversion, ""), [value])
    raise unsupported("unknown-operation", f"{conversion}({value.describe()})")


def text_of(found: Value, name: str) -> Value:
    if not issubclass(found.pytype(), str):
        raise raises(TypeError, f"{name} returned non-string (type {found.pytype().__name__})")
    return found


def formatted(cx: Context, value: Value, spec: str) -> Value:
    """format(value, spec)."""
    if isinstance(value, TensorValue) and spec and value.fake.dim():
        raise unsupported("would-raise", f"format() of {value.describe()} by {spec!r}")
    if isinstance(value, (DeferredText, UnreadText)) and not spec:
        return value
    if may_defer(cx, value) and is_filled(Formatted("", spec), [value]):
        return DeferredText(cx, Formatted("", spec), [value])
    if varies(value) and (made := unread(cx, Formatted("", spec), [value])) is not None:
        return made
    if isinstance(value, TensorValue):
        raise unsupported("to-python", f"formatting {value.describe()}")
    if isinstance(value, (ConstantValue, ClassValue)):
        return cx.pure(format, [value, ConstantValue(spec)], {})
    raw = cx.lookup(value.pytype(), "__format__")
    if isinstance(raw, types.FunctionType):
        return text_of(cx.call_real(raw, class_source(value.pytype(), "__format__"), [value, ConstantValue(spec)]), "__format__")
    if raw is not object.__format__ or spec:
        return cx.pure(format, [value, ConstantValue(spec)], {})
    return text(cx, value)


@handles(str)
def row_str(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return text(cx, args[0]) if len(args) == 1 and not kwargs else cx.pure(str, args, kwargs)


@handles(repr)
def row_repr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return text(cx, value, "repr")


@handles(ascii)
def row_ascii(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    return text(cx, value, "ascii")


@handles(format)
def row_format(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    spec = args[1].constant() if len(args) > 1 else ""
    if not isinstance(spec, str):
        raise unsupported("would-raise", f"format() by {args[1].describe()}")
    return formatted(cx, args[0], spec)


def special_row(real: object, name: str) -> None:
    """A builtin that calls a method of objects and computes on constants."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(args[0], ObjectValue) and cx.lookup(args[0].cls, name) is not MISSING:
            found = args[0].method(cx, name, args[1:], kwargs)
            if is_undecided(found):
                raise unsupported("unknown-operation", f"{real.__name__} of {args[0].describe()}, which leaves it to the other")  # type: ignore[attr-defined]
            return answered(name, found) if name in ASKED else found
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
