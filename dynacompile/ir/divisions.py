"""Divisions and remainders in indices: put together where they are the digits of one number, and gone where an axis is split into its digits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from dynacompile.ir.atoms import Atom
from dynacompile.ir.body import Body
from dynacompile.ir.bounds import never_negative
from dynacompile.ir.index import Div, Extent, Index, Mod, Symbol, Var, atom, constant, extent, without
from dynacompile.ir.index import var as index_var
from dynacompile.ir.loops import Access, Axis, Nest, Op

ROUNDS = 8
SHORTEST = 16  # an inner axis below a vector's width would cost more than the divisions


def recombined(index: Index) -> Index:
    """The index with (n / d) * d + n % d, and ((n / d) % e) * d + n % d, times anything, written as n, and n % (d * e)."""
    while True:
        digits = digit_factors(index)
        for low, factor in digits.items():
            if not isinstance(low, Mod):
                continue
            quotient, above = low.numerator // low.divisor, factor * low.divisor
            high = next((a for a, f in digits.items() if f == above and is_digit_above(a, quotient)), None)
            if high is not None:
                whole = low.numerator % (low.divisor * high.divisor) if isinstance(high, Mod) else low.numerator
                index = index - atom(low) * factor - atom(high) * above + whole * factor
                break
        else:
            return index


def digit_factors(index: Index) -> dict[Div | Mod, Index]:
    """Each quotient and remainder of variables in the sum, with what it is multiplied by."""
    found: dict[Div | Mod, Index] = {}
    for monomial, c in index.terms:
        digits = [a for a in monomial if isinstance(a, (Div, Mod)) and a.variables()]
        if len(digits) == 1:
            rest = without(monomial, (digits[0],))
            found[digits[0]] = found.get(digits[0], constant(0)) + Index(((rest or (), c),))
    return found


def is_digit_above(a: Atom, quotient: Index) -> bool:
    """Whether an atom is the quotient, or a remainder of it."""
    if isinstance(a, Mod):
        return a.numerator == quotient
    return isinstance(a, Div) and quotient.terms == (((a,), 1),) and quotient.constant == 0


def split_axes(nest: Nest, roles: str = "xr") -> Nest:
    """Axes of the roles split in two wherever that makes divisions or remainders of them vanish."""
    for _ in range(ROUNDS):
        best = min(((count_divisions(s), i, s) for i, s in enumerate(candidates(nest, roles))), default=None, key=lambda t: t[:2])
        if best is None or best[0] >= count_divisions(nest):
            return nest
        nest = best[2]
    return nest


def candidates(nest: Nest, roles: str) -> Sequence[Nest]:
    periods = {(axis, p) for axis in nest.axes if axis.role in roles for p in dividing_periods(nest, axis)}
    return [split(nest, axis, period) for axis, period in sorted(periods, key=lambda t: (t[0].var.name, t[1]))]


def divisions(nest: Nest) -> set[Div | Mod]:
    found: set[Div | Mod] = set()
    pending = [i for op in nest.body if (i := index_of(op)) is not None]
    while pending:
        for monomial, _ in pending.pop().terms:
            for a in monomial:
                if not isinstance(a, (Var, Symbol)) and a not in found:
                    found.add(a)
                    pending.append(a.numerator)
    return found


def count_divisions(nest: Nest) -> int:
    return len(divisions(nest))


def dividing_periods(nest: Nest, axis: Axis) -> list[Extent]:
    """Inner sizes k for axis = outer * k + inner that a division of the axis suggests."""
    periods = set()
    for division in divisions(nest):
        stride = division.numerator.stride(axis.var)
        if stride:
            if isinstance(stride, int) and isinstance(division.divisor, int):
                period: Extent = division.divisor // gcd(division.divisor, abs(stride))
            else:
                positive = stride > 0 if isinstance(stride, int) else never_negative(stride - 1)
                period = extent(division.divisor // stride) if positive and not division.divisor % stride else 1
            if SHORTEST <= period < axis.size and axis.size % period == 0 and axis.size // period > 1:
                periods.add(period)
    return sorted(periods)


def split(nest: Nest, axis: Axis, period: Extent) -> Nest:
    """`axis` as two axes in its place, the inner one of size `period`; positions in the flattened r axes stay."""
    taken = {a.var.name for a in nest.axes}
    names = [n for n in (f"{axis.var.name}{suffix}" for suffix in "abcdefghij") if n not in taken][:2]
    outer, inner = Var(names[0], extent(axis.size // period)), Var(names[1], period)
    value = index_var(outer.name, outer.size) * period + index_var(inner.name, inner.size)
    body = Body()
    body.splice(nest.body, {axis.var: value})
    axes = [b for a in nest.axes for b in ((Axis(outer, a.role), Axis(inner, a.role)) if a == axis else (a,))]
    return replace(nest, axes=tuple(axes), body=tuple(body.ops))


def index_of(op: Op) -> Index | None:
    return op.attr.index if isinstance(op.attr, Access) else op.attr if isinstance(op.attr, Index) else None
