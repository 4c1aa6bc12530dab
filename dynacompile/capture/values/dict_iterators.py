"""Iteration over a dict: sees later changes of values, and refuses later changes of the size, as Python's does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace
    from dynacompile.capture.values.mapping import DictValue


class DictIterator(IteratorValue):
    """kind: keys, values or items of the dict."""

    def __init__(self, cx: Trace, owner: DictValue, kind: str):
        self.owner, self.kind = owner, kind
        self.hashes = owner.keys(cx)
        self.index = 0
        self.done = False

    def pytype(self) -> type:
        return type(iter(getattr(self.owner.cls(), self.kind)()))

    def remaining(self) -> int | None:
        return 0 if self.done else len(self.hashes) - self.index

    def next(self, cx: Trace) -> Value | None:
        if self.done:
            return None
        if len(self.owner.content) != len(self.hashes):
            raise raises(RuntimeError, self.refusal("changed size"))
        if self.index == len(self.hashes):
            self.done = True
            return None
        hashed = self.hashes[self.index]
        self.index += 1
        if hashed not in self.owner.content:
            raise unsupported("would-raise", self.refusal("keys changed"))
        key = self.owner.content[hashed][0]
        if self.kind == "keys":
            return key
        value = self.owner.at(cx, hashed)
        return value if self.kind == "values" else TupleValue([key, value])

    def refusal(self, what: str) -> str:
        name = "OrderedDict" if self.owner.cls.__name__ == "OrderedDict" else "dictionary"
        if name == "OrderedDict":
            raise unsupported("would-raise", "OrderedDict mutated during iteration")
        return f"{name} {what} during iteration"

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Builder) -> None:
        if not self.done and list(self.owner.content) != self.hashes:
            raise unsupported("rebuild", "an iterator of a dict that was changed")
        out.callee(advanced)
        out.value(self.owner)
        out.const(self.kind)
        out.const(len(self.hashes) + 1 if self.done else self.index)
        out.const(len(self.hashes))
        out.call(4)


def advanced(owner: Any, kind: str, count: int, size: int) -> Iterator[Any]:
    """An iterator of owner.keys(), .values() or .items(), made when there were `size` of them, that was asked `count` times."""
    if len(owner) != size and count <= size:
        return outdated()
    view: Iterable[Any] = getattr(owner, kind)()
    iterator = iter(view)
    for _ in range(count):
        next(iterator, None)
    return iterator


def outdated() -> Iterator[Any]:
    raise RuntimeError("dictionary changed size during iteration")
    yield
