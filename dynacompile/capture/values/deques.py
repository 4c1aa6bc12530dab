"""collections.deque."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace

SHARED = ("pop", "clear", "reverse", "remove", "index", "count", "__len__", "__getitem__", "__contains__", "__iter__")  # with list


class DequeValue(ListValue):
    """A deque; when it is full, what is added at one end pushes out an item at the other."""

    cls = collections.deque

    def __init__(self, items: list[Value], maxlen: int | None):
        super().__init__([])
        self.maxlen = maxlen
        for item in items:
            self.add(item, False)

    def add(self, item: Value, left: bool) -> None:
        self.items.insert(0 if left else len(self.items), item)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[-1 if left else 0]

    def get_item(self, cx: Trace, key: Value) -> Value:
        if isinstance(key, SliceValue):
            raise raises(TypeError, "sequence index must be integer, not 'slice'")
        return super().get_item(cx, key)

    def get_attr(self, cx: Trace, name: str) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().get_attr(cx, name)

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant("deque")

    def like(self, items: object) -> Value:
        raise unsupported("unknown-operation", "an operator on a deque")

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("append", "appendleft") and len(args) == 1 and not kwargs:
            self.add(args[0], name == "appendleft")
        elif name in ("extend", "extendleft") and len(args) == 1 and not kwargs:
            for item in args[0].elements(cx):
                self.add(item, name == "extendleft")
        elif name == "popleft" and not args:
            if not self.items:
                raise raises(IndexError, "pop from an empty deque")
            item = self.at(cx, 0)
            del self.items[0]
            return item
        elif name == "rotate" and not kwargs:
            by = args[0].constant() % len(self.items) if args and self.items else min(1, len(self.items))
            self.items = self.items[-by:] + self.items[:-by] if by else self.items
        elif name == "copy" and not args:
            return DequeValue(self.items, self.maxlen)
        elif name in SHARED and not (name == "pop" and (args or not self.items)):
            return super().method(cx, name, args, kwargs)
        else:
            raise unsupported("unknown-operation", f"deque.{name}()")
        return ConstantValue(None)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(collections.deque)
        super().rebuild(out)
        out.const(self.maxlen)
        out.call(2)


@handles(collections.deque)
def row_deque(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, maxlen = bind_arguments("deque", ["iterable", "maxlen"], args, kwargs, {"iterable": TupleValue([]), "maxlen": ConstantValue(None)})
    return DequeValue(iterable.elements(cx), maxlen.constant())
