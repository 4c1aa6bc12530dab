"""What names lead to in classes and in modules, and what capture relied on of it: the payload of a NAMESPACES guard."""

from __future__ import annotations

import abc
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dynacompile.ir.fakes import StandIn
from dynacompile.ir.guard_facts import Identity, identity

MISSING = object()
IMMUTABLE_TYPE = 1 << 8  # classes written in C, whose attributes nobody can set
SCALARS = (int, float, bool, str, bytes)


def class_lookup(cls: type, name: str, after: type | None = None) -> Any:
    """The raw attribute `name` in the MRO of cls, searched after the class `after` if given; MISSING if there is none."""
    mro = cls.__mro__
    for base in mro[mro.index(after) + 1 :] if after is not None else mro:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def defines(cls: type, name: str) -> bool:
    """Whether a class, or one that it derives from, has an attribute, which its instances have, too. `hasattr` would also ask the metaclass."""
    return class_lookup(cls, name) is not MISSING


def is_data(raw: object) -> bool:
    """Whether a class attribute is plain data, which Python does not bind."""
    return raw is not MISSING and not hasattr(type(raw), "__get__")


def is_computed(raw: object) -> bool:
    """Whether reading a class attribute through an object runs code: a property, or a descriptor that is written in Python."""
    return isinstance(raw, property) or isinstance(class_lookup(type(raw), "__get__"), types.FunctionType)


@dataclass(frozen=True)
class Lookup:
    """One lookup. holder: gives the class or dict, None where it is gone. found: what was there, None for nothing.

    by_source: what was found is data, of which another guard tells whether it changed.
    """

    holder: Callable[[], Any] = field(repr=False)
    where: str
    name: str
    found: Identity | None
    after: Callable[[], Any] | None = field(default=None, repr=False)
    by_source: bool = False

    def now(self) -> Any:
        """What the lookup gives by now."""
        holder = self.holder()
        if isinstance(holder, dict):
            return holder.get(self.name, MISSING)
        after = None if self.after is None else self.after()
        if holder is None or self.after is not None and after not in holder.__mro__:
            return MISSING
        return class_lookup(holder, self.name, after)

    def holds(self) -> bool:
        if self.holder() is None:
            return False
        now = self.now()
        if self.found is None or now is MISSING:
            return self.found is None and now is MISSING
        if self.by_source:
            return is_data(now)
        was = self.found.get()
        if now is was:
            return now is not None or not isinstance(self.found.get, weakref.ref)
        return type(now) is type(was) and type(now) in SCALARS and repr(now) == repr(was)


@dataclass(frozen=True)
class Subclassing:
    """issubclass(cls, other) of an abstract class `other`: what classes were registered with decides."""

    cls: Callable[[], Any] = field(repr=False)
    other: Callable[[], Any] = field(repr=False)
    text: str
    answer: bool

    def holds(self) -> bool:
        cls, other = self.cls(), self.other()
        return cls is not None and other is not None and issubclass(cls, other) == self.answer


@dataclass(frozen=True)
class Ancestry:
    """The method resolution order of a class, which assigning to `__bases__` changes."""

    holder: Callable[[], Any] = field(repr=False)
    text: str
    mro: tuple[Callable[[], Any], ...] = field(repr=False)

    def holds(self) -> bool:
        cls = self.holder()
        return cls is not None and len(cls.__mro__) == len(self.mro) and all(was() is now for was, now in zip(self.mro, cls.__mro__))


@dataclass(frozen=True)
class Own:
    """All the names in the dict of a class, which the program has seen."""

    holder: Callable[[], Any] = field(repr=False)
    text: str
    names: tuple[str, ...] = field(repr=False)

    def holds(self) -> bool:
        cls = self.holder()
        return cls is not None and tuple(cls.__dict__) == self.names


@dataclass(frozen=True)
class Coded:
    """A function whose code was followed. holder: gives the function."""

    holder: Callable[[], Any] = field(repr=False)
    text: str
    code: types.CodeType = field(repr=False)

    def holds(self) -> bool:
        function = self.holder()
        return function is not None and function.__code__ is self.code


@dataclass(frozen=True)
class Namespaces:
    """What one capture looked up."""

    lookups: tuple[Lookup, ...]
    coded: tuple[Coded, ...]
    subclassings: tuple[Subclassing, ...]
    ancestries: tuple[Ancestry, ...] = ()
    own: tuple[Own, ...] = ()

    def __repr__(self) -> str:
        return f"<{len(self.lookups)} names>"

    def hold(self) -> bool:
        return all(fact.holds() for facts in (self.lookups, self.coded, self.subclassings, self.ancestries, self.own) for fact in facts)

    def holders(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The classes, dicts and functions, each once: dicts and what belongs to torch, and those that are not to be kept alive. Raises ValueError where
        one is gone."""
        facts: tuple[Lookup | Coded | Ancestry | Own, ...] = (*self.lookups, *self.coded, *self.ancestries, *self.own)
        found = {id(holder): holder for holder in (fact.holder() for fact in facts)}
        if any(holder is None for holder in found.values()):
            raise ValueError("a class or function that a guard looks at is gone")
        lasting = {key: holder for key, holder in found.items() if isinstance(holder, dict) or str(holder.__module__).partition(".")[0] == "torch"}
        return tuple(lasting.values()), tuple(holder for key, holder in found.items() if key not in lasting)

    def counter(self) -> Callable[[], object] | None:
        return abc.get_cache_token if self.subclassings else None

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """(what, what it was, what it is) of each fact that does not hold."""
        for lookup in self.lookups:
            if not lookup.holds():
                was = MISSING if lookup.found is None else lookup.found.get()
                yield f"{lookup.where}.{lookup.name}", was, MISSING if lookup.holder() is None else lookup.now()
        for coded in self.coded:
            if not coded.holds():
                yield f"{coded.text}.__code__", coded.code, getattr(coded.holder(), "__code__", MISSING)
        for ancestry in self.ancestries:
            if not ancestry.holds():
                yield f"{ancestry.text}.__mro__", tuple(was() for was in ancestry.mro), getattr(ancestry.holder(), "__mro__", MISSING)
        for own in self.own:
            if not own.holds():
                yield f"{own.text}.__dict__", own.names, tuple(getattr(own.holder(), "__dict__", ()))
        for question in self.subclassings:
            if not question.holds():
                yield question.text, question.answer, not question.answer


class Names:
    """Collects what one capture looks up. Class attributes that nobody can set are left out."""

    def __init__(self) -> None:
        self.lookups: dict[tuple, Lookup] = {}
        self.coded: dict[int, Coded] = {}
        self.ancestries: dict[int, Ancestry] = {}
        self.subclassings: dict[tuple[int, int], Subclassing] = {}
        self.own: dict[int, Own] = {}
        self._kept: list[Any] = []  # what ids stand for

    def of_class(self, cls: type, name: str, after: type | None, raw: Any, by_source: bool) -> None:
        key = (id(cls), name, id(after))
        if key not in self.lookups and not cls.__flags__ & IMMUTABLE_TYPE:
            self._kept.append((cls, after))
            found = None if raw is MISSING else identity(raw)
            self.lookups[key] = Lookup(weakref.ref(cls), cls.__qualname__, name, found, None if after is None else weakref.ref(after), by_source)

    def of_dict(self, table: dict[str, Any], where: str, name: str) -> None:
        """A module that is not loaded, and that a stand-in answers for while we compile, is nothing that the program found there."""
        key = (id(table), name)
        if key not in self.lookups:
            raw = table.get(name, MISSING)
            if isinstance(raw, StandIn):
                return
            self.lookups[key] = Lookup(lambda: table, where, name, None if raw is MISSING else identity(raw))

    def of_code(self, function: types.FunctionType) -> None:
        if id(function) not in self.coded:
            self._kept.append(function)
            self.coded[id(function)] = Coded(weakref.ref(function), function.__qualname__, function.__code__)

    def of_ancestry(self, cls: type) -> None:
        if id(cls) not in self.ancestries and not cls.__flags__ & IMMUTABLE_TYPE:
            self._kept.append(cls)
            self.ancestries[id(cls)] = Ancestry(weakref.ref(cls), cls.__qualname__, tuple(weakref.ref(base) for base in cls.__mro__))

    def of_own(self, cls: type) -> None:
        if id(cls) not in self.own and not cls.__flags__ & IMMUTABLE_TYPE:
            self._kept.append(cls)
            self.own[id(cls)] = Own(weakref.ref(cls), cls.__qualname__, tuple(cls.__dict__))

    def of_subclass(self, cls: type, other: type, answer: bool) -> None:
        if (id(cls), id(other)) not in self.subclassings:
            self._kept.append((cls, other))
            text = f"issubclass({cls.__qualname__}, {other.__qualname__})"
            self.subclassings[id(cls), id(other)] = Subclassing(weakref.ref(cls), weakref.ref(other), text, answer)

    def facts(self) -> Namespaces | None:
        if not (self.lookups or self.coded or self.subclassings or self.ancestries or self.own):
            return None
        lookups, coded = tuple(self.lookups.values()), tuple(self.coded.values())
        return Namespaces(lookups, coded, tuple(self.subclassings.values()), tuple(self.ancestries.values()), tuple(self.own.values()))
