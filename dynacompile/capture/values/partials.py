"""functools.partial, and user classes that derive from it."""

from __future__ import annotations

import functools
import types
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.namespaces import defines
from dynacompile.ir.source import Applied, Attr, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

CALL = functools.partial.__call__
MEMBERS = {name: functools.partial.__dict__[name] for name in ("func", "args", "keywords")}


class PartialValue(CallableValue):
    def __init__(self, function: Value, args: list[Value], kwargs: dict[str, Value], source: Source | None = None, real: Any = None):
        self.real = real
        self.function, self.args, self.kwargs, self.source = function, args, kwargs, source
        self.attributes: dict[str, Value] = {}  # of one that the frame made
        self.as_shown: dict[Hashable, int] = {}  # what the keywords were then
        self.shown: dict[str, Value] = {}  # its `args` and `keywords`, which the program has seen

    def pytype(self) -> type:
        return functools.partial

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if self.source is not None or defines(functools.partial, name):
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        self.attributes[name] = value

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.check_unchanged()
        return self.function.call(cx, [*self.args, *args], {**self.kwargs, **kwargs})

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name == "func":
            return self.function
        if name in ("args", "keywords"):
            if name not in self.shown:
                self.shown[name] = part = self.part(cx, name)
                if isinstance(part, DictValue):
                    self.as_shown = {key: id(value) for key, (_, value) in part.content.items()}
            return self.shown[name]
        if self.has_own(cx, name):
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))  # type: ignore[arg-type]
        return super().get_attr(cx, name)

    def has_own(self, cx: Context, name: str) -> bool:
        """Whether one that exists before the frame has an attribute of its own, as functools.update_wrapper gives it."""
        if self.real is None:
            return False
        cx.guard("DICT_KEYS", Attr(self.source, "__dict__"), tuple(vars(self.real)))  # type: ignore[arg-type]
        return name in vars(self.real)

    def part(self, cx: Context, name: str) -> Value:
        if self.real is not None:
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        return TupleValue(self.args) if name == "args" else DictValue.of([(ConstantValue(k), v) for k, v in self.kwargs.items()])

    def check_unchanged(self) -> None:
        """Refuses a partial whose dict of keywords the program changes."""
        shown = self.shown.get("keywords")
        if isinstance(shown, DictValue) and {key: id(value) for key, (_, value) in shown.content.items()} != self.as_shown:
            raise unsupported("mutation", f"the keywords of {self.describe()}")

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(functools.partial, name) or name in self.attributes or self.has_own(cx, name)

    def children(self) -> Sequence[Value]:
        return [self.function, *self.args, *self.kwargs.values(), *self.attributes.values()]

    def rebuild(self, out: Writer) -> None:
        self.check_unchanged()
        out.callee(functools.partial)
        self.rebuild_parts(out, 0)
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)

    def rebuild_parts(self, out: Writer, before: int) -> None:
        """The call of what makes it, which is given as many arguments before."""
        for arg in (self.function, *self.args, *self.kwargs.values()):
            out.value(arg)
        out.call(before + 1 + len(self.args) + len(self.kwargs), tuple(self.kwargs))


@wraps(functools.partial)
def wrap_partial(cx: Context, real: functools.partial, source: Source) -> Value:
    cx.guard("TYPE", source, functools.partial)
    return partial_of(cx, real, source)


def partial_of(cx: Context, real: functools.partial, source: Source) -> PartialValue:
    at = {name: source_of(cx, real, source, name) for name in MEMBERS}
    function, given, named = (raw.__get__(real) for raw in MEMBERS.values())
    cx.guard("LENGTH", at["args"], len(given))
    cx.guard("DICT_KEYS", at["keywords"], tuple(named))
    args: list[Value] = [cx.wrap(a, Item(at["args"], i)) for i, a in enumerate(given)]
    kwargs = {k: cx.wrap(v, Item(at["keywords"], k)) for k, v in named.items()}
    return PartialValue(cx.wrap(function, at["func"]), args, kwargs, source, real)


def source_of(cx: Context, real: functools.partial, source: Source, name: str) -> Source:
    """Where a part of a partial is: an attribute, unless the class hides it behind another one of that name."""
    raw: Any = MEMBERS[name]
    return Attr(source, name) if cx.lookup(type(real), name) is raw else Applied(source, raw.__get__, f".{name} of functools.partial")


@handles(functools.partial)
def row_partial(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return made_partial(cx, args, kwargs)


def made_partial(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> PartialValue:
    if not args:
        raise unsupported("would-raise", "a partial of nothing")
    function = args[0]
    if not defines(function.pytype(), "__call__"):
        raise raises(TypeError, "the first argument must be callable")
    inner = part_of(cx, function)
    if inner is not None:
        return PartialValue(inner.function, [*inner.args, *args[1:]], {**inner.kwargs, **kwargs})
    return PartialValue(function, args[1:], kwargs)


def part_of(cx: Context, function: Value) -> PartialValue | None:
    """What a partial of another one takes over from it: one that is called as functools.partial is, and has no attributes of its own."""
    if isinstance(function, PartialValue):
        own = function.attributes or function.real is not None and vars(function.real)
        return None if own else function
    if not isinstance(function, PartialObjectValue) or cx.lookup(function.cls, "__call__") is not CALL:
        return None
    if function.real is not None:
        raise unsupported("unknown-function", f"a partial of {function.describe()}")  # whether it has a dict shows only by making one
    return None if any(not function.is_elsewhere(cx, name) for name in function.stored) else function.table


class PartialObjectValue(ObjectValue):
    """An instance of a user class that derives from functools.partial: attributes of an object over a function and arguments. table: those."""

    def __init__(self, cls: type, table: PartialValue, real: Any = None, source: Source | None = None):
        super().__init__(cls, real, source)
        self.table = table

    def read_descriptor(self, cx: Context, raw: Any, name: str) -> Value:
        return self.table.get_attr(cx, raw.__name__) if raw in MEMBERS.values() else super().read_descriptor(cx, raw, name)

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if cx.lookup(self.cls, name) in MEMBERS.values():
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        super().set_attr(cx, name, value)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.table.call(cx, args, kwargs) if cx.lookup(self.cls, "__call__") is CALL else super().call(cx, args, kwargs)

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.table.call(cx, args, kwargs) if name == "__call__" else super().base_method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return [*super().children(), *self.table.children()] if self.source is None else ()

    def rebuild(self, out: Writer) -> None:
        self.table.check_unchanged()
        out.callee(functools.partial.__new__)
        out.const(self.cls)
        self.table.rebuild_parts(out, 1)
        out.remember(self)
        self.rebuild_attributes(out)


def is_partial_class(cls: type) -> bool:
    """User classes whose instances are a partial and attributes, made by partial's own __new__."""
    return (
        issubclass(cls, functools.partial)
        and cls is not functools.partial
        and cls.__new__ is functools.partial.__new__
        and type(cls).__call__ is type.__call__
        and cls.__getattribute__ is functools.partial.__getattribute__
        and (cls.__setattr__ is functools.partial.__setattr__ or isinstance(cls.__setattr__, types.FunctionType))
        and not hasattr(cls, "__del__")
    )


def made_partial_object(cx: Context, cls: type, args: list[Value], kwargs: dict[str, Value]) -> PartialObjectValue:
    return PartialObjectValue(cls, made_partial(cx, args, kwargs))


def wrap_partial_object(cx: Context, real: functools.partial, source: Source) -> Value:
    cls = type(real)
    cx.guard("TYPE", source, cls)
    return PartialObjectValue(cls, partial_of(cx, real, source), real, source)
