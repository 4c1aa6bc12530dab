"""Logging and warnings inside of graphs: the calls are made after the graph, in their order, as from the user's line."""

from __future__ import annotations

import logging
import types
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.deferred_texts import DeferredText
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import LruWrapper, class_source
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import BoundMethod, CallableValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
QUESTIONS = ("isEnabledFor", "getEffectiveLevel", "hasHandlers")
FACTS = ("level", "disabled", "propagate")


def snapshot(cx: Context, value: Value) -> Value:
    """The value as it is now, whatever happens to it later."""
    if isinstance(value, (ConstantValue, ReadNumber, SymbolicInt, SymbolicFloat)) or value.pytype() is type:
        return value
    if isinstance(value, DeferredText):
        value.keep(cx)
        return value
    if type(value) is TensorValue:
        cx.recorder.held.add(storage_of(value.fake))
        return value
    if isinstance(value, TupleValue) and value.cls is tuple:
        return TupleValue([snapshot(cx, item) for item in value.items])
    if isinstance(value, ListValue) and value.cls is list:
        return ListValue([snapshot(cx, value.settled(i)) for i in range(len(value.items))])
    if isinstance(value, DictValue) and value.cls is dict and value.known_keys:
        return DictValue.of([(key, snapshot(cx, value.settled(hashed))) for hashed, (key, _) in list(value.content.items())])
    raise unsupported("logging", f"{value.describe()} in a message, which")


def replayed(cx: Context, function: Any, args: list[Value]) -> Value:
    """Notes a call for after the graph."""
    cx.effects.defer(function, [snapshot(cx, a) for a in args], cx.frames[0].current.position)
    return ConstantValue(None)


def require(cx: Context, name: str) -> None:
    if not cx.replays_reports:
        raise unsupported("logging", name)


class LoggerValue(Value):
    """A logger or logger adapter."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"{self.source.text()} ({type(self.real).__name__})"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        return True

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def get_attr(self, cx: Context, name: str) -> Value:
        raw = cx.lookup(type(self.real), name)
        own = isinstance(raw, types.FunctionType) and raw.__module__ == "logging"
        if name == "name":
            return ConstantValue(self.real.name)
        if name in FACTS:
            return cx.flag(f"{self.source.text()}.{name}", lambda: getattr(self.real, name))
        if own and (name in LEVELS or name in QUESTIONS or name in ("log", "exception")) or isinstance(raw, LruWrapper):
            return LoggerMethod(self, name)
        if isinstance(raw, types.FunctionType) and not own:
            return BoundMethod(cx.wrap(raw, class_source(type(self.real), name)), self, None, name)
        raise unsupported("logging", f"{self.describe()}.{name}")


class LoggerMethod(CallableValue):
    def __init__(self, owner: LoggerValue, name: str):
        self.owner, self.name = owner, name

    def describe(self) -> str:
        return f"{self.owner.describe()}.{self.name}"

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)
        out.load_attr(self.name)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        require(cx, self.describe())
        real, name = self.owner.real, self.name
        if name in QUESTIONS:
            known = [a.constant() for a in args]
            return cx.flag(f"{self.describe()}({', '.join(map(str, known))})", lambda: getattr(real, name)(*known))
        if not isinstance(real, logging.Logger) or name not in LEVELS and name != "log":
            if kwargs or name == "exception":
                raise unsupported("logging", self.describe())
            return replayed(cx, getattr(real, name), args)
        level = args.pop(0) if name == "log" else ConstantValue(LEVELS[name])
        extra = kwargs.pop("extra", ConstantValue(None))
        if not args or set(kwargs) - {"stacklevel"} or kwargs.get("stacklevel", ConstantValue(1)).constant() != 1:
            raise unsupported("logging", self.describe())
        if any(not isinstance(a, ConstantValue) or a.is_unread for a in args) and isinstance(level, ConstantValue):  # what is not shown needs not be computed
            enabled = partial(real.isEnabledFor, level.value)
            if not cx.flag(f"{self.owner.describe()}.isEnabledFor({level.value})", enabled).truth(cx):
                return ConstantValue(None)
        frame = cx.frames[-1]
        place = (frame.code.co_filename, frame.line(), frame.code.co_name)
        return replayed(cx, Emit(real), [level, cx.of(place), args[0], TupleValue(args[1:]), extra])


class Emit:
    """Logs as from a given place."""

    def __init__(self, logger: logging.Logger):
        self.logger = logger

    def __call__(self, level: int, place: tuple[str, int, str], message: object, args: tuple, extra: dict | None) -> None:
        if self.logger.isEnabledFor(level):
            self.logger.handle(self.logger.makeRecord(self.logger.name, level, *place[:2], message, args, None, place[2], extra))


def wrap_logger(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return LoggerValue(real, source)


def are_errors() -> bool:
    """Whether a filter turns warnings into errors, which a clause of the frame may take."""
    return any(action == "error" for action, *_ in warnings.filters)


def refuse_errors(cx: Context) -> None:
    if cx.flag("any(action == 'error' for action, *_ in warnings.filters)", are_errors).truth(cx):
        raise unsupported("logging", "warnings.warn(), while a filter turns warnings into errors,")


@handles(warnings.warn)
def row_warn(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    require(cx, "warnings.warn()")
    defaults: dict[str, Value | None] = {"category": ConstantValue(None), "stacklevel": ConstantValue(1), "source": ConstantValue(None)}
    if "skip_file_prefixes" in kwargs:
        raise unsupported("logging", "warnings.warn() with skip_file_prefixes")
    message, category, stacklevel, source = bind_arguments("warn", ["message", "category", "stacklevel", "source"], args, kwargs, defaults)
    kind, level = category.constant(), stacklevel.constant()
    if isinstance(message, ExceptionValue):
        if message.args is None or message.stored or message.raised or len(message.args) != 1:
            raise unsupported("logging", f"a {message.cls.__name__} in warnings.warn()")
        kind, message = message.cls, message.args[0]
    if not isinstance(message, (ConstantValue, DeferredText)) or not isinstance(level, int) or not isinstance(source, ConstantValue):
        raise unsupported("logging", "warnings.warn() of an object")
    kind = UserWarning if kind is None else kind
    refuse_errors(cx)
    depth = len(cx.frames) - max(level, 1)
    if depth >= 0:
        frame = cx.frames[depth]
        place = (frame.code.co_filename, frame.line())
        return replayed(cx, WarnAt(frame.scope.table, kind), [message, cx.of(place)])
    return replayed(cx, warnings.warn, [message, cx.of(kind), ConstantValue(1 - depth)])


class WarnAt:
    """Warns as from a given place in a module."""

    def __init__(self, table: dict[str, Any], category: type):
        self.table, self.category = table, category

    def __call__(self, message: str, place: tuple[str, int]) -> None:
        registry = self.table.setdefault("__warningregistry__", {})
        module = self.table.get("__name__") or "<string>"
        warnings.warn_explicit(message, self.category, *place, module=module, registry=registry)


def warn_from(cx: Context, function: types.FunctionType, message: str) -> None:
    """Warns as a function of a library does that is not followed: once in a process, as Python's own filter has it for one place."""
    require(cx, "warnings.warn()")
    refuse_errors(cx)
    place = (function.__code__.co_filename, function.__code__.co_firstlineno)
    replayed(cx, WarnAt(function.__globals__, UserWarning), [ConstantValue(message), cx.of(place)])
