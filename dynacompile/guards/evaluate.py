"""Loads sources in Python, as the native accessors do: no property, `__getattr__` or other code of the user runs."""

from __future__ import annotations

import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from itertools import islice
from typing import Any

import torch

from dynacompile.ir import source as ir
from dynacompile.ir.guard_facts import is_a
from dynacompile.ir.source import Source
from dynacompile.native import core as native_core
from dynacompile.private import of_torch


class Missing:
    """Stands for a value that a source does not lead to."""

    def __repr__(self) -> str:
        return "<missing>"


MISSING = Missing()
C_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
BINDING = (types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType, staticmethod, classmethod)


@dataclass(frozen=True)
class FrameValues:
    """The roots of a frame, where no FrameProxy is at hand. slots: localsplus by index."""

    slots: tuple
    closure: tuple | None = None
    globals: Mapping[str, Any] | None = None
    builtins: Mapping[str, Any] | None = None


def evaluate(source: Source, frame: Any) -> Any:
    """The value at `source`, or MISSING. frame: a FrameProxy, FrameValues, or a mapping from the names of roots to values."""
    return step(source, frame)


@dataclass(frozen=True)
class InFrame:
    """Values of one frame, as `evaluate` gives them."""

    frame: Any

    @property
    def globals(self) -> Mapping[str, Any]:
        return {} if isinstance(self.frame, Mapping) else self.frame.globals

    def __call__(self, source: Source) -> Any:
        return evaluate(source, self.frame)


@singledispatch
def step(source: Source, frame: Any) -> Any:
    raise TypeError(f"no way to evaluate a source of type {type(source).__name__}")


def root(kind: type[Source]) -> Callable:
    """Registers how a root is read from a frame; a mapping is read by name."""

    def register(read: Callable) -> Callable:
        @step.register(kind)
        def _(source: Any, frame: Any) -> Any:
            if isinstance(frame, Mapping):
                return frame.get(source.name, MISSING)
            return read(source, frame)

        return read

    return register


def based(kind: type[Source]) -> Callable:
    """Registers how a source is read from the value of its base."""

    def register(read: Callable) -> Callable:
        @step.register(kind)
        def _(source: Any, frame: Any) -> Any:
            base = step(source.base, frame)
            return MISSING if base is MISSING else read(source, base)

        return read

    return register


def content(cells: tuple | None, index: int) -> Any:
    try:
        return (cells or ())[index].cell_contents
    except (IndexError, ValueError):
        return MISSING


@root(ir.Local)
def _(source: ir.Local, frame: Any) -> Any:
    value = frame.slots[source.slot] if source.slot < len(frame.slots) else MISSING
    return MISSING if value is native_core().NULL else value


@root(ir.Free)
def _(source: ir.Free, frame: Any) -> Any:
    return content(frame.closure, source.index)


@root(ir.Global)
def _(source: ir.Global, frame: Any) -> Any:
    return frame.globals.get(source.name, MISSING)


@root(ir.Builtin)
def _(source: ir.Builtin, frame: Any) -> Any:
    return MISSING if source.name in frame.globals else frame.builtins.get(source.name, MISSING)


@step.register(ir.Constant)
def _(source: ir.Constant, frame: Any) -> Any:
    return source.value


@step.register(ir.Attr)
def _(source: ir.Attr, frame: Any) -> Any:
    base = step(source.base, frame)
    if base is MISSING:
        return MISSING
    kept = getattr(frame, "grads", {}).get(id(base)) if source.name == "grad" else None
    return load_attribute(base, source.name) if kept is None else kept[1]


@based(ir.DictAttr)
def _(source: ir.DictAttr, base: Any) -> Any:
    return (instance_dict(base) or {}).get(source.name, MISSING)


@based(ir.Registered)
def _(source: ir.Registered, base: Any) -> Any:
    return (instance_dict(base) or {}).get(source.table, {}).get(source.name, MISSING)


@based(ir.Item)
def _(source: ir.Item, base: Any) -> Any:
    if is_a(base, (list, tuple)):
        plain: Any = list if is_a(base, list) else tuple
        ok = type(source.key) is int and 0 <= source.key < plain.__len__(base)  # classes may have a length of their own
        return plain.__getitem__(base, source.key) if ok else MISSING
    if type(base) is deque:
        return base[source.key] if type(source.key) is int and 0 <= source.key < len(base) else MISSING
    return dict.get(base, source.key, MISSING) if is_a(base, dict) else MISSING


@based(ir.Remembered)
def _(source: ir.Remembered, base: Any) -> Any:
    return native_core().link_result(base)


@based(ir.Referent)
def _(source: ir.Referent, base: Any) -> Any:
    target = base() if type(base) is weakref.ref else None
    return MISSING if target is None else target


@based(ir.Applied)
def _(source: ir.Applied, base: Any) -> Any:
    try:
        return source.function(base)
    except Exception:  # noqa: BLE001  (an object that it is not meant for; whatever it raises, the native check does not hold either)
        return MISSING


@based(ir.ValueAt)
def _(source: ir.ValueAt, base: Any) -> Any:
    if not is_a(base, dict) or type(base).__iter__ not in (dict.__iter__, OrderedDict.__iter__):
        return MISSING
    return next(islice(base.values(), source.place, None), MISSING)


CONTAINERS = (list, deque, dict, set, defaultdict, OrderedDict, Counter)
"""Whose length and elements no code of the program's says."""


@based(ir.Length)
def _(source: ir.Length, base: Any) -> Any:
    return len(base) if type(base) in CONTAINERS else MISSING


@based(ir.TypeOf)
def _(source: ir.TypeOf, base: Any) -> Any:
    return type(base)


@based(ir.ClosureCell)
def _(source: ir.ClosureCell, base: Any) -> Any:
    return content(base.__closure__, source.index) if is_a(base, types.FunctionType) else MISSING


@based(ir.DefaultArg)
def _(source: ir.DefaultArg, base: Any) -> Any:
    if not is_a(base, types.FunctionType):
        return MISSING
    if isinstance(source.key, str):
        return (base.__kwdefaults__ or {}).get(source.key, MISSING)
    defaults = base.__defaults__ or ()
    return defaults[source.key] if source.key < len(defaults) else MISSING


def instance_dict(value: Any) -> dict | None:
    """`value.__dict__` where that is a plain instance dict."""
    if is_a(value, type):
        return None
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if is_a(found, dict) else None


def in_type(cls: type, name: str) -> Any:
    """The raw class attribute along the method resolution order."""
    return next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), MISSING)


def is_data_descriptor(value: Any) -> bool:
    return hasattr(type(value), "__set__") or hasattr(type(value), "__delete__")


def load_attribute(value: Any, name: str) -> Any:
    """The generic attribute protocol as far as it runs no code of the user; else MISSING."""
    found = in_type(type(value), name)
    if found is not MISSING and is_data_descriptor(found):
        asks = is_a(value, torch.Tensor) and type(value) not in (torch.Tensor, torch.nn.Parameter) and name != "__dict__"
        override = in_type(type(value), "__torch_function__")
        unasked = override is in_type(torch.nn.Parameter, "__torch_function__") or name == "grad" and override is in_type(torch.Tensor, "__torch_function__")
        native_getter = is_a(found, C_FIELDS) and (not asks or unasked or is_a(found, types.MemberDescriptorType))
        if not native_getter:
            return MISSING
        try:
            with of_torch.DisableTorchFunctionSubclass():
                return found.__get__(value, type(value))
        except AttributeError:  # a slot that is empty
            return MISSING
    if is_a(value, type):
        own = in_type(value, name)
        if own is not MISSING:
            return bind(own, None, value)
    else:
        own = (instance_dict(value) or {}).get(name, MISSING)
        if own is not MISSING:
            return own
    return MISSING if found is MISSING else bind(found, value, type(value))


def bind(found: Any, value: Any, owner: type) -> Any:
    if not hasattr(type(found), "__get__") or value is None and type(found) is property:
        return found
    return found.__get__(value, owner) if type(found) in BINDING else MISSING


def has_attribute(value: Any, name: str) -> bool:
    """Whether the type or the instance dict has the name."""
    if in_type(type(value), name) is not MISSING:
        return True
    return in_type(value, name) is not MISSING if is_a(value, type) else name in (instance_dict(value) or {})
