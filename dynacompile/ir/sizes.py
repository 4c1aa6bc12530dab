"""Sizes that differ from call to call: where a call's inputs show them, and how they are evaluated."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dynacompile.errors import Unsupported
from dynacompile.ir.index import Extent, Index, Symbol, evaluated

__all__ = ["Sizes", "Source", "code", "computed", "definition_code", "sizes_of", "symbols_in", "values_of"]

# As in sizes.h: what a step of a program over a stack does.
NUMBER, SYMBOL, ADD, MUL, FLOORDIV, MOD, MIN, MAX = range(8)
OPERATIONS: dict[str, Callable[[int, int], int]] = {"floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max}
BINARY = {"floordiv": FLOORDIV, "mod": MOD, "min": MIN, "max": MAX}


@dataclass(frozen=True)
class Source:
    """Where a call shows a symbol: the input at `position`, its extent (or stride) along `dimension`; None: that input is the number itself."""

    symbol: Symbol
    position: int
    dimension: int | None
    stride: bool = False

    def text(self) -> str:
        where = f"input {self.position}"
        return where if self.dimension is None else f"{where} {'stride' if self.stride else 'dimension'} {self.dimension}"

    def value(self, inputs: Sequence[Any]) -> Any:
        given = inputs[self.position]
        return given if self.dimension is None else given.stride(self.dimension) if self.stride else given.size(self.dimension)


@dataclass(frozen=True)
class Sizes:
    """The symbols of a program. sources: those that its inputs show. derived: those computed of others, in order. checks: integer inputs, by
    position, and what they must be in a call."""

    sources: tuple[Source, ...] = ()
    derived: tuple[Symbol, ...] = ()
    checks: tuple[tuple[int, Extent], ...] = ()

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        return (*(s.symbol for s in self.sources), *self.derived)

    def __bool__(self) -> bool:
        return bool(self.sources)

    def text(self) -> str:
        shown = [f"{s.symbol.name} = {s.text()}" for s in self.sources]
        shown += [f"{d.name} = {d.definition[0]}({d.definition[1]!r}, {d.definition[2]!r})" for d in self.derived if d.definition]
        return ", ".join(f"{text} (such as {s.hint})" for text, s in zip(shown, self.symbols, strict=True))


def real_of(number: float) -> float:
    """A float of a call, which native programs hand on as its bits."""
    return number if isinstance(number, float) else struct.unpack("<d", struct.pack("<q", number))[0]


def values_of(sizes: Sizes, inputs: Sequence[Any]) -> dict[Symbol, int]:
    """The symbols' values in a call with these inputs."""
    values = {s.symbol: s.value(inputs) for s in sizes.sources}
    for one in sizes.derived:
        assert one.definition is not None
        name, a, b = one.definition
        values[one] = OPERATIONS[name](evaluated(a, values), evaluated(b, values))
    return values


def computed(extent: Extent, values: Mapping[Symbol, int]) -> int:
    """The number that an extent is with these values of symbols; derived symbols are computed of them."""
    if not isinstance(extent, Index):
        return extent
    known = dict(values)
    for symbol in extent.symbols():
        if symbol not in known:
            assert symbol.definition is not None, symbol
            name, a, b = symbol.definition
            known[symbol] = OPERATIONS[name](computed(a, values), computed(b, values))
    return evaluated(extent, known)


def symbols_in(value: object) -> Iterator[Symbol]:
    """The symbols in nested extents."""
    if isinstance(value, Index):
        yield from value.symbols()
    elif isinstance(value, Symbol):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from symbols_in(v)
    elif isinstance(value, dict):
        yield from symbols_in(tuple(value.values()))


def sizes_of(used: Iterable[Symbol], shown: tuple[Source, ...], checks: tuple[tuple[int, Extent], ...] = ()) -> Sizes:
    """The symbols that a program needs, and those that these are computed from. Raises Unsupported for one that no input shows."""
    by_symbol = {s.symbol: s for s in shown}
    chosen: dict[Symbol, Source] = {}
    ordered: dict[Symbol, None] = {}

    def visit(one: Symbol) -> None:
        if one.definition is None:
            if one not in by_symbol:
                raise Unsupported("symbolic-shape", f"no input of the graph shows the size {one.name} by itself", "compile with dynamic=False")
            chosen[one] = by_symbol[one]
        elif one not in ordered:
            for operand in one.definition[1:]:
                for inner in sorted(symbols_in(operand), key=lambda s: s.name):
                    visit(inner)
            ordered[one] = None

    for one in sorted({*used, *symbols_in([e for _, e in checks])}, key=lambda s: s.name):
        visit(one)
    return Sizes(tuple(s for s in shown if s.symbol in chosen), tuple(ordered), checks)


def code(value: Extent, numbers: dict[Symbol, int]) -> tuple[int, ...]:
    """The steps (operation, operand) that leave an extent on a stack, flat. numbers: places of the symbols' values."""
    if isinstance(value, int):
        return (NUMBER, value)
    steps: list[int] = [NUMBER, value.constant]
    for monomial, coefficient in value.terms:
        steps += [NUMBER, coefficient]
        for a in monomial:
            if not isinstance(a, Symbol):
                raise Unsupported("symbolic-shape", f"{value!r} is no size", "compile with dynamic=False")
            steps += [SYMBOL, numbers[a], MUL, 0]
        steps += [ADD, 0]
    return tuple(steps)


def definition_code(one: Symbol, numbers: dict[Symbol, int]) -> tuple[int, ...]:
    assert one.definition is not None
    name, a, b = one.definition
    return (*code(a, numbers), *code(b, numbers), BINARY[name], 0)
