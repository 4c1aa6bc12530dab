"""Classes, instances of user classes, and super()."""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import IteratorValue, Lazy, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import BoundMethod, FunctionValue, is_trusted
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import TupleValue, is_namedtuple
from dynacompile.ir.guard_facts import Presence, identity
from dynacompile.ir.source import Attr, Constant, DictAttr, Source, TypeOf

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace

MISSING = object()
DELETED = object()


def class_lookup(cls: type, name: str, after: type | None = None) -> Any:
    """The raw attribute `name` in the MRO of cls, searched after the class `after` if given; MISSING if there is none."""
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :] if after is not None else mro:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def class_source(cls: type, name: str, after: type | None = None) -> Source:
    """Where a class attribute is read. Classes of trusted modules do not change, so theirs need no guard."""
    owner = next((b for b in (cls.__mro__[cls.__mro__.index(after) + 1 :] if after is not None else cls.__mro__) if name in b.__dict__), cls)
    if is_trusted(owner.__module__):
        raw = owner.__dict__[name]
        raw = raw.__func__ if isinstance(raw, (staticmethod, classmethod)) else raw
        return Constant(raw, f"{owner.__qualname__}.{name}")
    return Attr(Constant(owner if after is not None else cls, cls.__qualname__), name)


def bind_descriptor(cx: Trace, raw: Any, instance: Value | None, owner: Value, name: str, source: Source) -> Value:
    """What attribute access gives for the class attribute `raw`: instance None means access on the class `owner` itself."""
    if isinstance(raw, types.FunctionType):
        function = cx.wrap(raw, source)
        return function if instance is None else BoundMethod(function, instance, None, name)
    if isinstance(raw, staticmethod):
        return cx.wrap(raw.__func__, source)
    if isinstance(raw, classmethod):
        if isinstance(source, Attr):
            source = Attr(source, "__func__")
        return BoundMethod(cx.wrap(raw.__func__, source), owner if isinstance(owner, ClassValue) else cx.of(owner.pytype()), None, name)
    if isinstance(raw, property):
        if instance is None:
            return PropertyValue(raw, source)
        if raw.fget is None:
            raise unsupported("would-raise", f"unreadable attribute {name!r}")
        return cx.call_real(raw.fget, Constant(raw.fget, f"{name}.fget"), [instance])  # the guard machine reads no properties off classes
    if hasattr(type(raw), "__get__") and not isinstance(raw, (type, types.BuiltinFunctionType)):
        raise unsupported("unknown-attribute", f"descriptor {type(raw).__name__} {name!r} of {owner.describe()}")
    return cx.wrap(raw, source)


class PropertyValue(Value):
    """A property object, read from its class."""

    def __init__(self, real: property, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return property

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name in ("fget", "fset"):
            return cx.wrap(getattr(self.real, name), Attr(self.source, name))
        return super().get_attr(cx, name)


class ClassValue(Value):
    """A class. Calling it runs the builtin's row, or makes a new object whose __init__ is inlined."""

    def __init__(self, real: type, source: Source | None):
        self.real, self.source = real, source or Constant(real, real.__qualname__)

    def describe(self) -> str:
        return f"class {self.real.__qualname__}"

    def pytype(self) -> type:
        return type(self.real)

    def constant(self) -> Any:
        return self.real

    def truth(self, cx: Trace) -> bool:
        return True

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(self.real, name)

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__"):
            return ConstantValue(getattr(self.real, name))
        if name in ("__mro__", "__bases__"):
            return cx.of(getattr(self.real, name))
        if name == "__dict__" or class_lookup(type(self.real), name) is not MISSING and class_lookup(self.real, name) is MISSING:
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        raw = class_lookup(self.real, name)
        if raw is MISSING:
            raise unsupported("would-raise", f"{self.describe()} has no attribute {name!r}")
        if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)) or name in ("__new__",):
            return UnboundMethod(self.real, name)
        if isinstance(raw, types.ClassMethodDescriptorType):
            return cx.wrap(getattr(self.real, name), Constant(getattr(self.real, name), name))
        return bind_descriptor(cx, raw, None, self, name, class_source(self.real, name))

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = cx.handler(self.real)
        if row is not None:
            return row(cx, args, kwargs)
        if is_namedtuple(self.real):
            return self.make_namedtuple(cx, args, kwargs)
        if isinstance(self.real, enum.EnumMeta) or self.real in (int, float, str, bool, complex):
            return cx.pure(self.real, args, kwargs)
        if issubclass(self.real, BaseException) and not kwargs and not isinstance(class_lookup(self.real, "__init__"), types.FunctionType):
            return ExceptionValue(self.real, args)
        if not is_plain_class(self.real):
            raise unsupported("unknown-function", f"making an object of {self.describe()}")
        made = ObjectValue(self.real)
        init = class_lookup(self.real, "__init__")
        if isinstance(init, types.FunctionType):
            cx.call_real(init, class_source(self.real, "__init__"), [made, *args], kwargs)
        elif args or kwargs:
            raise unsupported("would-raise", f"{self.real.__name__}() takes no arguments")
        return made

    def make_namedtuple(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        fields = self.real._fields
        defaults = self.real._field_defaults
        bound = dict(zip(fields, args)) | kwargs
        if len(args) > len(fields) or set(bound) - set(fields) or any(f not in bound and f not in defaults for f in fields):
            raise unsupported("would-raise", f"wrong arguments for {self.describe()}")
        return TupleValue([bound[f] if f in bound else cx.of(defaults[f]) for f in fields], self.real)

    def argument(self) -> tuple[Any, Any]:
        return self.real, self.real

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("__or__", "__eq__", "__ne__"):
            return cx.pure(getattr(self.real, name), args, kwargs)
        if name == "__getitem__" and isinstance(self.real, enum.EnumMeta):
            return cx.pure(self.real.__getitem__, args, kwargs)
        return super().method(cx, name, args, kwargs)

    def iterate(self, cx: Trace) -> IteratorValue:
        if isinstance(self.real, enum.EnumMeta):
            return TupleValue([ConstantValue(m) for m in self.real]).iterate(cx)
        return super().iterate(cx)

    def rebuild(self, out: Builder) -> None:
        out.const(self.real)


class ExceptionValue(Value):
    """An exception that the frame makes, to raise it or to hand it on."""

    def __init__(self, cls: type, args: list[Value]):
        self.cls, self.args = cls, args

    def pytype(self) -> type:
        return self.cls

    def truth(self, cx: Trace) -> bool:
        return True

    def get_attr(self, cx: Trace, name: str) -> Value:
        return TupleValue(self.args) if name == "args" else super().get_attr(cx, name)

    def children(self) -> Sequence[Value]:
        return self.args

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(self.cls)
        for arg in self.args:
            out.value(arg)
        out.call(len(self.args))


class UnboundMethod(Value):
    """A C method read from its class: `torch.Tensor.add`, `dict.get`, `object.__init__`."""

    def __init__(self, cls: type, name: str, source: Source | None = None):
        self.cls, self.name, self.source = cls, name, source

    def describe(self) -> str:
        return f"{self.cls.__qualname__}.{self.name}"

    def pytype(self) -> type:
        return types.MethodDescriptorType

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "__init__" and self.cls is object:
            return ConstantValue(None)
        if self.name == "__new__" and args and isinstance(args[0], ClassValue) and len(args) == 1:
            return ObjectValue(args[0].real) if is_plain_class(args[0].real) else super().call(cx, args, kwargs)
        if self.cls is object and self.name == "__setattr__" and len(args) == 3 and isinstance(args[0], ObjectValue):
            args[0].store(cx, args[1].constant(), args[2])
            return ConstantValue(None)
        if not args or not issubclass(args[0].pytype(), self.cls):
            raise unsupported("unknown-function", self.describe())
        return args[0].method(cx, self.name, args[1:], kwargs)

    def identity(self) -> Any:
        return getattr(self.cls, self.name)

    def rebuild(self, out: Builder) -> None:
        out.const(getattr(self.cls, self.name))


def is_plain_class(cls: type) -> bool:
    """Classes whose instances are just a dict: no metaclass call, no C base, no __new__, no __slots__ without a dict, no attribute hooks."""
    return (
        type(cls).__call__ is type.__call__
        and cls.__new__ is object.__new__
        and cls.__basicsize__ == type("Plain", (), {}).__basicsize__
        and cls.__setattr__ is object.__setattr__
        and cls.__getattribute__ is object.__getattribute__
        and not hasattr(cls, "__del__")
        and not issubclass(cls, BaseException)
    )


class ObjectValue(Value):
    """An instance of a user class. real: the object, where it exists before the frame runs. stored: attributes written so far."""

    def __init__(self, cls: type, real: Any = None, source: Source | None = None):
        self.cls, self.real, self.source = cls, real, source
        self.stored: dict[str, Value | object] = {}
        self.read: dict[str, Value] = {}

    def pytype(self) -> type:
        return self.cls

    def identity(self) -> Any:
        if self.cls.__hash__ is not object.__hash__ or self.cls.__eq__ is not object.__eq__:
            raise NotConstant(self.describe())
        return self.real if self.real is not None else super().identity()

    def own_dict(self) -> dict[str, Any]:
        return getattr(self.real, "__dict__", {}) if self.real is not None else {}

    def get_attr(self, cx: Trace, name: str) -> Value:
        found = self.lookup(cx, name)
        if found is not None:
            return found
        fallback = class_lookup(self.cls, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return cx.call_real(fallback, class_source(self.cls, "__getattr__"), [self, ConstantValue(name)])
        raise unsupported("would-raise", f"{self.cls.__name__!r} object has no attribute {name!r}")

    def lookup(self, cx: Trace, name: str) -> Value | None:
        """object.__getattribute__, None for a missing attribute."""
        if name == "__class__":
            return self.class_value(cx)
        raw = class_lookup(self.cls, name)
        if raw is not MISSING and is_data_descriptor(raw):
            return self.read_descriptor(cx, raw, name)
        if name in self.stored:
            value = self.stored[name]
            if value is not DELETED:
                return value  # type: ignore[return-value]
        elif name in self.own_dict():
            if name not in self.read:
                self.read[name] = self.wrap_own(cx, name)
            return self.read[name]
        elif name == "__dict__":
            raise unsupported("unknown-attribute", f"{self.describe()}.__dict__")
        elif self.real is not None:
            self.guard_absent(cx, name)
        if raw is MISSING:
            return None
        return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))

    def wrap_own(self, cx: Trace, name: str) -> Value:
        return cx.wrap(self.own_dict()[name], DictAttr(self.source, name))

    def guard_absent(self, cx: Trace, name: str) -> None:
        if hasattr(self.real, "__dict__"):
            cx.guard("DICT_CONTAINS", Attr(self.source, "__dict__"), Presence(name, False))

    def class_value(self, cx: Trace) -> Value:
        return cx.class_value(self.cls, TypeOf(self.source) if self.source else None)

    def read_descriptor(self, cx: Trace, raw: Any, name: str) -> Value:
        if isinstance(raw, property):
            return bind_descriptor(cx, raw, self, self.class_value(cx), name, class_source(self.cls, name))
        if isinstance(raw, types.MemberDescriptorType) and self.real is not None:  # __slots__
            if name not in self.stored:
                if not hasattr(self.real, name):
                    raise unsupported("would-raise", f"{self.cls.__name__!r} object has no attribute {name!r}")
                self.read.setdefault(name, cx.wrap(getattr(self.real, name), Attr(self.source, name)))
                return self.read[name]
            return self.stored[name]  # type: ignore[return-value]
        raise unsupported("unknown-attribute", f"descriptor {name!r} of {self.describe()}")

    def has_attr(self, cx: Trace, name: str) -> bool:
        if self.stored.get(name, DELETED) is not DELETED or name in self.own_dict() and name not in self.stored:
            if self.real is not None and name not in self.stored:
                cx.guard("HASATTR", self.source, Presence(name, True))
            return True
        if class_lookup(self.cls, name) is not MISSING:
            return True
        if class_lookup(self.cls, "__getattr__") is not MISSING:
            raise unsupported("unknown-attribute", f"hasattr({self.describe()}, {name!r})")
        if self.real is not None:
            self.guard_absent(cx, name)
        return False

    def set_attr(self, cx: Trace, name: str, value: Value) -> None:
        custom = class_lookup(self.cls, "__setattr__")
        if isinstance(custom, types.FunctionType) and custom is not object.__setattr__:
            raise unsupported("setattr", f"{self.describe()} has its own __setattr__")
        raw = class_lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                raise unsupported("would-raise", f"can't set attribute {name!r}")
            cx.call_real(raw.fset, Constant(raw.fset, f"{name}.fset"), [self, value])
            return
        if raw is not MISSING and is_data_descriptor(raw) and not isinstance(raw, types.MemberDescriptorType):
            raise unsupported("setattr", f"{self.describe()}.{name}, a descriptor")
        self.store(cx, name, value)

    def store(self, cx: Trace, name: str, value: Value) -> None:
        cx.effects.touch(self)
        self.stored[name] = value

    def del_attr(self, cx: Trace, name: str) -> None:
        if class_lookup(self.cls, "__delattr__") is not object.__delattr__ or name not in self.stored and name not in self.own_dict():
            raise unsupported("setattr", f"del {self.describe()}.{name}")
        cx.effects.touch(self)
        if name in self.own_dict():
            self.stored[name] = DELETED
        else:
            del self.stored[name]

    def special(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """type(self).name(self, *args); None where the class does not define it in Python."""
        raw = class_lookup(self.cls, name)
        if not isinstance(raw, types.FunctionType):
            return None
        return cx.call_real(raw, class_source(self.cls, name), [self, *args], kwargs)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, "__call__", args, kwargs)
        return super().call(cx, args, kwargs) if result is None else result

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = self.special(cx, name, args, kwargs)
        return super().method(cx, name, args, kwargs) if result is None else result

    def truth(self, cx: Trace) -> bool:
        for name in ("__bool__", "__len__"):
            result = self.special(cx, name, [])
            if result is not None:
                return bool(result.truth(cx))
        if class_lookup(self.cls, "__bool__") is MISSING and class_lookup(self.cls, "__len__") is MISSING:
            return True
        return super().truth(cx)

    def length(self, cx: Trace) -> int:
        result = self.special(cx, "__len__", [])
        return super().length(cx) if result is None else result.constant()

    def contains(self, cx: Trace, item: Value) -> Value:
        result = self.special(cx, "__contains__", [item])
        return ConstantValue(result.truth(cx)) if result is not None else TupleValue(self.elements(cx)).contains(cx, item)

    def iterate(self, cx: Trace) -> IteratorValue:
        result = self.special(cx, "__iter__", [])
        if isinstance(result, IteratorValue):
            return result
        if isinstance(result, ObjectValue) and isinstance(class_lookup(result.cls, "__next__"), types.FunctionType):
            raise unsupported("unknown-operation", f"iterating {self.describe()}, an iterator class")
        return super().iterate(cx)

    def children(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is None else ()

    def replay_values(self) -> Sequence[Value]:
        return [v for v in self.stored.values() if isinstance(v, Value)] if self.source is not None else ()

    def replay(self, out: Builder) -> None:
        if self.source is not None:
            for name, value in self.stored.items():
                out.value(self)
                out.del_attr(name) if value is DELETED else None
                if value is not DELETED:
                    out.value(value)  # type: ignore[arg-type]
                    out.emit("SWAP", 2)
                    out.store_attr(name)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(object.__new__)
        out.const(self.cls)
        out.call(1)
        out.remember(self)
        for name, value in self.stored.items():
            out.push_null()
            out.const(object.__setattr__)
            out.value(self)
            out.const(name)
            out.value(value)  # type: ignore[arg-type]
            out.call(3)
            out.emit("POP_TOP")


def is_data_descriptor(raw: Any) -> bool:
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


class SuperValue(Value):
    """super(start, owner)."""

    def __init__(self, start: type, owner: Value):
        self.start, self.owner = start, owner

    def pytype(self) -> type:
        return super

    def get_attr(self, cx: Trace, name: str) -> Value:
        cls = self.owner.constant() if isinstance(self.owner, ClassValue) else self.owner.pytype()
        if self.start not in cls.__mro__:
            raise unsupported("would-raise", "super(): obj must be an instance or subtype of type")
        raw = class_lookup(cls, name, after=self.start)
        if raw is MISSING:
            raise unsupported("would-raise", f"'super' object has no attribute {name!r}")
        if not isinstance(raw, (types.FunctionType, staticmethod, classmethod, property)):
            if callable(raw) and name == "__init__":
                return BoundMethod(UnboundMethod(object, "__init__"), self.owner)
            if name == "__setattr__" and raw is object.__setattr__:
                return BoundMethod(UnboundMethod(object, "__setattr__"), self.owner)
            raise unsupported("unknown-attribute", f"super().{name}")
        instance = None if isinstance(self.owner, ClassValue) else self.owner
        return bind_descriptor(cx, raw, instance, self.owner, "", class_source(cls, name, self.start))

    def has_attr(self, cx: Trace, name: str) -> bool:
        cls = self.owner.constant() if isinstance(self.owner, ClassValue) else self.owner.pytype()
        return class_lookup(cls, name, after=self.start) is not MISSING

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(super)
        out.const(self.start)
        out.value(self.owner)
        out.call(2)


def wrap_class(cx: Trace, real: type, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return ClassValue(real, source)


def wrap_object(cx: Trace, real: Any, source: Source) -> Value:
    """Any object with attributes; the kinds with a wrapper of their own never get here."""
    cls = type(real)
    if cls.__getattribute__ is not object.__getattribute__ or cls.__module__ == "builtins" or issubclass(cls, (dict, list, tuple, set, int, float, str, BaseException)):
        cx.guard("TYPE", source, cls)
        return OpaqueValue(real, source)
    cx.guard("TYPE", source, cls)
    return ObjectValue(cls, real, source)


class OpaqueValue(Value):
    """An object that capture can hand around, compare by identity and load again, and nothing else."""

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return type(self.real)

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-function", self.describe())

    def get_attr(self, cx: Trace, name: str) -> Value:
        raise unsupported("unknown-object", f"{self.describe()}.{name}")

    def iterate(self, cx: Trace) -> IteratorValue:
        raise unsupported("unknown-object", f"iterating {self.describe()}")


class WeakReference(Value):
    """A weakref to an object that is known by another way, too; pinned by identity."""

    def __init__(self, real: weakref.ref, source: Source):
        self.real, self.source = real, source

    def pytype(self) -> type:
        return weakref.ref

    def truth(self, cx: Trace) -> bool:
        return True

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        target = self.real()
        found = cx.known.get(id(target))
        if target is None or found is None:
            raise unsupported("unknown-object", f"what {self.source.text()} refers to")
        cx.guard("ID", found.source, identity(target))
        return found


@wraps(weakref.ref)
def wrap_weakref(cx: Trace, real: weakref.ref, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return WeakReference(real, source)


@wraps(property)
def wrap_property(cx: Trace, real: property, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return PropertyValue(real, source)


def object_dict(value: ObjectValue) -> DictValue:
    """vars() of an object that the frame made."""
    return DictValue.of([(ConstantValue(k), v) for k, v in value.stored.items() if isinstance(v, Value) and not isinstance(v, Lazy)])


def is_function_value(value: Value) -> bool:
    return isinstance(value, FunctionValue)
