"""nn.Module trees: parameters and buffers become inputs, submodules are values, calls are inlined through forward and the hooks."""

from __future__ import annotations

import types
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.tensors.module_hooks import HookedModule, call_with_hooks, has_hooks, refuse_changed
from dynacompile.capture.values.base import IteratorValue, Lazy, Value
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, class_source, is_data_descriptor
from dynacompile.capture.values.functions import function_value
from dynacompile.capture.values.mapping import DictValue, OwnDicts
from dynacompile.capture.values.object_parts import DELETED, instance_dict_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.replaced import compiled_by_torch
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceIterator, TupleValue
from dynacompile.ir.guard_facts import ModuleFacts, Presence, hook_counts, identity, is_a
from dynacompile.ir.namespaces import MISSING, is_computed
from dynacompile.ir.source import Attr, Constant, DictAttr, Registered, Source
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

TABLES = ("_parameters", "_buffers", "_modules")


class Table(DictValue):
    """_parameters, _buffers or _modules of a module: all its names, once they are asked for, are part of the MODULE guard."""

    def __init__(self, owner: ModuleValue, name: str, content: dict[Hashable, tuple[Value, Value]], cls: type):
        super().__init__(content, cls, DictAttr(owner.source, name))
        self.owner, self.name = owner, name

    def guard_keys(self, cx: Context) -> None:
        self.owner.rely_on(cx, **{self.name[1:]: tuple(self.original)})


class ModuleValue(ObjectValue, HookedModule):
    """An nn.Module that exists before the frame runs. facts: what was read of its structure so far."""

    def __init__(self, real: torch.nn.Module, source: Source):
        super().__init__(type(real), real, source)
        self.tables: dict[str, Table] = {}
        self.facts = ModuleFacts(type(real))
        self.past_hooks: set[str] = set()  # names that the program has changed in the __dict__
        self.state: ModuleValue = self  # the first one that was met of those that have the same __dict__

    def share(self, cx: Context, first: ModuleValue) -> None:
        """Has one state with another module of the same __dict__, as what `compile` gives for a module has: what is stored in one is seen in the other."""
        self.state = first
        self.tables, self.past_hooks = first.tables, first.past_hooks
        self.stored, self.removed, self.read = first.stored, first.removed, first.read
        assert self.source is not None and first.source is not None
        cx.guard("DUPLICATE_INPUT", Attr(self.source, "__dict__"), Attr(first.source, "__dict__"))

    @property
    def namespace(self) -> Value:
        return instance_dict_of(self.state)

    def refuse_shared(self, cx: Context) -> None:
        if any(not isinstance(owner, ModuleValue) for owner in cx.state(OwnDicts).owners.get(id(self.real.__dict__), ())):
            super().refuse_shared(cx)

    def rely_on(self, cx: Context, **facts: Any) -> None:
        """The entry is for modules of which these facts hold, too."""
        self.facts = replace(self.facts, **facts)
        cx.widen("MODULE", self.source, self.facts)

    def rely_on_all(self, cx: Context, facts: ModuleFacts) -> None:
        """Facts that were read of another module, and hold of this one."""
        own = vars(self.facts)
        read = {name: fact for name, fact in vars(facts).items() if name != "lacks" and fact is not None and fact != own[name]}
        lacks = tuple(place for place in facts.lacks if place not in self.facts.lacks)
        if read or lacks:
            self.rely_on(cx, lacks=self.facts.lacks + lacks, **read)

    def rely_on_absence(self, cx: Context, name: str, *tables: str) -> None:
        """The module had no such name in any of these tables before the frame; "__dict__": in the instance dict."""
        own = self.real.__dict__
        new = tuple((t, name) for t in tables if (t, name) not in self.facts.lacks and name not in (own if t == "__dict__" else own[t]))
        if new:
            self.rely_on(cx, lacks=self.facts.lacks + new)

    def describe(self) -> str:
        return f"module {self.source.text()} ({self.cls.__name__})"

    def identity(self) -> Any:
        return self.real

    def lookup(self, cx: Context, name: str) -> Value | None:
        if name == "__class__" and cx.lookup(self.cls, name) is object.__dict__[name]:
            return self.class_value(cx)
        if name == "__dict__":
            return self.namespace
        raw = cx.lookup(self.cls, name)
        is_own = self.stored[name] is not DELETED if name in self.stored else name in self.real.__dict__
        if raw is not MISSING and (is_data_descriptor(raw) or not is_own):
            if is_data_descriptor(raw):
                return self.read_descriptor(cx, raw, name)
            self.rely_on_absence(cx, name, "__dict__")
            assigned = assigned_attribute(cx, self.cls, name)
            if assigned is not None:
                return assigned
            return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))
        if is_own and name in self.stored:
            return self.stored[name]  # type: ignore[return-value]
        if name in TABLES:
            return self.table(cx, name)
        if is_own:
            return super().lookup(cx, name)
        found = None if self.own_fallback(cx) is not None else self.of_tables(cx, name, raw)  # Python finds what tables hold by `__getattr__`
        return super().lookup(cx, name) if found is None else found

    def of_tables(self, cx: Context, name: str, raw: Any = MISSING) -> Value | None:
        """A parameter, buffer or submodule."""
        for i, table in enumerate(TABLES):
            if self.holds(table, name):
                self.guard_shadow(cx, name, raw)
                self.rely_on_absence(cx, name, "__dict__", *TABLES[:i])
                return self.table(cx, table).at(cx, name)
        return None

    def own_fallback(self, cx: Context) -> types.FunctionType | None:
        """The `__getattr__` of a user's class."""
        found = cx.lookup(self.cls, "__getattr__")
        return found if found is not PLAIN_GETATTR and isinstance(found, types.FunctionType) else None

    def holds(self, table: str, name: str) -> bool:
        """Whether a table has an entry by now."""
        return name in (self.tables[table].content if table in self.tables else self.real.__dict__[table])

    def get_attr(self, cx: Context, name: str) -> Value:
        found = cx.unless_missing(lambda: self.lookup(cx, name)) if self.computes(cx, name) else self.lookup(cx, name)
        if found is not None:
            return found
        fallback = self.own_fallback(cx)
        if fallback is not None:
            return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)])
        raise raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def computes(self, cx: Context, name: str) -> bool:
        return is_computed(cx.lookup(self.cls, name)) or cx.lookup(self.cls, "__getattr__") is not PLAIN_GETATTR

    def wrap_own(self, cx: Context, name: str) -> Value:
        if name == "training":
            self.rely_on(cx, training=self.real.training)
            return ConstantValue(self.real.training)
        if name in TABLES:
            return self.table(cx, name)
        return super().wrap_own(cx, name)

    def guard_absent(self, cx: Context, name: str) -> None:
        if name not in self.stored and not self.registered_before(name):
            super().guard_absent(cx, name)
        self.rely_on_absence(cx, name, *TABLES)

    def registered_before(self, name: str) -> bool:
        """Whether it was a parameter, buffer or submodule before the frame."""
        return any(name in self.real.__dict__[table] for table in TABLES)

    def put_own(self, cx: Context, name: str, value: Value) -> None:
        """Past nn.Module.__setattr__, which would register a module or a parameter."""
        if name in TABLES or name == "training":
            raise unsupported("mutation", f"{self.describe()}.__dict__[{name!r}]")
        self.past_hooks.add(name)
        self.store(cx, name, value)

    def drop_own(self, cx: Context, name: str) -> None:
        if name in TABLES or name == "training":
            raise unsupported("mutation", f"{self.describe()}.__dict__, from which {name!r} is removed,")
        self.past_hooks.add(name)
        self.remove(cx, name)

    def set_plain(self, cx: Context, name: str, value: Value) -> None:
        if is_data_descriptor(cx.lookup(self.cls, name)):
            super().set_plain(cx, name, value)
        else:
            self.put_own(cx, name, value)

    def del_plain(self, cx: Context, name: str) -> None:
        if is_data_descriptor(cx.lookup(self.cls, name)):
            super().del_plain(cx, name)
            return
        if self.namespace.find(cx, ConstantValue(name)) is None:  # type: ignore[attr-defined]
            raise self.missing(name)
        self.drop_own(cx, name)

    def replace_namespace(self, cx: Context, value: Value) -> None:
        raise unsupported("setattr", f"{self.describe()}.__dict__ = ...")

    def stores_plainly(self, name: str) -> bool:
        is_registered_anew = self.registered_before(name) and not self.holds("_buffers", name)
        return name not in self.past_hooks and not is_registered_anew and super().stores_plainly(name)

    def table(self, cx: Context, name: str) -> Table:
        """_parameters, _buffers or _modules as a dict."""
        if name not in self.tables:
            real = self.real.__dict__[name]
            content: dict[Hashable, tuple[Value, Value]] = {
                key: (ConstantValue(key), Lazy(cx, value, Registered(self.source, name, key))) for key, value in real.items()
            }
            self.tables[name] = Table(self, name, content, type(real))
        return self.tables[name]

    def has_attr(self, cx: Context, name: str) -> bool:
        if name in TABLES or self.stored.get(name, DELETED) is not DELETED:
            return True
        if name in self.real.__dict__ and name not in self.stored or cx.lookup(self.cls, name) is not MISSING:
            cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if assigned_attribute(cx, self.cls, name) is not None:
            return True
        for table in TABLES:
            if self.holds(table, name):
                self.table(cx, table).guard_key(cx, name)
                return True
        self.guard_absent(cx, name)
        return False

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        custom = cx.lookup(self.cls, "__setattr__")
        if custom is PLAIN_SETATTR:
            self.set_as_module(cx, name, value)
        else:
            cx.call_real(custom, class_source(self.cls, "__setattr__"), [self, ConstantValue(name), value])

    def set_as_module(self, cx: Context, name: str, value: Value) -> None:
        """nn.Module.__setattr__."""
        is_buffer = self.holds("_buffers", name)
        registered = self.holds("_parameters", name) or self.holds("_modules", name)
        is_kept = not is_buffer or value.pytype() is type(None) or issubclass(value.pytype(), torch.Tensor) and not value.finds_attr(cx, "_is_buffer")
        if registered or not is_kept or issubclass(value.pytype(), (torch.nn.Parameter, torch.nn.Module)):
            follow_setattr(cx, [self, ConstantValue(name), value], {})
            return
        if name in TABLES or is_data_descriptor(cx.lookup(self.cls, name)):
            raise unsupported("setattr", f"{self.describe()}.{name}")
        self.rely_on_absence(cx, name, "_parameters", "_modules")
        if is_buffer:
            cx.effects.touch(self)
            buffers = self.table(cx, "_buffers")
            buffers.guard_key(cx, name)
            buffers.set_item(cx, ConstantValue(name), value)
            return
        self.rely_on_absence(cx, name, "_buffers")
        self.store(cx, name, value)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__reversed__" and cx.lookup(self.cls, name) is MISSING and cx.lookup(self.cls, "__getitem__") in PLAIN_SUBSCRIPTS:
            return SequenceIterator(TupleValue(self.elements(cx)[::-1]))
        return super().method(cx, name, args, kwargs)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return cx.call_module(self, args, kwargs)

    def follow(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The call, by the code of the module."""
        for name, plain in (("__call__", PLAIN_CALL), ("_call_impl", PLAIN_IMPL)):
            custom = cx.lookup(self.cls, name)
            if custom is not plain:
                return cx.call_real(custom, class_source(self.cls, name), [self, *args], kwargs)
        if isinstance(self.real, torch.jit.ScriptModule):
            raise unsupported("unknown-function", f"{self.describe()}, a TorchScript module")
        compiled, place = self.real._compiled_call_impl, Attr(self.source, "_compiled_call_impl")
        if compiled is None:
            cx.guard("NONE", place)
        elif isinstance(compiled, types.FunctionType) and compiled_by_torch(compiled) is not None:
            cx.guard("ID", place, identity(compiled))
        else:
            raise unsupported("nested-region", self.describe())
        self.rely_on(cx, hooks=hook_counts(self.real))
        refuse_changed(cx, self)
        if has_hooks(self.real):
            return call_with_hooks(cx, self, args, kwargs)
        return self.get_attr(cx, "forward").call(cx, args, kwargs)

    def get_item(self, cx: Context, key: Value) -> Value:
        if isinstance(key, SliceValue) and cx.lookup(self.cls, "__getitem__") in PLAIN_SUBSCRIPTS:
            return ModuleSlice(self, key, self.elements(cx)[key.constant()])
        result = self.special(cx, "__getitem__", [key])
        return super().get_item(cx, key) if result is None else result

    def iterate(self, cx: Context) -> IteratorValue:
        if cx.lookup(self.cls, "__iter__") in PLAIN_ITERATION:
            modules = self.table(cx, "_modules")
            return SequenceIterator(TupleValue([modules.at(cx, k) for k in modules.keys(cx)]))
        return super().iterate(cx)


class ModuleSlice(TupleValue):
    """`sequential[1:]` or `module_list[:2]`: a new container over the same modules."""

    def __init__(self, owner: ModuleValue, key: SliceValue, items: Sequence[Value]):
        super().__init__(items, owner.cls)
        self.owner, self.key = owner, key

    def constant(self) -> Any:
        raise NotConstant(self.describe())

    def fields(self) -> tuple[str, ...]:
        return ()

    def iterate(self, cx: Context) -> IteratorValue:
        return SequenceIterator(TupleValue(self.items))

    def get_item(self, cx: Context, key: Value) -> Value:
        found = super().get_item(cx, key)
        if isinstance(key, SliceValue):
            raise unsupported("unknown-operation", f"a slice of a slice of {self.owner.describe()}")
        return found

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if cx.lookup(self.cls, "forward") is not PLAIN_SEQUENCE or len(args) != 1 or kwargs:
            raise unsupported("unknown-function", self.describe())
        (value,) = args
        for module in self.items:
            value = module.call(cx, [value], {})
        return value

    def children(self) -> Sequence[Value]:
        return (self.owner, self.key)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)
        out.value(self.key)
        out.emit("BINARY_SUBSCR")


# torch's own, as they were when this was imported: what replaces them is followed.
PLAIN_CALL, PLAIN_IMPL = torch.nn.Module.__call__, of_torch.module_call_impl
PLAIN_GETATTR, PLAIN_SETATTR = torch.nn.Module.__getattr__, torch.nn.Module.__setattr__
PLAIN_SEQUENCE = torch.nn.Sequential.forward
PLAIN_SUBSCRIPTS = (torch.nn.Sequential.__getitem__, torch.nn.ModuleList.__getitem__)
PLAIN_ITERATION = (torch.nn.Sequential.__iter__, torch.nn.ModuleList.__iter__)


def wrap_module(cx: Context, real: torch.nn.Module, source: Source) -> Value:
    if "_parameters" not in real.__dict__ or is_a(real, LazyModuleMixin):
        raise unsupported("unknown-object", f"{source.text()}, a module that is not initialised")
    if isinstance(type(real).__getattribute__, types.FunctionType):
        raise unsupported("unknown-object", f"{source.text()}, a module with its own __getattribute__")
    made = ModuleValue(real, source)
    cx.widen("MODULE", source, made.facts)
    owners = cx.state(OwnDicts).owners.setdefault(id(real.__dict__), [])
    cx.keep(real.__dict__)
    owners.append(made)
    if len(owners) > 1:
        made.share(cx, owners[0])
    return made


def follow_setattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    plain: Any = PLAIN_SETATTR
    return function_value(cx, plain, Constant(plain, "nn.Module.__setattr__")).call(cx, args, kwargs)


@handles(PLAIN_SETATTR)
def row_setattr(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """As classes with a __setattr__ of their own call it; for modules that the frame makes, its own code is followed."""
    owner = cx.force(args[0]) if args else None
    if not isinstance(owner, ModuleValue) or len(args) != 3 or kwargs:
        return follow_setattr(cx, args, kwargs)
    owner.set_as_module(cx, str(args[1].constant()), args[2])
    return ConstantValue(None)
