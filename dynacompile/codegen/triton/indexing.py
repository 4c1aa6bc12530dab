"""Index expressions as Triton text over the linear variables of a tile.

A tile dimension runs one linear variable over several axes. Where an access walks those axes as one (the usual case) it is rendered
by the linear variable itself, so that Triton sees the contiguity and makes wide loads; else axes are taken apart by // and %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from dynacompile.ir.bounds import never_negative
from dynacompile.ir.extents import LIMIT, example_reach
from dynacompile.ir.index import Atom, Div, Index, Mod, Symbol, Var, extent, hint
from dynacompile.ir.loops import Axis


@dataclass(frozen=True)
class Dim:
    """One dimension of the tile. name: its linear variable; axes: what it runs over, outer to inner."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def size(self) -> Any:
        """An extent."""
        return extent(prod(a.size for a in self.axes))

    @property
    def hint(self) -> int:
        """Its size in the example, which decides what is right either way."""
        return max(1, hint(self.size))

    @property
    def block(self) -> str:
        return f"{self.name.upper()}BLOCK"


class Term(NamedTuple):
    """coefficient: an extent. dims: the dimensions of the tile that the text varies over."""

    coefficient: Any
    text: str
    dims: frozenset[str]


@dataclass
class Indexer:
    """Renders indices; remembers, per dimension, the definitions of axis variables that the text uses."""

    dims: tuple[Dim, ...]
    values: Mapping[int, tuple[str, frozenset[str]]]  # SSA id -> (int64 text, dims) for indirect accesses
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)
    lane: tuple[str, str] | None = None  # of the innermost dimension: where its block starts, and the places in it
    narrow: Callable[[Index], Mapping[int, str]] = lambda index: {}  # SSA id -> int32 text, where all of an index can be computed in 32 bits

    def text(self, index: Index) -> tuple[str, frozenset[str]]:
        """C-like text, and the names of the dimensions that it varies over."""
        terms = self.terms(index)
        return sum_text(terms, index.constant), over(terms)

    def address(self, index: Index) -> tuple[str, str, frozenset[str]]:
        """As `text`, but in two: what a line along the innermost dimension has in common, and the place in it; "" where memory is not contiguous along it.
        Added to a pointer one after the other, the first is computed once, and the second is a thread's number and a constant."""
        terms = self.terms(index)
        inner = self.dims[-1].name
        own = [t for t in terms if inner in t.dims]
        if self.lane is None or len(own) != 1 or own[0][:2] != (1, inner):
            return sum_text(terms, index.constant), "", over(terms)
        (one,) = own
        start, lane = self.lane
        common = [t for t in terms if t is not one] + ([one._replace(text=start)] if start else [])
        return sum_text(common, index.constant), lane, over(terms)

    def terms(self, index: Index) -> list[Term]:
        """What is added to the constant: linear variables first."""
        coefficients: dict[Var, Any] = {}
        rest: list[Term] = []
        known = {a.var for d in self.dims for a in d.axes}
        narrow = self.narrow(index)
        for monomial, coefficient in index.terms:
            if len(monomial) == 1 and monomial[0] in known:
                coefficients[monomial[0]] = coefficients.get(monomial[0], 0) + coefficient  # type: ignore[index,arg-type]
                continue
            stride = symbolic_stride(monomial, known)
            if stride is not None:
                coefficients[stride[0]] = coefficients.get(stride[0], 0) + stride[1] * coefficient
                continue
            factors = [self.atom(factor, narrow) for factor in monomial]
            rest.append(Term(coefficient, " * ".join(text for text, _ in factors), frozenset().union(*(dims for _, dims in factors))))
        linear = [Term(c, name, frozenset((d.name,))) for d in self.dims for c, name in self.walk(d, coefficients)]
        return linear + rest

    def walk(self, dim: Dim, coefficients: Mapping[Var, Any]) -> list[tuple[Any, str]]:
        """(stride, variable) for the longest runs of axes that the index walks as one."""
        runs: list[tuple[Any, str]] = []
        end = len(dim.axes)
        while end > 0:
            inner = coefficients.get(dim.axes[end - 1].var, 0)
            start = end - 1
            if not inner:
                end -= 1
                continue
            extent = dim.axes[start].size
            while start > 0 and coefficients.get(dim.axes[start - 1].var, 0) == inner * extent:
                start -= 1
                extent *= dim.axes[start].size
            runs.append((inner, self.run(dim, start, end)))
            end = start
        return runs[::-1]

    def run(self, dim: Dim, start: int, end: int) -> str:
        """The variable of axes[start:end] of `dim` walked as one."""
        if start == 0 and end == len(dim.axes):
            return dim.name
        name = "_".join([dim.axes[start].var.name, *([dim.axes[end - 1].var.name] if end - start > 1 else [])])
        inner = prod(a.size for a in dim.axes[end:])
        text = dim.name if inner == 1 else f"{dim.name} // {inner}"
        if start > 0:
            text = f"{text if inner == 1 else f'({text})'} % {prod(a.size for a in dim.axes[start:end])}"
        self.definitions.setdefault(dim.name, {})[name] = text
        return name

    def atom(self, atom: Atom, narrow: Mapping[int, str]) -> tuple[str, frozenset[str]]:
        match atom:
            case Symbol():
                return atom.name, frozenset()
            case Var() if atom.name.startswith("%"):
                text, dims = self.values[int(atom.name[1:])]
                return narrow.get(int(atom.name[1:]), text), dims
            case Var():
                return next((self.run(d, i, i + 1), frozenset((d.name,))) for d in self.dims for i, a in enumerate(d.axes) if a.var == atom)
            case Div() | Mod():
                text, dims = self.text(atom.numerator)
                if never_negative(atom.numerator):
                    return f"(({text}) {'//' if isinstance(atom, Div) else '%'} {atom.divisor})", dims
                rest = f"((({text}) % {atom.divisor} + {atom.divisor}) % {atom.divisor})"  # Triton cuts quotients off towards zero
                return f"((({text}) - {rest}) // {atom.divisor})" if isinstance(atom, Div) else rest, dims


def symbolic_stride(monomial: tuple[Atom, ...], known: Set[Var]) -> tuple[Var, Index] | None:
    """A variable and its stride, where the product is one of symbols and it."""
    found = [a for a in monomial if type(a) is Var]
    rest = tuple(a for a in monomial if type(a) is Symbol)
    return (found[0], Index(((rest, 1),))) if len(found) == 1 and found[0] in known and len(rest) == len(monomial) - 1 else None


def over(terms: Iterable[Term]) -> frozenset[str]:
    return frozenset().union(*(t.dims for t in terms))


def sum_text(terms: Iterable[Term], constant: int) -> str:
    """Text of constant + the sum of coefficient * factor."""
    text = ""
    for coefficient, factor, _ in terms:
        if isinstance(coefficient, Index):
            term = f"{coefficient} * {factor}"
            text = f"{text} + {term}" if text else term
            continue
        size = abs(coefficient)
        term = factor if size == 1 else f"{size} * {factor}"
        sign = "-" if coefficient < 0 else "+"
        text = f"{text} {sign} {term}" if text else (f"-{term}" if coefficient < 0 else term)
    if constant or not text:
        text = f"{text} {'-' if constant < 0 else '+'} {abs(constant)}" if text else str(constant)
    return text


def needs_int64(index: Index) -> bool:
    """True where the part of `index` that int32 variables make may leave int32 (indirect values are int64 already)."""
    direct = Index(((m, c) for m, c in index.terms if not any(v.name.startswith("%") for a in m for v in a.variables())), index.constant)
    if direct.symbols() or any(type(v.size) is Index for v in direct.variables()):
        return example_reach(direct) > LIMIT  # programs check at each call that it stays so
    low, high = direct.bounds()
    return low is None or high is None or low < -LIMIT or high > LIMIT
