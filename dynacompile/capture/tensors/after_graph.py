"""Functions whose calls are made after the graph, with the values that they were given (`dynacompile.after_graph`)."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.recorded import storage_of
from dynacompile.capture.tensors.deferred_texts import DeferredText
from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue, FunctionValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt
from dynacompile.ir.source import Source
from dynacompile.markers import AFTER_GRAPH, AfterGraph, disable

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class DeferredFunction(CallableValue):
    def __init__(self, real: types.FunctionType, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return self.real.__qualname__

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Notes the call."""
        marks: AfterGraph = self.real.__dict__[AFTER_GRAPH]
        keeps = not marks.history or self.is_true(cx, marks.history, args, kwargs)
        receiver, rest = (args[:1], args[1:]) if is_method(self.real) else ([], args)
        given = [*receiver, *(self.kept(cx, value, keeps) for value in [*rest, *kwargs.values()])]
        cx.effects.defer(plain(self.real), given, cx.frames[0].current.position, tuple(kwargs))
        cx.effects.hidden |= marks.changes
        if marks.talks and self.is_true(cx, marks.talks, args, kwargs):
            cx.recorder.talks_later = f"an operation behind {self.describe()}({marks.talks}=True), which is called after the graph and"
        return ConstantValue(None)

    def is_true(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> bool:
        """Whether the parameter of that name is given as true."""
        given = dict(zip(self.real.__code__.co_varnames, args)) | kwargs
        return name in given and cx.force(given[name]).truth(cx)

    def kept(self, cx: Context, value: Value, keeps_history: bool) -> Value:
        """The value as it is now, whatever happens to it later."""
        value = cx.force(value)
        match value:
            case TensorValue():
                if not keeps_history and value.fake.requires_grad:
                    value = cx.op("call_method", "detach", [value], {})  # type: ignore[assignment]
                cx.recorder.held.add(storage_of(value.fake))  # type: ignore[attr-defined]
                return value
            case ConstantValue() | SymbolicInt() | SymbolicFloat() | FunctionValue() | ReadNumber():
                return value
            case DeferredText():
                value.keep(cx)
                return value
            case TupleValue(cls=cls) if cls is tuple:
                return TupleValue([self.kept(cx, item, keeps_history) for item in value.items])
            case ListValue(cls=cls) if cls is list:
                return ListValue([self.kept(cx, value.settled(i), keeps_history) for i in range(len(value.items))])
            case DictValue(cls=cls) if cls is dict and value.known_keys:
                return DictValue.of([(key, self.kept(cx, value.settled(hashed), keeps_history)) for hashed, (key, _) in list(value.content.items())])
        if value.source is None and value.pytype() is not type:
            raise unsupported("after-graph", f"{self.describe()}, which is called after the graph, is given {value.describe()}, which may change until then")
        cx.effects.held.add(value)
        return value


def is_method(function: types.FunctionType) -> bool:
    code = function.__code__
    return bool(code.co_argcount) and code.co_varnames[0] == "self"


@functools.cache
def plain(function: types.FunctionType) -> Any:
    """The function, which with all that it calls runs as Python."""
    return disable(function, reason="it is called after the graph")
