"""types.MappingProxyType: a mapping that can only be read."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import IteratorValue, Value, builtin_attribute, wraps
from dynacompile.capture.values.rows import handles
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import defines
from dynacompile.ir.source import Attr, Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

READS = frozenset("get keys values items copy __getitem__ __contains__ __len__ __iter__ __or__ __reversed__".split())


class ProxyValue(Value):
    """owner: the mapping that it shows."""

    def __init__(self, owner: Value, source: Source | None = None):
        self.owner, self.source = owner, source

    def pytype(self) -> type:
        return types.MappingProxyType

    def truth(self, cx: Context) -> bool:
        return self.owner.truth(cx)

    def length(self, cx: Context) -> int:
        return self.owner.length(cx)

    def get_item(self, cx: Context, key: Value) -> Value:
        return self.owner.get_item(cx, key)

    def contains(self, cx: Context, item: Value) -> Value:
        return self.owner.contains(cx, item)

    def iterate(self, cx: Context) -> IteratorValue:
        return self.owner.iterate(cx)

    def get_attr(self, cx: Context, name: str) -> Value:
        if not self.has_attr(cx, name):
            raise raises(AttributeError, f"'mappingproxy' object has no attribute {name!r}")
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(types.MappingProxyType, name)

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        raise raises(TypeError, "'mappingproxy' object does not support item assignment")

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.owner.method(cx, name, args, kwargs) if name in READS else super().method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.call_function(types.MappingProxyType, [self.owner])


class Shown:
    """Holds the mapping of a proxy, to which no attribute of the proxy leads, so that guards can."""

    def __init__(self, mapping: object):
        self.mapping = mapping


@wraps(types.MappingProxyType)
def wrap_proxy(cx: Context, real: types.MappingProxyType, source: Source) -> Value:
    (mapping,) = gc.get_referents(real)
    cx.guard("ID", source, identity(real))
    return ProxyValue(cx.wrap(mapping, Attr(Constant(Shown(mapping), source.text()), "mapping")), source)


@handles(types.MappingProxyType)
def row_proxy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (mapping,) = args
    if not issubclass(mapping.pytype(), dict):
        raise unsupported("unknown-function", f"a mappingproxy of {mapping.describe()}")
    return ProxyValue(mapping)
