"""Instances of user classes that derive from dict or OrderedDict: attributes of an object over the entries of a dict."""

from __future__ import annotations

import dataclasses
import os
import types
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.arities import check_call
from dynacompile.capture.values.base import IteratorValue, Lazy, Value, bind_arguments
from dynacompile.capture.values.constant import CONSTANT_TYPES, ConstantValue
from dynacompile.capture.values.container_objects import ContainerObjectValue
from dynacompile.capture.values.dict_iterators import DictIterator
from dynacompile.capture.values.mapping import DictValue, DictView
from dynacompile.capture.values.objects import call_hook
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.source import Constant, Entry, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

CHANGES = frozenset("__init__ __setitem__ __delitem__ __ior__ pop popitem setdefault update clear move_to_end".split())


class DictObjectValue(ContainerObjectValue):
    """table: a DictValue of the entries."""

    container = dict

    def __init__(self, cls: type, table: DictValue, real: Any = None, source: Source | None = None):
        super().__init__(cls, table, real, source)
        table.of_object = True

    def container_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """dict.name(self, ...)."""
        if name in CHANGES and self.source is not None:
            cx.effects.touch(self)
        if name == "__init__":
            check_call(dict, args, kwargs)
            return self.table.method(cx, "update", args, kwargs)
        if name == "__getitem__" and self.table.find(cx, args[0]) is None:
            found = self.special(cx, "__missing__", args)
            if found is not None:
                return found
        if name == "copy" and issubclass(self.cls, OrderedDict):
            raise unsupported("unknown-operation", f"{self.describe()}.copy()")
        found = self.table.method(cx, name, args, kwargs)
        if isinstance(found, (DictView, DictIterator)):
            found.holder = self
        return found

    def iterate(self, cx: Context) -> IteratorValue:
        if isinstance(cx.lookup(self.cls, "__iter__"), types.FunctionType):
            return super().iterate(cx)
        return DictIterator(cx, self.table, "keys", self)

    def children(self) -> Sequence[Value]:
        return [*super().children(), *self.table.children()] if self.source is None else ()

    def replay_values(self) -> Sequence[Value]:
        return [*super().replay_values(), *self.table.replay_values()]

    def replay(self, out: Writer) -> None:
        """The entries, past the methods of the class, then the attributes."""
        base = OrderedDict if issubclass(self.cls, OrderedDict) else dict
        if self.table.reordered:
            call_hook(out, base.clear, self)
        for key, value in self.table.changes():
            call_hook(out, base.__setitem__, self, key, value)
        super().replay(out)

    def rebuild(self, out: Writer) -> None:
        base = OrderedDict if issubclass(self.cls, OrderedDict) else dict
        out.callee(base.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        for key, value in self.table.content.values():
            call_hook(out, base.__setitem__, self, key, value)
        self.rebuild_attributes(out)


def is_dict_class(cls: type, own_new: bool = False) -> bool:
    """User classes whose instances are a dict and attributes, made by dict's own __new__. own_new: or by a __new__ in Python."""
    return (
        issubclass(cls, dict)
        and (own_new or cls.__new__ in (dict.__new__, OrderedDict.__new__))
        and type(cls).__call__ is type.__call__
        and cls.__getattribute__ in (dict.__getattribute__, OrderedDict.__getattribute__)
        and not hasattr(cls, "__del__")
        and cls.__module__ != "collections"
    )


def made_dict_object(cls: type) -> DictObjectValue:
    return DictObjectValue(cls, DictValue({}, OrderedDict if issubclass(cls, OrderedDict) else dict))


def wrap_dict_object(cx: Context, real: dict, source: Source) -> Value:
    cls: Any = type(real)
    plain = OrderedDict if issubclass(cls, OrderedDict) else dict
    if cls.__iter__ is not plain.__iter__:
        raise unsupported("unknown-object", f"{source.text()}, a {cls.__name__} with an order of its own")
    content: dict[Hashable, tuple[Value, Value]] = {}
    entry = Item if cls.__getitem__ is plain.__getitem__ else Entry
    for key in plain.keys(real):
        if type(key) not in CONSTANT_TYPES:
            raise unsupported("unknown-object", f"{source.text()}, a dict with keys of type {type(key).__name__}")
        content[key] = (cx.of(key), Lazy(cx, dict.__getitem__(real, key), entry(source, key)))
    cx.guard("TYPE", source, cls)
    return DictObjectValue(cls, DictValue(content, plain, source), real, source)


@handles(dataclasses.fields)
def row_fields(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner = args[0].constant() if args[0].pytype() is type else args[0].pytype()
    return TupleValue([cx.wrap(field, Constant(field, f"field {field.name}")) for field in dataclasses.fields(owner)])


@handles(dataclasses.is_dataclass)
def row_is_dataclass(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ConstantValue(dataclasses.is_dataclass(args[0].constant() if issubclass(args[0].pytype(), type) else args[0].pytype()))


@handles(type(os.environ).__getitem__)
def row_environment(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, key = args[0], args[1].constant()
    if getattr(owner, "real", None) is not os.environ:
        raise unsupported("unknown-function", "an environment that is not os.environ")
    if getattr(owner, "stored", None):
        raise unsupported("unknown-function", "an environment that the frame changed")
    found = cx.flag(f"os.environ[{key!r}]", partial(os.environ.get, key))
    if isinstance(found, ConstantValue) and found.value is None:
        raise raises(KeyError, key)
    return found


@handles(os.getenv)
def row_getenv(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key, default = bind_arguments("getenv", ["key", "default"], args, kwargs, {"default": ConstantValue(None)})
    found = cx.flag(f"os.environ[{key.constant()!r}]", partial(os.environ.get, key.constant()))
    return default if isinstance(found, ConstantValue) and found.value is None else found
