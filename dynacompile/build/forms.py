"""The forms of a Triton kernel with symbols: properties of sizes that its code relies on, and the number by which a call chooses.

EVEN: sizes are multiples of MULTIPLE, so that memory is accessed in full width (`alignment.multiples` says which). SHORT: one block takes in a row, so
that it is read once. They are forms and not branches, since a branch has the registers of both its sides, and fewer programs fit on a GPU's core.
"""

from __future__ import annotations

from enum import Enum

from dynacompile.build.alignment import multiples
from dynacompile.ir.extents import derived
from dynacompile.ir.index import Extent, Index, atom, extent, hint
from dynacompile.ir.schedule import MULTIPLE, Candidate, KernelSource


class Property(Enum):
    EVEN = "even"
    SHORT = "short"


def properties(source: KernelSource, candidate: Candidate) -> dict[Property, Extent]:
    """For each property that the kernel has forms for, a number that is 0 in calls that have it, else 1."""
    found: dict[Property, Extent] = {}
    relied = [source.kernel.symbols[i] for i in multiples(source.kernel)]
    if relied:
        remainders = sum((atom(derived("mod", atom(s), MULTIPLE)) for s in relied), start=Index())
        found[Property.EVEN] = atom(derived("min", remainders, 1))
    if source.row is not None:
        found[Property.SHORT] = atom(derived("min", atom(derived("floordiv", source.row, candidate.blocks["RBLOCK"] + 1)), 1))
    return found


def chooses(source: KernelSource, candidate: Candidate) -> Extent:
    """The number of the form that a call needs: a bit for each property, set where the call lacks it."""
    return extent(sum((lacking * (1 << bit) for bit, lacking in enumerate(properties(source, candidate).values())), start=Index()))


def first(source: KernelSource, candidate: Candidate) -> int:
    """The form that the example needs."""
    return hint(chooses(source, candidate))


def count(source: KernelSource, candidate: Candidate) -> int:
    return 1 << len(properties(source, candidate))


def has(source: KernelSource, candidate: Candidate, form: int) -> dict[Property, bool]:
    """Which properties the calls that choose this form have."""
    return {one: not form >> bit & 1 for bit, one in enumerate(properties(source, candidate))}


def constants(source: KernelSource, candidate: Candidate, form: int) -> dict[str, int]:
    """The constexprs of a form."""
    short = {one.name: held for one, held in has(source, candidate, form).items() if one is Property.SHORT}
    return {**candidate.blocks, **short}


def changed(source: KernelSource, candidate: Candidate, form: int) -> frozenset[Property]:
    """The properties in which a form differs from the first."""
    bits = form ^ first(source, candidate)
    return frozenset(one for bit, one in enumerate(properties(source, candidate)) if bits >> bit & 1)


def with_changed(source: KernelSource, candidate: Candidate, those: frozenset[Property]) -> int:
    """The form that differs from the first in `those` of the properties that the kernel has forms for."""
    return first(source, candidate) ^ sum(1 << bit for bit, one in enumerate(properties(source, candidate)) if one in those)
