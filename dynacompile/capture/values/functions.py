"""Python functions, bound methods, closures and partials."""

from __future__ import annotations

import types
from collections.abc import Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Lazy, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.replaced import replaced_by_dynamo
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import Presence, function_facts, identity
from dynacompile.ir.source import Attr, DefaultArg, DictAttr, Source
from dynacompile.markers import DISABLED

if TYPE_CHECKING:
    from dynacompile.capture.interpreter import Globals
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class CellValue(Value):
    """A closure cell. slot: its localsplus index in the frame being captured; free: its index among that frame's free variables.

    holder: where a cell of another function is loaded from (the function's source and the cell's index).
    """

    def __init__(self, content: Value | None, name: str, slot: int | None = None, free: int | None = None, holder: tuple[Source, int] | None = None):
        self.content, self.name, self.slot, self.free, self.holder = content, name, slot, free, holder
        self.was_empty = content is None
        self.overwritten: bool | None = None  # whether the frame's first change was to set it

    def pytype(self) -> type:
        return types.CellType

    def read(self, cx: Trace) -> Value:
        if self.content is None:
            raise unsupported("would-raise", f"cannot access variable {self.name!r}")
        if isinstance(self.content, Lazy):
            self.content = cx.force(self.content)
        return self.content

    def write(self, cx: Trace, value: Value | None) -> None:
        cx.effects.touch(self)
        if self.overwritten is None:
            self.overwritten = value is not None
        self.content = value

    def exists(self, own_cells: bool = True) -> bool:
        """Whether the residual code has the real cell. own_cells: it makes those of the frame itself."""
        return self.slot is not None and own_cells or self.free is not None or self.holder is not None

    def get_attr(self, cx: Trace, name: str) -> Value:
        return self.read(cx) if name == "cell_contents" else super().get_attr(cx, name)

    def replay_values(self) -> Sequence[Value]:
        return () if self.content is None or not self.exists() else (self.content,)

    def replay(self, out: Builder) -> None:
        if not self.exists():
            return
        if self.content is None:
            if self.slot is None and self.free is None:
                raise unsupported("mutation", f"del of the closure variable {self.name!r}")
            if self.free is not None and self.overwritten:  # another call may find it empty, or not
                out.value(ConstantValue(None))
                out.cell_op("STORE_DEREF", self)
            if self.free is not None or not self.was_empty:
                out.cell_op("DELETE_DEREF", self)
            return
        out.value(self.content)
        if self.holder is None:
            out.cell_op("STORE_DEREF", self)
        else:
            out.value(self)
            out.store_attr("cell_contents")

    def children(self) -> Sequence[Value]:
        return () if self.exists() or self.content is None else (self.content,)

    def rebuild(self, out: Builder) -> None:
        if self.holder is not None:
            out.source(self.holder[0])
            out.load_attr("__closure__")
            out.const(self.holder[1])
            out.emit("BINARY_SUBSCR")
        elif self.exists():
            out.cell_op("LOAD_CLOSURE", self)
        else:
            out.push_null()
            out.const(types.CellType)
            if self.content is not None:
                out.value(self.content)
            out.call(0 if self.content is None else 1)


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
        if name in ("__name__", "__qualname__") and (self.real is not None or name == "__name__"):
            return ConstantValue(getattr(self.real, name) if self.real is not None else self.code.co_name)
        if name == "__code__":
            return ConstantValue(self.code)
        if self.real is None:
            if name == "__defaults__":
                return TupleValue(self.defaults) if self.defaults else ConstantValue(None)
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        if name in self.real.__dict__:
            return cx.wrap(self.real.__dict__[name], DictAttr(self.source, name))
        if not hasattr(self.real, name):
            raise raises(AttributeError, f"'function' object has no attribute {name!r}")
        if name in ("__wrapped__", "__module__", "__doc__", "__self__", "__defaults__", "__kwdefaults__", "__annotations__"):
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        if name == "__get__":
            return GetMethod(self)
        raise unsupported("unknown-attribute", f"{self.describe()}.{name}")

    def has_attr(self, cx: Trace, name: str) -> bool:
        if self.real is None or name in self.attributes:
            return name in self.attributes or hasattr(lambda: None, name)
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
        return [*self.defaults, *self.kwdefaults.values(), *self.closure, *self.attributes.values(), *extra]

    def rebuild(self, out: Builder) -> None:
        if self.wraps is not None:
            raise unsupported("rebuild", f"{self.describe()}, decorated by functools.wraps")
        if not self.scope.is_root:
            self.rebuild_foreign(out)
            return
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
        self.rebuild_attributes(out)

    def rebuild_foreign(self, out: Builder) -> None:
        """A function whose globals are not the frame's."""
        out.push_null()
        out.const(types.FunctionType)
        out.const(self.code)
        out.const(self.scope.table)
        out.const(self.code.co_name)
        out.tuple_of(self.defaults) if self.defaults else out.const(None)
        out.tuple_of(self.closure) if self.closure else out.const(None)
        out.call(5)
        if self.kwdefaults:
            raise unsupported("rebuild", f"{self.describe()} with keyword defaults of another module")
        self.rebuild_attributes(out)

    def rebuild_attributes(self, out: Builder) -> None:
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)


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


def is_disabled(function: types.FunctionType) -> bool:
    """Whether a function carries a mark to run as plain Python: ours, or the ones that torch.compiler.disable leaves."""
    marks = function.__dict__
    return DISABLED in marks or bool(marks.get("_torchdynamo_disable")) or bool(marks.get("_torchdynamo_forbidden"))


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
    cx.guard("FUNCTION", source, function_facts(real))
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
