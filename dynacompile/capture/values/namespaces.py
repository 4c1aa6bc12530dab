"""Dicts of names: the `__dict__` of an object, of a class or of a module, and `globals()`. What they hold is found, stored and removed where it lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.base import Value, builtin_attribute
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DICT_METHODS, DictLike, DictValue, missing_key, pairs_of
from dynacompile.ir.namespaces import defines

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class NamespaceValue(DictLike):
    """A dict whose entries live elsewhere. A kind says how a name is found, which names there are in which order, and how one is stored and removed."""

    def find_name(self, cx: Context, name: str) -> Value | None:
        raise NotImplementedError(type(self).__name__)

    def names(self, cx: Context) -> list[str]:
        """All names, in order. The entry relies on them."""
        raise NotImplementedError(type(self).__name__)

    def put(self, cx: Context, name: str, value: Value) -> None:
        raise unsupported("mutation", f"{self.describe()}[{name!r}]")

    def drop(self, cx: Context, name: str) -> None:
        """Of a name that is there."""
        raise unsupported("mutation", f"{self.describe()}, from which {name!r} is removed,")

    # as a dict

    def find(self, cx: Context, key: Value) -> Value | None:
        name = key.constant()
        return self.find_name(cx, name) if isinstance(name, str) else None

    def keys(self, cx: Context) -> list[Hashable]:
        return list(self.names(cx))

    def key_at(self, cx: Context, hashed: Hashable) -> Value | None:
        return ConstantValue(hashed) if hashed in self.names(cx) else None

    def at(self, cx: Context, hashed: Hashable) -> Value:
        found = self.find_name(cx, str(hashed))
        assert found is not None
        return found

    def get_item(self, cx: Context, key: Value) -> Value:
        found = self.find(cx, key)
        if found is None:
            raise missing_key(key)
        return found

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        name = key.constant()
        if not isinstance(name, str):
            raise unsupported("mutation", f"{self.describe()}[{name!r}]")
        self.put(cx, name, value)

    def del_item(self, cx: Context, key: Value) -> None:
        if self.find(cx, key) is None:
            raise missing_key(key)
        self.drop(cx, key.constant())

    def get_attr(self, cx: Context, name: str) -> Value:
        if name != "__class__" and not defines(self.cls, name):
            raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
        return builtin_attribute(cx, self, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = NAMESPACE_METHODS.get(name) or DICT_METHODS.get(name)
        return super().method(cx, name, args, kwargs) if row is None else row(cx, self, args, kwargs)


def dict_copy(cx: Context, self: NamespaceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictValue.of(pairs_of(cx, self))


def dict_clear(cx: Context, self: NamespaceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for name in self.names(cx):
        self.drop(cx, name)
    return ConstantValue(None)


NAMESPACE_METHODS: dict[str, Callable[..., Value]] = {"copy": dict_copy, "clear": dict_clear}
