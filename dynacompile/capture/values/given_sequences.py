"""Lists and tuples that exist before the frame, and of which less may be read than all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.values.base import Lazy, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.ir.source import Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class GivenList(ListValue):
    """A list that exists before the frame. Its length is a fact that is read with the first item; what only appends to it, reads nothing."""

    def __init__(self, cx: Context, real: list, source: Source):
        self.cx, self.real, self.source = cx, real, source
        self.read: list[Value] | None = None
        self.added: list[Value] = []

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self.read is None:
            self.cx.guard("LENGTH", self.source, len(self.real))
            self.read = [Lazy(self.cx, item, Item(self.source, i)) for i, item in enumerate(self.real)] + self.added
        return self.read

    @items.setter
    def items(self, items: list[Value]) -> None:
        self.read = items

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name != "append" or len(args) != 1 or kwargs or self.read is not None:
            return super().method(cx, name, args, kwargs)
        cx.effects.touch(self)
        self.added.append(args[0])
        return ConstantValue(None)

    def replay_values(self) -> Sequence[Value]:
        return self.added if self.read is None else self.read

    def replay(self, out: Writer) -> None:
        if self.read is not None:
            super().replay(out)
            return
        for item in self.added:
            out.value(self)
            out.load_method("append")
            out.value(item)
            out.call(1)
            out.emit("POP_TOP")


class GivenTuple(TupleValue):
    """A tuple that exists before the frame. Its length is read with the first item; who asks for its class, or passes it on, reads neither."""

    def __init__(self, cx: Context, real: tuple, source: Source):
        self.cx, self.real, self.cls, self.source = cx, real, tuple, source
        self.read: list[Value] | None = None

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        if self.read is None:
            self.cx.guard("LENGTH", self.source, len(self.real))
            self.read = [Lazy(self.cx, item, Item(self.source, i)) for i, item in enumerate(self.real)]  # type: ignore[arg-type]
        return self.read


@wraps(list)
def wrap_list(cx: Context, real: list, source: Source) -> Value:
    cx.guard("TYPE", source, list)
    return GivenList(cx, real, source)


@wraps(tuple)
def wrap_tuple(cx: Context, real: tuple, source: Source) -> Value:
    cx.guard("TYPE", source, tuple)
    return GivenTuple(cx, real, source)
