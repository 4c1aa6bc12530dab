"""Integers of a body that follow from its loop variables: sums and products of them are one index expression, comparisons that hold everywhere are constants,
positions that lie in their dimension everywhere are not tested, and what fits 32 bits is computed with 32 bits.

A place is a number of 64 bits to who writes a function of it, and of 32 to a GPU: there each operation of the former takes several instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Extent, Index, Var, atom, constant, never_negative
from dynacompile.ir.loops import Access, Op

WIDE = (torch.int64, torch.int32)
SMALL = (torch.int16, torch.int8, torch.uint8)
LIMIT = 2**31 - 1
Range = tuple[int | None, int | None]
UNKNOWN: Range = (None, None)


@dataclass
class Known:
    """A value. id: in the new body, where it was emitted, in `dtype`. index: of an integer, what it is. low, high: what it lies between. shifted: it is another
    value plus a number. inside: 0 <= value < inside. tested: of a truth value, that the first of two values is less than the second. truth: it is known."""

    id: int | None
    dtype: torch.dtype
    index: Index | None = None
    low: int | None = None
    high: int | None = None
    shifted: tuple[Known, Extent] | None = None
    inside: Extent | None = None
    tested: tuple[Known, Known] | None = None
    truth: bool | None = None

    @property
    def is_narrow(self) -> bool:
        return self.low is not None and self.high is not None and -LIMIT <= self.low and self.high <= LIMIT

    def lies_in(self, size: Extent) -> bool:
        if self.inside is not None and never_negative(constant(0) + size - self.inside):
            return True
        if self.index is not None and never_negative(self.index) and never_negative(constant(0) + size - 1 - self.index):
            return True
        return self.low is not None and self.high is not None and self.low >= 0 and never_negative(constant(0) + size - 1 - self.high)


def settle_integers(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same body."""
    settler = Settler()
    for op in ops:
        settler.take(op)
    return without_dead(settler.body.ops)


class Settler:
    def __init__(self) -> None:
        self.body = Body()
        self.known: list[Known] = []

    def take(self, op: Op) -> None:
        args = [self.known[a] for a in op.args]
        if isinstance(op.attr, Access):
            self.known.append(self.access(op, args))
        elif op.name == "index":
            self.known.append(self.of_index(self.rewritten(op.attr), op.dtype))
        elif op.name == "constant":
            self.known.append(self.of_constant(op))
        elif op.name == "cast":
            self.known.append(self.cast(op, args[0]))
        elif op.name in ("lt", "le", "eq", "ne") and args[0].dtype in WIDE:
            self.known.append(self.compare(op, *args))
        elif op.name == "where":
            self.known.append(self.choose(op, *args))
        elif op.dtype in WIDE and all(a.dtype in WIDE for a in args):
            self.known.append(self.arithmetic(op, args))
        elif op.dtype == torch.bool and op.name in ("and", "or", "not"):
            self.known.append(self.logic(op, args))
        else:
            self.known.append(self.emit(op, args))

    # values

    def of_index(self, index: Index, dtype: torch.dtype) -> Known:
        low, high = index.bounds()
        return Known(None, dtype, index, low, high)

    def of_constant(self, op: Op) -> Known:
        if op.dtype in WIDE:
            return self.of_index(constant(int(op.attr)), op.dtype)
        truth = bool(op.attr) if op.dtype == torch.bool else None
        return Known(self.body.emit("constant", (), op.dtype, op.attr), op.dtype, truth=truth)

    def use(self, value: Known, dtype: torch.dtype) -> int:
        """The id of the value in this dtype."""
        if value.index is not None:
            if value.index.is_constant:
                return self.body.emit("constant", (), dtype, value.index.constant)
            return self.body.emit("index", (), dtype, value.index)
        assert value.id is not None
        have = self.body.ops[value.id].dtype
        return value.id if have == dtype else self.body.emit("cast", (value.id,), dtype)

    def narrowest(self, value: Known) -> int:
        """The id of the value in the dtype in which it takes least."""
        if value.dtype in WIDE:
            return self.use(value, torch.int32 if value.is_narrow else value.dtype)
        return self.use(value, value.dtype)

    def emit(self, op: Op, args: Iterable[Known]) -> Known:
        """As it is."""
        return Known(self.body.emit(op.name, tuple(self.use(a, a.dtype) for a in args), op.dtype, op.attr), op.dtype)

    def rewritten(self, index: Index) -> Index:
        """An index with its values of the body replaced; those that lie in their dimension have no size any more, so that nobody tests it."""
        values: dict[Var, Index | int] = {}
        for v in index.variables():
            if v.name[0] != "%":
                continue
            value = self.known[int(v.name[1:])]
            proven = v.size is None or value.lies_in(v.size)
            values[v] = value.index if value.index is not None and proven else atom(Var(f"%{self.narrowest(value)}", None if proven else v.size))
        return index.subs(values)

    def access(self, op: Op, args: Sequence[Known]) -> Known:
        mask = None if op.attr.mask is None else self.use(self.known[op.attr.mask], torch.bool)
        access = op.attr.at(self.rewritten(op.attr.index), mask)
        if op.name == "store":
            self.body.put(self.use(args[0], args[0].dtype), access)
            return Known(None, op.dtype)
        low, high = limits(op.dtype)
        return Known(self.body.emit("load", (), op.dtype, access), op.dtype, None, low, high)

    # operations

    def arithmetic(self, op: Op, args: Sequence[Known]) -> Known:
        index = combined(op.name, args)
        shifted = shift(op.name, args)
        if index is not None:
            return replace(self.of_index(index, op.dtype), shifted=shifted)
        low, high = between(op.name, args)
        made = Known(None, op.dtype, None, low, high, shifted)
        dtype = torch.int32 if made.is_narrow and all(a.is_narrow for a in args) else op.dtype
        made.id = self.body.emit(op.name, tuple(self.use(a, dtype) for a in args), dtype, op.attr)
        return made

    def compare(self, op: Op, a: Known, b: Known) -> Known:
        truth = decided(op.name, a, b)
        if truth is not None:
            return Known(self.body.emit("constant", (), torch.bool, truth), torch.bool, truth=truth)
        dtype = torch.int32 if a.is_narrow and b.is_narrow else a.dtype
        made = self.body.emit(op.name, (self.use(a, dtype), self.use(b, dtype)), torch.bool)
        return Known(made, torch.bool, tested=(a, b) if op.name == "lt" else None)

    def logic(self, op: Op, args: Sequence[Known]) -> Known:
        if op.name == "not":
            truth = None if args[0].truth is None else not args[0].truth
            return self.emit(op, args) if truth is None else Known(self.body.emit("constant", (), torch.bool, truth), torch.bool, truth=truth)
        strong = op.name == "or"  # the truth value that settles it
        for one, other in (args, reversed(args)):
            if one.truth is not None:
                return one if one.truth == strong else other
        return self.emit(op, args)

    def choose(self, op: Op, condition: Known, a: Known, b: Known) -> Known:
        if condition.truth is not None:
            return a if condition.truth else b
        if op.dtype not in WIDE:
            return self.emit(op, (condition, a, b))
        made = Known(None, op.dtype, None, *wrapped(condition, a, b))
        made.inside = wraps_into(condition, a, b)
        dtype = torch.int32 if all(v.is_narrow for v in (made, a, b)) else op.dtype
        made.id = self.body.emit("where", (self.use(condition, torch.bool), self.use(a, dtype), self.use(b, dtype)), dtype)
        return made

    def cast(self, op: Op, value: Known) -> Known:
        if op.dtype in WIDE and value.dtype in WIDE:
            if value.is_narrow or op.dtype == torch.int64:
                return replace(value, dtype=op.dtype)
            return Known(self.body.emit("cast", (self.use(value, value.dtype),), op.dtype), op.dtype, None, *limits(op.dtype))
        source = self.narrowest(value)
        if op.dtype in WIDE and (value.dtype in SMALL or value.dtype == torch.bool):
            low, high = (0, 1) if value.dtype == torch.bool else limits(value.dtype)
            return Known(self.body.emit("cast", (source,), torch.int32), op.dtype, None, low, high)
        return Known(self.body.emit("cast", (source,), op.dtype), op.dtype)


def limits(dtype: torch.dtype) -> Range:
    """Of the values that a narrow integral dtype has."""
    if dtype == torch.int64 or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        return UNKNOWN
    return torch.iinfo(dtype).min + (dtype == torch.int32), torch.iinfo(dtype).max


def combined(name: str, args: Sequence[Known]) -> Index | None:
    """The result as an index expression."""
    indices = [a.index for a in args]
    if any(i is None for i in indices):
        return None
    first = indices[0]
    second = indices[1] if len(indices) > 1 else None
    assert first is not None
    match name:
        case "add" if second is not None:
            return first + second
        case "sub" if second is not None:
            return first - second
        case "neg":
            return -first
        case "mul" if second is not None and (first.is_constant or second.is_constant):
            return first * second
        case "floordiv" | "mod" if second is not None and second.is_constant and second.constant > 0 and never_negative(first):
            return first // second.constant if name == "floordiv" else first % second.constant
    return None


def shift(name: str, args: Sequence[Known]) -> tuple[Known, Extent] | None:
    """Of a value plus a number, both."""
    if name == "add":
        for value, number in (args, reversed(args)):
            if number.index is not None and not number.index.variables():
                return value, number.index
    return None


def between(name: str, args: Sequence[Known]) -> Range:
    """What the result lies between."""
    if any(a.low is None or a.high is None for a in args):
        return UNKNOWN
    ranges: list[tuple[int, int]] = [(a.low, a.high) for a in args]  # type: ignore[misc]
    (a, b), (c, d) = ranges[0], ranges[-1]
    match name:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            products = (a * c, a * d, b * c, b * d)
            return min(products), max(products)
        case "neg":
            return -b, -a
        case "abs":
            return (0 if a <= 0 <= b else min(abs(a), abs(b))), max(abs(a), abs(b))
        case "min":
            return min(a, c), min(b, d)
        case "max":
            return max(a, c), max(b, d)
        case "mod" if c > 0:
            return 0, d - 1
        case "floordiv" if c == d > 0:
            return a // c, b // c
        case "and" if a >= 0 and c >= 0:
            return 0, min(b, d)
        case "or" | "xor" if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
    return UNKNOWN


def decided(name: str, a: Known, b: Known) -> bool | None:
    """A comparison that has one answer everywhere."""
    if a.index is not None and b.index is not None:
        apart = b.index - a.index
        if name == "lt":
            return True if never_negative(apart - 1) else False if never_negative(-apart) else None
        if name == "le":
            return True if never_negative(apart) else False if never_negative(-apart - 1) else None
        if apart.is_constant or never_negative(apart - 1) or never_negative(-apart - 1):
            return (apart == 0) == (name == "eq")
        return None
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return None
    if name == "lt":
        return True if a.high < b.low else False if a.low >= b.high else None
    if name == "le":
        return True if a.high <= b.low else False if a.low > b.high else None
    return name == "ne" if a.high < b.low or b.high < a.low else None


def wrapped(condition: Known, a: Known, b: Known) -> Range:
    """What one of two values lies between; of a position that is counted from the end where it is negative, less than either may."""
    if None in (a.low, a.high, b.low, b.high):
        return UNKNOWN
    low, high = min(a.low, b.low), max(a.high, b.high)  # type: ignore[type-var]
    if is_wrap(condition, a, b):
        return min(a.low, max(b.low, 0)), max(a.high - b.high - 1 if b.high > -1 else a.high, b.high)  # type: ignore[operator,type-var]
    return low, high


def is_wrap(condition: Known, a: Known, b: Known) -> bool:
    """where(b < 0, b + n, b)"""
    if condition.tested is None or a.shifted is None:
        return False
    value, zero = condition.tested
    return value is b and a.shifted[0] is b and zero.index is not None and zero.index == 0


def wraps_into(condition: Known, a: Known, b: Known) -> Extent | None:
    """n, where where(b < 0, b + n, b) lies in 0 .. n - 1."""
    if not is_wrap(condition, a, b):
        return None
    assert a.shifted is not None
    size = a.shifted[1]
    first = (a.index is not None and never_negative(a.index)) or (a.low is not None and a.low >= 0)
    second = b.index is not None and never_negative(constant(0) + size - 1 - b.index)
    second = second or (b.high is not None and never_negative(constant(0) + size - 1 - b.high))
    return size if first and second else None
