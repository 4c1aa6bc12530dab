"""Python modules as values: `torch`, `math`, a user's `config` module."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from torch.utils import deterministic

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import is_constant_object
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import Presence, identity
from dynacompile.ir.namespaces import class_lookup
from dynacompile.ir.source import Attr, Constant, DictAttr, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class PythonModuleValue(Value):
    def __init__(self, real: types.ModuleType, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"module {self.real.__name__}"

    def pytype(self) -> type:
        return types.ModuleType

    def identity(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if isinstance(found := cx.lookup(type(self.real), name), property) and self.real is deterministic and found.fget is not None:
            return cx.call_real(found.fget, Constant(found.fget, name), [self])  # type: ignore[arg-type]
        if is_trusted(self.real.__name__):
            if not hasattr(self.real, name):
                raise unsupported("would-raise", f"module {self.real.__name__!r} has no attribute {name!r}")
            found = getattr(self.real, name)
            if name not in self.real.__dict__ and is_constant_object(found):
                return cx.flag(f"{self.real.__name__}.{name}", functools.partial(getattr, self.real, name))
            if name in self.real.__dict__ and (not isinstance(self.source, Constant) or is_put_there(found, name, self.real)):
                return cx.wrap(found, DictAttr(self.source, name))
            if name in self.real.__dict__:
                cx.names.of_dict(self.real.__dict__, self.real.__name__, name)
            return cx.wrap(found, Constant(found, f"{self.real.__name__}.{name}"))
        if name not in self.real.__dict__ or not self.is_plain(cx, name):
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        return cx.global_of(self.real.__dict__, name, lambda: cx.wrap(self.real.__dict__[name], DictAttr(self.source, name)))

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        found = cx.lookup(type(self.real), name)
        if not isinstance(found, property) or self.real is not deterministic or found.fset is None:
            return super().set_attr(cx, name, value)
        cx.call_real(found.fset, Constant(found.fset, name), [self, value])  # type: ignore[arg-type]

    def is_plain(self, cx: Context, name: str) -> bool:
        """Whether no code of a subclass of modules decides about an attribute."""
        own = any(isinstance(cx.lookup(type(self.real), hook), types.FunctionType) for hook in ("__getattr__", "__getattribute__"))
        return not own and not hasattr(type(cx.lookup(type(self.real), name)), "__get__")

    def has_attr(self, cx: Context, name: str) -> bool:
        if not is_trusted(self.real.__name__):
            if name not in self.real.__dict__ and ("__getattr__" in self.real.__dict__ or not self.is_plain(cx, name)):
                raise unsupported("unknown-attribute", f"hasattr({self.describe()}, {name!r})")
            cx.guard("HASATTR", self.source, Presence(name, hasattr(self.real, name)))
            if name not in self.real.__dict__:
                cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence("__getattr__", False))
        return hasattr(self.real, name)


@wraps(types.ModuleType)
def wrap_python_module(cx: Context, real: types.ModuleType, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    if class_lookup(type(real), "__getattribute__") is not types.ModuleType.__getattribute__:
        return RefusedValue(real, "unknown-object", source, f"{source.text()}, a module whose class reads attributes of its own,")
    return PythonModuleValue(real, source)


def is_put_there(found: object, name: str, module: types.ModuleType) -> bool:
    """Whether a closure stands in a module in the place of a function of its own. Who puts it there may do so anew in each step."""
    return isinstance(found, types.FunctionType) and bool(found.__closure__) and found.__name__ != name and found.__module__ != module.__name__
