"""weakref.ref."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.bytecode import is_resume
from dynacompile.capture.values.base import IteratorValue, Lazy, Value, wraps
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Applied, Local, Referent, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Reference(Value):
    """What weak references share: two of one object are equal, and one object where neither has a callback."""

    def pytype(self) -> type:
        return weakref.ref

    def target(self, cx: Context) -> Value:
        """What it refers to."""
        raise NotImplementedError(type(self).__name__)

    def identity(self) -> Any:
        raise unsupported("unknown-object", "a weak reference that is compared by identity, or a key,")

    def truth(self, cx: Context) -> bool:
        return True

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise unsupported("would-raise", "a weak reference takes no arguments")
        return self.target(cx)

    def equals(self, cx: Context, other: Value) -> bool:
        if not isinstance(other, Reference):
            return False
        mine, theirs = self.target(cx), other.target(cx)
        return mine is theirs or cx.equal(mine, theirs)

    def is_same(self, cx: Context, other: Value) -> bool:
        return isinstance(other, Reference) and self.target(cx) is other.target(cx)


class GivenVariables:
    """What a frame that goes on after a break has in its variables, by id: an object may live by such a variable alone."""

    def __init__(self) -> None:
        self.ids: set[int] = set()


class WeakReference(Reference):
    """A weakref; pinned by identity. The entry does not keep alive what it refers to."""

    def __init__(self, real: weakref.ref, source: Source):
        self.real, self.source = real, source

    def target(self, cx: Context) -> Value:
        target = self.real()
        if target is None or type(self.real) is not weakref.ref or self.real.__callback__ is not None:
            raise unsupported("unknown-object", f"what {self.source.text()} refers to")
        found = cx.known_value(target)
        if id(target) in cx.state(GivenVariables).ids and not any(
            isinstance(value, Lazy) and value.real is target or value is not None and value is found
            for frame in cx.frames
            for value in (*frame.slots, *frame.stack)
        ):
            raise unsupported("lifetime", f"what {self.source.text()} refers to")
        if found is None:
            return cx.wrap(target, Referent(self.source))
        cx.guard("ID", found.source, identity(target))
        return found


class MadeReference(Reference):
    """A weakref that the frame made: its target lives as long as the frame, or as one of its variables."""

    def __init__(self, owner: Value):
        self.owner = owner

    def target(self, cx: Context) -> Value:
        held = [value for frame in cx.frames for value in (*frame.slots, *frame.stack)]
        if may_end(cx, self.owner) and all(value is not self.owner and not is_variable(value, self.owner) for value in held):
            raise unsupported("lifetime", "what a weak reference to an object of the frame refers to")
        return self.owner

    def referred(self) -> Value:
        return self.owner

    def rebuild(self, out: Writer) -> None:
        if self.owner.source is not None or self.owner in out.uses:
            out.call_function(weakref.ref, [self.owner])
        elif holds_itself(self.owner):
            raise unsupported("rebuild", "a weak reference to an object that only the garbage collector ends")
        else:  # nothing that the program has holds the object: it is gone when the graph ends
            out.call_function(reference_to_nothing, [])


class Nothing:
    """What a weak reference referred to, which is gone."""


def reference_to_nothing() -> weakref.ref:
    return weakref.ref(Nothing())


def holds_itself(value: Value) -> bool:
    seen: set[Value] = set()
    work = list(value.children())
    while work:
        part = work.pop()
        if part not in seen:
            seen.add(part)
            work.extend(part.children())
    return value in seen


class MadeReferences:
    """Weak references that the frame made, by what they refer to, which has one."""

    def __init__(self) -> None:
        self.by_target: dict[Value, MadeReference] = {}


class WeakProxy(Value):
    """weakref.proxy(owner): what is asked of it, its owner answers."""

    def __init__(self, owner: Value, source: Source, cls: type):
        self.owner, self.source, self.cls = owner, source, cls

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Context) -> bool:
        return self.owner.truth(cx)

    def length(self, cx: Context) -> int:
        return self.owner.length(cx)

    def get_attr(self, cx: Context, name: str) -> Value:
        return self.owner.get_attr(cx, name)

    def computes(self, cx: Context, name: str) -> bool:
        return self.owner.computes(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return self.owner.has_attr(cx, name)

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        self.owner.set_attr(cx, name, value)

    def del_attr(self, cx: Context, name: str) -> None:
        self.owner.del_attr(cx, name)

    def get_item(self, cx: Context, key: Value) -> Value:
        return self.owner.get_item(cx, key)

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        self.owner.set_item(cx, key, value)

    def contains(self, cx: Context, item: Value) -> Value:
        return self.owner.contains(cx, item)

    def iterate(self, cx: Context) -> IteratorValue:
        return self.owner.iterate(cx)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.call(cx, args, kwargs)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.method(cx, name, args, kwargs)


def owner_of(proxy: Any) -> Any:
    """What a weak proxy stands for: methods are bound to that."""
    return proxy.__str__.__self__


@wraps(weakref.ProxyType, weakref.CallableProxyType)
def wrap_proxy(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    try:
        owner = owner_of(real)
    except ReferenceError as gone:
        raise unsupported("unknown-object", f"{source.text()}, a weak proxy of what is gone,") from gone
    return WeakProxy(cx.wrap(owner, Applied(source, owner_of, "'s object")), source, type(real))


# Containers from which entries vanish: what they hold when capture looks says nothing about the next call.
WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, WeakIdKeyDictionary)


@wraps(weakref.ref)
def wrap_reference(cx: Context, real: weakref.ref, source: Source) -> Value:
    if real.__callback__ is not None:  # an entry would keep it alive, and so have the callback called
        cx.guard("TYPE", source, type(real))
        return RefusedValue(real, "unknown-object", source, f"{source.text()}, a weak reference with a callback,")
    cx.guard("ID", source, identity(real))
    return WeakReference(real, source)


def is_variable(value: Value | None, owner: Value) -> bool:
    """Whether a variable that was not read yet is where `owner` was found."""
    return isinstance(value, Lazy) and value.source is not None and value.source == owner.source


def may_end(cx: Context, owner: Value) -> bool:
    """Whether an object may live by a variable of the frame alone, which residual code lets go of earlier than Python."""
    return owner.source is None or isinstance(owner.source, Local) and is_resume(cx.frames[0].code)


@handles(weakref.proxy)
def row_proxy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("lifetime" if args and may_end(cx, args[0]) else "unknown-function", "what a weak proxy stands for")


@handles(weakref.ref)
def row_reference(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("lifetime" if args and may_end(cx, args[0]) else "unknown-function", "what a weak reference with a callback refers to")
    if not args[0].pytype().__weakrefoffset__:
        raise unsupported("would-raise", f"a weak reference to {args[0].describe()}")
    return cx.state(MadeReferences).by_target.setdefault(args[0], MadeReference(args[0]))
