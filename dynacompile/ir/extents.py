"""Sizes computed of sizes that polynomials don't express: symbols of their own, which each call evaluates once."""

from __future__ import annotations

import hashlib

from dynacompile.ir.atoms import Div, Mod, Symbol, Var
from dynacompile.ir.index import Extent, Index, atom, extent, hint

LIMIT = 2**31 - 2**17  # of what int32 arithmetic may reach, with room for a block past the end


def ceil_div(count: Extent, unit: int) -> Extent:
    """The number of units that hold `count` elements; one that only a call knows is a symbol of its own."""
    if isinstance(count, int):
        return -(-count // unit)
    found = (count + (unit - 1)) // unit
    if all(type(a) is Symbol for m, _ in found.terms for a in m):
        return extent(found)
    return atom(derived("floordiv", count + (unit - 1), unit))


def derived(op: str, a: Extent, b: Extent) -> Symbol:
    """What is computed once per call of extents, as a symbol; equal ones have equal names. Its example is 0 where the divisor's is."""
    x, y = hint(a), hint(b)
    low_a, high_a = (a, a) if isinstance(a, int) else a.bounds()
    low_b, high_b = (b, b) if isinstance(b, int) else b.bounds()
    low: int | None = 0
    high: int | None = None
    match op:
        case "floordiv":
            value = x // y if y else 0
            positive = low_a is not None and low_a >= 0
            low = None if low_a is None or not positive else low_a // high_b if high_b is not None else 0
            high = high_a // max(low_b or 1, 1) if high_a is not None and positive else None
        case "mod":
            value, high = x % y if y else 0, None if high_b is None else high_b - 1
        case "min":
            value, low = min(x, y), None if low_a is None or low_b is None else min(low_a, low_b)
            high = min((h for h in (high_a, high_b) if h is not None), default=None)
        case "max":
            value, low = max(x, y), max((n for n in (low_a, low_b) if n is not None), default=None)
            high = None if high_a is None or high_b is None else max(high_a, high_b)
        case _:
            raise AssertionError(op)
    digest = hashlib.sha256(f"{op} {a!r} {b!r}".encode()).hexdigest()[:8]
    return Symbol(f"d{digest}", value, low, high, (op, a, b))


def example_reach(index: Index) -> int:
    """The most that the terms of an index add up to in the example."""
    total = abs(index.constant)
    for monomial, coefficient in index.terms:
        product = abs(coefficient)
        for a in monomial:
            match a:
                case Var():
                    product *= max(hint(a.size) - 1, 0) if a.size is not None else LIMIT
                case Symbol():
                    product *= abs(a.hint)
                case Div():
                    product *= example_reach(a.numerator) // max(hint(a.divisor), 1)
                case Mod():
                    product *= max(hint(a.divisor) - 1, 0)
        total += product
    return total
