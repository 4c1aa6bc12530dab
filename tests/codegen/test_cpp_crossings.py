"""Kernels that walk tensors of which one is consecutive along the lanes, another along a second axis: they go through blocks that are transposed."""

from __future__ import annotations

import pytest
import torch

from dynacompile.codegen.cpp import emit_kernel
from dynacompile.codegen.cpp.plan import plan
from dynacompile.codegen.cpp.prepare import prepare
from dynacompile.ir.schedule import Kernel

from .cpp_running import ENV, Library
from .triton_cases import BF16, BOOL, F16, F32, F64, I8, I64, Build, assert_same, oracle, storages


def added(rows: int, columns: int, dtype: torch.dtype = F32) -> Kernel:
    """x.t() + y."""
    b = Build("added", (rows, columns))
    v = b.load("x", dtype, b.at(1, rows))
    b.store("out", dtype, b.at(columns, 1), b.add_(v, b.load("y", dtype, b.at(columns, 1))))
    return b.kernel()


def compared(rows: int, columns: int) -> Kernel:
    """Where x.t() > y, as it is and transposed: bools in memory, loaded and stored across the lanes."""
    b = Build("compared", (rows, columns))
    flag = b.load("flag", BOOL, b.at(1, rows))
    greater = b.lt(b.load("y", F32, b.at(columns, 1)), b.load("x", F32, b.at(1, rows)))
    b.store("out", BOOL, b.at(columns, 1), b.and_(greater, flag))
    b.store("other", BOOL, b.at(columns, 1), b.or_(greater, flag))
    b.store("turned", BOOL, b.at(1, rows), greater)
    return b.kernel()


def sums(rows: int, columns: int, by_row: bool) -> Kernel:
    """Sums and maxima of x.t() + y over one of its axes."""
    b = Build("sums", (rows,), (columns,)) if by_row else Build("sums", (columns,), (rows,))
    straight, turned = (b.at(columns, 1), b.at(1, rows)) if by_row else (b.at(1, columns), b.at(rows, 1))
    v = b.add_(b.load("x", F32, turned), b.load("y", F32, straight))
    b.store("sum", F32, b.at(1, 0), b.reduce("sum", v))
    b.store("max", F32, b.at(1, 0), b.reduce("max", v))
    return b.kernel()


def softmax_across(rows: int, columns: int, dtype: torch.dtype = F32) -> Kernel:
    """The softmax of x.t() + y over rows of y."""
    b = Build("softmax_across", (rows,), (columns,))
    v = b.add_(b.load("x", dtype, b.at(1, rows)), b.load("y", dtype, b.at(columns, 1)))
    e = b.exp(b.sub(v, b.reduce("max", v)))
    b.store("out", dtype, b.at(columns, 1), b.truediv(e, b.reduce("sum", e)))
    return b.kernel()


def centred(rows: int, columns: int, alone: bool, dtype: torch.dtype = F32) -> Kernel:
    """Rows of x.t() + y less their mean, times their greatest square: three passes. alone: of y, stored transposed."""
    b = Build("centred", (rows,), (columns,))
    v = b.load("y", dtype, b.at(columns, 1))
    if not alone:
        v = b.add_(v, b.load("x", dtype, b.at(1, rows)))
    d = b.sub(v, b.truediv(b.reduce("sum", v), b.const(columns)))
    b.store("out", dtype, b.at(1, rows) if alone else b.at(columns, 1), b.mul(d, b.reduce("max", b.mul(d, d))))
    return b.kernel()


CASES = {
    **{f"added_{n}_{m}": lambda n=n, m=m: added(n, m) for n, m in ((16, 16), (17, 131), (64, 64), (67, 130), (300, 33))},
    **{f"added_{dtype}": lambda dtype=dtype: added(70, 90, dtype) for dtype in (F64, BF16, F16, I64, I8)},
    **{f"added_in_narrow_strips_{d}": lambda d=d: added(277, 530, d) for d in (F32, F64, BF16, I8)},
    "added_in_wide_strips": lambda: added(1100, 90),
    **{f"compared_{n}_{m}": lambda n=n, m=m: compared(n, m) for n, m in ((40, 50), (128, 80), (260, 600))},
    **{f"sums_{n}_{m}_{by}": lambda n=n, m=m, by=by: sums(n, m, by) for n, m in ((40, 50), (130, 700), (1000, 64)) for by in (True, False)},
    **{f"softmax_{n}_{m}": lambda n=n, m=m: softmax_across(n, m) for n, m in ((40, 50), (130, 700))},
    **{f"centred_{n}_{m}{'_alone' * a}": lambda n=n, m=m, a=a: centred(n, m, a) for n, m in ((40, 50), (130, 700), (70, 4000)) for a in (False, True)},
    "centred_bf16": lambda: centred(33, 90, False, BF16),
    "centred_beyond_the_cache": lambda: centred(20, 9000, False),
    "softmax_bf16": lambda: softmax_across(33, 90, BF16),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library({name: make() for name, make in CASES.items()}, tmp_path_factory.mktemp("store"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_numbers(library, name):
    kernel = CASES[name]()
    tensors = storages(kernel, list(CASES).index(name))
    expected = {k: t.clone() for k, t in tensors.items()}
    oracle(kernel, expected)
    library(name, list(tensors.values()))
    assert_same(tensors, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_gathered(library, name):
    """Vectors are read and written as vectors, none element by element."""
    assert "transposed<W>(" in library.texts[name] or "transposed_whole<W" in library.texts[name]
    assert "gather" not in library.texts[name] and "each_lane" not in library.texts[name]


def test_rows_whose_loads_cross_are_columns():
    assert plan(prepare(softmax_across(300, 300).nest)).shape == "column"


@pytest.mark.parametrize("alone", [True, False])
def test_a_block_is_transposed_once_for_all_passes(alone):
    """Later passes read what the first one made of it; beyond the second-level cache they transpose again."""
    read = "transposed<W>(load_0_block"
    assert plan(prepare(centred(1024, 2048, alone).nest)).passes == 3
    assert emit_kernel(centred(1024, 2048, alone), ENV).text.count(read) == 1
    assert emit_kernel(centred(1024, 9000, alone), ENV).text.count(read) == 3


def loops_of(kernel: Kernel):
    return plan(prepare(kernel.nest))


@pytest.mark.parametrize("rows,columns,side", [(2048, 1024, 16), (1024, 500, 64), (2048, 2048, 64)], ids=["many lanes", "few lanes", "many pages"])
def test_transposes_go_along_what_is_stored(rows, columns, side):
    """A task has a strip of rows of the output; each row goes on where the last block ended."""
    loops = loops_of(added(rows, columns))
    assert loops.strips and loops.block == loops.tile == side
    assert loops.tiles == rows // side
    text = emit_kernel(added(rows, columns), ENV).text
    assert text.index("const i64 s0 = ") < text.index("for (i64 t0 = 0") and text.count(f"transposed_whole<W, {side}, {side}>(") == 1


def test_transposes_of_few_rows_share_out_columns():
    loops = loops_of(added(32, 4000))
    assert not loops.strips and loops.tiles == -(-4000 // 64)


def test_more_that_is_crossed_than_not_goes_along_that():
    b = Build("two", (600, 700))
    v = b.add_(b.load("x", F32, b.at(1, 600)), b.load("y", F32, b.at(1, 600)))
    b.store("out", F32, b.at(700, 1), v)
    loops = loops_of(b.kernel())
    assert len(loops.crossed) == 2 and not loops.strips


def test_axes_below_a_vector_are_gathered():
    assert "transposed" not in emit_kernel(added(8, 300), ENV).text


@pytest.mark.parametrize("dtype", [F32, F16])
def test_a_result_in_place_of_an_operand_is_not_read_again(dtype, tmp_path):
    """Images times numbers, as they are, in the operand's memory, and turned, in a loop over lanes."""
    b = Build("scaled", (24, 3, 3))
    scaled = b.mul(b.load("x", dtype, b.at(9, 3, 1)), b.load("by", dtype, b.at(1, 0, 0)))
    b.store("out", dtype, b.at(9, 3, 1), scaled)
    b.store("turned", dtype, b.at(9, 1, 3), scaled)
    x, by, turned = torch.randn(24, 3, 3).to(dtype), torch.randn(24, 1, 1).to(dtype), torch.empty(24, 3, 3, dtype=dtype)
    expected = x * by
    Library({"scaled": b.kernel()}, tmp_path)("scaled", [x, by, x, turned])
    torch.testing.assert_close([x, turned], [expected, expected.transpose(1, 2)])
