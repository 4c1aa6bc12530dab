"""What every tracked value can be asked. A kind overrides what it supports; the rest is a named break.

`cx` is the Context. A value with a `source` exists before the frame runs; one without was made by the frame.
"""

from __future__ import annotations

import decimal
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch

from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.operator_names import BINARY, INPLACE, UNARY
from dynacompile.capture.values.arities import check_method
from dynacompile.ir.guard_facts import is_a
from dynacompile.ir.namespaces import MISSING, class_lookup, defines, is_computed
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


next_serial = itertools.count(1).__next__
"""Numbers of containers, in the order in which they are made."""


class Value:
    """A Python object as capture knows it."""

    serial = 0  # of a container, an object, an iterator or a cell: those with a greater one are made later
    source: Any = None  # a Source, or None
    is_made = False  # the source is of a twin: the object itself is made by the frame
    is_copy = False  # it stands for one of several equal objects, of which guards don't tell which
    is_symbol = False  # an int or float whose value an entry need not know
    told_apart = False  # capture relies on its being another object than the others of its class that are told apart

    def describe(self) -> str:
        """A few words for break reasons."""
        return f"{self.source.text()} ({self.pytype().__name__})" if self.source else self.pytype().__name__

    def pytype(self) -> type:
        """The class of the object."""
        raise unsupported("unknown-operation", f"type() of {type(self).__name__}")

    def constant(self) -> Any:
        """The object itself, where it is immutable and known. Raises NotConstant."""
        raise NotConstant(type(self).__name__)

    def identity(self) -> Any:
        """The one real object that this value stands for, for `is` and dict keys. Raises NotConstant for objects that do not exist yet."""
        return self.constant()

    def own_key(self) -> Hashable | None:
        """What stands for it as a key, where equal objects may be several; None where what it is, or its constant, decides."""
        return None

    def truth(self, cx: Context) -> bool:
        raise unsupported("unknown-operation", f"bool({self.describe()})")

    def length(self, cx: Context) -> int:
        raise unsupported("unknown-operation", f"len({self.describe()})")

    def counted(self, cx: Context) -> Value:
        """len(self), which may be another in other calls of the entry."""
        return cx.of(self.length(cx))

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__class__":
            return cx.class_value(self.pytype(), None)
        if name in SLOT_METHODS and isinstance(class_lookup(self.pytype(), name), types.WrapperDescriptorType):
            return Method(self, name)
        raise unsupported("unknown-attribute", f"{self.describe()}.{name}")

    def computes(self, cx: Context, name: str) -> bool:
        """Whether code decides what an attribute is, and whether there is one, so that only reading it tells."""
        return is_computed(cx.lookup(self.pytype(), name))

    def finds_attr(self, cx: Context, name: str) -> bool:
        """hasattr(self, name)."""
        return cx.unless_missing(lambda: self.get_attr(cx, name)) is not None if self.computes(cx, name) else self.has_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        """The same of an attribute that is not computed."""
        raise unsupported("unknown-attribute", f"hasattr({self.describe()}, {name!r})")

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        raise unsupported("setattr", f"{self.describe()}.{name} = ...")

    def del_attr(self, cx: Context, name: str) -> None:
        raise unsupported("setattr", f"del {self.describe()}.{name}")

    def get_item(self, cx: Context, key: Value) -> Value:
        return self.method(cx, "__getitem__", [key], {})

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        self.method(cx, "__setitem__", [key, value], {})

    def del_item(self, cx: Context, key: Value) -> None:
        self.method(cx, "__delitem__", [key], {})

    def as_index(self, cx: Context, alone: bool) -> Value:
        """What a tensor is indexed by. alone: it is the whole index."""
        return self

    def contains(self, cx: Context, item: Value) -> Value:
        return self.method(cx, "__contains__", [item], {})

    def iterate(self, cx: Context) -> IteratorValue:
        """iter(self)."""
        raise unsupported("unknown-operation", f"iter({self.describe()})")

    def elements(self, cx: Context) -> list[Value]:
        """list(self)."""
        return self.iterate(cx).drain(cx)

    def each(self, cx: Context) -> Iterator[Value]:
        """The elements, one by one: what takes one may change what the next one is."""
        iterator = self.iterate(cx)
        while (value := iterator.next(cx)) is not None:
            yield value

    def foretell(self, cx: Context) -> None:
        """What list() does between iter() and the first element: it asks an object for a length, which may run a user's code."""

    def listed(self, cx: Context) -> list[Value]:
        """The elements, for what makes a list or a tuple of them."""
        return self.elements(cx)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        raise unsupported("unknown-function", self.describe())

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """self.name(*args, **kwargs)."""
        found = None if kwargs else cx.slot_method(self, name, args)
        if found is None:
            raise unsupported("unknown-operation", f"{self.describe()}.{name}()")
        return found

    def base_method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The method of that name of the class written in C that the object's class derives from, past what other classes define."""
        return self.method(cx, name, args, kwargs)

    def argument(self) -> tuple[Any, Any]:
        """(fx argument, fake argument) when passed to an operation of the graph."""
        value = self.constant()
        return value, value

    def is_pending(self) -> bool:
        """Whether Python may run code when it drops the object: a generator that stopped in a block."""
        return False

    def ends_late(self) -> bool:
        """Whether Python may run code when the frame ends that has the object in a variable: a generator with blocks."""
        return False

    def children(self) -> Sequence[Value]:
        """Values that `rebuild` needs besides self."""
        return ()

    def numbers(self) -> Iterator[Source]:
        """Where the numbers and texts lie, of those that vary from call to call, of which it is made."""
        return iter(())

    def referred(self) -> Value | None:
        """Whom it refers to without holding it: `rebuild` needs that one where another value holds it."""
        return None

    def rebuild(self, out: Writer) -> None:
        """Emits residual code that pushes a new equal object. Called for values without a source only."""
        raise unsupported("rebuild", self.describe())


class Keywords(dict[str, Value]):
    """The keywords of a call that unpacks a dict, which functions written in C can tell from one without keywords, also where it is empty."""


class IteratorValue(Value):
    """An iterator whose state capture follows."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = super().__new__(cls)
        made.serial = next_serial()
        return made

    def next(self, cx: Context) -> Value | None:
        """The next value, None at the end."""
        raise NotImplementedError(type(self).__name__)

    def iterate(self, cx: Context) -> IteratorValue:
        cx.effects.move(self)  # by who asks for it
        return self

    def remaining(self) -> int | None:
        """How many values are left, where that is known without asking for them."""
        return None

    def get_attr(self, cx: Context, name: str) -> Value:
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.pytype(), name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.effects.move(self)
        if name == "__next__" and not args:
            item = self.next(cx)
            if item is None:
                raise self.stopped()
            return item
        return self if name == "__iter__" else super().method(cx, name, args, kwargs)

    def result(self, cx: Context) -> Value | None:
        """What `yield from` gives of it, once it has ended; None for the constant."""
        return None

    def stopped(self) -> Raised:
        """What next() raises at the end."""
        return raises(StopIteration)

    def drain(self, cx: Context) -> list[Value]:
        out = []
        while (value := self.next(cx)) is not None:
            out.append(value)
        return out

    def finds(self, cx: Context, item: Value) -> bool:
        """Whether a value equals an item. Those behind the first such one are not asked for."""
        while (value := self.next(cx)) is not None:
            if cx.matches(value, item):
                return True
        return False

    def meets(self, cx: Context, truth: bool) -> bool:
        """Whether a value is true, or false, as it is wanted. Those behind the first such one are not asked for."""
        while (value := self.next(cx)) is not None:
            if value.truth(cx) == truth:
                return True
        return False

    def truth(self, cx: Context) -> bool:
        return True


def stepped(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    """An iterator that was asked `count` times: residual code makes iterators again by it."""
    for _ in range(count):
        next(iterator, None)
    return iterator


HELD = frozenset({memoryview, decimal.Context, *weakref.ProxyTypes})
"""A view keeps its object from being resized; the flags and traps of a context point into it, and do not hold it. A weak proxy does not tell whether it calls
a function once its object is gone."""


def has_finalizer(real: Any) -> bool:
    """Whether others can tell that the last reference to an object goes: its class has a `__del__`, a weak reference calls a function, or it is of HELD. A
    node of autograd's loses its hooks, where nothing else holds it; a weak reference that is gone calls no function."""
    if is_a(real, (torch.Tensor, torch.nn.Module)):
        return False
    if (
        type(real) in HELD
        or is_a(real, weakref.ref)
        and real.__callback__ is not None
        or any(defines(type(real), name) for name in ("__del__", "register_prehook"))
    ):
        return True
    return any(isinstance(r, weakref.ref) and r.__callback__ is not None for r in weakref.getweakrefs(real))


class Lazy(Value):
    """An object that was not read yet; reading makes it a value and installs its guards."""

    def __init__(self, cx: Context, real: Any, source: Source):
        self.cx, self.real, self.source = cx, real, source

    def force(self) -> Value:
        return self.cx.wrap(self.real, self.source)

    def describe(self) -> str:
        return self.source.text()

    def is_pending(self) -> bool:
        return self.force().is_pending() if type(self.real) is types.GeneratorType else has_finalizer(self.real)

    def ends_late(self) -> bool:
        return type(self.real) is types.GeneratorType or has_finalizer(self.real)

    def pytype(self) -> type:
        return type(self.real)


class Null(Value):
    """The NULL that the call protocol keeps on the stack."""

    def describe(self) -> str:
        return "NULL"

    def rebuild(self, out: Writer) -> None:
        out.emit("PUSH_NULL")


NULL = Null()


class KeyOf:
    """Stands for an object as a key: it is known what equals the object, and nothing else of it."""


@dataclass(frozen=True)
class MethodKey(KeyOf):
    """Of a bound method: those of one owner and one function are equal."""

    owner: Value
    function: Hashable


def method_key(owner: Value, function: Hashable) -> MethodKey:
    """Raises for a constant as the owner: which of several equal objects it is may not be known."""
    try:
        owner.constant()
    except NotConstant:
        owner.told_apart = True
        return MethodKey(owner, function)
    raise unsupported("unknown-operation", f"a method of {owner.describe()} as a key")


class Method(Value):
    """A bound method of a value whose kind implements `method`."""

    def __init__(self, owner: Value, name: str):
        self.owner, self.name = owner, name

    def describe(self) -> str:
        return f"{self.owner.describe()}.{self.name}"

    def pytype(self) -> type:
        raw = class_lookup(self.owner.pytype(), self.name)
        if isinstance(raw, types.FunctionType):
            return types.MethodType
        return types.MethodWrapperType if isinstance(raw, types.WrapperDescriptorType) else types.BuiltinFunctionType

    def truth(self, cx: Context) -> bool:
        return True

    def equals(self, cx: Context, other: Value) -> bool:
        return isinstance(other, Method) and self.name == other.name and cx.is_same(self.owner, other.owner)

    def own_key(self) -> Hashable:
        return method_key(self.owner, self.name)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in ("__self__", "__name__"):
            return self.owner if name == "__self__" else cx.of(self.name)
        if name in ("__qualname__", "__doc__"):
            return cx.of(getattr(getattr(self.owner.pytype(), self.name), name))
        return super().get_attr(cx, name)

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        check_method(self.owner.pytype(), self.name, args, kwargs)
        return self.owner.method(cx, self.name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.owner,)

    def rebuild(self, out: Writer) -> None:
        out.value(self.owner)
        out.load_attr(self.name)


class CMethod(Method):
    """owner.name, where the owner's class is a user's and inherits the method from a class written in C."""

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        check_method(self.owner.pytype(), self.name, args, kwargs)
        return self.owner.base_method(cx, self.name, args, kwargs)


class BaseMethod(Method):
    """super(start, owner).name, where what is found is written in C."""

    def __init__(self, owner: Value, name: str, start: type):
        super().__init__(owner, name)
        self.start = start

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        check_method(self.owner.pytype(), self.name, args, kwargs, self.start)
        return self.owner.base_method(cx, self.name, args, kwargs)

    def rebuild(self, out: Writer) -> None:
        out.callee(super)
        out.const(self.start)
        out.value(self.owner)
        out.call(2)
        out.load_attr(self.name)


def no_attribute(cls: type, name: str) -> Raised:
    """What an access to an attribute raises that the class does not define. Classes written in C may have another name in the message: with their module."""
    return raises(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}", known=cls.__module__ == "builtins")


def builtin_attribute(cx: Context, owner: Value, name: str) -> Value:
    """An attribute of an object of a builtin class, which has those of its class alone: methods and data."""
    cls = owner.pytype()
    if name == "__class__":
        return cx.class_value(cls, None)
    found = class_lookup(cls, name)
    if found is MISSING:
        raise no_attribute(cls, name)
    if callable(found):
        return Method(owner, name)
    if found is None or isinstance(found, str):
        return cx.of(found)
    raise unsupported("unknown-attribute", f"{owner.describe()}.{name}")


SLOT_METHODS = frozenset((*(method for pair in BINARY.values() for method in pair), *UNARY.values(), *(f"__{name}__" for name in INPLACE))) | frozenset(
    "__call__ __len__ __bool__ __iter__ __contains__ __str__ __repr__ __hash__ __getattribute__ __setattr__ __delattr__ __init__".split()
)
"""Special methods of classes written in C that are what an operator, a builtin function or an access to an attribute does."""


Wrapper = Callable[["Context", Any, Source], Value]
WRAPPERS: dict[type, Wrapper] = {}  # exact type -> how an object that exists before the frame becomes a value


def wraps(*types: type) -> Callable[[Wrapper], Wrapper]:
    """Registers how objects of exactly these types are wrapped."""

    def register(wrapper: Wrapper) -> Wrapper:
        for t in types:
            WRAPPERS[t] = wrapper
        return wrapper

    return register


def bind_arguments(name: str, parameters: Sequence[str], args: list[Value], kwargs: dict[str, Value], defaults: dict[str, Value | None]) -> list[Any]:
    """Arguments of a builtin by parameter name; missing ones from `defaults`. A wrong call is left to Python to refuse."""
    bound: dict[str, Value | None] = dict(defaults)
    if len(args) > len(parameters):
        raise unsupported("would-raise", f"{name}() takes at most {len(parameters)} arguments")
    bound.update(zip(parameters, args))
    for key, value in kwargs.items():
        if key not in parameters or key in parameters[: len(args)]:
            raise unsupported("would-raise", f"{name}() got an unexpected argument {key!r}")
        bound[key] = value
    missing = [p for p in parameters if p not in bound]
    if missing:
        raise unsupported("would-raise", f"{name}() misses {missing[0]!r}")
    return [bound[p] for p in parameters]
