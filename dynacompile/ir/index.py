"""Integer index expressions over loop variables: sums of integer multiples of products of atoms.

Why not SymPy here: a compile builds hundreds of thousands of these, nearly all affine with integer coefficients, and general
canonicalisation is where the seconds go. This form is canonical by construction, hashes once, and knows ranges, so that the
divisions and remainders that reshapes make fold away. Symbolic sizes enter as atoms like any other.

A size is an int, or an Index over Symbols: a number that each call brings. Of two sizes, `==` says what holds in every call, so that what is
done where they are equal is right, and where they are not known to be, must be right as well. `<` and its like compare the example's numbers:
they are for choices that are right either way; `never_negative` says what holds in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Any

from dynacompile.ir.atoms import LONGEST, Atom, Div, Mod, Monomial, Symbol, Var, order_key, without
from dynacompile.ir.bounds import never_negative

__all__ = [
    "Div",
    "Extent",
    "Index",
    "LONGEST",
    "Mod",
    "Symbol",
    "Var",
    "atom",
    "constant",
    "evaluated",
    "extent",
    "hint",
    "never_negative",
    "render",
    "strided",
    "var",
]


class Index:
    """constant + sum(coefficient * product of atoms). Immutable, canonical, hashable."""

    __slots__ = ("constant", "terms", "_hash", "_variables")

    def __init__(self, terms: Iterable[tuple[Monomial, int]] = (), constant: int = 0):
        kept = [t for t in terms if t[1]]
        if len(kept) > 1:
            kept.sort(key=order_key)
        self.constant = constant
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(kept)
        self._hash: int | None = None
        self._variables: frozenset[Var] | None = None

    @classmethod
    def _sorted(cls, terms: Iterable[tuple[Monomial, int]], constant: int) -> Index:
        """From terms that are in order already, none of them zero."""
        self = cls.__new__(cls)
        self.constant, self.terms = constant, tuple(terms)
        self._hash = self._variables = None
        return self

    @property
    def key(self) -> tuple:
        """Orders atoms that hold an index."""
        return (self.constant, tuple([(tuple([a.key for a in m]), c) for m, c in self.terms]))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.constant, self.terms)) if self.terms else hash(self.constant)
        return self._hash

    def __eq__(self, other: object) -> bool:
        if type(other) is Index:
            return self is other or (self.constant == other.constant and self.terms == other.terms)
        return not self.terms and type(other) is int and self.constant == other

    def __repr__(self) -> str:
        return render(self, lambda v: v.name)

    def __str__(self) -> str:
        """As a factor of a larger text."""
        text = repr(self)
        return text if text.isalnum() else f"({text})"

    def __bool__(self) -> bool:
        """False where it is zero in every call."""
        return bool(self.terms) or self.constant != 0

    @property
    def hint(self) -> int:
        """The value of an extent in the example."""
        return self.evaluate({s: s.hint for s in self.symbols()})

    def __lt__(self, other: Extent) -> bool:
        return self.hint < hint(other)

    def __le__(self, other: Extent) -> bool:
        return self.hint <= hint(other)

    def __gt__(self, other: Extent) -> bool:
        return self.hint > hint(other)

    def __ge__(self, other: Extent) -> bool:
        return self.hint >= hint(other)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self if other == 0 else Index._sorted(self.terms, self.constant + other)
        if not other.terms:
            return self + other.constant
        if not self.terms:
            return other + self.constant
        sums = dict(self.terms)
        for monomial, coefficient in other.terms:
            sums[monomial] = sums.get(monomial, 0) + coefficient
        return Index(sums.items(), self.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | int) -> Index:
        return self + (-other)

    def __rsub__(self, other: int) -> Index:
        return -self + other

    def __mul__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            if other == 1:
                return self
            return Index._sorted([(m, c * other) for m, c in self.terms], self.constant * other) if other else Index()
        if not other.terms:
            return self * other.constant
        if not self.terms:
            return other * self.constant
        total = other * self.constant
        for monomial, coefficient in self.terms:
            shifted = {tuple(sorted((*monomial, *m), key=lambda a: a.key)): c * coefficient for m, c in other.terms}
            if other.constant:
                shifted[monomial] = shifted.get(monomial, 0) + coefficient * other.constant
            total = total + Index(shifted.items())
        return total

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Extent) -> Index:
        if isinstance(divisor, Index):
            return self.divided(divisor)[0]
        if divisor <= 0:
            raise ValueError(f"divisor of an index must be positive, not {divisor}")
        if divisor == 1:
            return self
        exact, rest = self._split(divisor)
        low, high = rest.bounds()
        if low is not None and high is not None and low // divisor == high // divisor:
            return exact + low // divisor
        if len(rest.terms) == 1 and rest.constant == 0:
            ((monomial, coefficient),) = rest.terms
            if len(monomial) == 1 and coefficient == 1 and isinstance(monomial[0], Div):
                inner = monomial[0]
                return exact + atom(Div(inner.numerator, inner.divisor * divisor))
        shared = gcd(divisor, *(c for _, c in rest.terms))
        if shared > 1:  # floor((g*a + k) / (g*d)) = floor((a + floor(k/g)) / d)
            rest = Index(((m, c // shared) for m, c in rest.terms), rest.constant // shared)
            divisor //= shared
            if divisor == 1:
                return exact + rest
        return exact + atom(Div(rest, divisor))

    def __mod__(self, divisor: Extent) -> Index:
        if isinstance(divisor, Index):
            return self.divided(divisor)[1]
        if divisor <= 0:
            raise ValueError(f"divisor of an index must be positive, not {divisor}")
        if divisor == 1:
            return constant(0)
        _, rest = self._split(divisor)
        low, high = rest.bounds()
        if low is not None and high is not None and low // divisor == high // divisor:
            return rest - divisor * (low // divisor)
        return atom(Mod(rest, divisor))

    def __rfloordiv__(self, number: int) -> Index:
        return constant(number) // self

    def __rmod__(self, number: int) -> Index:
        return constant(number) % self

    def divided(self, divisor: Index) -> tuple[Index, Index]:
        """Quotient and remainder by an extent that is no number; it is positive wherever this is computed."""
        if divisor.is_constant:
            return self // divisor.constant, self % divisor.constant
        quotient, rest = self.multiples(divisor)
        if not never_negative(rest) and never_negative(self):
            quotient, rest = Index(), self
        if never_negative(rest) and never_negative(divisor - rest - 1):
            return quotient, rest
        if rest.constant or rest.terms:
            return quotient + atom(Div(rest, divisor)), atom(Mod(rest, divisor))
        return quotient, rest

    def multiples(self, divisor: Index) -> tuple[Index, Index]:
        """(q, self - q * divisor) where all terms of q * divisor are terms of self: no others come up, which could be negative, or grow without end."""
        parts = [*divisor.terms, *([((), divisor.constant)] if divisor.constant else [])]
        lead = max((m for m, _ in divisor.terms), key=len)
        rest = {**dict(self.terms), (): self.constant}
        quotient: dict[Monomial, int] = {}
        for monomial, _ in self.terms:
            factor = without(monomial, lead)
            if factor is None or factor in quotient:
                continue
            products = [(tuple(sorted((*factor, *m), key=lambda a: a.key)) if factor else m, c) for m, c in parts]
            times = min(rest.get(m, 0) // c if rest.get(m, 0) * c > 0 else 0 for m, c in products)
            if times:
                quotient[factor] = times
                for m, c in products:
                    rest[m] -= c * times
        number = quotient.pop((), 0)
        return Index(quotient.items(), number), Index([t for t in rest.items() if t[0]], rest[()])

    def _split(self, divisor: int) -> tuple[Index, Index]:
        """(self's part divisible by divisor) / divisor, and the rest, never negative where bounds tell, with a constant below divisor where they allow it: the
        languages that kernels are written in cut quotients off towards zero."""
        exact = Index._sorted([(m, c // divisor) for m, c in self.terms if c % divisor == 0], self.constant // divisor)
        rest = Index._sorted([t for t in self.terms if t[1] % divisor], self.constant % divisor)
        low = rest.bounds()[0]
        if low is not None and low < 0:
            less = low // divisor
            return exact + less, rest - less * divisor
        return exact, rest

    def bounds(self) -> tuple[int | None, int | None]:
        """Smallest and largest value, None where unknown."""
        low: int | None = self.constant
        high: int | None = self.constant
        for monomial, coefficient in self.terms:
            a: int | None = 1
            b: int | None = 1
            for factor in monomial:  # factors are never negative unless bounds say so
                f_low, f_high = factor.bounds()
                if f_low is None or f_low < 0:
                    return None, None
                a = None if a is None else a * f_low
                b = None if b is None or f_high is None else b * f_high
            if coefficient < 0:
                a, b = b, a
            low = None if low is None or a is None else low + a * coefficient
            high = None if high is None or b is None else high + b * coefficient
        return low, high

    def variables(self) -> frozenset[Var]:
        found = self._variables
        if found is None:
            found = self._variables = frozenset([v for monomial, _ in self.terms for a in monomial for v in ((a,) if type(a) is Var else a.variables())])
        return found

    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it is computed from, those of sizes of variables not included."""
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for a in monomial:
                if type(a) is Symbol:
                    found.add(a)
                elif isinstance(a, (Div, Mod)):
                    found |= a.numerator.symbols()
                    if type(a.divisor) is Index:
                        found |= a.divisor.symbols()
        return frozenset(found)

    def stride(self, var: Var) -> Any:
        """The coefficient of `var` where self is affine in it (0 where it does not occur), else None: an extent."""
        found: Any = 0
        for monomial, coefficient in self.terms:
            if len(monomial) == 1 and type(monomial[0]) is Var:
                if monomial[0] == var:
                    found = found + coefficient
            elif any(var in a.variables() for a in monomial):
                rest = without(monomial, (var,))
                if rest is None or not all(type(a) is Symbol for a in rest):
                    return None
                found = found + Index(((rest, coefficient),))
        return found

    def subs(self, values: Mapping[Var, Index | int]) -> Index:
        """self with variables replaced; divisions fold again."""
        if not values or self.variables().isdisjoint(values):
            return self
        sums: dict[Monomial, int] = {}
        total = self.constant
        rest: list[Index] = []
        for monomial, coefficient in self.terms:
            if len(monomial) == 1 and type(monomial[0]) is Var:
                value = values.get(monomial[0])
                if value is None:
                    sums[monomial] = sums.get(monomial, 0) + coefficient
                elif isinstance(value, int):
                    total += coefficient * value
                else:
                    total += coefficient * value.constant
                    for m, c in value.terms:
                        sums[m] = sums.get(m, 0) + c * coefficient
                continue
            product = constant(coefficient)
            for a in monomial:
                product = product * substitute_atom(a, values)
            rest.append(product)
        result = Index(sums.items(), total)
        for part in rest:
            result = result + part
        return result

    def evaluate(self, values: Mapping[Any, Any]) -> Any:
        """The value with ints or integer arrays for the variables."""
        total: Any = self.constant
        for monomial, coefficient in self.terms:
            product: Any = coefficient
            for a in monomial:
                match a:
                    case Var() | Symbol():
                        product = product * values[a]
                    case Div():
                        product = product * (a.numerator.evaluate(values) // evaluated(a.divisor, values))
                    case Mod():
                        product = product * (a.numerator.evaluate(values) % evaluated(a.divisor, values))
            total = total + product
        return total


Extent = int | Index


def hint(extent: Extent) -> int:
    """The example's number for a size."""
    return extent if isinstance(extent, int) else extent.hint


def evaluated(extent: Extent, values: Mapping[Any, Any]) -> Any:
    return extent if isinstance(extent, int) else extent.evaluate(values)


def extent(index: Extent) -> Extent:
    """An int where it is one number in every call."""
    return index.constant if type(index) is Index and not index.terms else index


def substitute_atom(a: Atom, values: Mapping[Var, Index | int]) -> Index:
    match a:
        case Var():
            value = values.get(a, None)
            return atom(a) if value is None else constant(value) if isinstance(value, int) else value
        case Div():
            return a.numerator.subs(values) // a.divisor
        case Mod():
            return a.numerator.subs(values) % a.divisor
        case Symbol():
            return atom(a)


def atom(a: Atom) -> Index:
    return Index((((a,), 1),))


def constant(value: int) -> Index:
    return Index((), value)


def var(name: str, size: Extent | None = None) -> Index:
    """A loop variable as an index; one of size 1 is the constant 0."""
    return constant(0) if size == 1 else atom(Var(name, size))


def strided(indices: Iterable[Index], strides: Iterable[Extent], offset: Extent = 0) -> Index:
    """offset + sum(index * stride)."""
    sums: dict[Monomial, int] = {}
    symbolic: list[Index] = [] if isinstance(offset, int) else [offset]
    total = offset if isinstance(offset, int) else 0
    for index, stride in zip(indices, strides, strict=True):
        if not isinstance(stride, int):
            symbolic.append(index * stride)
        elif stride:
            total += index.constant * stride
            for monomial, coefficient in index.terms:
                sums[monomial] = sums.get(monomial, 0) + coefficient * stride
    result = Index(sums.items(), total)
    for part in symbolic:
        result = result + part
    return result


def render(index: Index, name: Callable[[Var], str], floors: tuple[str, str] = ("", "")) -> str:
    """C-like text. floors: the functions of two numbers that give a quotient and a remainder where the numerator may be negative, which C cuts off towards
    zero."""

    def of_atom(a: Atom) -> str:
        match a:
            case Var():
                return name(a)
            case Symbol():
                return a.name
            case Div() | Mod():
                numerator, by_floor = render(a.numerator, name, floors), floors[isinstance(a, Mod)]
                if by_floor and not never_negative(a.numerator):
                    return f"{by_floor}({numerator}, {a.divisor})"
                return f"(({numerator}) {'/' if isinstance(a, Div) else '%'} {a.divisor})"

    parts = []
    for monomial, coefficient in index.terms:
        factors = [of_atom(a) for a in monomial]
        parts.append(" * ".join(factors if coefficient == 1 else [*factors, str(coefficient) if coefficient > 0 else f"({coefficient})"]))
    if index.constant or not parts:
        parts.append(str(index.constant))
    return " + ".join(parts)
