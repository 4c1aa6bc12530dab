"""Dicts, their views, and sets."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, Raised, raises, unsupported
from dynacompile.capture.values.base import IteratorValue, KeyOf, Lazy, Value, bind_arguments, builtin_attribute, next_serial, no_attribute, wraps
from dynacompile.capture.values.constant import ConstantValue, is_identity_key
from dynacompile.capture.values.dict_iterators import DictIterator, Entries
from dynacompile.capture.values.keys import check_numbers, is_found_by_identity, is_known_key, key_in, key_of, known_key
from dynacompile.capture.values.sequence import HEAP_TYPE, ListValue, TupleValue
from dynacompile.ir.guard_facts import Presence, is_a
from dynacompile.ir.namespaces import MISSING, defines
from dynacompile.ir.source import Attr, Constant, Item, ItemOf, Length, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


def missing_key(key: Value) -> Raised:
    hashed = key_of(key)
    return raises(KeyError, hashed, known=not isinstance(hashed, (Value, KeyOf)))


class DictLike(Entries):
    """What dicts share, wherever their entries live. A key stands for an entry as `key_of` gives it."""

    def pytype(self) -> type:
        return self.cls

    def find(self, cx: Context, key: Value) -> Value | None:
        """The value of a key; None where it is not there."""
        raise NotImplementedError(type(self).__name__)

    def holds(self, cx: Context, key: Value) -> bool:
        """Whether the key is there. Its value is not read."""
        return self.find(cx, key) is not None

    def size(self, cx: Context) -> int:
        return len(self.keys(cx))

    def key_values(self, cx: Context) -> list[Value]:
        return [found for key in self.keys(cx) if (found := self.key_at(cx, key)) is not None]

    def elements(self, cx: Context) -> list[Value]:
        return self.key_values(cx)

    def iterate(self, cx: Context) -> IteratorValue:
        return DictIterator(cx, self, "keys")

    def contains(self, cx: Context, item: Value) -> Value:
        return ConstantValue(self.holds(cx, item))

    def length(self, cx: Context) -> int:
        return self.size(cx)

    def truth(self, cx: Context) -> bool:
        return self.counted(cx).truth(cx)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.cls, name)


# Types of objects each of which has a guard of its own at every place where it was read.
GUARDED_WHERE_READ = frozenset((torch.Tensor, torch.nn.Parameter, dict))


class DictValue(DictLike):
    """content: key -> (key, value) as of now. known_keys: whether the keys are guarded or owned. stored: by what the program stored, its key. of_object:
    whether the dict is an object of a user's class, which replays what was stored past the class's own methods."""

    of_object = False

    def __init__(self, content: dict[Hashable, tuple[Value, Value]], cls: type = dict, source: Source | None = None, factory: Value | None = None):
        self.content, self.cls, self.source, self.factory = content, cls, source, factory
        self.serial = next_serial()
        self.original = dict(content)
        self.stored: dict[Hashable, Value] = {}
        self.known_keys = source is None
        self.reordered = False
        self.attributes: dict[str, Value] = {}  # of an OrderedDict or Counter that the frame made, as state_dict() has them
        self.given: tuple[str, ...] = ()  # the names of those of one that exists before the frame

    @classmethod
    def of(cls, pairs: Sequence[tuple[Value, Value]]) -> DictValue:
        out = cls({})
        for key, value in pairs:
            out.put(key, value)
        return out

    def put(self, key: Value, value: Value) -> None:
        hashed = key_of(key)
        check_numbers(hashed, self.content)
        self.content[hashed] = (self.content[hashed][0] if hashed in self.content else key, value)

    def keys(self, cx: Context) -> list[Hashable]:
        if not self.known_keys:
            self.known_keys = True
            self.guard_keys(cx)
        for hashed, (key, value) in self.content.items():
            if isinstance(key, Lazy):
                if is_a(hashed, torch.Tensor):
                    raise unsupported("unknown-operation", f"all keys of {self.describe()}, which are tensors")
                self.content[hashed] = key.force(), value
        return list(self.content)

    def guard_keys(self, cx: Context) -> None:
        cx.guard("DICT_KEYS", self.source, tuple(self.original))

    def guard_key(self, cx: Context, key: Hashable) -> None:
        if not self.known_keys and not (isinstance(key, Value) and key.source is None):
            cx.guard("DICT_CONTAINS", self.source, Presence(key, key in self.original))

    def holds(self, cx: Context, key: Value) -> bool:
        hashed = self.asked(cx, key)
        self.guard_key(cx, hashed)
        return hashed in self.content

    def asked(self, cx: Context, key: Value) -> Hashable:
        """What stands for a key that is looked up, which later calls look up, too."""
        hashed = key_in(cx, key, self.source, self.content)
        if isinstance(hashed, Value) and hashed.source is not None and not self.known_keys:
            raise unsupported("unknown-operation", f"{key.describe()} as a key of {self.describe()}")
        return hashed

    def find(self, cx: Context, key: Value) -> Value | None:
        hashed = self.asked(cx, key)
        pair = self.content.get(hashed)
        if pair is not None and type(pair[1]) is Lazy and type(pair[1].real) in GUARDED_WHERE_READ:
            try:
                return self.at(cx, hashed)  # its guard fails where nothing is at the key
            except BaseException:
                self.guard_key(cx, hashed)
                raise
        self.guard_key(cx, hashed)
        return None if pair is None else self.at(cx, hashed)

    def at(self, cx: Context, hashed: Hashable) -> Value:
        return self.settled(hashed)

    def key_at(self, cx: Context, hashed: Hashable) -> Value | None:
        return self.content[hashed][0] if hashed in self.content else None

    def size(self, cx: Context) -> int:
        return len(self.content)

    def length(self, cx: Context) -> int:
        if self.known_keys or type(self) is not DictValue:
            return len(self.keys(cx))
        cx.guard("LENGTH", self.source, len(self.original))
        for key in self.stored:
            self.guard_key(cx, key)
        return len(self.content)

    def counted(self, cx: Context) -> Value:
        """A number of each call, where it has varied and no key was removed."""
        if self.known_keys or type(self) is not DictValue or self.source is None or cx.policy is None or Length(self.source) not in cx.policy.numbers:
            return super().counted(cx)
        for key in self.stored:
            self.guard_key(cx, key)
        before, added = cx.wrap(len(self.original), Length(self.source)), len(self.content) - len(self.original)
        return cx.operator("add", [before, ConstantValue(added)]) if added else before

    def get_item(self, cx: Context, key: Value) -> Value:
        found = self.find(cx, key)
        if found is not None:
            return found
        if self.factory is not None and not isinstance(self.factory, ConstantValue):
            made = self.factory.call(cx, [], {})
            self.set_item(cx, key, made)
            return made
        if self.cls is Counter:
            return ConstantValue(0)
        raise missing_key(key)

    def set_item(self, cx: Context, key: Value, value: Value) -> None:
        if self.source is not None and is_a(getattr(key, "real", None), torch.Tensor):
            cx.check_first_step(self, key)
        self.asked(cx, key)
        cx.effects.touch(self)
        self.put(key, value)
        self.stored.setdefault(key_of(key), key)

    def del_item(self, cx: Context, key: Value) -> None:
        if not self.holds(cx, key):
            if self.cls is Counter:  # which takes no offence
                return
            raise missing_key(key)
        cx.effects.touch(self)
        self.keys(cx)
        self.reordered = True
        self.deletions += 1
        del self.content[key_of(key)]

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        if not self.cls.__dictoffset__ or self.source is not None or defines(self.cls, name):
            super().set_attr(cx, name, value)
        self.attributes[name] = value

    def has_attr(self, cx: Context, name: str) -> bool:
        if not defines(self.cls, name) and self.own_names(cx) and self.source is not None:
            raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
        return name in self.attributes or super().has_attr(cx, name)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if not defines(self.cls, name):
            if self.own_names(cx) and self.source is not None:
                raise unsupported("unknown-attribute", f"{self.describe()}.{name}")
            raise no_attribute(self.cls, name)
        if name == "default_factory" and self.cls is defaultdict:
            return ConstantValue(None) if self.factory is None else self.factory
        return builtin_attribute(cx, self, name)

    def own_names(self, cx: Context) -> tuple[str, ...]:
        """The names of the attributes that it has itself."""
        if self.cls.__dictoffset__ and self.source is not None:
            cx.guard("DICT_KEYS", Attr(self.source, "__dict__"), self.given)
        return self.given if self.source is not None else tuple(self.attributes)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        row = COUNTER_METHODS.get(name) if self.cls is Counter else None
        row = DICT_METHODS.get(name) if row is None else row
        written = getattr(self.cls, name, None)
        if row is None and self.cls is Counter and isinstance(written, FunctionType):
            return cx.call_real(written, Constant(written, written.__qualname__), [self, *args], kwargs)
        if row is None or name == "move_to_end" and self.cls is not OrderedDict:
            raise unsupported("unknown-operation", f"{self.cls.__name__}.{name}()")
        return row(cx, self, args, kwargs)

    def argument(self) -> tuple[Any, Any]:
        if any(isinstance(k, (Value, KeyOf)) for k in self.content):
            raise NotConstant("dict with object keys")
        pairs = {k: self.settled(k).argument() for k in self.content}
        return {k: p[0] for k, p in pairs.items()}, {k: p[1] for k, p in pairs.items()}

    def settled(self, hashed: Hashable) -> Value:
        """The entry, read if it was not."""
        key, value = self.content[hashed]
        if isinstance(value, Lazy):
            value = value.force()
            self.content[hashed] = (key, value)
        return value

    def children(self) -> Sequence[Value]:
        return [*(v for pair in self.content.values() for v in pair), *self.attributes.values()]

    def changes(self) -> list[tuple[Value, Value]]:
        """The entries to store into the real dict, in the program's order: another call's dict may not have the keys that this one has."""
        if self.reordered:
            return list(self.content.values())
        found = {k: pair for k, pair in self.content.items() if k not in self.original or self.original[k][1] is not pair[1] and not self.same_lazy(k, pair[1])}
        return [(key, found.pop(hashed)[1]) for hashed, key in self.stored.items() if hashed in found] + list(found.values())

    def same_lazy(self, hashed: Hashable, value: Value) -> bool:
        before = self.original[hashed][1]
        return isinstance(before, Lazy) and value.source == before.source

    def replay_values(self) -> Sequence[Value]:
        return [v for pair in self.changes() for v in pair]

    def replay(self, out: Writer) -> None:
        if self.of_object:
            return
        if self.reordered:
            out.value(self)
            out.load_method("clear")
            out.call(0)
            out.emit("POP_TOP")
        for key, value in self.changes():
            out.value(value)
            out.value(self)
            out.value(key)
            out.emit("STORE_SUBSCR")

    def rebuild(self, out: Writer) -> None:
        if self.cls is not dict:
            out.callee(self.cls)
            if self.factory is not None:
                out.value(self.factory)
        for key, value in self.content.values():
            out.value(key)
            out.value(value)
        out.emit("BUILD_MAP", len(self.content))
        if self.cls is not dict:
            out.call(1 if self.factory is None else 2)
        for name, value in self.attributes.items():
            out.emit("COPY", 1)
            out.value(value)
            out.emit("SWAP", 2)
            out.store_attr(name)


def dict_get(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key, default = bind_arguments("get", ["key", "default"], args, kwargs, {"default": ConstantValue(None)})
    found = self.find(cx, key)
    return default if found is None else found


def dict_keys(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictView(self, "keys")


def dict_values(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictView(self, "values")


def dict_items(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DictView(self, "items")


def dict_pop(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key, default = bind_arguments("pop", ["key", "default"], args, kwargs, {"default": None})
    found = self.find(cx, key)
    if found is None:
        if default is None:
            if self.cls is OrderedDict:  # which leaves out a key that is None, or takes a tuple for arguments
                raise unsupported("would-raise", f"KeyError: {key.describe()}")
            raise missing_key(key)
        return default
    self.del_item(cx, key)
    return found


def dict_setdefault(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key, default = bind_arguments("setdefault", ["key", "default"], args, kwargs, {"default": ConstantValue(None)})
    found = self.find(cx, key)
    if found is None:
        self.set_item(cx, key, default)
        return default
    return found


def dict_update(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for other in args:
        for key, value in each_pair(cx, other):  # self has those that came so far, where another one is asked for
            self.set_item(cx, key, value)
    for name, value in kwargs.items():
        self.set_item(cx, ConstantValue(name), value)
    return ConstantValue(None)


def dict_copy(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.keys(cx)
    return DictValue(dict(self.content), self.cls, None, self.factory)


def dict_clear(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.effects.touch(self)
    self.reordered = self.known_keys = True
    self.deletions += 1
    self.content.clear()
    return ConstantValue(None)


COUNTER_METHODS: dict[str, Callable] = {}  # filled by counters.py
DICT_METHODS: dict[str, Callable] = {
    "get": dict_get,
    "keys": dict_keys,
    "values": dict_values,
    "items": dict_items,
    "pop": dict_pop,
    "setdefault": dict_setdefault,
    "update": dict_update,
    "copy": dict_copy,
    "clear": dict_clear,
    "__getitem__": lambda cx, self, args, kwargs: self.get_item(cx, *args),
    "__setitem__": lambda cx, self, args, kwargs: (self.set_item(cx, *args), ConstantValue(None))[1],
    "__delitem__": lambda cx, self, args, kwargs: (self.del_item(cx, *args), ConstantValue(None))[1],
    "__contains__": lambda cx, self, args, kwargs: self.contains(cx, *args),
    "__len__": lambda cx, self, args, kwargs: ConstantValue(self.length(cx)),
    "__iter__": lambda cx, self, args, kwargs: self.iterate(cx),
    "__reversed__": lambda cx, self, args, kwargs: DictIterator(cx, self, "keys", backward=True),
}


def pairs_of(cx: Context, value: Value) -> list[tuple[Value, Value]]:
    """The (key, value) pairs that dict(value) would hold."""
    return list(each_pair(cx, value))


def each_pair(cx: Context, value: Value) -> Iterator[tuple[Value, Value]]:
    """Those pairs, each read when it is asked for."""
    if isinstance(value, DictLike):
        yield from [(key, value.at(cx, hashed)) for hashed in value.keys(cx) if (key := value.key_at(cx, hashed)) is not None]
        return
    if is_mapping(cx, value):
        for key in value.get_attr(cx, "keys").call(cx, [], {}).each(cx):
            yield key, cx.operator("getitem", [value, key])
        return
    for element in value.each(cx):
        pair = element.elements(cx)
        if len(pair) != 2:
            raise unsupported("would-raise", "a dict update needs pairs")
        yield pair[0], pair[1]


def is_mapping(cx: Context, value: Value) -> bool:
    """Whether Python would ask for keys(): also of an object that the frame made."""
    cls = value.pytype()
    return cx.lookup(cls, "keys") is not MISSING or (value.source is not None or bool(cls.__flags__ & HEAP_TYPE)) and value.finds_attr(cx, "keys")


class DictView(Value):
    """dict.keys(), .values() or .items(). holder: the object that has the entries. source: of one that exists before the frame."""

    def __init__(self, owner: DictLike, kind: str, source: Source | None = None):
        self.owner, self.kind, self.source = owner, kind, source
        self.holder: Value = owner

    def pytype(self) -> type:
        return type(getattr(self.owner.cls(), self.kind)())

    def elements(self, cx: Context) -> list[Value]:
        if self.kind == "keys":
            return self.owner.key_values(cx)
        pairs = pairs_of(cx, self.owner)
        return [v for _, v in pairs] if self.kind == "values" else [TupleValue([k, v]) for k, v in pairs]

    def iterate(self, cx: Context) -> IteratorValue:
        return DictIterator(cx, self.owner, self.kind, self.holder)

    def length(self, cx: Context) -> int:
        return self.owner.length(cx)

    def truth(self, cx: Context) -> bool:
        return bool(self.owner.length(cx))

    def contains(self, cx: Context, item: Value) -> Value:
        if self.kind == "keys":
            return self.owner.contains(cx, item)
        return ListValue(self.elements(cx)).contains(cx, item)

    def get_attr(self, cx: Context, name: str) -> Value:
        return builtin_attribute(cx, self, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.pytype(), name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__iter__":
            return self.iterate(cx)
        if name == "__reversed__":
            return DictIterator(cx, self.owner, self.kind, self.holder, backward=True)
        return super().method(cx, name, args, kwargs)

    def children(self) -> Sequence[Value]:
        return (self.holder,) if self.source is None else ()

    def rebuild(self, out: Writer) -> None:
        if self.holder is self.owner:
            out.value(self.owner)
            out.load_method(self.kind)
            out.call(0)
            return
        out.callee(getattr(self.owner.cls, self.kind))  # past the methods of the user's class
        out.value(self.holder)
        out.call(1)


class OwnDicts:
    """Objects of before the frame by the ids of their `__dict__`s: what is stored in one of two that share it would have to be seen in the other."""

    def __init__(self) -> None:
        self.owners: dict[int, list[Any]] = {}


@wraps(dict, OrderedDict, Counter, defaultdict)
def wrap_dict(cx: Context, real: dict, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    if cx.state(OwnDicts).owners.get(id(real)):
        raise unsupported("unknown-object", f"{source.text()}, the __dict__ of an object,")
    content: dict[Hashable, tuple[Value, Value]] = {}
    try:
        entries = list(real.items())
    except KeyError as reason:
        raise unsupported("unknown-object", f"{source.text()}, whose order has keys that the dict has lost") from reason
    for key, value in entries:
        if is_identity_key(key):
            content[key] = (cx.wrap(key, Constant(key, repr(key))), Lazy(cx, value, Item(source, key)))
            continue
        if is_a(key, torch.Tensor) or not is_known_key(key) and is_found_by_identity(key):
            content[key] = (Lazy(cx, key, Constant(key, f"a {type(key).__name__}")), Lazy(cx, value, ItemOf(source, key)))
            continue
        if not is_known_key(key):
            raise unsupported("unknown-object", f"{source.text()}, a dict with keys of type {type(key).__name__}")
        content[key] = (known_key(cx, key), Lazy(cx, value, Item(source, key)))
    factory = cx.wrap(real.default_factory, Attr(source, "default_factory")) if isinstance(real, defaultdict) else None
    made = DictValue(content, type(real), source, factory)
    made.given = tuple(real.__dict__) if type(real).__dictoffset__ else ()
    return made
