"""What a program under construction has: its lines, and the variables that may be read and assigned at the current place, by type."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

INT, FLOAT, BOOL, STR, OPT = "int", "float", "bool", "str", "opt"  # opt: an int or None
TENSOR, SCALAR = "tensor", "scalar"  # of shape (batch, 3), of shape ()
INTS, TENSORS, COUNTS, SET, TUPLE, TABLE = "ints", "tensors", "counts", "set", "tuple", "table"  # counts: str to int; table: str to tensor
BOX, CALL, MAP = "box", "call", "map"  # call: int to int; map: tensor to tensor
TYPES = (INT, FLOAT, BOOL, STR, OPT, TENSOR, SCALAR, INTS, TENSORS, COUNTS, SET, TUPLE, TABLE, BOX, CALL, MAP)
PREFIX = dict(zip(TYPES, ("i", "f", "b", "s", "o", "t", "c", "xs", "ts", "d", "st", "tp", "dt", "box", "fn", "ft"), strict=True))


@dataclass
class Signature:
    """A function of the program: positional parameters, keyword parameters with defaults, *args and **kwargs of ints, what it returns."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]
    star: bool
    stars: bool
    returns: str
    is_generator: bool = False


@dataclass
class Scope:
    """seed: of the choices. readable, own: names by type; own ones may be assigned here. in_loop: `continue` is allowed."""

    seed: int
    rows: list[tuple[float, Statement]]  # what `body` chooses from, with weights
    simple: list[tuple[float, Statement]]  # and what it chooses from deep inside
    forms: dict[str, list[tuple[float, Make]]]  # what `expression` chooses from, by type
    pick: random.Random = field(init=False)
    lines: list[str] = field(default_factory=list)
    indent: int = 0
    readable: dict[str, list[str]] = field(default_factory=lambda: {t: [] for t in TYPES})
    own: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)  # own names that hold a loop's progress
    signatures: list[Signature] = field(default_factory=list)
    names: int = 0
    in_loop: int = 0
    loops: int = 0
    functions: int = 0
    no_walrus: int = 0
    budget: int = 30  # statements left
    returns: str = INT
    is_generator: bool = False
    modules: tuple[str, ...] = ()
    classes: list[str] = field(default_factory=lambda: ["Box", "BigBox", "SlotBox"])

    def __post_init__(self) -> None:
        self.pick = random.Random(self.seed)

    def chance(self, probability: float) -> bool:
        return self.pick.random() < probability

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, kind: str) -> str:
        self.names += 1
        return f"{PREFIX[kind]}{self.names}"

    def declare(self, name: str, kind: str, own: bool = True) -> None:
        if name not in self.readable[kind]:
            self.readable[kind].append(name)
        if own:
            self.own.add(name)

    def forget(self, name: str) -> None:
        for names in self.readable.values():
            if name in names:
                names.remove(name)
        self.own.discard(name)

    def var(self, kind: str) -> str | None:
        names = self.readable[kind]
        return names[max(self.pick.randrange(len(names)), self.pick.randrange(len(names)))] if names else None

    def assignable(self, kind: str) -> list[str]:
        return [n for n in self.readable[kind] if n in self.own and n not in self.fixed]

    @contextmanager
    def block(self) -> Iterator[None]:
        """An indented block: names that first appear in it are forgotten after it."""
        before = {t: list(names) for t, names in self.readable.items()}
        self.indent += 1
        start = len(self.lines)
        try:
            yield
        finally:
            if len(self.lines) == start:
                self.line("pass")
            self.indent -= 1
            gone = {n for t, names in self.readable.items() for n in names if n not in before[t]}
            self.readable = {t: [n for n in before[t] if n in names] for t, names in self.readable.items()}
            self.own -= gone

    @contextmanager
    def function(self, returns: str, is_generator: bool = False) -> Iterator[None]:
        """The body of a function: outer names can be read only."""
        saved = (self.own, self.fixed, self.in_loop, self.loops, self.returns, self.is_generator, self.no_walrus)
        self.own, self.fixed, self.in_loop, self.loops, self.returns, self.is_generator, self.no_walrus = set(), set(), 0, self.loops, returns, is_generator, 0
        self.functions += 1
        with self.block():
            yield
        self.functions -= 1
        self.own, self.fixed, self.in_loop, self.loops, self.returns, self.is_generator, self.no_walrus = saved

    @contextmanager
    def local(self, kind: str, *, walrus: bool = False) -> Iterator[str]:
        """A variable of a comprehension or lambda."""
        name = self.fresh(kind)
        self.readable[kind].append(name)
        self.no_walrus += not walrus
        yield name
        self.no_walrus -= not walrus
        self.readable[kind].remove(name)


Statement = Callable[[Scope], None]
Make = Callable[[Scope, int], str]


def choose(g: Scope, rows: list[tuple[float, Make]], depth: int) -> str:
    return g.pick.choices([r[1] for r in rows], [r[0] for r in rows])[0](g, depth)


def block(g: Scope, most: int = 4) -> None:
    with g.block():
        body(g, g.pick.randint(1, most))


def body(g: Scope, count: int) -> None:
    for _ in range(count):
        if g.budget <= 0:
            return
        g.budget -= 1
        choose_statement(g)(g)


def choose_statement(g: Scope) -> Statement:
    rows = g.rows if g.indent < 5 else g.simple
    return g.pick.choices([r[1] for r in rows], [r[0] for r in rows])[0]
