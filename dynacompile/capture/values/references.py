"""weakref.ref."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.weak import WeakIdKeyDictionary

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.rows import handles
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Referent, Source

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace


class WeakReference(Value):
    """A weakref; pinned by identity. The entry does not keep alive what it refers to."""

    def __init__(self, real: weakref.ref, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return weakref.ref

    def identity(self) -> Any:
        raise unsupported("unknown-object", "a weak reference that is compared, or a key,")

    def truth(self, cx: Trace) -> bool:
        return True

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        target = self.real()
        if target is None or args or kwargs or type(self.real) is not weakref.ref:
            raise unsupported("unknown-object", f"what {self.source.text()} refers to")
        found = cx.known.get(id(target))
        if found is None:
            return cx.wrap(target, Referent(self.source))
        cx.guard("ID", found.source, identity(target))
        return found


class MadeReference(Value):
    """A weakref that the frame made: its target lives as long as the frame."""

    def __init__(self, target: Value):
        self.target = target

    def pytype(self) -> type:
        return weakref.ref

    def identity(self) -> Any:
        raise unsupported("unknown-object", "a weak reference that is compared, or a key,")

    def truth(self, cx: Trace) -> bool:
        return True

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.target.source is None:
            raise unsupported("unknown-object", "what a weak reference to an object of the frame refers to")  # it may be gone by now
        return self.target

    def children(self) -> Sequence[Value]:
        return (self.target,)

    def rebuild(self, out: Builder) -> None:
        out.call_function(weakref.ref, [self.target])


# Containers from which entries vanish: what they hold when capture looks says nothing about the next call.
WEAK_CONTAINERS = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet, WeakIdKeyDictionary)


@handles(*WEAK_CONTAINERS)
def row_weak(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise unsupported("unknown-function", "making a weak container")


@wraps(weakref.ref)
def wrap_reference(cx: Trace, real: weakref.ref, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return WeakReference(real, source)


@handles(weakref.ref)
def row_reference(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("unknown-function", "a weak reference with a callback")
    return MadeReference(args[0])
