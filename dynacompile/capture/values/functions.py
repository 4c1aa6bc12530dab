"""Python functions, bound methods, closures and partials."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Lazy, Value, wraps
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.replaced import is_around_such_a_part, kept_in_python, replaced_by_dynamo
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import Presence, function_facts, identity
from dynacompile.ir.source import Attr, DefaultArg, DictAttr, Source
from dynacompile.markers import DISABLED

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.scopes import Globals
    from dynacompile.capture.trace import Trace


class CallableValue(Value):
    """What Python functions share: they are inlined when called."""

    def truth(self, cx: Trace) -> bool:
        return True

    def pytype(self) -> type:
        return types.FunctionType


class FunctionValue(CallableValue):
    """A Python function. real: the object, for a function that exists before the frame runs."""

    def __init__(
        self,
        code: CodeType,
        scope: Globals,
        name: str,
        defaults: list[Value],
        kwdefaults: dict[str, Value],
        closure: list[CellValue],
        real: types.FunctionType | None = None,
        source: Source | None = None,
    ):
        self.code, self.scope, self.name, self.defaults, self.kwdefaults, self.closure = code, scope, name, defaults, kwdefaults, closure
        self.real, self.source = real, source
        self.attributes: dict[str, Value] = {}
        self.annotations: Value | None = None
        self.wraps: Value | None = None  # functools.wraps copied the attributes of this function

    def describe(self) -> str:
        return f"function {self.name}"

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.inline(self, args, kwargs)

    def identity(self) -> Any:
        return self.real if self.real is not None else super().identity()

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if self.wraps is not None:
            return self.wraps if name == "__wrapped__" else self.wraps.get_attr(cx, name)
        if name in ("__name__", "__qualname__") and self.real is not None:
            return ConstantValue(getattr(self.real, name))
        if name == "__code__":
            return ConstantValue(self.code)
        if name == "__class__":
            return cx.class_value(types.FunctionType, None)
        if self.real is None:
            return self.made_with(name)
        if name in self.real.__dict__:
            return cx.wrap(self.real.__dict__[name], DictAttr(self.source, name))
        if not hasattr(self.real, name):
            raise raises(AttributeError, f"'function' object has no attribute {name!r}")
        if name in ("__wrapped__", "__module__", "__doc__", "__self__", "__defaults__", "__kwdefaults__", "__annotations__"):
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        if name == "__get__":
            return GetMethod(self)
        raise unsupported("unknown-attribute", f"{self.describe()}.{name}")

    def made_with(self, name: str) -> Value:
        """An attribute of a function that the frame made, as MAKE_FUNCTION leaves it."""
        code = self.code
        match name:
            case "__defaults__":
                return TupleValue(self.defaults) if self.defaults else ConstantValue(None)
            case "__name__":
                return ConstantValue(code.co_name)
            case "__qualname__":
                return ConstantValue(code.co_qualname)
            case "__doc__":
                first = code.co_consts[0] if code.co_consts else None
                return ConstantValue(first if isinstance(first, str) else None)
        if not hasattr(make_nothing, name):
            raise raises(AttributeError, f"'function' object has no attribute {name!r}")
        raise unsupported("unknown-attribute", f"{self.describe()}.{name}")

    def has_attr(self, cx: Trace, name: str) -> bool:
        if self.real is None or name in self.attributes:
            return name in self.attributes or self.wraps is not None and (name == "__wrapped__" or self.wraps.has_attr(cx, name)) or hasattr(make_nothing, name)
        cx.guard("HASATTR", self.source, Presence(name, hasattr(self.real, name)))
        return hasattr(self.real, name)

    def set_attr(self, cx: Trace, name: str, value: Value) -> None:
        if self.real is not None:
            if hasattr(types.FunctionType, name) or is_trusted(self.real.__module__):
                raise unsupported("setattr", f"{self.describe()}.{name} = ...")
            cx.effects.touch(self)
        self.attributes[name] = value

    def replay_values(self) -> Sequence[Value]:
        return list(self.attributes.values())

    def replay(self, out: Builder) -> None:
        out.value(self)
        self.rebuild_attributes(out)
        out.emit("POP_TOP")

    def children(self) -> Sequence[Value]:
        extra = [] if self.annotations is None else [self.annotations]
        extra += [] if self.wraps is None else [self.wraps]
        return [*self.defaults, *self.kwdefaults.values(), *self.closure, *self.attributes.values(), *extra]

    def rebuild(self, out: Builder) -> None:
        if self.wraps is not None:
            if self.attributes or isinstance(self.wraps, FunctionValue) and self.wraps.attributes:  # which were set before, or after?
                raise unsupported("rebuild", f"{self.describe()}, decorated by functools.wraps and with attributes of its own")
            out.callee(functools.update_wrapper)
        if self.scope.is_root:
            self.rebuild_own(out)
        else:
            self.rebuild_foreign(out)
        if self.wraps is not None:
            out.value(self.wraps)
            out.call(2)
        self.rebuild_attributes(out)

    def rebuild_own(self, out: Builder) -> None:
        flags = 0
        if self.defaults:
            flags |= 1
            out.tuple_of(self.defaults)
        if self.kwdefaults:
            flags |= 2
            for key, value in self.kwdefaults.items():
                out.const(key)
                out.value(value)
            out.emit("BUILD_MAP", len(self.kwdefaults))
        if self.annotations is not None:
            flags |= 4
            out.value(self.annotations)
        if self.closure:
            flags |= 8
            out.tuple_of(self.closure)
        out.const(self.code)
        out.emit("MAKE_FUNCTION", flags)

    def rebuild_foreign(self, out: Builder) -> None:
        """A function whose globals are not the frame's."""
        out.callee(types.FunctionType)
        out.const(self.code)
        out.const(self.scope.table)
        out.const(self.code.co_name)
        out.tuple_of(self.defaults) if self.defaults else out.const(None)
        out.tuple_of(self.closure) if self.closure else out.const(None)
        out.call(5)
        if self.kwdefaults:
            raise unsupported("rebuild", f"{self.describe()} with keyword defaults of another module")

    def rebuild_attributes(self, out: Builder) -> None:
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)


def make_nothing() -> None:
    """What every function has, this one has."""


class SpecialFunction(CallableValue):
    """A function whose call capture treats in a way of its own; else it is the function."""

    def __init__(self, function: FunctionValue):
        self.function, self.source = function, function.source

    def describe(self) -> str:
        return self.function.describe()

    def identity(self) -> Any:
        return self.function.identity()

    def get_attr(self, cx: Trace, name: str) -> Value:
        return self.function.get_attr(cx, name)

    def has_attr(self, cx: Trace, name: str) -> bool:
        return self.function.has_attr(cx, name)


class GetMethod(Value):
    """`function.__get__`."""

    def __init__(self, function: Value):
        self.function = function

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return BoundMethod(self.function, args[0])


class BoundMethod(CallableValue):
    def __init__(self, function: Value, owner: Value, source: Source | None = None, name: str = ""):
        self.function, self.owner, self.source, self.name = function, owner, source, name

    def describe(self) -> str:
        return f"method {self.name or self.function.describe()}"

    def pytype(self) -> type:
        return types.MethodType

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(cx, [self.owner, *args], kwargs)

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        return self.function.get_attr(cx, name)

    def has_attr(self, cx: Trace, name: str) -> bool:
        return name in ("__self__", "__func__") or self.function.has_attr(cx, name)

    def children(self) -> Sequence[Value]:
        return (self.owner,) if self.name and self.owner.source is not None else (self.function, self.owner)

    def rebuild(self, out: Builder) -> None:
        if self.name and self.owner.source is not None:
            out.value(self.owner)
            out.load_attr(self.name)
            return
        out.call_function(types.MethodType, [self.function, self.owner])


class RefusedValue(CallableValue):
    """A callable that capture must not look into: calling it breaks the graph by the named row."""

    def __init__(self, real: Any, code: str, source: Source, detail: str = ""):
        self.real, self.code, self.source, self.detail = real, code, source, detail

    def describe(self) -> str:
        return self.detail or getattr(self.real, "__qualname__", None) or self.source.text()

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported(self.code, self.describe())

    def get_attr(self, cx: Trace, name: str) -> Value:
        """Methods of a refused object are refused when they are called."""
        found = getattr(type(self.real), name, None)
        if self.source is None or not callable(found):
            raise unsupported(self.code, f"{self.describe()}.{name}")
        return RefusedValue(getattr(self.real, name), self.code, Attr(self.source, name), f"{self.describe()}.{name}")

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(self.real, name)


class OptimizerStep(RefusedValue):
    """A step of torch.optim that torch leaves to Python. Its fused form is followed: it takes step counts wherever they lie."""

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fused = kwargs.get("fused")
        if isinstance(fused, ConstantValue) and fused.value is True:
            return cx.wrap(kept_in_python(self.real), DictAttr(self.source, "__wrapped__")).call(cx, args, kwargs)
        return super().call(cx, args, kwargs)


def is_disabled(function: types.FunctionType) -> bool:
    """Whether a function carries a mark to run as plain Python: ours, or the ones that torch.compiler.disable leaves."""
    marks = function.__dict__
    by_torch = bool(marks.get("_torchdynamo_disable")) or bool(marks.get("_torchdynamo_forbidden"))
    return DISABLED in marks or by_torch and not is_around_such_a_part(function)


@wraps(types.FunctionType)
def wrap_function(cx: Trace, real: types.FunctionType, source: Source) -> Value:
    special = cx.special_function(real, source)
    if special is not None:
        return special
    covered = replaced_by_dynamo(real, source)
    if covered is not None:
        cx.guard("ID", source, identity(real))
        return cx.wrap(*covered)
    if is_disabled(real):
        cx.guard("ID", source, identity(real))
        return RefusedValue(real, "disabled", source)
    cx.guard("FUNCTION", source, function_facts(real, cx.root_scope.table))
    return function_value(cx, real, source)


def function_value(cx: Trace, real: types.FunctionType, source: Source) -> FunctionValue:
    """An existing function whose guard is installed."""
    defaults: list[Value] = [Lazy(cx, d, DefaultArg(source, i)) for i, d in enumerate(real.__defaults__ or ())]
    kwdefaults: dict[str, Value] = {k: Lazy(cx, d, DefaultArg(source, k)) for k, d in (real.__kwdefaults__ or {}).items()}
    cells = [cx.cell(cell, name, source, i) for i, (name, cell) in enumerate(zip(real.__code__.co_freevars, real.__closure__ or ()))]
    return FunctionValue(real.__code__, cx.scope_of(real, source), real.__qualname__, defaults, kwdefaults, cells, real, source)


@wraps(types.MethodType)
def wrap_method(cx: Trace, real: types.MethodType, source: Source) -> Value:
    cx.guard("TYPE", source, types.MethodType)
    return BoundMethod(cx.wrap(real.__func__, Attr(source, "__func__")), cx.wrap(real.__self__, Attr(source, "__self__")), source)


def is_trusted(module: str | None) -> bool:
    """Modules whose attributes are taken as they are, without guards: the standard library's pure parts, and torch."""
    return (module or "").partition(".")[0] in TRUSTED


TRUSTED = frozenset(
    "torch math builtins operator functools itertools typing collections abc enum types contextlib dataclasses numbers copy inspect warnings logging re random "
    "time numpy dynacompile _operator _functools _collections".split()
)
