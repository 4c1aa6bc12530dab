"""What holds of an index expression in every call, at every point of its loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynacompile.ir.atoms import Atom, Mod, Symbol, Var


def never_negative(index: Any) -> bool:
    """Whether index >= 0 is known to hold in every call, at every point."""
    low = index.bounds()[0]
    if low is not None and low >= 0:
        return True
    if not any(type(a) is Symbol or (type(a) is Var and not isinstance(a.size, (int, type(None)))) for m, _ in index.terms for a in m):
        return False
    for _ in range(len(index.terms) + 4):
        free = next((a for m, _ in index.terms for a in m if type(a) is not Symbol), None)
        if free is None:
            break
        least = least_at(index, free)
        if least is None:
            return False
        index = least
    else:
        return False
    if any(s.low is None or s.low < 0 for s in index.symbols()):  # those of axes' sizes among them, which are there by now
        return False
    shifted = substitute(index, lambda a, itself: itself + a.bounds()[0])
    return shifted.constant >= 0 and all(c >= 0 for _, c in shifted.terms)


def least_at(index: Any, free: Atom) -> Any:
    """index where an atom takes the value that makes it least; None where that depends on others."""
    signs = {c > 0 for m, c in index.terms if free in m}
    hidden = any(a != free and isinstance(free, Var) and free in a.variables() for m, _ in index.terms for a in m)
    if len(signs) > 1 or hidden:
        return None
    low, high = free.bounds()
    if signs == {True}:
        if low is None or low < 0:
            return None
        value: Any = low
    elif type(free) is Var and free.size is not None:
        value = free.size - 1
    elif type(free) is Mod:
        value = free.divisor - 1
    elif high is not None:
        value = high
    else:
        return None
    return substitute(index, lambda a, itself: value if a == free else itself)


def substitute(index: Any, by: Callable[[Atom, Any], Any]) -> Any:
    """index with by(atom, the atom as an index) for each atom."""
    make = type(index)
    total = make((), index.constant)
    for monomial, coefficient in index.terms:
        product = make((), coefficient)
        for a in monomial:
            product = product * by(a, make((((a,), 1),)))
        total = total + product
    return total
