"""Texts that tensors, numbers read from them, and containers of constants are part of: made after the graph, where something needs them.

Most never are: the message of an error that is not raised. Others go to a log or a warning, or are returned. Where Python needs a text while the frame
runs, the graph ends there.
"""

from __future__ import annotations

import collections
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Lazy, Method, Value, builtin_attribute
from dynacompile.capture.values.classes import ClassValue
from dynacompile.capture.values.constant import TEXT_METHODS, ConstantValue, UnreadStr
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.mapping import DictLike, DictView
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.partials import PartialValue
from dynacompile.capture.values.proxies import ProxyValue
from dynacompile.capture.values.python_modules import PythonModuleValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.sets import GivenSet, SetValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.namespaces import defines
from dynacompile.ir.shapes import as_static, hint_of, unbacked
from dynacompile.ir.source import Source
from dynacompile.markers import disable

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class TextOutdated(Exception):
    """A text is needed after the tensor that it shows was written: the frame is to be captured with texts that end the graph where they are made."""


class DeferredText(Value):
    """function(*values). versions: of the tensors that it shows, when the program made the text."""

    def __init__(self, cx: Context, function: Callable[..., str], values: Sequence[Value]):
        self.function, self.values, self.version = function, [shown_as(value) for value in values], cx.recorder.version
        self.versions = [self.version(value.fake) for value in self.tensors()]
        self.effects, self.parts = cx.effects, {part: changes_of(part) for value in values for part in parts_of(value) or ()}
        cx.recorder.shown.update(storage_of(value.fake) for value in self.tensors())

    def tensors(self) -> list[TensorValue]:
        return [value for value in self.values if isinstance(value, TensorValue)]

    def describe(self) -> str:
        return f"a text made of {next((v.describe() for v in self.values if not isinstance(v, ConstantValue)), 'tensors')}"

    def pytype(self) -> type:
        return str

    def constant(self) -> Any:
        raise unsupported("to-python", self.describe())

    identity = constant

    def truth(self, cx: Context) -> bool:
        if any(isinstance(value, ConstantValue) and value.value for value in self.values) and self.function is concatenated:
            return True
        return bool(self.constant())

    def get_attr(self, cx: Context, name: str) -> Value:
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(str, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("to-python", f"{name}() of {self.describe()}")

    def keep(self, cx: Context) -> None:
        """From here on the tensors are not to be written."""
        for value in self.values:
            if isinstance(value, TensorValue):
                cx.recorder.held.add(storage_of(value.fake))
            elif isinstance(value, DeferredText):
                value.keep(cx)

    def children(self) -> Sequence[Value]:
        return self.values

    def rebuild(self, out: Writer) -> None:
        changed = any(changes_of(part) != count or part in self.effects.touched for part, count in self.parts.items())
        if changed or [self.version(value.fake) for value in self.tensors()] != self.versions:
            raise TextOutdated
        out.call_function(WRITE, [ConstantValue(self.function), *self.values])


def shown_as(value: Value) -> Value:
    """What a text shows for a value: of a tensor whose `.data` the frame has assigned, which the real one has later, the result that it is given then. Of one
    that requires gradients it would show another history."""
    if not isinstance(value, TensorValue) or value.new_data is None:
        return value
    if value.real.requires_grad:
        raise unsupported("to-python", f"{value.describe()}, whose .data was assigned, as text")
    return value.new_data


def write(function: Callable[..., str], *values: Any) -> str:
    return function(*values)


WRITE = disable(write, reason="it shows tensors")


class UnreadText(ConstantValue):
    """function(*values), of numbers and texts that vary from call to call, and constants: residual code makes it. The entry relies on it from when it is read.
    now: the text of this call."""

    source = None
    is_unread = True

    def __init__(self, function: Callable[..., str], values: Sequence[Value], now: str):
        self.function, self.values, self.now = function, values, now

    @property
    def value(self) -> str:  # type: ignore[override]
        if self.is_unread:
            for value in self.values:
                value.constant()
            self.is_unread = False
        return self.now

    def describe(self) -> str:
        return f"a text made of {next(v.describe() for v in self.values if varies(v))}"

    def pytype(self) -> type:
        return str

    def children(self) -> Sequence[Value]:
        return self.values if self.is_unread else ()

    def numbers(self) -> Iterator[Source]:
        for value in self.values:
            yield from value.numbers()

    def rebuild(self, out: Writer) -> None:
        out.call_function(WRITE, [ConstantValue(self.function), *self.values])


class Formatted:
    """What an f-string makes of a value."""

    def __init__(self, conversion: str, spec: str):
        self.conversion, self.spec = conversion, spec

    def __call__(self, value: object) -> str:
        convert = {"": None, "str": str, "repr": repr, "ascii": ascii}[self.conversion]
        return format(value if convert is None else convert(value), self.spec)


def concatenated(*parts: str) -> str:
    return "".join(parts)


def joined(separator: str, *parts: str) -> str:
    return separator.join(parts)


def joined_from(separator: str, parts: Iterable[str]) -> str:
    return separator.join(parts)


def filled(template: str, *values: object) -> str:
    """template % values"""
    return template % values


def filled_by_one(template: str, value: object) -> str:
    """template % value, of one that is no tuple."""
    return template % (value,)


def format_with(names: tuple[str, ...], template: str, *values: object) -> str:
    """template.format(...), the last values by names."""
    first = len(values) - len(names)
    return template.format(*values[:first], **dict(zip(names, values[first:])))


PLAIN_OBJECTS = (str, bytes, int, float, complex, type(None), type, torch.dtype, torch.device, torch.layout, types.FunctionType, types.BuiltinFunctionType)
LEAVES = (ConstantValue, ClassValue, FunctionValue, SymbolicInt, SymbolicFloat, PythonModuleValue)


class StandIn:
    """In a template, for a value whose text is made later."""

    def __str__(self) -> str:
        return ""

    __repr__ = __str__


class TensorStandIn(StandIn):
    """For a tensor of no dimensions."""

    def __init__(self, number: complex):
        self.number = number

    def __int__(self) -> int:
        return int(self.number)  # type: ignore[call-overload, no-any-return]

    def __float__(self) -> float:
        return float(self.number)  # type: ignore[arg-type]

    def __index__(self) -> int:
        return operator.index(self.number)  # type: ignore[arg-type]

    def __format__(self, spec: str) -> str:
        return format(self.number, spec)


ODD_NUMBERS: dict[type, tuple] = {
    float: (0.5, math.nan, math.inf),
    int: (0, -1, 2**63 - 1),
    bool: (False, True, True),
    complex: (0j, complex(math.nan, 0), complex(0, math.inf)),
}
"""Of those that a template may refuse: NaN where it wants an int, what is no character, widths."""


def stand_in(value: Value, place: int) -> Any:
    """What a template is given in the place of a value, to see whether it takes that. place: in ODD_NUMBERS."""
    if isinstance(value, (ReadNumber, SymbolicInt, SymbolicFloat)):
        return ODD_NUMBERS[value.pytype()][place]
    if isinstance(value, DeferredText) or varies(value):
        return ""
    if isinstance(value, ConstantValue):
        return value.constant()
    if type(value) is TensorValue and not value.fake.dim():
        dtype = value.fake.dtype
        cls = complex if dtype.is_complex else float if dtype.is_floating_point else bool if dtype == torch.bool else int
        return TensorStandIn(ODD_NUMBERS[cls][place])
    return StandIn()


def is_filled(function: Callable[..., str], values: Sequence[Value]) -> bool:
    """Whether a template takes the values, whatever they are: an error of it is one of the place where the program fills it. What looks into a value is left
    to Python."""
    try:
        for place in range(3):
            function(*[stand_in(value, place) for value in values])
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError):
        return False
    return True


def changes_of(part: Value) -> int:
    """How often a set was changed, of those that nobody else has, too."""
    return part.changes if isinstance(part, SetValue) else 0


def is_plain_object(real: object) -> bool:
    """Whether the text of an object that exists before the frame stays as it is, and runs no code of a user."""
    if type(real) is tuple:
        return all(map(is_plain_object, real))
    cls = type(real)
    return isinstance(real, PLAIN_OBJECTS) and type(cls.__repr__) is not types.FunctionType or cls.__repr__ is object.__repr__ and cls.__str__ is object.__str__


def parts_of(value: Value) -> list[Value] | None:
    """What the text of a container, or of an object without one of its own, tells of: values whose changes would change it. None where it may run code of a
    user, or tells of what is not known to stay as it is."""
    found: list[Value] = []
    pending = [value]
    while pending:
        one = pending.pop()
        cls = one.pytype()
        if isinstance(one, LEAVES) or one in found:
            continue
        if isinstance(one, Lazy):
            if not is_plain_object(one.real):
                return None
        elif isinstance(one, ObjectValue):
            if cls.__repr__ is not object.__repr__ or cls.__str__ is not object.__str__ or cls.__format__ is not object.__format__:
                return None
        elif isinstance(one, (SetValue, DequeValue, DictLike, DictView, ProxyValue, PartialValue, Method, BoundMethod, ListValue, TupleValue)):
            by_user = isinstance(cls.__repr__, types.FunctionType) and cls is not collections.Counter
            if by_user or isinstance(one, GivenSet) and not all(map(is_plain_object, one.real)):
                return None
            pending += [one.function] if isinstance(one, BoundMethod) else []
            pending += one.children()
            found.append(one)
        else:
            return None
    return found


def is_shown_later(cx: Context, value: Value) -> bool:
    """Whether the text of a container or an object, which capture does not know, may be made after the graph: none of its parts has been changed so far."""
    if not cx.manner.texts or cx.bodies or isinstance(value, LEAVES):
        return False
    parts = parts_of(value)
    return parts is not None and cx.effects.touched.keys().isdisjoint(parts)


def is_deferred(value: Value) -> bool:
    return isinstance(value, (DeferredText, ReadNumber)) or type(value) is TensorValue


def varies(value: Value) -> bool:
    """Whether it is a number or text that other calls of the entry have another of, which Python knows before the graph, or a text that shows such."""
    if isinstance(value, SymbolicInt):
        return isinstance(as_static(value.sym), torch.SymInt) and not unbacked(value.sym)
    return isinstance(value, SymbolicFloat) or isinstance(value, (UnreadText, UnreadStr)) and value.is_unread


def of_this_call(value: Value) -> Any:
    """What a constant, or a number that varies, is at this call. Adds no guard."""
    if isinstance(value, UnreadText):
        return value.now
    if isinstance(value, UnreadStr):
        return value.real
    if isinstance(value, SymbolicInt):
        return hint_of(value.sym)
    return value.symbols.value(value.formula) if isinstance(value, SymbolicFloat) else value.constant()


def may_defer(cx: Context, value: Value) -> bool:
    return cx.manner.texts and not cx.bodies and is_deferred(value)


def defer(cx: Context, function: Callable[..., str], values: Sequence[Value]) -> Value | None:
    """function(*values) as a text for later, where one of them is a tensor, a number read from one, a container, or a number that varies; None where none is,
    or another is not known."""
    others = [value for value in values if not (isinstance(value, (ConstantValue, SymbolicInt, SymbolicFloat)) or is_deferred(value))]
    if not all(is_shown_later(cx, value) for value in others):
        return None
    if others or any(may_defer(cx, value) for value in values):
        return DeferredText(cx, function, values) if is_filled(function, values) else None
    return unread(cx, function, values) if not any(map(is_deferred, values)) else None


def unread(cx: Context, function: Callable[..., str], values: Sequence[Value]) -> Value | None:
    """function(*values), where a number among them varies; None where none does, or for some of the numbers it would raise."""
    if cx.bodies or not any(map(varies, values)) or not is_filled(function, values):
        return None
    return UnreadText(function, list(values), function(*map(of_this_call, values)))


def concat(cx: Context, parts: Sequence[Value | str]) -> Value:
    """The parts as one text."""
    values = [ConstantValue(part) if isinstance(part, str) else part for part in parts]
    return defer(cx, concatenated, values) or ConstantValue("".join(part.constant() for part in values))


def percent(cx: Context, template: Value, given: Value) -> Value | None:
    """template % given; None where no tensor and nothing that varies is given."""
    if isinstance(template, ConstantValue):
        template = ConstantValue(template.value)  # with another one it may raise
    if isinstance(given, TupleValue) and given.cls is tuple:
        return defer(cx, filled, [template, *given.elements(cx)])
    return defer(cx, filled_by_one, [template, given]) if not isinstance(given, ConstantValue) or varies(given) else None


def row_join(cx: Context, separator: ConstantValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """separator.join(parts); None where a part is no text."""
    if len(args) != 1:
        return None
    if isinstance(args[0], GivenSet) and is_shown_later(cx, args[0]) and all(type(part) is str for part in args[0].real):
        return DeferredText(cx, joined_from, [separator, args[0]])
    parts = args[0].elements(cx)
    if not all(part.pytype() is str for part in parts):
        return None
    return defer(cx, joined, [separator, *parts]) or cx.of(separator.value.join(part.constant() for part in parts))


def row_format(cx: Context, template: ConstantValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """template.format(*args, **kwargs), where a tensor is shown; None where none is."""
    return defer(cx, partial(format_with, tuple(kwargs)), [template, *args, *kwargs.values()])


TEXT_METHODS |= {"join": row_join, "format": row_format}
