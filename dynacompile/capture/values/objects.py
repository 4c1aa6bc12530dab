"""Instances of user classes, and objects that are only handed around."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.polyfills import reduction
from dynacompile.capture.values.answers import answered
from dynacompile.capture.values.base import IteratorValue, Value, has_finalizer, next_serial
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, by_own_hook, class_source, is_data_descriptor
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import call_polyfill
from dynacompile.capture.values.mapping import DictLike, OwnDicts
from dynacompile.capture.values.object_parts import DELETED, Instance, InstanceDict, ItemIterator, ObjectIterator, instance_dict, instance_dict_of
from dynacompile.capture.values.own_methods import refuse_if_own
from dynacompile.capture.values.references import WEAK_CONTAINERS
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.cpython import RUNNING
from dynacompile.ir.guard_facts import Presence
from dynacompile.ir.namespaces import MISSING, class_lookup
from dynacompile.ir.source import Attr, Constant, DictAttr, Item, Source, TypeOf

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class ObjectValue(Instance):
    """An instance of a user class. real: the object, where it exists before the frame runs. stored: attributes written so far."""

    def __init__(self, cls: type, real: Any = None, source: Source | None = None):
        self.cls, self.real, self.source, self.serial = cls, real, source, next_serial()
        self.stored: dict[str, Value | object] = {}
        self.removed: dict[str, bool] = {}  # attributes that the frame deleted: whether it had set them before, so that it does not matter if they were there
        self.read: dict[str, Value] = {}
        self.given: Value | None = None  # what the program has assigned to its __dict__
        self.shows_namespace = False  # the program has seen it

    def pytype(self) -> type:
        return self.cls

    def is_pending(self) -> bool:
        return self.real is not None and has_finalizer(self.real)

    ends_late = is_pending

    def identity(self) -> Any:
        if self.cls.__hash__ is not object.__hash__ or self.cls.__eq__ is not object.__eq__:
            raise NotConstant(self.describe())
        return self.real if self.real is not None else super().identity()

    def own_dict(self) -> dict[str, Any]:
        return instance_dict(self.real) if self.real is not None else {}

    def get_attr(self, cx: Context, name: str) -> Value:
        custom, fallback = (cx.lookup(self.cls, hook) for hook in ("__getattribute__", "__getattr__"))
        if not isinstance(custom, types.FunctionType):
            refuse_if_own(self.cls, "__getattribute__", custom)
        if not isinstance(fallback, types.FunctionType):
            refuse_if_own(self.cls, "__getattr__", fallback)

        def get() -> Value | None:
            if isinstance(custom, types.FunctionType):
                return cx.call_real(custom, class_source(self.cls, "__getattribute__"), [self, ConstantValue(name)])
            return self.lookup(cx, name)

        if not isinstance(fallback, types.FunctionType):
            found = get()
            if found is None:
                raise self.missing(name)
            return found
        found = cx.unless_missing(get)
        return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)]) if found is None else found

    def missing(self, name: str) -> Raised:
        return raises(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def lookup(self, cx: Context, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        if name == "__class__" and cx.lookup(self.cls, name) is object.__dict__[name]:
            return self.class_value(cx)
        raw = cx.lookup(self.cls, name)
        if name == "__dict__" and is_of_instances(raw):
            self.refuse_shared(cx)
            self.shows_namespace = True
            return self.namespace
        if raw is not MISSING and is_data_descriptor(raw):
            return self.read_descriptor(cx, raw, name)
        if name not in self.stored and name not in self.read and name in self.own_dict():
            self.guard_shadow(cx, name, raw)
        found = self.own_attribute(cx, name)
        if found is not None:
            return found
        if self.real is not None and name not in self.stored and self.is_own_namespace():
            self.guard_absent(cx, name)
        assigned = assigned_attribute(cx, self.cls, name)
        if assigned is not None or raw is MISSING:
            return assigned
        return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))

    # what is in its __dict__

    @property
    def has_dict(self) -> bool:
        return bool(self.cls.__dictoffset__)

    def dict_source(self) -> Source:
        assert self.source is not None
        return Attr(self.source, "__dict__")

    @property
    def namespace(self) -> Value:
        """Its __dict__, by now."""
        return instance_dict_of(self) if self.given is None else self.given

    def is_own_namespace(self) -> bool:
        """Whether the program has not given the object another __dict__."""
        return self.given is None

    def own_attribute(self, cx: Context, name: str) -> Value | None:
        """What the __dict__ has under a name; None where it has nothing, which is not guarded."""
        if not self.is_own_namespace():
            return self.namespace.find(cx, ConstantValue(name))  # type: ignore[attr-defined]
        if name in self.stored:
            value = self.stored[name]
            return None if value is DELETED else value  # type: ignore[return-value]
        if name not in self.own_dict():
            return None
        if name not in self.read:
            self.read[name] = self.wrap_own(cx, name)
        return self.read[name]

    def wrap_own(self, cx: Context, name: str) -> Value:
        hidden = is_data_descriptor(cx.lookup(self.cls, name))  # residual code would be given what the descriptor makes of it
        return cx.wrap(self.own_dict()[name], Item(self.dict_source(), name) if hidden else DictAttr(self.source, name))

    def put_own(self, cx: Context, name: str, value: Value) -> None:
        self.store(cx, name, value)

    def drop_own(self, cx: Context, name: str) -> None:
        self.remove(cx, name)

    def is_elsewhere(self, cx: Context, name: str) -> bool:
        """Whether what is stored under a name is in a slot."""
        return is_slot(cx.lookup(self.cls, name))

    def replace_namespace(self, cx: Context, value: Value) -> None:
        """self.__dict__ = value"""
        if value is self.namespace:
            return
        if self.shows_namespace or not isinstance(value, DictLike) or value.pytype() is not dict:
            raise unsupported("setattr", f"{self.describe()}.__dict__ = {value.describe()}")
        if any(self.is_elsewhere(cx, name) for name in self.stored):
            raise unsupported("setattr", f"{self.describe()}.__dict__, of a class with slots, = ...")
        cx.effects.touch(self)
        self.given = value
        self.stored, self.removed, self.shows_namespace = {}, {}, True

    def refuse_shared(self, cx: Context) -> None:
        """Where another object has the same __dict__, what is stored in one would have to be seen in the other."""
        if self.real is not None and len(cx.state(OwnDicts).owners.get(id(self.own_dict()), ())) > 1:
            raise unsupported("unknown-object", f"{self.describe()}, whose __dict__ is another object's, too,")

    def guard_absent(self, cx: Context, name: str) -> None:
        if cx.lookup(self.cls, name) is MISSING:
            self.guard_presence(cx, name, False)
        elif self.has_dict:
            cx.guard("DICT_CONTAINS", self.dict_source(), Presence(name, False))

    def guard_presence(self, cx: Context, name: str, is_there: bool) -> None:
        cx.guard("HASATTR", self.source, Presence(name, is_there))

    def guard_shadow(self, cx: Context, name: str, raw: Any) -> None:
        """An attribute of the object counts as long as its class has no property of that name."""
        if raw is MISSING and not is_trusted(self.cls.__module__) and cx.lookup(type(self.cls), name) is MISSING:
            cx.guard("HASATTR", Constant(self.cls, self.cls.__qualname__), Presence(name, False))

    def class_value(self, cx: Context) -> Value:
        return cx.class_value(self.cls, TypeOf(self.source) if self.source else None)

    def read_descriptor(self, cx: Context, raw: Any, name: str) -> Value:
        source = class_source(self.cls, name)
        if isinstance(raw, types.MemberDescriptorType):  # __slots__
            return self.read_slot(cx, name)
        if isinstance(raw, property) or isinstance(cx.lookup(type(raw), "__get__"), types.FunctionType):
            return bind_descriptor(cx, raw, self, self.class_value(cx), name, source)
        if cx.lookup(type(raw), "__get__") is MISSING:
            found = self.own_attribute(cx, name)
            return cx.wrap(raw, Constant(raw, name)) if found is None else found
        raise unsupported("unknown-attribute", f"descriptor {name!r} of {self.describe()}")

    def read_slot(self, cx: Context, name: str) -> Value:
        if name in self.stored:
            if self.stored[name] is DELETED:
                raise raises(AttributeError, name, known=False)
            return self.stored[name]  # type: ignore[return-value]
        if self.real is None or not hasattr(self.real, name):
            if self.real is not None:  # no guard tells that it is empty
                raise unsupported("unknown-attribute", f"{self.describe()}.{name}, an empty slot")
            raise raises(AttributeError, name, known=False)  # Python 3.12 says more
        if name not in self.read:
            value = getattr(self.real, name)
            fixed = isinstance(self.source, Constant) and is_trusted(self.cls.__module__)
            self.read[name] = cx.wrap(value, Constant(value, name) if fixed else Attr(self.source, name))
        return self.read[name]

    def computes(self, cx: Context, name: str) -> bool:
        hooks = (cx.lookup(self.cls, hook) for hook in ("__getattribute__", "__getattr__"))
        return any(isinstance(hook, types.FunctionType) for hook in hooks) or is_data_descriptor(cx.lookup(self.cls, name)) or super().computes(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        if not self.is_own_namespace():
            return self.own_attribute(cx, name) is not None or cx.lookup(self.cls, name) is not MISSING
        if self.stored.get(name, DELETED) is not DELETED or name in self.own_dict() and name not in self.stored:
            if self.real is not None and name not in self.stored:
                self.guard_presence(cx, name, True)
            return True
        if assigned_attribute(cx, self.cls, name) is not None:
            return True
        if cx.lookup(self.cls, name) is not MISSING:
            if self.source is not None:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if self.real is not None and name not in self.stored:
            self.guard_absent(cx, name)
        return False

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if by_own_hook(cx, self, self.cls, "__setattr__", [ConstantValue(name), value]) is None:
            self.set_plain(cx, name, value)

    def set_plain(self, cx: Context, name: str, value: Value) -> None:
        """object.__setattr__."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                raise raises(AttributeError, f"property {name!r} of {self.cls.__qualname__!r} object has no setter")
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fset, Constant(raw.fset, f"{name}.fset"), [self, value])
            return
        if name == "__dict__" and is_of_instances(raw):
            self.replace_namespace(cx, value)
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            self.by_descriptor(cx, raw, name, "__set__", [value])
            return
        self.refuse_without_dict(raw, name)
        self.store(cx, name, value)

    def refuse_without_dict(self, raw: Any, name: str) -> None:
        """raw: what the class has under the name."""
        if not self.has_dict and not isinstance(raw, types.MemberDescriptorType):
            why = f"has no attribute {name!r}{RUNNING.without_dict}" if raw is MISSING else f"attribute {name!r} is read-only"
            raise raises(AttributeError, f"{self.cls.__name__!r} object {why}")

    def by_descriptor(self, cx: Context, raw: Any, name: str, hook: str, args: list[Value]) -> None:
        """type(raw).__set__(raw, self, value) or .__delete__(raw, self)."""
        setter = cx.lookup(type(raw), hook)
        if not isinstance(setter, types.FunctionType):
            raise unsupported("setattr", f"{self.describe()}.{name}, a descriptor")
        cx.call_real(setter, class_source(type(raw), hook), [cx.wrap(raw, Constant(raw, name)), self, *args])

    def store(self, cx: Context, name: str, value: Value) -> None:
        if not self.is_own_namespace() and not self.is_elsewhere(cx, name):
            self.namespace.set_item(cx, ConstantValue(name), value)
            return
        self.refuse_shared(cx)
        cx.effects.touch(self)
        if self.stored.get(name) is DELETED:  # it comes last from now on
            del self.stored[name]
        self.stored[name] = value

    def del_attr(self, cx: Context, name: str) -> None:
        if by_own_hook(cx, self, self.cls, "__delattr__", [ConstantValue(name)]) is None:
            self.del_plain(cx, name)

    def del_plain(self, cx: Context, name: str) -> None:
        """object.__delattr__."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fdel is None:
                raise raises(AttributeError, f"property {name!r} of {self.cls.__qualname__!r} object has no deleter")
            cx.wrap(raw, class_source(self.cls, name))
            cx.call_real(raw.fdel, Constant(raw.fdel, f"{name}.fdel"), [self])
            return
        if raw is not MISSING and is_data_descriptor(raw):
            if not isinstance(raw, types.MemberDescriptorType):
                self.by_descriptor(cx, raw, name, "__delete__", [])
                return
            self.read_slot(cx, name)
            self.remove(cx, name)
            return
        self.refuse_without_dict(raw, name)
        if InstanceDict(self).find(cx, ConstantValue(name)) is None:
            raise self.missing(name)
        if self.is_own_namespace():
            self.remove(cx, name)
        else:
            self.namespace.del_item(cx, ConstantValue(name))

    def remove(self, cx: Context, name: str) -> None:
        """Of an attribute that is there."""
        self.refuse_shared(cx)
        cx.effects.touch(self)
        stored = self.stored.pop(name, DELETED)
        if self.real is not None:
            self.stored[name] = DELETED
            self.removed.setdefault(name, stored is not DELETED)

    def special(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """type(self).name(self, *args); None where the class does not define it in Python."""
        raw = cx.lookup(self.cls, name)
        if isinstance(raw, types.FunctionType):
            return cx.call_real(raw, class_source(self.cls, name), [self, *args], kwargs)
        refuse_if_own(self.cls, name, raw)
        return None

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, "__call__", args, kwargs)
        return super().call(cx, args, kwargs) if result is None else result

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, name, args, kwargs)
        return super().method(cx, name, args, kwargs) if result is None else result

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """object.name(self, ...)"""
        match name, args:
            case "__init__", _:
                self.check_arguments(args, kwargs)
                return ConstantValue(None)
            case "__getattribute__", [key] if issubclass(key.pytype(), str):
                found = self.lookup(cx, key.constant())
                if found is None:
                    raise self.missing(key.constant())
                return found
            case "__setattr__", [key, value] if issubclass(key.pytype(), str):
                self.set_plain(cx, key.constant(), value)
                return ConstantValue(None)
            case "__delattr__", [key] if issubclass(key.pytype(), str):
                self.del_plain(cx, key.constant())
                return ConstantValue(None)
            case "__eq__", [other]:
                return ConstantValue(True if other is self else NotImplemented)
            case "__reduce_ex__", [ConstantValue(value=int(protocol))] if protocol > 1:
                return call_polyfill(cx, reduction.reduce_ex, [self, *args])  # type: ignore[arg-type]
            case "__getstate__", []:
                return call_polyfill(cx, reduction.getstate, [self])  # type: ignore[arg-type]
        return super().method(cx, name, args, kwargs)

    def check_arguments(self, args: list[Value], kwargs: dict[str, Value]) -> None:
        """object.__init__ takes arguments where the class has a `__new__` and no `__init__` of its own."""
        if not args and not kwargs:
            return
        if class_lookup(self.cls, "__init__") is not object.__init__:
            raise raises(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
        if class_lookup(self.cls, "__new__") is object.__new__:
            raise raises(TypeError, f"{self.cls.__name__}.__init__() takes exactly one argument (the instance to initialize)")

    def truth(self, cx: Context) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(cx, name, [])
            if result is not None:
                self.refuse_negative(cx, name, result)
                return bool(answered(name, result).truth(cx))
        if cx.lookup(self.cls, "__bool__") is MISSING and cx.lookup(self.cls, "__len__") is MISSING:
            return True
        return super().truth(cx)

    def length(self, cx: Context) -> int:
        result = self.special(cx, "__len__", [])
        return super().length(cx) if result is None else answered("__len__", ConstantValue(result.constant())).constant()

    def contains(self, cx: Context, item: Value) -> Value:
        result = self.special(cx, "__contains__", [item])
        return ConstantValue(self.iterate(cx).finds(cx, item) if result is None else result.truth(cx))

    def iterate(self, cx: Context) -> IteratorValue:
        result = self.special(cx, "__iter__", [])
        if isinstance(result, IteratorValue):
            return result
        if result is not None:
            answered("__iter__", result)
        if isinstance(result, ObjectValue) and isinstance(cx.lookup(result.cls, "__next__"), types.FunctionType):
            return ObjectIterator(result)
        if result is None and cx.lookup(self.cls, "__iter__") is MISSING and isinstance(cx.lookup(self.cls, "__getitem__"), types.FunctionType):
            return ItemIterator(self)
        return super().iterate(cx)

    def listed(self, cx: Context) -> list[Value]:
        iterator = self.iterate(cx)
        self.foretell(cx)
        return iterator.drain(cx)

    def foretell(self, cx: Context) -> None:
        if not self.told_length(cx, "__len__"):
            self.told_length(cx, "__length_hint__")

    def told_length(self, cx: Context, name: str) -> bool:
        """Whether the class has the method in Python and it gives a number. A TypeError does not matter."""
        length = cx.unless_missing(lambda: self.special(cx, name, []), TypeError)
        if length is None or not issubclass(length.pytype(), int):
            return False
        self.refuse_negative(cx, name, length)
        return True

    def refuse_negative(self, cx: Context, name: str, length: Value) -> None:
        """length: what a method gave, which may be a symbol."""
        if name != "__bool__" and issubclass(length.pytype(), int) and cx.operator("lt", [length, ConstantValue(0)]).truth(cx):
            raise raises(ValueError, f"{name}() should return >= 0")

    def children(self) -> Sequence[Value]:
        return [*self.new_namespace(), *(v for v in self.stored.values() if isinstance(v, Value))] if self.source is None else ()

    def new_namespace(self) -> Sequence[Value]:
        return () if self.given is None else (self.given,)

    def replay_values(self) -> Sequence[Value]:
        return [*self.new_namespace(), *(v for v in self.stored.values() if isinstance(v, Value))] if self.source is not None else ()

    def stores_plainly(self, name: str) -> bool:
        """Whether `self.name = value` stores the value and does nothing else."""
        own = (class_lookup(self.cls, hook) for hook in ("__setattr__", "__delattr__"))
        raw = class_lookup(self.cls, name)
        return not any(isinstance(hook, types.FunctionType) and hook.__module__ != "torch.nn.modules.module" for hook in own) and (
            raw is MISSING or not is_data_descriptor(raw) or is_slot(raw)
        )

    def replay(self, out: Writer) -> None:
        if self.source is None:
            return
        self.rebuild_namespace(out)
        for name, value in self.stored.items():
            if name in self.removed:
                if self.removed[name]:
                    self.replay_store(out, name, ConstantValue(None))
                self.replay_removal(out, name)
            if isinstance(value, Value):
                self.replay_store(out, name, value)

    def replay_store(self, out: Writer, name: str, value: Value) -> None:
        if self.stores_plainly(name):
            out.value(self)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)
        else:
            self.rebuild_attribute(out, name, value)

    def replay_removal(self, out: Writer, name: str) -> None:
        raw = class_lookup(self.cls, name)
        if self.stores_plainly(name):
            out.value(self)
            out.del_attr(name)
        elif raw is MISSING or not is_data_descriptor(raw) or is_slot(raw):
            call_hook(out, object.__delattr__, self, ConstantValue(name))
        else:
            out.value(self)
            out.load_attr("__dict__")
            out.const(name)
            out.emit("DELETE_SUBSCR")

    def rebuild(self, out: Writer) -> None:
        new = self.cls.__new__
        out.callee(new if isinstance(new, types.BuiltinFunctionType) else object.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        self.rebuild_attributes(out)

    def rebuild_namespace(self, out: Writer) -> None:
        for value in self.new_namespace():
            call_hook(out, object.__setattr__, self, ConstantValue("__dict__"), value)

    def rebuild_attributes(self, out: Writer) -> None:
        self.rebuild_namespace(out)
        for name, value in self.stored.items():
            if isinstance(value, Value):
                self.rebuild_attribute(out, name, value)

    def rebuild_attribute(self, out: Writer, name: str, value: Value) -> None:
        """Stores an attribute past all hooks of the class."""
        raw = class_lookup(self.cls, name)
        if raw is MISSING or not is_data_descriptor(raw) or is_slot(raw):
            call_hook(out, object.__setattr__, self, ConstantValue(name), value)
            return
        out.value(value)
        out.value(self)
        out.load_attr("__dict__")
        out.const(name)
        out.emit("STORE_SUBSCR")


def is_of_instances(raw: Any) -> bool:
    """Whether what a class has as `__dict__` is what Python gives it, which leads to an object's attributes."""
    return isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType))


def is_slot(raw: Any) -> bool:
    return isinstance(raw, types.MemberDescriptorType)


def call_hook(out: Writer, hook: object, *args: Value) -> None:
    """A call whose result is dropped."""
    out.call_function(hook, args)
    out.emit("POP_TOP")


def wrap_exception(cx: Context, real: BaseException, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return ExceptionValue(type(real), None, source, real)


def wrap_object(cx: Context, real: Any, source: Source) -> Value:
    """Any object with attributes; the kinds with a wrapper of their own never get here."""
    cls = type(real)
    if issubclass(cls, BaseException):
        return wrap_exception(cx, real, source)
    if (
        not isinstance(cls.__getattribute__, types.FunctionType)
        and cls.__getattribute__ not in (object.__getattribute__, types.SimpleNamespace.__getattribute__)
        or cls.__module__ == "builtins"
        or cls.__dictoffset__
        and class_lookup(cls, "__dict__") is MISSING  # of C, with attributes that nobody can list
        or issubclass(cls, WEAK_CONTAINERS)
        or issubclass(cls, (dict, list, tuple, set, int, float, str, BaseException))
    ):
        cx.guard("TYPE", source, cls)
        return OpaqueValue(real, source)
    cx.guard("TYPE", source, cls)
    found = ObjectValue(cls, real, source)
    if found.has_dict:
        own = found.own_dict()
        cx.keep(own)
        owners = cx.state(OwnDicts).owners.setdefault(id(own), [])
        owners.append(found)
        if any(owner.stored for owner in owners):
            found.refuse_shared(cx)
        if cx.known_value(own) is not None:
            raise unsupported("unknown-object", f"{found.describe()}, whose __dict__ is known as a dict,")
    return found


class OpaqueValue(Value):
    """An object that capture can hand around, compare by identity and load again, and nothing else."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return type(self.real)

    def is_pending(self) -> bool:
        """Of a generator only the type is guarded: the one of a later call may have stopped in a block."""
        return type(self.real) is types.GeneratorType or has_finalizer(self.real)

    ends_late = is_pending

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-function", self.describe())

    def get_attr(self, cx: Context, name: str) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}")

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}()")

    def iterate(self, cx: Context) -> IteratorValue:
        raise unsupported("unknown-object", f"iterating {self.describe()}")
