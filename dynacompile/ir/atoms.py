"""What index expressions are made of: loop variables, symbols of sizes, and divisions of expressions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

LONGEST = 2**31 - 2**17  # loop over a symbolic size, where the example's is no longer: programs check that at each call


class Var:
    """An integer 0 <= name < size; size None: at least 0, no upper bound known. Names starting with % are values of the body (indirect)."""

    __slots__ = ("name", "size", "key", "_hash")

    def __init__(self, name: str, size: Any = None):
        self.name, self.size = name, size
        self.key = (0, name)
        self._hash = hash((name, size))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Var and self.name == other.name and self.size == other.size)

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {self.size})"

    def bounds(self) -> tuple[int | None, int | None]:
        if not isinstance(self.size, (int, type(None))):
            high = self.size.bounds()[1]
            if self.size.hint <= LONGEST:
                high = LONGEST if high is None else min(high, LONGEST)
            return 0, None if high is None else high - 1
        return 0, None if self.size is None else self.size - 1

    def variables(self) -> frozenset[Var]:
        return frozenset((self,))


class Symbol:
    """A number of a call: an extent of an input, or, with a definition, what is computed of such. real: a float, which no index is made of.

    hint: its value in the example. low, high: what every call keeps to (None: no bound). definition: (op, operand, operand) with op one of
    floordiv, mod, min, max, and operands that are extents; None for one that the call brings. Symbols of one name are one.
    """

    __slots__ = ("name", "hint", "low", "high", "definition", "key", "real")

    def __init__(self, name: str, hint: Any, low: int | None = 0, high: int | None = None, definition: tuple[str, Any, Any] | None = None, real: bool = False):
        self.name, self.hint, self.low, self.high, self.definition, self.real = name, hint, low, high, definition, real
        self.key = (3, name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Symbol and self.name == other.name)

    def __repr__(self) -> str:
        return f"Symbol({self.name!r}, {'real' if self.real else self.hint})"

    def bounds(self) -> tuple[int | None, int | None]:
        return self.low, self.high

    def variables(self) -> frozenset[Var]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Div:
    """floor(numerator / divisor), divisor > 0."""

    numerator: Any  # an Index
    divisor: Any

    def bounds(self) -> tuple[int | None, int | None]:
        low, high = self.numerator.bounds()
        if not isinstance(self.divisor, int):
            return (None, None) if low is None or low < 0 else (0, high)
        return None if low is None else low // self.divisor, None if high is None else high // self.divisor

    def variables(self) -> frozenset[Var]:
        return self.numerator.variables()

    @property
    def key(self) -> tuple:
        return (1, *divisor_key(self.divisor), self.numerator.key)


@dataclass(frozen=True, slots=True)
class Mod:
    """numerator - divisor * floor(numerator / divisor), divisor > 0: never negative."""

    numerator: Any  # an Index
    divisor: Any

    def bounds(self) -> tuple[int | None, int | None]:
        high = self.divisor if isinstance(self.divisor, int) else self.divisor.bounds()[1]
        return 0, None if high is None else high - 1

    def variables(self) -> frozenset[Var]:
        return self.numerator.variables()

    @property
    def key(self) -> tuple:
        return (2, *divisor_key(self.divisor), self.numerator.key)


def divisor_key(divisor: Any) -> tuple:
    return (divisor,) if isinstance(divisor, int) else (-1, divisor.key)


Atom = Var | Div | Mod | Symbol
Monomial = tuple[Atom, ...]  # a product, sorted by key


def order_key(term: tuple[Monomial, int]) -> list:
    return [a.key for a in term[0]]


def without(monomial: Monomial, factors: Iterable[Atom]) -> Monomial | None:
    """The product less factors of it, None where it lacks one."""
    rest = list(monomial)
    for f in factors:
        if f not in rest:
            return None
        rest.remove(f)
    return tuple(rest)
