"""Immutable values that capture knows completely. Operations on them run at once."""

from __future__ import annotations

import datetime
import decimal
import enum
import operator
import re
import struct
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Method, Value, stepped, wraps
from dynacompile.capture.values.own_methods import refuse_own
from dynacompile.capture.values.rows import Row
from dynacompile.ir.guard_facts import hashes_by_identity, identity, is_a
from dynacompile.ir.namespaces import class_lookup, defines
from dynacompile.ir.source import Attr, Source
from dynacompile.ir.wording import shown

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

SCALARS = (int, float, bool, complex, str, bytes)
BY_VALUE = (*SCALARS, torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, range)
BY_IDENTITY = (types.EllipsisType, types.NotImplementedType, torch.finfo, torch.iinfo, frozenset)
CONSTANT_TYPES = frozenset((*BY_VALUE, *BY_IDENTITY, type(None)))
# Immutable, too, and known by identity where they come from outside; guards can't tell two of them that are equal.
OTHERS_BY_IDENTITY = (
    *(re.Pattern, re.Match, struct.Struct, decimal.Decimal, datetime.timedelta, datetime.date, datetime.time, datetime.timezone),
    *(type(sys.version_info), type(sys.flags), type(sys.float_info), torch.torch_version.TorchVersion),
)
DTYPES_OF_NUMPY = tuple(type(np.dtype(code)) for code in "?bhilqBHILQefdgFD")
OTHER_CONSTANTS = frozenset((*OTHERS_BY_IDENTITY, *DTYPES_OF_NUMPY))
WRITTEN_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
KEYS_BY_IDENTITY = (type, types.FunctionType, type(typing.Union), *WRITTEN_IN_C)


class ConstantValue(Value):
    """A constant of the entry. is_unread: other calls may have another there, as long as nobody reads `value`."""

    is_unread = False

    def __init__(self, value: Any, source: Source | None = None):
        self.value, self.source = value, source

    def describe(self) -> str:
        return shown(self.value)

    def pytype(self) -> type:
        return type(self.value)

    def constant(self) -> Any:
        return self.value

    def truth(self, cx: Context) -> bool:
        refuse_own(cx, type(self.value), "__bool__", "__len__")
        return bool(self.value)

    def length(self, cx: Context) -> int:
        return cx.pure(len, [self], {}).constant()

    def get_attr(self, cx: Context, name: str) -> Value:
        found = self.own(name)
        if callable(found) and not isinstance(found, type):
            return Method(self, name)
        return cx.of(found)

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.value, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = TEXT_METHODS.get(name) if isinstance(self.value, str) else None
        if row is not None and (found := row(cx, self, args, kwargs)) is not None:
            return found
        if (effect := EFFECTS.get((type(self.value), name))) is not None:
            return effect(cx, [self, *args], kwargs)
        call = cx.fold if isinstance(self.value, (str, bytes)) else cx.pure
        return call(self.own(name), args, kwargs)

    def own(self, name: str) -> Any:
        """The attribute of the object."""
        try:
            return getattr(self.value, name)
        except AttributeError as missing:
            raise raises(AttributeError, str(missing)) from None

    def get_item(self, cx: Context, key: Value) -> Value:
        if not hasattr(type(self.value), "__getitem__"):
            try:
                self.value[0]
            except TypeError as refused:  # a class of C's has a name of its own there
                raise raises(TypeError, str(refused)) from None
        return self.method(cx, "__getitem__", [key], {})

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        raise raises(TypeError, f"{type(self.value).__name__!r} object does not support item assignment")

    def del_item(self, cx: Context, key: Value) -> None:
        raise raises(TypeError, f"{type(self.value).__name__!r} object does not support item deletion")

    def contains(self, cx: Context, item: Value) -> Value:
        if isinstance(self.value, (str, bytes)):
            return self.method(cx, "__contains__", [item], {})
        if isinstance(self.value, frozenset) and not isinstance(item, ConstantValue):
            return ConstantValue(item.identity() in self.value)
        return cx.pure(operator.contains, [self, item], {})

    def iterate(self, cx: Context) -> IteratorValue:
        if isinstance(self.value, (enum.Flag, re.Match)):  # whose iterators are not those of a container
            return cx.of(tuple(self.value)).iterate(cx)  # type: ignore[arg-type]
        if not isinstance(self.value, (str, bytes, tuple, range, frozenset, torch.Size)):
            raise unsupported("would-raise", f"{type(self.value).__name__!r} object is not iterable")
        return ConstantIterator(self.value)

    def argument(self) -> tuple[Any, Any]:
        if isinstance(self.value, torch.Size):
            return tuple(self.value), tuple(self.value)
        if type(self.value) in OTHER_CONSTANTS:
            raise NotConstant(type(self.value).__name__)
        return self.value, self.value

    def rebuild(self, out: Writer) -> None:
        out.const(self.value)


EFFECTS: dict[tuple[type, str], Row] = {}
"""Methods of constants that change what the frame sees, by class and name. They are not called while the frame is captured."""
TEXT_METHODS: dict[str, Callable[[Context, ConstantValue, list[Value], dict[str, Value]], Value | None]] = {}
"""Methods of texts that may be given more than constants, by name; None where they are not, or what they are given is refused."""


class UnreadConstant(ConstantValue):
    """A constant that varies from call to call: the entry relies on it from when its value is read."""

    is_unread = True

    def __init__(self, cx: Context, real: Any, source: Source):
        self.cx, self.real, self.source = cx, real, source
        cx.guard("TYPE", source, type(real))

    @property
    def value(self) -> Any:  # type: ignore[override]
        self.cx.guard("EQUALS", self.source, self.real)
        return self.real

    def describe(self) -> str:
        return "a constant that varies" if self.source is None else self.source.text()

    def pytype(self) -> type:
        return type(self.real)


class UnreadBool(UnreadConstant):
    """A bool that varies."""


class UnreadStr(UnreadConstant):
    """A text that varies, as the names of a batch's items do: most are kept, returned or shown, and never read."""

    def numbers(self) -> Iterator[Source]:
        if self.source is not None:
            yield self.source


class ConstantIterator(IteratorValue):
    """An iterator over a constant: range, str, torch.Size, ..."""

    def __init__(self, value: Any):
        self.value, self.index, self.done = value, 0, False
        self._elements: Iterator[Any] = iter(value)

    def pytype(self) -> type:
        return type(iter(self.value))

    def remaining(self) -> int | None:
        return len(self.value) - self.index

    def next(self, cx: Context) -> Value | None:
        for element in self._elements:
            self.index += 1
            return cx.of(element)
        self.done = True
        return None

    def rebuild(self, out: Writer) -> None:
        if isinstance(self.value, range) or self.index and not self.done and not isinstance(self.value, frozenset):
            out.callee(iter)
            out.const(self.value)
            out.call(1)
            out.call_method_on_top("__setstate__", self.index)
            return
        out.callee(stepped)
        out.callee(iter)
        out.const(type(self.value)() if self.done else self.value)
        out.call(1)
        out.const(1 if self.done else self.index)
        out.call(2)


class SliceValue(Value):
    def __init__(self, parts: Sequence[Value], source: Source | None = None):
        self.parts, self.source = tuple(parts), source

    def pytype(self) -> type:
        return slice

    def constant(self) -> slice:
        return slice(*(p.constant() for p in self.parts))

    def identity(self) -> Any:
        raise NotConstant("slice")

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        if name == "__class__" or not callable(class_lookup(slice, name)):
            return super().get_attr(cx, name)
        return Method(self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(slice, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.pure(getattr(self.constant(), name), args, kwargs)

    def argument(self) -> tuple[Any, Any]:
        pairs = [p.argument() for p in self.parts]
        return slice(*(p[0] for p in pairs)), slice(*(p[1] for p in pairs))

    def children(self) -> Sequence[Value]:
        return self.parts

    def rebuild(self, out: Writer) -> None:
        for part in self.parts:
            out.value(part)
        out.emit("BUILD_SLICE", 3)


@wraps(*(cls for cls in BY_VALUE if cls is not torch.Size))
def wrap_by_value(cx: Context, real: Any, source: Source) -> Value:
    symbolic = cx.symbolic_number(real, source) if type(real) in (bool, int, float, str) else None
    if symbolic is not None:
        return symbolic
    cx.guard("EQUALS", source, real)
    return ConstantValue(real, source)


@wraps(type(None))
def wrap_none(cx: Context, real: None, source: Source) -> Value:
    cx.guard("NONE", source)
    return ConstantValue(None, source)


@wraps(*BY_IDENTITY, *OTHERS_BY_IDENTITY, *DTYPES_OF_NUMPY)
def wrap_by_identity(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return ConstantValue(real, source)


@wraps(slice)
def wrap_slice(cx: Context, real: slice, source: Source) -> Value:
    cx.guard("TYPE", source, slice)
    return SliceValue([cx.wrap(getattr(real, part), Attr(source, part)) for part in ("start", "stop", "step")], source)


FIXED: dict[type, type[ConstantValue]] = {}  # further types of immutable objects, by what their values are


def is_identity_key(real: Any) -> bool:
    """Whether an object is a dict key that hashes by identity: a class, a function, a special form of typing."""
    return is_a(real, KEYS_BY_IDENTITY) and hashes_by_identity(real)


def is_constant_object(real: Any) -> bool:
    """Whether an object needs no tracking: immutable, and complete in itself."""
    return type(real) in CONSTANT_TYPES or type(real) in OTHER_CONSTANTS or type(real) in FIXED or is_a(real, enum.Enum)


def has_one_object(value: Any) -> bool:
    """Values of which CPython has one object each."""
    match value:
        case bool() | enum.Enum():
            return True
        case int():
            return -5 <= value <= 256
        case str():
            return not value or len(value) == 1 and ord(value) < 256
        case bytes():
            return len(value) < 2
    return False


def is_none(value: Value) -> bool:
    """Whether it is known to be None."""
    return isinstance(value, ConstantValue) and value.value is None
