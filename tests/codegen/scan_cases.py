"""Kernels with scans for the tests of code generators: every kind, both ways, of rows and of columns, alone and beside reductions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dynacompile.ir.schedule import Kernel

from .triton_cases import BF16, F32, F64, I32, I64, Build


def every_kind(rows: int, columns: int, reverse: bool = False, dtype: torch.dtype = F32, transposed: bool = False, special: bool = False) -> Kernel:
    """transposed: the scans run along the axis that is not contiguous."""
    b = Build("scans_special" if special else "scans", (rows,), (columns,))
    place = b.at(1, rows) if transposed else b.at(columns, 1)
    v = b.load("x", dtype, place)
    wide = F64 if dtype is F64 else F32
    b.store("sums", wide, place, b.scan("sum", v, reverse))
    b.store("products", wide, place, b.scan("prod", b.add_(b.const(1.0, wide), b.mul(b.sin(v), b.const(0.01, wide))), reverse))
    b.store("logarithms", wide, place, b.scan("logaddexp", v, reverse))
    b.store("greatest", wide, place, b.scan("max", v, reverse))
    b.store("greatest_at", I64, place, b.scan("argmax", v, reverse))
    b.store("least_at", I64, place, b.scan("argmin", v, reverse))
    b.store("count", I64, place, b.scan("sum", b.cast(b.lt(b.const(0.0, wide), v), I64), reverse))
    return b.kernel()


def anew(rows: int, columns: int, reverse: bool = False) -> Kernel:
    """Sums that start anew."""
    b = Build("anew", (rows,), (columns,))
    v = b.load("x", F32, b.at(columns, 1))
    starts = b.lt(b.const(1.5), b.load("y", F32, b.at(columns, 1)))
    b.store("out", F32, b.at(columns, 1), b.scan("sum", v, reverse, starts))
    return b.kernel()


def sampled(rows: int, columns: int, dtype: torch.dtype = F32) -> Kernel:
    """What nucleus sampling does with sorted logits: a softmax, its running sums, and what is kept of it by them."""
    b = Build("sampled", (rows,), (columns,))
    v = b.load("x", dtype, b.at(columns, 1))
    e = b.exp(b.sub(v, b.reduce("max", v)))
    p = b.truediv(e, b.reduce("sum", e))
    sums = b.scan("sum", p)
    kept = b.where(b.lt(b.sub(sums, p), b.const(0.9)), p, b.const(0.0))
    b.store("out", dtype, b.at(columns, 1), b.truediv(kept, b.reduce("sum", kept)))
    b.store("most", F32, b.at(1, 0), b.reduce("max", sums))
    return b.kernel()


def over_axes(rows: int) -> Kernel:
    """Over two axes as one, of values of the row, of one axis, and of a position."""
    b = Build("over_axes", (rows,), (5, 24))
    v = b.load("x", F32, b.at(120, 24, 1))
    b.store("out", F32, b.at(120, 24, 1), b.scan("sum", b.add_(v, b.load("outer", F32, b.at(0, 1, 0)))))
    b.store("rows", F32, b.at(120, 24, 1), b.scan("sum", b.load("row", F32, b.at(1, 0, 0))))
    b.store("place", I32, b.at(120, 24, 1), b.scan("max", b.cast(b.index(b.at(0, 1, 1)), I32)))
    b.store("greatest_at", I64, b.at(120, 24, 1), b.scan("argmax", v))
    return b.kernel()


def both_ways(rows: int, columns: int) -> Kernel:
    """A scan from the end of what a scan gives, and a reduction of that."""
    b = Build("both_ways", (rows,), (columns,))
    sums = b.scan("sum", b.load("x", F32, b.at(columns, 1)))
    back = b.scan("sum", b.tanh(sums), reverse=True)
    b.store("out", F32, b.at(columns, 1), b.sub(back, b.reduce("max", back)))
    return b.kernel()


ONE_WAY: dict[str, Callable[[], Kernel]] = {
    **{f"rows_{n}{'_from_end' * back}": lambda n=n, back=back: every_kind(9, n, back) for n in (1, 37, 128, 1100) for back in (False, True)},
    **{f"columns_{n}{'_from_end' * back}": lambda n=n, back=back: every_kind(40, n, back, transposed=True) for n in (5, 70, 300) for back in (False, True)},
    "rows_of_float64": lambda: every_kind(5, 65, dtype=F64),
    "rows_of_bfloat16": lambda: every_kind(5, 65, True, dtype=BF16),
    "rows_special": lambda: every_kind(7, 150, special=True),
    "rows_special_from_end": lambda: every_kind(7, 150, True, special=True),
    "columns_special": lambda: every_kind(20, 90, transposed=True, special=True),
    "long_rows": lambda: every_kind(2, 9000),
    "long_rows_from_end": lambda: every_kind(2, 9000, True),
    "long_rows_special": lambda: every_kind(2, 5001, special=True),
    "one_row": lambda: every_kind(1, 700),
    "anew": lambda: anew(6, 100),
    "anew_from_end": lambda: anew(6, 100, True),
    "anew_long": lambda: anew(2, 9000),
    "anew_long_from_end": lambda: anew(2, 9000, True),
    "sampled": lambda: sampled(4, 500),
    "sampled_long": lambda: sampled(2, 20000),
    "sampled_bfloat16": lambda: sampled(4, 512, BF16),
    "over_axes": lambda: over_axes(6),
}
BOTH_WAYS: dict[str, Callable[[], Kernel]] = {"both_ways": lambda: both_ways(5, 200), "both_ways_long": lambda: both_ways(2, 5000)}
