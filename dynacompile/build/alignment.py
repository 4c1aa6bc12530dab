"""Which symbols of a kernel decide whether memory can be accessed in full width: rows must start at multiples of 16 bytes, and end where vectors do."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from dynacompile.ir.index import Div, Index, Mod, Symbol, hint
from dynacompile.ir.loops import Access
from dynacompile.ir.schedule import MULTIPLE, Kernel

FEW = 4  # an access that touches fewer elements than a kernel's points by more than this is served by the caches


def multiples(kernel: Kernel) -> tuple[int, ...]:
    """Positions among the kernel's symbols of those that are multiples of MULTIPLE in one form of it, as few as do: where the example's sizes allow
    wide accesses, of those that are multiples there. None where all accesses are as wide as they can be without."""
    needed = list(dict.fromkeys(products(kernel)))
    even = frozenset(s for s in kernel.symbols if not s.real and s.hint % MULTIPLE == 0)
    chosen = cover(needed, even) or cover(needed, frozenset(s for s in kernel.symbols if not s.real))
    return tuple(i for i, s in enumerate(kernel.symbols) if s in chosen)


def cover(products: list[frozenset[Symbol]], allowed: frozenset[Symbol]) -> set[Symbol]:
    """Few symbols that make multiples of the products, of those that allowed ones are in."""
    left = [p & allowed for p in products if p & allowed]
    chosen: set[Symbol] = set()
    while left:
        counts = {s: sum(s in p for p in left) for p in left for s in p}
        best = min(counts, key=lambda s: (-counts[s], s.name))
        chosen.add(best)
        left = [p for p in left if best not in p]
    return chosen


def products(kernel: Kernel) -> Iterator[frozenset[Symbol]]:
    """The products of symbols that are sizes of axes along which memory is contiguous, or strides, or offsets, in the accesses that count."""
    axes = kernel.nest.axes
    points = prod(hint(a.size) for a in axes)
    found = [op.attr for op in kernel.nest.body if isinstance(op.attr, Access)]
    accesses = [a for a in found if FEW * prod(hint(x.size) for x in axes if a.index.stride(x.var) != 0) >= points]
    for axis in axes:
        if isinstance(axis.size, Index) and any(a.index.stride(axis.var) == 1 for a in accesses):
            yield from symbolic_terms(axis.size)
    for access in accesses:
        yield from symbolic_terms(access.index)


def symbolic_terms(index: Index) -> Iterator[frozenset[Symbol]]:
    for monomial, coefficient in index.terms:
        symbols = frozenset(a for a in monomial if isinstance(a, Symbol))
        if symbols and coefficient % MULTIPLE:
            yield symbols
        for a in monomial:
            if isinstance(a, (Div, Mod)):
                yield from symbolic_terms(a.numerator)
                yield from symbolic_terms(a.divisor) if isinstance(a.divisor, Index) else ()
