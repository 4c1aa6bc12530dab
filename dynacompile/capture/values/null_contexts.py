"""Managers that do nothing, or only observe."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.values.base import Method, Value, bind_arguments, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class NullContext(ContextValue):
    """contextlib.nullcontext, and managers that only observe (torch.profiler.record_function)."""

    def __init__(self, value: Value):
        self.value = value

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """As a decorator that only observes."""
        if len(args) != 1 or kwargs or not isinstance(args[0], CallableValue):
            return super().call(cx, args, kwargs)
        return args[0]

    def pytype(self) -> type:
        return contextlib.nullcontext

    def get_attr(self, cx: Context, name: str) -> Value:
        return self.value if name == "enter_result" else super().get_attr(cx, name)

    def enter(self, cx: Context) -> Value:
        return self.value

    def exit(self, cx: Context) -> None:
        return None

    def children(self) -> Sequence[Value]:
        return (self.value,)

    def rebuild(self, out: Writer) -> None:
        out.call_function(contextlib.nullcontext, [self.value])


class RecordContext(NullContext):
    """torch.profiler.record_function: it observes what runs, and capture records nothing of it."""

    def __init__(self, args: Sequence[Value], kwargs: dict[str, Value], source: Source | None = None):
        super().__init__(self)
        self.args, self.kwargs, self.source = args, kwargs, source

    def pytype(self) -> type:
        return torch.autograd.profiler.record_function

    def get_attr(self, cx: Context, name: str) -> Value:
        return Method(self, name) if name == "_recreate_cm" else ContextValue.get_attr(self, cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self if name == "_recreate_cm" else super().method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (*self.args, *self.kwargs.values())

    def rebuild(self, out: Writer) -> None:
        out.call_function(torch.autograd.profiler.record_function, [*self.args, *self.kwargs.values()], tuple(self.kwargs))


@handles(contextlib.nullcontext)
def make_nullcontext(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = bind_arguments("nullcontext", ["enter_result"], args, kwargs, {"enter_result": ConstantValue(None)})
    return NullContext(value)


@handles(torch.autograd.profiler.record_function)
def make_record_function(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return RecordContext(args, kwargs)


@wraps(torch.autograd.profiler.record_function)
def wrap_record_function(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return RecordContext([], {}, source)


@handles(torch.autograd.profiler.record_function.__enter__)
def enter_record_function(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0]


@handles(torch.autograd.profiler.record_function.__exit__)
def leave_record_function(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(None)
