"""Where a value comes from: a path from the frame's roots to an object.

A source is what guards check, what graph inputs are loaded from, and what residual code reads. Roots are `Local`,
`Free`, `Global` and `Builtin`; the other kinds name one step from a base.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar, dataclass_transform

from dynacompile.ir.frozen import record

T = TypeVar("T", bound=type)
UNNAMED = "<value"
"""Begins the text of what has no name in the program."""


def dotted(text: str) -> str:
    """A source's text as a name that configs can have: `batch[0]` and `batch['x']` are `batch.0` and `batch.x`."""
    return re.sub(r"\[(['\"]?)(\w+)\1\]", r".\2", text)


class Source:
    """Base of all sources; hashable, so that a source can key a table. A hash is computed once: that of a long path asks for those of all its bases."""

    __slots__ = ("_hash",)
    _hash: int
    parts: ClassVar[Callable[[Any], object]]  # of a source, its fields

    def __init_subclass__(cls) -> None:
        if "__hash__" not in cls.__dict__:
            cls.__hash__ = Source.__hash__  # type: ignore[method-assign]  # dataclass would make one that computes it anew

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            return self.hashed(type(self), type(self).parts(self))

    def hashed(self, *parts: object) -> int:
        """The hash of these, kept."""
        found = hash(parts)
        object.__setattr__(self, "_hash", found)
        return found

    def text(self) -> str:
        """The Python expression that a user would write for it."""
        raise NotImplementedError(type(self).__name__)

    def steps(self) -> Iterator[Source]:
        """The path from the root to self, root first."""
        path: list[Source] = [self]
        while (base := getattr(path[-1], "base", None)) is not None:
            path.append(base)
        return reversed(path)

    @property
    def root(self) -> Source:
        return next(self.steps())

    def own(self) -> tuple:
        """The last step, without what it goes on from."""
        return type(self), *(getattr(self, name) for name in self.__match_args__ if name != "base")  # type: ignore[attr-defined]

    def roots(self) -> Iterator[Source]:
        """What it is loaded from: one root, unless it is computed of several values."""
        yield self.root


@dataclass_transform(frozen_default=True)
def source(cls: T) -> T:
    """A kind of source, as a `record`."""
    made: Any = record(cls)
    made.parts = operator.attrgetter(*made.__match_args__)
    return made  # type: ignore[no-any-return]


@source
class Local(Source):
    """A parameter of the frame: `slot` is its index in the frame's localsplus."""

    name: str
    slot: int

    def text(self) -> str:
        if found := re.match(r"\.s(\d+)", self.name):  # a parameter by which a resume function gets a value on the stack
            return f"{UNNAMED} {found[1]} at the break>"
        return self.name


@source
class Free(Source):
    """The content of a closure cell: `index` is its position in co_freevars."""

    name: str
    index: int

    def text(self) -> str:
        return self.name


@source
class Global(Source):
    """An entry of the frame's f_globals."""

    name: str

    def text(self) -> str:
        return self.name


@source
class Builtin(Source):
    """An entry of the frame's builtins, reached because no global shadows it."""

    name: str

    def text(self) -> str:
        return self.name


@source
class Constant(Source):
    """An object that the entry itself holds on to, for example the globals dict of an inlined function. Needs no lookup."""

    value: object
    name: str

    def text(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash((id(self.value), self.name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and other.value is self.value and other.name == self.name


@source
class Made(Source):
    """What a call gives that residual code makes before the graph; `place` says which one. No guard looks at it."""

    place: int

    def text(self) -> str:
        return f"made_{self.place}"


@source
class Attr(Source):
    """`base.name` by the generic attribute protocol (slots, properties of C types, ...)."""

    base: Source
    name: str

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"


@source
class DictAttr(Source):
    """`base.__dict__[name]`: an instance attribute read without running descriptors or `__getattr__`."""

    base: Source
    name: str

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"


@source
class Registered(Source):
    """`module.__dict__[table][name]`, table being `_parameters`, `_buffers` or `_modules` of an nn.Module."""

    base: Source
    table: str
    name: str

    def text(self) -> str:
        if self.name.isidentifier():
            return f"{self.base.text()}.{self.name}"
        return f"{self.base.text()}[{self.name}]" if self.name.isdigit() else f"{self.base.text()}.{self.table}[{self.name!r}]"


@source
class Item(Source):
    """`base[key]` for an exact list, tuple or deque (key: int), or an exact dict (key: a hashable constant)."""

    base: Source
    key: object

    def text(self) -> str:
        return f"{self.base.text()}[{self.key!r}]"


@source
class Entry(Item):
    """`container.__getitem__(base, key)`, for a dict, list or tuple whose class has a `__getitem__` of its own."""

    container: type[dict] | type[list] | type[tuple] = dict


@source
class ItemOf(Item):
    """`base[key]` for an object that hashes by identity and may not compare to a bool, such as a tensor; the entry keeps it alive."""

    def text(self) -> str:
        return f"{self.base.text()}[<{type(self.key).__name__}>]"

    def own(self) -> tuple:
        return type(self), id(self.key)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            return self.hashed(self.base, id(self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ItemOf) and other.key is self.key and other.base == self.base


@source
class ValueAt(Source):
    """The value at a place in the order of a dict, whatever its key: a hook of a module, whose number counts those of the process."""

    base: Source
    place: int

    def text(self) -> str:
        return f"list({self.base.text()}.values())[{self.place}]"


@source
class Remembered(Source):
    """What functools.lru_cache remembers in `base`, an entry of a bounded cache."""

    base: Source

    def text(self) -> str:
        return self.base.text()


@source
class Referent(Source):
    """`base()` of a weakref.ref, while what it refers to lives."""

    base: Source

    def text(self) -> str:
        return f"{self.base.text()}()"


@source
class Applied(Source):
    """`function(base)`, of a function that has no effects and runs no code of the user, such as `torch.Tensor.storage_offset`.

    name: what stands behind the base in its text, such as ".storage_offset()"."""

    base: Source
    function: Callable[[Any], Any]
    name: str

    def text(self) -> str:
        return self.base.text() + self.name


@source
class Length(Source):
    """`len(base)`, of an exact list, deque, dict or set."""

    base: Source

    def text(self) -> str:
        return f"len({self.base.text()})"


@source
class TypeOf(Source):
    """`type(base)`."""

    base: Source

    def text(self) -> str:
        return f"type({self.base.text()})"


@source
class ClosureCell(Source):
    """The content of cell `index` of the function `base`: `base.__closure__[index].cell_contents`."""

    base: Source
    name: str
    index: int

    def text(self) -> str:
        return f"{self.base.text()}.<closure>.{self.name}"


@source
class DefaultArg(Source):
    """A default of the function `base`: `__defaults__[key]` for an int key, `__kwdefaults__[key]` for a str key."""

    base: Source
    key: int | str

    def text(self) -> str:
        return f"{self.base.text()}.<default>[{self.key!r}]"


ROOTS = (Local, Free, Global, Builtin, Constant)
