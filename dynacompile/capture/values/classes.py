"""Classes, super(), C methods read from their class, and exceptions."""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import types
import typing
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.values.answers import answered
from dynacompile.capture.values.arities import check_call, check_method
from dynacompile.capture.values.base import BaseMethod, IteratorValue, Method, Value, bind_arguments, builtin_attribute
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.descriptors import assigned_attribute, bind_descriptor, class_source, is_data_descriptor
from dynacompile.capture.values.dict_objects import DictObjectValue, is_dict_class, made_dict_object
from dynacompile.capture.values.exceptions import make_exception
from dynacompile.capture.values.functions import BoundMethod
from dynacompile.capture.values.graph_tensor import GraphTensor
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.namespaces import NamespaceValue
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.own_methods import IN_C, is_own, own_method, refuse_own
from dynacompile.capture.values.partials import is_partial_class, made_partial_object
from dynacompile.capture.values.proxies import ProxyValue
from dynacompile.capture.values.references import WEAK_CONTAINERS
from dynacompile.capture.values.rows import HANDLERS, handles, row_of
from dynacompile.capture.values.sequence import ListValue, TupleValue, is_namedtuple, is_structseq, reads_as_tuple
from dynacompile.capture.values.sequence_objects import ListObjectValue, TupleObjectValue, is_list_class, is_tuple_class
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.guard_facts import Flag, identity
from dynacompile.ir.namespaces import IMMUTABLE_TYPE, MISSING, class_lookup, defines, is_computed, is_data
from dynacompile.ir.source import Attr, Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


ATTRIBUTES: dict[str, Callable[[type], Value | None]] = {}
"""Attributes of some classes that are more than what their dicts have, by name; None of classes that have none of the kind."""
MAKERS: dict[type, Callable[[type], Value]] = {}
"""Classes whose subclasses have objects of a kind of their own, and how such an object is made."""


def has_member(cls: type, value: object) -> bool:
    """Whether an enumeration has a member of that value, or the value is one: then no code of the class is asked for it."""
    try:
        return type(value) is cls or value in cls._value2member_map_  # type: ignore[attr-defined]
    except TypeError:  # it has no hash, and is looked for among the members
        return any(member.value == value for member in cls.__members__.values())  # type: ignore[attr-defined]


def is_typed_dict(cls: type) -> bool:
    """Whether a call of a class gives a plain dict: of typing's TypedDict, or of the one that typing_extensions has for old versions of Python."""
    return typing.is_typeddict(cls) or (type(cls).__module__, type(cls).__name__) == ("typing_extensions", "_TypedDictMeta")


class ClassValue(Value):
    """A class. Calling it runs the builtin's row, or makes a new object whose __init__ is inlined."""

    def __init__(self, real: type, source: Source | None):
        self.real, self.source = real, source or Constant(real, real.__qualname__)
        self.assigned: dict[str, Value] = {}  # attributes that the frame assigned

    def describe(self) -> str:
        return f"class {self.real.__qualname__}"

    def pytype(self) -> type:
        return type(self.real)

    def constant(self) -> Any:
        return self.real

    def truth(self, cx: Context) -> bool:
        refuse_own(cx, type(self.real), "__bool__", "__len__")
        return True

    def computes(self, cx: Context, name: str) -> bool:
        found, meta = type(cx.lookup(self.real, name)), type(self.real)
        own = isinstance(class_lookup(found, "__get__"), types.FunctionType) and not is_trusted(found.__module__)
        return own or own_method(cx, meta, "__getattribute__", "__getattr__") is not None or is_own(meta, name, cx.lookup(meta, name))

    def has_attr(self, cx: Context, name: str) -> bool:
        return assigned_attribute(cx, self.real, name) is not None or hasattr(self.real, name)

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        """Of data: what Python looks up by itself, or binds to instances, is left to Python."""
        raw, above = cx.lookup(self.real, name), cx.lookup(type(self.real), name)
        flags = self.real.__flags__
        plain = flags & HEAP_TYPE and not flags & IMMUTABLE_TYPE and type(self.real).__setattr__ is type.__setattr__ and not is_trusted(self.real.__module__)
        if not plain or above is not MISSING or name.startswith("__") or hasattr(type(raw), "__get__") or hasattr(value.pytype(), "__get__"):
            raise unsupported("setattr", f"{self.describe()}.{name} = ...")
        cx.effects.touch(self)
        cx.effects.store_class_attribute(self.real, name, value)
        self.assigned[name] = value

    def replay_values(self) -> Sequence[Value]:
        return list(self.assigned.values())

    def replay(self, out: Writer) -> None:
        for name, value in self.assigned.items():
            out.value(value)
            out.const(self.real)
            out.store_attr(name)

    def get_attr(self, cx: Context, name: str) -> Value:
        found = assigned_attribute(cx, self.real, name)
        if found is not None:
            return found
        refuse_own(cx, type(self.real), "__getattribute__")
        if name in ("__name__", "__qualname__", "__module__"):
            return ConstantValue(getattr(self.real, name))
        raw, above = cx.lookup(self.real, name), cx.lookup(type(self.real), name)
        if above is not MISSING and is_data_descriptor(above) and is_of_type(name, above):
            return self.field(cx, name)
        is_enum = isinstance(self.real, enum.EnumMeta) and not is_own(type(self.real), name, above)
        if above is not MISSING and (raw is MISSING or is_data_descriptor(above)) and not is_enum:
            if isinstance(above, (types.FunctionType, property, classmethod, staticmethod)):
                return bind_descriptor(cx, above, self, cx.class_value(type(self.real), None), name, class_source(type(self.real), name))
            if isinstance(above, IN_C):
                return Method(self, name)
            if is_data(above):
                return cx.class_value(type(self.real), None).get_attr(cx, name)
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        if name in ATTRIBUTES and (own := ATTRIBUTES[name](self.real)) is not None:
            return own
        if raw is MISSING:
            return self.of_enum(cx, name, above) if isinstance(self.real, enum.EnumMeta) else self.missing(cx, name)
        if name == "__new__":
            return bind_descriptor(cx, raw, None, self, name, class_source(self.real, name)) if isinstance(raw, staticmethod) else new_of(raw)
        if isinstance(raw, IN_C):
            return UnboundMethod(self.real, name)
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return cx.wrap(raw, Constant(raw, name))
        if isinstance(raw, types.ClassMethodDescriptorType):
            return cx.wrap(getattr(self.real, name), Constant(getattr(self.real, name), name))
        return bind_descriptor(cx, raw, None, self, name, class_source(self.real, name))

    def field(self, cx: Context, name: str) -> Value:
        """What every class has, by a descriptor of `type`."""
        if name == "__class__":
            return cx.class_value(type(self.real), None)
        if name == "__dict__":
            return ProxyValue(ClassDict(self.real))
        if name in ("__mro__", "__bases__", "__base__"):
            cx.names.of_ancestry(self.real)
        elif name == "__annotations__":
            return cx.wrap(self.real.__annotations__, Attr(self.source, name))
        return cx.pure(getattr, [ConstantValue(self.real), ConstantValue(name)], {})

    def of_enum(self, cx: Context, name: str, above: Any) -> Value:
        """What the metaclass of enumerations finds."""
        if vars(self.real).get("__new__") is not enum.Enum.__new__:  # which is set last
            raise unsupported("unknown-attribute", f"{self.describe()}.{name} of a class that is being made")
        members = self.real.__members__  # type: ignore[attr-defined]
        if name in members:
            return cx.of(members[name])
        if name == "__members__":
            return ProxyValue(DictValue.of([(ConstantValue(n), cx.of(m)) for n, m in members.items()]))
        if isinstance(above, IN_C):
            return Method(self, name)
        if above is not MISSING:
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        return self.missing(cx, name)

    def missing(self, cx: Context, name: str) -> Value:
        fallback = cx.lookup(type(self.real), "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return cx.call_real(fallback, class_source(type(self.real), "__getattr__"), [self, ConstantValue(name)])
        named = bool(self.real.__flags__ & HEAP_TYPE) or self.real.__module__ == "builtins"  # other classes written in C are called by their modules, too
        raise raises(AttributeError, f"type object {self.real.__name__!r} has no attribute {name!r}", known=named)

    def special(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value | None:
        """What the metaclass defines in Python for an operation on the class; None where it does not."""
        raw = cx.lookup(type(self.real), name)
        if not is_own(type(self.real), name, raw):
            return None
        if not isinstance(raw, types.FunctionType):
            refuse_own(cx, type(self.real), name)
        return cx.call_real(raw, class_source(type(self.real), name), [self, *args], kwargs or {})

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = row_of(self.real)
        if row is not None:
            check_call(self.real, args, kwargs)
            return row(cx, args, kwargs)
        made = None if is_typed_dict(self.real) else self.special(cx, "__call__", args, kwargs)
        return self.make(cx, args, kwargs) if made is None else made

    def make(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """type.__call__."""
        if isinstance(self.real, enum.EnumMeta):
            return self.member(cx, args, kwargs)
        if self.real in COMPUTED:
            return cx.pure(self.real, args, kwargs)
        if is_typed_dict(self.real):
            return cx.class_value(dict, None).call(cx, args, kwargs)
        if issubclass(self.real, BaseException):
            return make_exception(cx, self.real, args, kwargs)
        if type(self.real).__call__ is not type.__call__ and not isinstance(type(self.real).__call__, types.FunctionType):
            raise unsupported("unknown-function", f"making an object of {self.describe()}")
        new = cx.lookup(self.real, "__new__")
        if isinstance(new, (staticmethod, types.FunctionType)) and not makes_namedtuple(self.real):
            made = cx.call_real(getattr(new, "__func__", new), class_source(self.real, "__new__"), [self, *args], kwargs)
            if not issubclass(made.pytype(), self.real):
                return made
        else:
            made = self.allocate(cx, args, kwargs)
        init = cx.lookup(made.pytype(), "__init__")
        if isinstance(init, types.FunctionType):
            given = cx.call_real(init, class_source(made.pytype(), "__init__"), [made, *args], kwargs)
            if not is_none(given):
                raise raises(TypeError, f"__init__() should return None, not {given.pytype().__name__!r}")
        elif is_own(made.pytype(), "__init__", init):
            refuse_own(cx, made.pytype(), "__init__")
        elif isinstance(made, (DictObjectValue, ListObjectValue)):
            made.method(cx, "__init__", args, kwargs)
        elif (args or kwargs) and new is object.__new__:
            raise raises(TypeError, f"{self.real.__name__}() takes no arguments", known=False)  # it is another text where the class once had a __new__
        return made

    def member(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The member of an enumeration with a value, or what its `_missing_` gives for one that no member has."""
        missing = cx.lookup(self.real, "_missing_")
        alone = len(args) == 1 and not kwargs
        if alone and has_member(self.real, args[0].constant()):
            return cx.pure(self.real, args, kwargs)
        if alone and is_own(self.real, "_missing_", missing) and isinstance(missing, classmethod):
            found = self.get_attr(cx, "_missing_").call(cx, args, {})
            if is_none(found):
                raise raises(ValueError, f"{args[0].constant()!r} is not a valid {self.real.__qualname__}")
            if isinstance(found, ConstantValue) and isinstance(found.value, self.real):
                return found
        refuse_own(cx, self.real, "_missing_", "__new__", "__init__")
        return cx.pure(self.real, args, kwargs)

    def allocate(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The new object as __new__ gives it."""
        if makes_namedtuple(self.real):
            return self.make_namedtuple(cx, args, kwargs)
        if issubclass(self.real, torch.Tensor):
            return HANDLERS[torch.Tensor.__new__](cx, [self, *args], kwargs)
        if is_structseq(self.real) and len(args) == 1 and not kwargs:
            return self.make_structseq(args[0].elements(cx))
        if is_dict_class(self.real):
            return made_dict_object(self.real)
        if is_list_class(self.real):
            return ListObjectValue(self.real, ListValue([]))
        if issubclass(self.real, tuple) and self.real.__new__ is tuple.__new__ and reads_as_tuple(self.real) and not kwargs and len(args) < 2:
            return TupleValue(args[0].elements(cx) if args else [], self.real)
        if is_tuple_class(self.real) and self.real.__new__ is tuple.__new__ and not kwargs and len(args) < 2:
            return TupleObjectValue(self.real, TupleValue(args[0].listed(cx) if args else []))
        maker = next((make for base, make in MAKERS.items() if issubclass(self.real, base)), None)
        if maker is not None:
            return maker(self.real)
        if is_partial_class(self.real):
            return made_partial_object(cx, self.real, args, kwargs)
        if not allocates_plainly(self.real) or issubclass(self.real, WEAK_CONTAINERS):
            raise unsupported("unknown-function", f"making an object of {self.describe()}")
        return plain_object(self.real)

    def length(self, cx: Context) -> int:
        found = self.special(cx, "__len__", [])
        if found is None and isinstance(self.real, enum.EnumMeta):
            return len(self.real)
        return super().length(cx) if found is None else answered("__len__", found).constant()

    def make_namedtuple(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        real: Any = self.real
        defaults: dict[str, Value | None] = {name: cx.of(value) for name, value in real._field_defaults.items()}
        return TupleValue(bind_arguments(real.__name__, real._fields, args, kwargs, defaults), self.real)

    def make_structseq(self, items: list[Value]) -> Value:
        real: Any = self.real
        if len(items) != real.n_sequence_fields:
            raise unsupported("would-raise", f"{self.describe()} of {len(items)} elements")
        return TupleValue(items, real)

    def argument(self) -> tuple[Any, Any]:
        return self.real, self.real

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "mro" and not args and not kwargs:
            return ListValue(self.get_attr(cx, "__mro__").elements(cx))
        if name == "__subclasses__" and not args and not kwargs:
            derived: list[type] = type.__subclasses__(self.real)
            read = functools.partial(identities, weakref.ref(self.real))
            cx.guard("FLAG", None, Flag(f"{self.real.__qualname__}.__subclasses__()", read, read()))
            return ListValue([cx.class_value(cls, None) for cls in derived])
        found = self.special(cx, name, args, kwargs)
        if found is None and (name in ("__or__", "__eq__", "__ne__") or name in ("__getitem__", "__contains__") and isinstance(self.real, enum.EnumMeta)):
            return cx.pure(getattr(self.real, name), args, kwargs)
        return super().method(cx, name, args, kwargs) if found is None else found

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.make(cx, args, kwargs) if name == "__call__" else super().base_method(cx, name, args, kwargs)

    def iterate(self, cx: Context) -> IteratorValue:
        found = self.special(cx, "__iter__", [])
        if found is None and isinstance(self.real, enum.EnumMeta):
            return TupleValue([cx.of(member) for member in list[Any](self.real)]).iterate(cx)
        return super().iterate(cx) if found is None else found.iterate(cx)

    def rebuild(self, out: Writer) -> None:
        out.const(self.real)


UNBOUND = (staticmethod, classmethod, types.ClassMethodDescriptorType)  # what a class has in its dict, and binds where it is read from the class


class ClassDict(NamespaceValue):
    """The dict of a class, of which programs see a proxy."""

    def __init__(self, real: type):
        self.real = real

    def describe(self) -> str:
        return f"{self.real.__qualname__}.__dict__"

    def find_name(self, cx: Context, name: str) -> Value | None:
        assigned = cx.effects.class_attributes.get((self.real, name))
        if assigned is not None:
            return assigned
        if name not in self.real.__dict__:
            cx.names.of_own(self.real)
            return None
        raw = cx.lookup(self.real, name)
        return cx.wrap(raw, Constant(raw, name) if isinstance(raw, UNBOUND) else class_source(self.real, name))

    def names(self, cx: Context) -> list[str]:
        cx.names.of_own(self.real)
        return list(dict.fromkeys((*self.real.__dict__, *(name for cls, name in cx.effects.class_attributes if cls is self.real))))

    def rebuild(self, out: Writer) -> None:
        raise unsupported("rebuild", f"the dict of class {self.real.__qualname__}")


def is_of_type(name: str, above: Any) -> bool:
    return above is type.__dict__.get(name, object.__dict__.get(name))


def identities(holder: weakref.ref[type]) -> tuple[int, ...]:
    """Which classes derive from a class."""
    cls = holder()
    return () if cls is None else tuple(map(id, type.__subclasses__(cls)))


class UnboundMethod(Value):
    """A C method read from its class: `torch.Tensor.add`, `dict.get`, `object.__init__`."""

    def __init__(self, cls: type, name: str, source: Source | None = None):
        self.cls, self.name, self.source = cls, name, source

    def describe(self) -> str:
        return f"{self.cls.__qualname__}.{self.name}"

    def pytype(self) -> type:
        return type(class_lookup(self.cls, self.name))

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.name == "__init__" and self.cls is object and args:
            made = args[0].pytype()
            if len(args) > 1 or kwargs and (made.__init__ is not object.__init__ or made.__new__ is object.__new__):  # type: ignore[misc]
                raise unsupported("unknown-function", "object.__init__ with arguments")
            return ConstantValue(None)
        if self.name == "__new__":
            return self.make(cx, args, kwargs)
        if not args or not issubclass(args[0].pytype(), self.cls):
            raise unsupported("unknown-function", self.describe())
        check_method(self.cls, self.name, args[1:], kwargs)
        if isinstance(args[0], ConstantValue) and class_lookup(args[0].pytype(), self.name) is not class_lookup(self.cls, self.name):
            return cx.pure(self.identity(), args, kwargs)
        modelled = getattr(args[0], "table", args[0])
        if isinstance(modelled, DictValue) and class_lookup(modelled.cls, self.name) is not class_lookup(self.cls, self.name):
            raise unsupported("unknown-function", f"{self.describe()} of {args[0].describe()}")  # a dict's own, past what a class of dicts does
        return args[0].base_method(cx, self.name, args[1:], kwargs)

    def make(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """cls.__new__(args[0], ...) of a class written in C."""
        wanted = args[0].real if args and isinstance(args[0], ClassValue) else None
        if wanted is not None and issubclass(wanted, torch.Tensor) and issubclass(torch.Tensor, self.cls):
            return HANDLERS[torch.Tensor.__new__](cx, args, kwargs)
        if wanted is not None and not kwargs:
            if self.cls is object and len(args) == 1 and allocates_plainly(wanted):
                return plain_object(wanted)
            if self.cls is tuple and issubclass(wanted, tuple) and wanted.__basicsize__ == tuple.__basicsize__ and reads_as_tuple(wanted) and len(args) == 2:
                return TupleValue(args[1].elements(cx), wanted)
            if self.cls is tuple and is_tuple_class(wanted) and len(args) == 2:
                return TupleObjectValue(wanted, TupleValue(args[1].listed(cx)))
            if self.cls is dict and is_dict_class(wanted, own_new=True):
                return made_dict_object(wanted)
        raise unsupported("unknown-function", self.describe())

    def identity(self) -> Any:
        return getattr(self.cls, self.name)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__objclass__", "__doc__"):
            return cx.of(getattr(self.identity(), name))
        return super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.identity(), name)

    def rebuild(self, out: Writer) -> None:
        out.const(getattr(self.cls, self.name))


COMPUTED = frozenset({int, float, str, bool, complex, decimal.Decimal, datetime.timedelta, datetime.date, datetime.time})  # from constants
PLAIN_SIZE = type("Plain", (), {}).__basicsize__


def allocates_plainly(cls: type) -> bool:
    """Whether object.__new__ makes its instances, and they hold nothing but attributes and slots."""
    slots = sum(isinstance(raw, types.MemberDescriptorType) for base in cls.__mro__ for raw in base.__dict__.values())
    return (
        cls.__basicsize__ - 8 * slots <= PLAIN_SIZE
        and issubclass(cls.__base__ or cls, object)
        and all(base is object or base.__flags__ & HEAP_TYPE for base in cls.__mro__)
        and (cls.__setattr__ is object.__setattr__ or isinstance(cls.__setattr__, types.FunctionType))
        and (cls.__getattribute__ is object.__getattribute__ or isinstance(cls.__getattribute__, types.FunctionType))
        and not hasattr(cls, "__del__")
        and not any(isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType) for base in cls.__mro__ if base is not object)
    )


def plain_object(cls: type) -> ObjectValue:
    """object.__new__(cls)"""
    if getattr(cls, "__abstractmethods__", None):
        raise unsupported("would-raise", f"class {cls.__qualname__} is abstract")
    return ObjectValue(cls)


HEAP_TYPE = 1 << 9  # classes made by class statements, and some that are written in C


def is_plain_class(cls: type) -> bool:
    """Classes whose instances are made by object.__new__ alone."""
    return type(cls).__call__ is type.__call__ and cls.__new__ is object.__new__ and allocates_plainly(cls)


def makes_namedtuple(cls: type) -> bool:
    """Whether cls(...) runs the __new__ that collections.namedtuple generates."""
    owner = next((base for base in cls.__mro__ if "__new__" in base.__dict__), object)
    return is_namedtuple(cls) and "_fields" in owner.__dict__ and "_make" in owner.__dict__


def new_of(raw: Any) -> UnboundMethod:
    """The __new__ of a class written in C."""
    return UnboundMethod(raw.__self__, "__new__")


def super_of(start: Value, owner: Value) -> SuperValue:
    """super(start, owner)"""
    cls = start.constant()
    if not issubclass(owner.pytype(), cls) and not (isinstance(owner, ClassValue) and issubclass(owner.real, cls)):
        raise unsupported("would-raise", "super(): obj must be an instance or subtype of type")
    return SuperValue(cls, owner)


class SuperValue(Value):
    """super(start, owner)."""

    def __init__(self, start: type, owner: Value):
        self.start, self.owner = start, owner

    def pytype(self) -> type:
        return super

    def is_of_class(self) -> bool:
        """Whether attributes are looked up in the owner, which is a class."""
        return isinstance(self.owner, ClassValue) and not issubclass(self.start, type)

    def raw(self, cx: Context, name: str) -> Any:
        return cx.lookup(self.owner.constant() if self.is_of_class() else self.owner.pytype(), name, after=self.start)

    def get_attr(self, cx: Context, name: str) -> Value:
        is_class = self.is_of_class()
        cls = self.owner.constant() if is_class else self.owner.pytype()
        found = assigned_attribute(cx, cls, name, self.start)
        if found is not None:
            return found
        raw = self.raw(cx, name)
        if raw is MISSING or name == "__class__":
            return builtin_attribute(cx, self, name)
        if name == "__new__" and not isinstance(raw, staticmethod):
            return new_of(raw)
        if not isinstance(raw, (types.FunctionType, staticmethod, classmethod, property)):
            if isinstance(self.owner, GraphTensor) and isinstance(raw, types.GetSetDescriptorType):
                return self.owner.field(cx, name, raw)
            if isinstance(self.owner, GraphTensor) and isinstance(raw, IN_C) and cx.lookup(torch.Tensor, name) is raw and raw is not cx.lookup(object, name):
                return BoundMethod(UnboundMethod(torch.Tensor, name), self.owner)
            if isinstance(raw, IN_C):
                return BaseMethod(self.owner, name, self.start)
            if not is_data(raw) and (isinstance(raw, functools.cached_property) or not is_computed(raw)):
                raise unsupported("unknown-attribute", f"super().{name}")
        instance = None if is_class else self.owner
        return bind_descriptor(cx, raw, instance, cx.class_value(cls, None), "", class_source(cls, name, self.start))

    def computes(self, cx: Context, name: str) -> bool:
        return is_computed(self.raw(cx, name))

    def has_attr(self, cx: Context, name: str) -> bool:
        return self.raw(cx, name) is not MISSING or defines(super, name)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.callee(super)
        out.const(self.start)
        out.value(self.owner)
        out.call(2)


def wrap_class(cx: Context, real: type, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return ClassValue(real, source)


def register_new(cls: type) -> None:
    @handles(cls.__new__)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return UnboundMethod(cls, "__new__").make(cx, args, kwargs)


for _cls in (object, tuple, dict):
    register_new(_cls)
