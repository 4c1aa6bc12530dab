"""Profilers of torch that a frame opens: they observe what runs, so they are begun before the graph and ended after it, and cut nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.profiler

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.random_state import MadeValue, RandomState
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.plain import plain
from dynacompile.capture.values.rows import handles
from dynacompile.markers import disable

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

PROFILERS = (torch.profiler.profile, torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx, torch.autograd.profiler.emit_itt)


class ProfilerContext(ContextValue):
    """made: the profiler, as residual code has it."""

    def __init__(self, cls: type):
        self.cls = cls
        self.made = MadeValue(cls)
        self.is_entered = False

    def pytype(self) -> type:
        return self.cls

    def enter(self, cx: Context) -> Value:
        if self.is_entered:
            raise unsupported("context-manager", f"{self.cls.__name__}, entered again,")
        self.is_entered = True
        cx.state(RandomState).hoist(cx, BEGIN, [self.made])
        return self

    def exit(self, cx: Context) -> None:
        self.is_entered = False
        cx.effects.defer(END, [self.made], cx.frames[0].current.position)

    def rebuild(self, out: Writer) -> None:
        if self.is_entered:
            raise unsupported("rebuild", f"a {self.cls.__name__} that is entered")
        out.value(self.made)


def begin(profiler: Any) -> None:
    profiler.__enter__()


def end(profiler: Any) -> None:
    profiler.__exit__(None, None, None)


def make(cls: type, args: tuple, kwargs: dict[str, Any]) -> Any:
    return cls(*args, **kwargs)


BEGIN, END, MAKE = (disable(f, reason="a profiler") for f in (begin, end, make))


def profiler(cls: type) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            given, named = tuple(plain(a) for a in args), {name: plain(v) for name, v in kwargs.items()}
        except NotConstant as reason:
            raise unsupported("unknown-function", f"{cls.__name__} of a {reason}") from reason
        context = ProfilerContext(cls)
        cx.state(RandomState).hoist(cx, MAKE, [ConstantValue(cls), ConstantValue(given), ConstantValue(named)], (), context.made)
        return context


for _cls in PROFILERS:
    profiler(_cls)
