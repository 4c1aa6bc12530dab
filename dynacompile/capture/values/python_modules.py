"""Python modules as values: `torch`, `math`, a user's `config` module."""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from typing import TYPE_CHECKING, Any

from torch.utils import deterministic

from dynacompile.capture.breaks import NotThereYet, Raised, raises, unsupported
from dynacompile.capture.values.base import Value, bind_arguments, wraps
from dynacompile.capture.values.constant import ConstantValue, is_constant_object
from dynacompile.capture.values.descriptors import bind_descriptor, class_source, is_data_descriptor
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.rows import handles, row_of
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.errors import Unsupported
from dynacompile.ir.guard_facts import Presence, identity
from dynacompile.ir.namespaces import MISSING, class_lookup
from dynacompile.ir.source import Attr, Constant, DictAttr, Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class PythonModuleValue(Value):
    def __init__(self, real: types.ModuleType, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"module {self.real.__name__}"

    def pytype(self) -> type:
        return type(self.real)

    def identity(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        if isinstance(found := cx.lookup(type(self.real), name), property) and self.real is deterministic and found.fget is not None:
            return cx.call_real(found.fget, Constant(found.fget, name), [self])  # type: ignore[arg-type]
        if is_trusted(self.real.__name__):
            if is_setting(found):
                return bind_descriptor(cx, found, self, cx.class_value(type(self.real), None), name, class_source(type(self.real), name))
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
        found = self.lookup(cx, name)
        return self.fall_back(cx, name) if found is None else found

    def lookup(self, cx: Context, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        cls = type(self.real)
        if name == "__class__":
            return cx.class_value(cls, None)
        raw = cx.lookup(cls, name)
        found = None if raw is not MISSING and is_data_descriptor(raw) else self.own_attribute(cx, name)
        return found if found is not None or raw is MISSING else bind_descriptor(cx, raw, self, cx.class_value(cls, None), name, class_source(cls, name))

    def own_attribute(self, cx: Context, name: str) -> Value | None:
        """What the __dict__ has under a name; None where it has nothing, which is guarded."""
        table = self.real.__dict__
        stored = cx.effects.globals.get((id(table), name))
        if stored is not None:
            return stored[2]
        if name in table:
            return cx.wrap(table[name], DictAttr(self.source, name))
        cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))
        return None

    def fall_back(self, cx: Context, name: str) -> Value:
        """What `__getattr__` gives, of the module first, then of its class. It may import: what it then keeps is there in the next call."""

        def own() -> Value:
            hook = self.own_attribute(cx, "__getattr__")
            if hook is None:
                raise raises(AttributeError, f"module {self.real.__name__!r} has no attribute {name!r}", known=False)
            return hook.call(cx, [ConstantValue(name)], {})

        fallback = cx.lookup(type(self.real), "__getattr__")
        try:
            if fallback is MISSING:
                return own()
            found = cx.unless_missing(own)
            return cx.call_real(fallback, class_source(type(self.real), "__getattr__"), [self, ConstantValue(name)]) if found is None else found
        except Unsupported as reason:
            if isinstance(reason, (Raised, NotThereYet)):
                raise
            raise NotThereYet(reason, Attr(self.source, "__dict__"), name) from reason

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        cls = type(self.real)
        found = cx.lookup(cls, name)
        if isinstance(found, property) and self.real is deterministic and found.fset is not None:
            cx.call_real(found.fset, Constant(found.fset, name), [self, value])  # type: ignore[arg-type]
            return
        if is_setting(found):
            store: Any = class_lookup(type(found), "__set__")
            cx.call_real(store, class_source(type(found), "__set__"), [cx.wrap(found, class_source(cls, name)), self, value])
            return
        is_plain = cx.lookup(cls, "__setattr__") is types.ModuleType.__setattr__ and (found is MISSING or not is_data_descriptor(found))
        if is_trusted(self.real.__name__) or not is_plain:
            super().set_attr(cx, name, value)
        else:
            cx.effects.store_global(self.real.__dict__, self.real.__dict__ is cx.root_scope.table, name, value)

    def has_attr(self, cx: Context, name: str) -> bool:
        if not is_trusted(self.real.__name__):
            if name not in self.real.__dict__ or (id(self.real.__dict__), name) in cx.effects.globals:
                return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None
            cx.guard("HASATTR", self.source, Presence(name, True))
        return hasattr(self.real, name)


def to_be_loaded(name: str) -> NotThereYet:
    """The error for a module that Python loads here."""
    return NotThereYet(unsupported("import", name), Constant(sys.modules, "sys.modules"), name)


@handles(importlib.import_module)
def row_import_module(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a module that is loaded already."""
    name, package = (v.constant() for v in bind_arguments("import_module", ["name", "package"], args, kwargs, {"package": ConstantValue(None)}))
    if name.startswith("."):
        name = cx.guarded_call(importlib.util.resolve_name, [name, package], {})
    loaded = sys.modules.get(name)
    if loaded is None or getattr(getattr(loaded, "__spec__", None), "_initializing", False):
        raise to_be_loaded(name)
    cx.names.of_dict(sys.modules, "sys.modules", name)
    return cx.wrap(loaded, Constant(loaded, name))


@wraps(types.ModuleType)
def wrap_python_module(cx: Context, real: types.ModuleType, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    if class_lookup(type(real), "__getattribute__") is not types.ModuleType.__getattribute__:
        return RefusedValue(real, "unknown-object", source, f"{source.text()}, a module whose class reads attributes of its own,")
    return PythonModuleValue(real, source)


def is_setting(found: object) -> bool:
    """Whether an attribute of a module of torch is a switch that a frame may set (`capture/tensors/switches.py`): a row has it, or closures over one do."""
    parts = [getattr(found, part, None) for part in ("getter", "setter")]
    return type(found) is of_torch.ContextProp and all(bool(getattr(part, "__closure__", None)) or row_of(part) is not None for part in parts)


def is_put_there(found: object, name: str, module: types.ModuleType) -> bool:
    """Whether a closure stands in a module in the place of a function of its own. Who puts it there may do so anew in each step."""
    return isinstance(found, types.FunctionType) and bool(found.__closure__) and found.__name__ != name and found.__module__ != module.__name__
