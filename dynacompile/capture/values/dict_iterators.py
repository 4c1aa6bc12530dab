"""Iteration over a dict: sees later changes of values, and refuses later changes of the size, as Python's does."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Entries(Value):
    """What a dict iterator asks of a dict, wherever its entries live. A key stands for an entry as `mapping.key_of` gives it."""

    cls: type = dict

    def keys(self, cx: Context) -> list[Hashable]:
        """All keys, in order. The entry relies on them."""
        raise NotImplementedError(type(self).__name__)

    def key_at(self, cx: Context, hashed: Hashable) -> Value | None:
        """The key of an entry; None where it is not there any more. Its value is not read."""
        raise NotImplementedError(type(self).__name__)

    def at(self, cx: Context, hashed: Hashable) -> Value:
        """The value of an entry that is there."""
        raise NotImplementedError(type(self).__name__)

    def size(self, cx: Context) -> int:
        """How many entries there are, which the entry relies on."""
        raise NotImplementedError(type(self).__name__)


class DictIterator(IteratorValue):
    """kind: keys, values or items of the dict."""

    def __init__(self, cx: Context, owner: Entries, kind: str):
        self.owner, self.kind = owner, kind
        self.hashes = owner.keys(cx)
        self.index = 0
        self.done = False

    def pytype(self) -> type:
        return type(iter(getattr(self.owner.cls(), self.kind)()))

    def remaining(self) -> int | None:
        return 0 if self.done else len(self.hashes) - self.index

    def next(self, cx: Context) -> Value | None:
        if self.done:
            return None
        if self.owner.size(cx) != len(self.hashes):
            raise raises(RuntimeError, self.refusal("changed size"))
        if getattr(self.owner, "reordered", False) and list(self.owner.keys(cx)) != self.hashes:
            raise unsupported("would-raise", self.refusal("keys changed"))
        if self.index == len(self.hashes):
            self.done = True
            return None
        hashed = self.hashes[self.index]
        self.index += 1
        key = self.owner.key_at(cx, hashed)
        if key is None:
            raise unsupported("would-raise", self.refusal("keys changed"))
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

    def rebuild(self, out: Writer) -> None:
        content = getattr(self.owner, "content", None)  # of a dict whose entries live in itself
        if not self.done and (content is None or list(content) != self.hashes):
            raise unsupported("rebuild", f"an iterator of {self.owner.describe()}, or of a dict that was changed,")
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
