"""Rows for what torch offers to those that override its functions: predicates, the dispatch of functions in Python, and contexts without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import overrides

from dynacompile.capture.tensors.function_modes import POP, PUSH
from dynacompile.capture.tensors.overrides import DISABLED, ENABLED, NOT_FOR_SUBCLASSES, OVERRIDE
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.source import Constant
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


@handles(of_torch.has_torch_function)
def has_torch_function(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return has_torch_function_variadic(cx, args[0].elements(cx), kwargs)


@handles(of_torch.has_torch_function_unary, of_torch.has_torch_function_variadic)
def has_torch_function_variadic(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(cx.overrides.is_on() or cx.overrides.state == ENABLED and any(cx.overrides.overrides(value) for value in args))


@handles(overrides.handle_torch_function)
def handle_torch_function(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Unlike functions written in C, those in Python ask plain tensors, too."""
    asked = [v for v in args[1].elements(cx) if cx.overrides.overrides(v) or v.pytype() is torch.Tensor]
    return cx.overrides.dispatch(args[0], asked if cx.overrides.state == ENABLED else [], args[2:], kwargs)


@handles(torch.Tensor.__dict__[OVERRIDE].__func__)
def default_override(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults: dict[str, Value | None] = {"args": TupleValue([]), "kwargs": ConstantValue(None)}
    cls, function, types, given, named = bind_arguments(OVERRIDE, ["cls", "func", "types", "args", "kwargs"], args, kwargs, defaults)
    return cx.overrides.default(cls.constant(), function, types, given, named)


@handles(PUSH)
def push_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.overrides.modes.push(cx, args[0])
    return ConstantValue(None)


@handles(POP)
def pop_mode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.overrides.modes.pop()


@handles(of_torch.len_torch_function_stack)
def count_modes(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(len(cx.overrides.modes.stack))


@handles(of_torch.get_function_stack_at)
def mode_at(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.overrides.modes.at(args[0].constant())


@handles(of_torch.is_torch_function_mode_enabled)
def has_modes(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(cx.overrides.is_on())


@handles(torch.get_default_device)
def default_device(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = cx.overrides.modes.device
    return cx.pure(torch.get_default_device, args, kwargs) if found is None else ConstantValue(torch.empty(0, device=found).device)


@handles(overrides.is_tensor_like)
def is_tensor_like(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(issubclass(args[0].pytype(), torch.Tensor) or args[0].finds_attr(cx, OVERRIDE))


@handles(of_torch.is_torch_function_enabled)
def is_enabled(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(cx.overrides.state == ENABLED)


def about_functions(real: Callable) -> None:
    """A row for what says something about a function of torch."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.of(real(args[0].identity()))


def listing(real: Callable) -> None:
    """A row for what gives a set of functions, always the same one."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.wrap(real(), Constant(real(), f"{real.__name__}()"))


for _real in (overrides.resolve_name, overrides.is_tensor_method_or_property):
    about_functions(_real)
for _real in (overrides.get_default_nowrap_functions, overrides.get_ignored_functions):
    listing(_real)


class NoOverrides(ContextValue):
    """torch._C.DisableTorchFunctionSubclass() and DisableTorchFunction()."""

    def __init__(self, cls: type, state: int):
        self.cls, self.state = cls, state
        self.before: list[int] = []

    def pytype(self) -> type:
        return self.cls

    def enter(self, cx: Context) -> Value:
        self.before.append(cx.overrides.state)
        cx.overrides.state = max(self.state, cx.overrides.state)
        return ConstantValue(None)

    def exit(self, cx: Context) -> None:
        cx.overrides.state = self.before.pop()

    def rebuild(self, out: Writer) -> None:
        out.callee(self.cls)
        out.call(0)


def context(cls: Any, state: int) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return NoOverrides(cls, state)


context(of_torch.DisableTorchFunctionSubclass, NOT_FOR_SUBCLASSES)
context(of_torch.DisableTorchFunction, DISABLED)
