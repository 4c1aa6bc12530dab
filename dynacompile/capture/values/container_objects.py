"""Instances of user classes that derive from a builtin container: attributes of an object over what the container holds."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, ClassVar

from dynacompile.capture.values.answers import answered
from dynacompile.capture.values.base import Method, Value
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)


class ContainerObjectValue(ObjectValue):
    """table: what it holds, as the methods of `container` see it; methods that the class defines in Python come first."""

    container: ClassVar[type]

    def __init__(self, cls: type, table: Any, real: Any = None, source: Source | None = None):
        super().__init__(cls, real, source)
        self.table = table

    def container_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """container.name(self, ...)."""
        raise NotImplementedError

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        own = getattr(self.container, name, None) is not getattr(object, name, None)
        return self.container_method(cx, name, args, kwargs) if own or name == "__init__" else super().base_method(cx, name, args, kwargs)

    def lookup(self, cx: Context, name: str) -> Value | None:
        own = name in self.stored or name in self.own_dict()
        if not own and isinstance(cx.lookup(self.cls, name), C_METHODS) and hasattr(self.container, name):
            return Method(self, name)
        return super().lookup(cx, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, name, args, kwargs)
        return self.container_method(cx, name, args, kwargs) if result is None else result

    def get_item(self, cx: Context, key: Value) -> Value:
        return self.method(cx, "__getitem__", [key], {})

    def contains(self, cx: Context, item: Value) -> Value:
        return self.method(cx, "__contains__", [item], {})

    def length(self, cx: Context) -> int:
        return answered("__len__", self.method(cx, "__len__", [], {})).constant()

    def truth(self, cx: Context) -> bool:
        found = self.special(cx, "__bool__", [])
        return self.length(cx) > 0 if found is None else answered("__bool__", found).truth(cx)
