"""What objects of user classes lead to: their iterators, their `__dict__`, and object's own way to attributes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.values.base import IteratorValue, Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.namespaces import NamespaceValue
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

DELETED = object()  # an attribute that the frame deleted


class DictOwner(Value):
    """An object with a `__dict__`. stored: attributes that the frame has set there, or deleted. removed: those of them that it deleted, and whether it had
    set them before that."""

    stored: dict[str, Any]
    removed: dict[str, bool]

    def own_dict(self) -> dict[str, Any]:
        """Its `__dict__` as it was before the frame."""
        raise NotImplementedError(type(self).__name__)

    def dict_source(self) -> Source:
        raise NotImplementedError(type(self).__name__)

    def own_attribute(self, cx: Context, name: str) -> Value | None:
        """What the __dict__ has under a name; None where it has nothing, which is not guarded."""
        raise NotImplementedError(type(self).__name__)

    def put_own(self, cx: Context, name: str, value: Value) -> None:
        raise NotImplementedError(type(self).__name__)

    def drop_own(self, cx: Context, name: str) -> None:
        raise NotImplementedError(type(self).__name__)

    def is_elsewhere(self, cx: Context, name: str) -> bool:
        """Whether an entry is not what the attribute of that name is."""
        raise NotImplementedError(type(self).__name__)


class Instance(DictOwner):
    """An object of a user's class."""

    cls: type

    def told_length(self, cx: Context, name: str) -> bool:
        """Whether a method that tells a length is there; it is called."""
        raise NotImplementedError(type(self).__name__)


class ObjectIterator(IteratorValue):
    """An iterator of a user's class."""

    def __init__(self, owner: Instance):
        self.owner = owner
        self.end: Raised | None = None

    def pytype(self) -> type:
        return self.owner.cls

    def next(self, cx: Context) -> Value | None:
        def following() -> Value:
            try:
                return self.owner.method(cx, "__next__", [], {})
            except Raised as reason:
                self.end = reason
                raise

        return cx.unless_missing(following, StopIteration)

    def result(self, cx: Context) -> Value | None:
        if self.end is None or self.end.value is not None:
            return None if self.end is None else self.end.value.get_attr(cx, "value")
        if self.end.args_ is None:
            raise unsupported("generator", f"what {self.owner.describe()} ends with is not known")
        return cx.of(self.end.args_[0]) if self.end.args_ else None

    def get_attr(self, cx: Context, name: str) -> Value:
        return self.owner.get_attr(cx, name)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)


class ItemIterator(IteratorValue):
    """Iterates an object that has __getitem__ alone."""

    def __init__(self, owner: Instance):
        self.owner, self.index, self.done = owner, 0, False

    def pytype(self) -> type:
        return type(iter(type("Sequence", (), {"__getitem__": None})()))

    def next(self, cx: Context) -> Value | None:
        if self.done:
            return None
        found = cx.unless_missing(lambda: self.owner.method(cx, "__getitem__", [ConstantValue(self.index)], {}), (IndexError, StopIteration))
        self.done = found is None
        self.index += 1  # what raises is asked for again
        return found

    def listed(self, cx: Context) -> list[Value]:
        self.foretell(cx)
        return self.elements(cx)

    def foretell(self, cx: Context) -> None:
        self.owner.told_length(cx, "__len__")


class InstanceDict(NamespaceValue):
    """object.__dict__: the attributes of an object, past its class."""

    def __init__(self, owner: DictOwner):
        self.owner = owner

    def describe(self) -> str:
        return f"{self.owner.describe()}.__dict__"

    def find_name(self, cx: Context, name: str) -> Value | None:
        found = self.owner.own_attribute(cx, name)
        if found is None and self.owner.source is not None and name not in self.owner.stored:
            cx.guard("DICT_CONTAINS", self.owner.dict_source(), Presence(name, False))
        return found

    def names(self, cx: Context) -> list[str]:
        owner = self.owner
        if owner.source is not None:
            cx.guard("DICT_KEYS", owner.dict_source(), tuple(owner.own_dict()))
        stays = (n for n in owner.own_dict() if n not in owner.removed)  # what was removed and stored again comes last
        names = [n for n in dict.fromkeys((*stays, *owner.stored)) if owner.stored.get(n) is not DELETED]
        return [n for n in names if not owner.is_elsewhere(cx, n)]

    def put(self, cx: Context, name: str, value: Value) -> None:
        self.owner.put_own(cx, name, value)

    def drop(self, cx: Context, name: str) -> None:
        self.owner.drop_own(cx, name)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)
        out.load_attr("__dict__")


DICTS: weakref.WeakValueDictionary[int, InstanceDict] = weakref.WeakValueDictionary()  # by the id of their owners, which they hold


def instance_dict_of(owner: DictOwner) -> InstanceDict:
    """The same one, as long as somebody has it. The owner does not hold it: a circle of the two would keep the object itself alive."""
    found = DICTS.get(id(owner))
    if found is None:
        found = DICTS[id(owner)] = InstanceDict(owner)
    return found


def instance_dict(real: Any) -> dict[str, Any]:
    """real.__dict__ without running code of its class; empty where it has none."""
    try:
        found = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}
