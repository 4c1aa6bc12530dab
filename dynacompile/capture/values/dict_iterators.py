"""Iteration over a dict: sees later changes of values, and refuses later changes of the size, as Python's does."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value, stepped
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Entries(Value):
    """What a dict iterator asks of a dict, wherever its entries live. A key stands for an entry as `mapping.key_of` gives it."""

    cls: type = dict
    deletions = 0  # how often an entry was deleted, or moved

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
    """kind: keys, values or items of the dict. backward: as reversed() gives them. holder: the object that has the entries. deletions: of entries, as the dict
    counted them when the iterator was made: an entry that was deleted and stored again is at another place."""

    def __init__(self, cx: Context, owner: Entries, kind: str, holder: Value | None = None, backward: bool = False):
        self.owner, self.kind, self.backward = owner, kind, backward
        self.holder = owner if holder is None else holder
        self.hashes = owner.keys(cx)[::-1] if backward else owner.keys(cx)
        self.deletions = owner.deletions
        self.index = 0
        self.done = False

    def pytype(self) -> type:
        return type((reversed if self.backward else iter)(getattr(self.owner.cls(), self.kind)()))

    def remaining(self) -> int | None:
        return 0 if self.done else len(self.hashes) - self.index

    def next(self, cx: Context) -> Value | None:
        if self.done:
            return None
        if self.owner.size(cx) != len(self.hashes):
            raise raises(RuntimeError, self.refusal("changed size"))
        if self.has_moved(cx):
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

    def has_moved(self, cx: Context) -> bool:
        """Whether entries may be at other places than they were."""
        if self.owner.deletions != self.deletions:
            return True
        return getattr(self.owner, "reordered", False) and list(self.owner.keys(cx)) != (self.hashes[::-1] if self.backward else self.hashes)

    def refusal(self, what: str) -> str:
        name = "OrderedDict" if self.owner.cls.__name__ == "OrderedDict" else "dictionary"
        if name == "OrderedDict":
            raise unsupported("would-raise", "OrderedDict mutated during iteration")
        return f"{name} {what} during iteration"

    def children(self) -> Sequence[Value]:
        return () if self.done else (self.holder,)

    def rebuild(self, out: Writer) -> None:
        if self.done:
            out.callee(stepped)
            out.callee(reversed if self.backward else iter)
            out.callee(getattr(self.owner.cls, self.kind))
            out.callee(self.owner.cls)
            for count in (0, 1, 1):
                out.call(count)
            out.const(1)
            out.call(2)
            return
        content = getattr(self.owner, "content", None)  # of a dict whose entries live in itself
        order = self.hashes[::-1] if self.backward else self.hashes
        if content is None or list(content) != order or self.owner.deletions != self.deletions:
            raise unsupported("rebuild", f"an iterator of {self.owner.describe()}, or of a dict that was changed,")
        out.callee(stepped)
        out.callee(reversed if self.backward else iter)
        out.callee(getattr(self.owner.cls, self.kind))
        out.value(self.holder)
        out.call(1)
        out.call(1)
        out.const(self.index)
        out.call(2)
