"""Functions that `torch.compiler.allow_in_graph` marks: they are followed, and one operation of the graph where following them would end it.

Torch never looks into such a function, so that what it changes beside tensors happens once, while the graph is made. Following gives eager's results
whatever the function does, so it comes first. Where it ends at something that capture does not know, the mark promises that the function is one of its
arguments: it runs on tensors without data, and what it does to tensors is compiled, differentiated and fused. What shows that the promise does not hold
(random numbers, settings, results that are no tensors, lists that are changed, objects that it had changed where following ended and that are not as before
after two runs, as caches are) ends the graph by name. What it changes later, unseen, is the promise's.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from types import FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

import numpy
import torch

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.manner import Whole
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, next_serial
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue, FunctionValue, function_value
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.errors import Unsupported
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

MARKS = f"{torch.__name__}._dynamo.trace_rules"  # the module in which torch keeps its marks, loaded by the first of them
NOT_KNOWN = frozenset(
    {
        "autograd-function",
        "changing-container",
        "changing-key",
        "context-manager",
        "frame-kind",
        "frame-variables",
        "generator",
        "import",
        "in-block",
        "in-loop",
        "rebuild",
        "sub-graph",
        "too-deep",
        "too-long",
        "too-many-operations",
        "unknown-attribute",
        "unknown-function",
        "unknown-object",
        "unknown-opcode",
        "unknown-operation",
        "which-object",
    }
)
"""Breaks that say what capture does not know. The others tell of effects and of values of tensors, which one operation can't have either."""

AUTOCAST_DEVICES = ("cpu", "cuda")
DEPTH = 4  # to which objects are compared with what they were


class RunsWhole(Exception):
    """Following a marked function ends the graph: in the next attempt it is one operation."""

    def __init__(self, function: FunctionType, whole: Whole):
        super().__init__(function.__qualname__)
        self.function, self.whole = function, whole


def is_marked(function: Any) -> bool:
    """Whether torch has a mark for the function; it keeps them by identity."""
    rules = sys.modules.get(MARKS)
    return rules is not None and id(function) in getattr(rules, "_allowed_callable_ids", ())


def marked_function(cx: Context, real: FunctionType, source: Source) -> Value:
    """The value of a marked function, whose identity is guarded."""
    whole = cx.manner.whole.get(real)
    if whole is not None:
        return WholeFunction(real, source, whole)
    found = function_value(cx, real, source)
    return FollowedFunction(found.code, found.scope, found.name, found.defaults, found.kwdefaults, found.closure, real, source)


class FollowedFunction(FunctionValue):
    """A marked function that is followed."""

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        before, count, moves, serial = outside(cx), cx.effects.count, cx.effects.moves, next_serial()
        try:
            return super().call(cx, args, kwargs)
        except Raised:
            raise
        except Unsupported as reason:
            touched = [value for value, at in cx.effects.touched.items() if at > count and value.source is not None]
            watched = tuple(real for value in touched if can_be_watched(real := getattr(value, "real", None)))
            if reason.code not in NOT_KNOWN or outside(cx) != before or cx.effects.moves_older(moves, serial) or len(watched) != len(touched):
                raise
            assert self.real is not None
            raise RunsWhole(self.real, Whole(watched, tuple(map(held_by, watched)))) from reason


def can_be_watched(real: Any) -> bool:
    return type(real) in (list, dict, set, deque) or type(getattr(real, "__dict__", None)) is dict


def outside(cx: Context) -> tuple:
    """What a function may have changed that is not in a value."""
    effects = cx.effects
    return len(effects.calls), dict(effects.globals), dict(effects.class_attributes), torch.is_grad_enabled()


class WholeFunction(CallableValue):
    """A marked function that is one operation of the graph."""

    def __init__(self, real: FunctionType, source: Source, whole: Whole):
        self.real, self.source, self.whole = real, source, whole
        self.operation = operation(real)

    def describe(self) -> str:
        return f"function {self.real.__qualname__}, marked by torch.compiler.allow_in_graph,"

    def pytype(self) -> type:
        return FunctionType

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if cx.state(TorchModes).inference or cx.overrides.is_watched():
            raise unsupported("active-mode", f": {self.describe()} in inference mode, or in a mode of torch's functions")
        for value in (*args, *kwargs.values()):
            if not is_operand(value):
                raise unsupported("unknown-function", f"{self.describe()} with {value.describe()}")
        before, contents = settings(), [content(real) for real in self.whole.watched]
        try:
            result = cx.op("call_function", self.operation, args, kwargs)
        except Unsupported as reason:
            raise unsupported("unknown-function", f"{self.describe()} which can't be one operation ({reason.reason}),") from reason
        finally:
            after = settings()
            random.setstate(before["random"])
            numpy.random.set_state(before["numpy.random"])
            torch.set_grad_enabled(before["the gradient mode"])
            torch.set_default_dtype(before["the default type"])
            for device, is_on in zip(AUTOCAST_DEVICES, before["autocast"]):
                torch.set_autocast_enabled(device, is_on)
        if repr(after) != repr(before):
            changed = next(name for name in before if repr(before[name]) != repr(after[name]))
            raise unsupported("unknown-function", f"{self.describe()} which changes {changed},")
        for real, was in zip(self.whole.watched, contents):
            if content(real) != was:
                if not self.whole.settled:  # what the first call puts into a cache, no later one puts there
                    raise RunsWhole(self.real, replace(self.whole, settled=True))
                for changed, held in zip(self.whole.watched, self.whole.before):
                    put_back(changed, held)
                raise unsupported("unknown-function", f"{self.describe()} which changes a {type(real).__name__} that outlives it,")
        if not is_result(result):
            raise unsupported("unknown-function", f"{self.describe()} which gives {result.describe()}")
        return result

    def get_attr(self, cx: Context, name: str) -> Value:
        return function_value(cx, self.real, self.source).get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return function_value(cx, self.real, self.source).has_attr(cx, name)


def is_operand(value: Value) -> bool:
    if isinstance(value, (TupleValue, ListValue)):
        return value.cls in (tuple, list) and all(map(is_operand, value.items))
    if isinstance(value, DictValue):
        return False
    return type(value) is TensorValue or not isinstance(value, TensorValue)


def is_result(value: Value) -> bool:
    """Whether it is tensors, or a list or tuple of tensors and None."""
    if isinstance(value, (TupleValue, ListValue)):
        return bool(value.items) and all(is_result(item) or isinstance(item, ConstantValue) and item.value is None for item in value.items)
    return isinstance(value, TensorValue)


def content(real: Any, depth: int = DEPTH) -> Any:
    """What an object holds, to compare it with what it holds later."""
    if isinstance(real, (int, float, str, bytes, NoneType)):
        return real
    if isinstance(real, dict):
        return [(content(key, depth - 1), content(value, depth - 1)) for key, value in real.items()] if depth else len(real)
    if isinstance(real, (list, tuple, set, frozenset, deque)):
        return [content(item, depth - 1) for item in real] if depth else len(real)
    if isinstance(real, (torch.Tensor, type, FunctionType, ModuleType)) or not depth or not hasattr(real, "__dict__"):
        return id(real)
    return id(type(real)), content(vars(real), depth - 1)


def held_by(real: Any) -> Any:
    """A copy of what `put_back` puts back."""
    return dict(vars(real)) if hasattr(real, "__dict__") else real.copy()


def put_back(real: Any, held: Any) -> None:
    if hasattr(real, "__dict__"):
        vars(real).clear()
        vars(real).update(held)
        return
    real.clear()
    (real.extend if isinstance(real, (list, deque)) else real.update)(held)


def settings() -> dict[str, Any]:
    """What functions of tensors change unseen: random numbers that are drawn would be those of the time at which the graph was made."""
    return {
        "random": random.getstate(),
        "numpy.random": numpy.random.get_state(),
        "the gradient mode": torch.is_grad_enabled(),
        "the default type": torch.get_default_dtype(),
        "autocast": tuple(map(torch.is_autocast_enabled, AUTOCAST_DEVICES)),
    }


def operation(real: FunctionType) -> Callable[..., Any]:
    """`real` as the target of a node. It gets lists of its own from the graph, so what it does to them would be lost."""

    @wraps(real)
    def marked(*args: Any, **kwargs: Any) -> Any:
        lists = [(given, list(given)) for given in (*args, *kwargs.values()) if isinstance(given, list)]
        result = real(*args, **kwargs)
        if any(len(now) != len(was) or any(a is not b for a, b in zip(now, was)) for now, was in lists):
            raise RuntimeError(f"{real.__qualname__}, marked by torch.compiler.allow_in_graph, changes a list that it is given")
        return result

    return marked
