"""functools.partial."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.namespaces import defines
from dynacompile.ir.source import Attr, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


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
        out.value(self.function)
        for arg in (*self.args, *self.kwargs.values()):
            out.value(arg)
        out.call(1 + len(self.args) + len(self.kwargs), tuple(self.kwargs))
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)


@wraps(functools.partial)
def wrap_partial(cx: Context, real: functools.partial, source: Source) -> Value:
    cx.guard("TYPE", source, functools.partial)
    cx.guard("LENGTH", Attr(source, "args"), len(real.args))
    cx.guard("DICT_KEYS", Attr(source, "keywords"), tuple(real.keywords))
    args: list[Value] = [cx.wrap(a, Item(Attr(source, "args"), i)) for i, a in enumerate(real.args)]
    kwargs = {k: cx.wrap(v, Item(Attr(source, "keywords"), k)) for k, v in real.keywords.items()}
    return PartialValue(cx.wrap(real.func, Attr(source, "func")), args, kwargs, source, real)


@handles(functools.partial)
def row_partial(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function = args[0]
    if not defines(function.pytype(), "__call__"):
        raise raises(TypeError, "the first argument must be callable")
    if isinstance(function, PartialValue):
        return PartialValue(function.function, [*function.args, *args[1:]], {**function.kwargs, **kwargs})
    return PartialValue(function, args[1:], kwargs)
