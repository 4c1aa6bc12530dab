"""Sets that the frame makes. A set that exists before has no guard for its content and is not modelled."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import key_of
from dynacompile.capture.values.sequence import SequenceIterator, TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class SetValue(Value):
    """content: key -> element. Iteration runs in insertion order, so it is refused where Python's order is another: see `elements`."""

    def __init__(self, elements: Sequence[Value]):
        self.content: dict[Hashable, Value] = {}
        for element in elements:
            self.content.setdefault(key_of(element), element)

    def pytype(self) -> type:
        return set

    def truth(self, cx: Trace) -> bool:
        return bool(self.content)

    def length(self, cx: Trace) -> int:
        return len(self.content)

    def contains(self, cx: Trace, item: Value) -> Value:
        return ConstantValue(key_of(item) in self.content)

    def elements(self, cx: Trace) -> list[Value]:
        """Elements in the order that Python's set would give, known for constants only."""
        if len(self.content) <= 1:
            return list(self.content.values())
        if any(isinstance(key, Value) for key in self.content):
            raise unsupported("unknown-operation", "iteration over a set of objects")
        if any(isinstance(key, (str, bytes)) for key in self.content):
            raise unsupported("unknown-operation", "iteration over a set of strings (its order is random)")
        ordered = set()
        for key in self.content:
            ordered.add(key)
        return [self.content[key] for key in ordered]

    def iterate(self, cx: Trace) -> IteratorValue:
        return SequenceIterator(TupleValue(self.elements(cx)))

    def get_attr(self, cx: Trace, name: str) -> Value:
        if not hasattr(set, name):
            raise unsupported("would-raise", f"'set' object has no attribute {name!r}")
        return Method(self, name)

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "add" and len(args) == 1:
            self.content.setdefault(key_of(args[0]), args[0])
        elif name == "discard" and len(args) == 1:
            self.content.pop(key_of(args[0]), None)
        elif name == "remove" and len(args) == 1 and key_of(args[0]) in self.content:
            del self.content[key_of(args[0])]
        elif name == "update":
            for other in args:
                for element in other.elements(cx) if not isinstance(other, SetValue) else list(other.content.values()):
                    self.content.setdefault(key_of(element), element)
        elif name == "clear":
            self.content.clear()
        elif name in ("union", "__or__"):
            merged = SetValue(list(self.content.values()))
            merged.method(cx, "update", args, {})
            return merged
        elif name == "copy":
            return SetValue(list(self.content.values()))
        elif name in ("difference", "__sub__", "intersection", "__and__") and len(args) == 1:
            other = SetValue(args[0].elements(cx)) if not isinstance(args[0], SetValue) else args[0]
            keep = name in ("intersection", "__and__")
            return SetValue([v for k, v in self.content.items() if (k in other.content) == keep])
        else:
            raise unsupported("unknown-operation", f"set.{name}()")
        return ConstantValue(None)

    def children(self) -> Sequence[Value]:
        return list(self.content.values())

    def rebuild(self, out: Builder) -> None:
        for element in self.content.values():
            out.value(element)
        out.emit("BUILD_SET", len(self.content))
