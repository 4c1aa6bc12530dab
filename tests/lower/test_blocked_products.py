"""Products in blocks as a template of ours: every extent, layout, dtype and summand against float64 and the library, and when it is chosen."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.codegen.cpp import emit_kernel
from dynacompile.lower import products
from dynacompile.lower.products import BLOCK_VECTORS
from dynacompile.ops.product_costs import AVX2, AVX512, Choice, Product, choose_blocks, library_multiplies
from tests.lower.tracing import ENV, compare, stages, trace

GOLDEN = Path(__file__).parent.parent / "codegen" / "golden"
aten = torch.ops.aten
pytestmark = pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in BLOCK_VECTORS, reason="the template was measured with such vectors alone")
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[Product]:
    """Products of any size are the template's, where it computes them at all: the list of them."""
    made: list[Product] = []

    def choose_ours(found: Product) -> Choice:
        made.append(found)
        return Choice(True, "the test says so")

    monkeypatch.setattr(products, "choose_blocks", choose_ours)
    monkeypatch.setattr(products, "choose", lambda product: Choice(False, "the test says so"))
    return made


def matrix(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1000 * seed + rows + columns)).to(dtype)


def check(function, *args: torch.Tensor) -> None:
    """Errors against float64 are those of the library, but for chance; 16-bit numbers are rounded once."""
    have = dynacompile.compile(function, isolate_recompiles=True)(*args)
    eager, exact = function(*args), function(*(a.double() for a in args))
    assert have.stride() == eager.stride() and have.dtype == eager.dtype
    error, allowed = (have - exact).abs().max(), (eager - exact).abs().max()
    once = torch.finfo(have.dtype).eps * exact.abs().max() / 2
    assert error <= (3 * allowed + 1e-6 * max(1, exact.abs().max()) if have.dtype == F32 else 1.05 * once), (error, allowed, once)


EXTENTS = [(1, 2, 3), (2, 17, 5), (14, 32, 16), (13, 33, 31), (28, 64, 100), (31, 48, 257), (57, 31, 600), (100, 65, 512), (300, 40, 260)]


LAYOUTS = {"rows by rows": (False, False), "columns by rows": (True, False), "rows by columns": (False, True), "columns by columns": (True, True)}
DTYPES = [F32, BF16, F16]


def combinations() -> Iterator[object]:
    """Every extent in every dtype, and every layout in every dtype; the other layouts of an extent are left to `make further`."""
    for i, extents in enumerate(EXTENTS):
        for j, dtype in enumerate(DTYPES):
            for k, (name, layout) in enumerate(LAYOUTS.items()):
                marks = () if k == (i + j) % len(LAYOUTS) else pytest.mark.further
                yield pytest.param(extents, *layout, dtype, id=f"{extents}-{name}-{dtype}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("extents", "columns", "turned", "dtype"), combinations())
def test_extents(extents, columns, turned, dtype, ours):
    m, n, k = extents
    a = matrix(k, m, 0, dtype).t() if columns else matrix(m, k, 0, dtype)
    b = matrix(n, k, 1, dtype).t() if turned else matrix(k, n, 1, dtype)
    check(torch.mm, a, b)
    check(lambda a, b, c: torch.addmm(c, a, b), a, b, matrix(1, n, 2, dtype)[0])
    assert len(ours) == 2 or (len(ours) == 1 and library_multiplies(dtype)), "but for layers that the library has instructions for"


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_rows_that_go_by_several_chunks_of_columns(columns, dtype, ours):
    """The first operand does not fit the cache, nor does the second."""
    a = matrix(900, 150, 0, dtype).t() if columns else matrix(150, 900, 0, dtype)
    check(torch.mm, a, matrix(900, 350, 1, dtype))
    assert len(ours) == 1


def test_rows_that_are_one_row(ours):
    """Expanded operands, which lie as rows or columns without a distance."""
    row = matrix(1, 40)
    check(lambda x, w: x.expand(30, 40) @ w, row, matrix(40, 20, 1))
    check(lambda x, w: w @ x.expand(20, 40), row, matrix(30, 20, 1))
    check(lambda x, w: x.t().expand(40, 30) @ w, row, matrix(30, 20, 1))
    assert len(ours) == 3


@pytest.mark.parametrize("size", [(40,), (1, 40), (30, 40)], ids=str)
def test_what_is_added(size, ours):
    added = torch.randn(size, generator=torch.Generator().manual_seed(1))
    check(lambda a, b, c: torch.addmm(c, a, b), matrix(30, 20), matrix(20, 40, 1), added)
    assert len(ours) == 1


def test_operands_that_are_parts_of_others(ours):
    wide = matrix(60, 100)

    def function(wide):
        return torch.addmm(wide[:40, 3:53], wide[::2][:40, 7:27][:30].repeat(2, 1)[:40], wide[5:25, 50:]) + wide[:40, :20] @ wide[30:50, 10:60]

    check(function, wide)
    assert len(ours) == 2


def test_any_number_of_rows(ours):
    """The number of rows is a symbol: one program for all."""

    def function(x, w, b):
        return F.gelu(F.linear(x, w, b))

    w, b = matrix(40, 24, 1), matrix(1, 40, 2)[0]
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    for rows in (30, 31, 14, 5, 57, 200):
        x = matrix(rows, 24)
        dynacompile.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x, w, b), function(x, w, b))
    assert len(ours) == 1


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_training(dtype, ours):
    """Products of the forward and of both gradients, for any number of rows."""
    w, b = matrix(40, 24, 1, dtype).requires_grad_(), matrix(1, 40, 2, dtype)[0].requires_grad_()

    def function(x, w, b):
        return F.linear(x, w, b).float().square().sum()

    compiled = dynacompile.compile(function, isolate_recompiles=True)
    tolerances = {"rtol": 1e-4, "atol": 1e-4} if dtype == F32 else {"rtol": 3e-2, "atol": 3e-1}
    for rows in (64, 65, 31):
        x = matrix(rows, 24, 0, dtype).requires_grad_()
        dynacompile.mark_dynamic(x, 0)
        have = torch.autograd.grad(compiled(x, w, b), [x, w, b])
        torch.testing.assert_close(have, torch.autograd.grad(function(x, w, b), [x, w, b]), **tolerances)
    assert len(ours) == 3


def test_numbers_that_are_not_finite(ours):
    a, b = matrix(20, 30), matrix(30, 20, 1)
    a[3, 4], a[5, 6], b[7, 19], b[8, 2] = math.nan, math.inf, -math.inf, 1e30
    have = dynacompile.compile(torch.mm, isolate_recompiles=True)(a, b)
    torch.testing.assert_close(have, torch.mm(a, b), equal_nan=True)
    assert len(ours) == 1


@pytest.mark.parametrize("kept", ["neither", "double", "a factor", "added columns", "a number that is added"])
def test_what_stays_a_call_of_the_library(kept, ours):
    a, b, c = matrix(30, 20), matrix(20, 40, 1), matrix(1, 40, 2)[0]
    if kept == "neither":
        a = matrix(60, 40)[::2, ::2]
    if kept == "double":
        a, b, c = a.double(), b.double(), c.double()
    if kept == "added columns":
        c = matrix(30, 1)
    if kept == "a number that is added":
        c = c[:1]
    factors = {"beta": 0.5} if kept == "a factor" else {}

    def function(a, b, c):
        return torch.addmm(c, a, b, **factors)

    torch.testing.assert_close(dynacompile.compile(function, isolate_recompiles=True)(a, b, c), function(a, b, c))
    assert not ours


@pytest.mark.usefixtures("ours")
def test_threads_change_no_bit():
    a, b = matrix(131, 70), matrix(70, 90, 1)
    compiled = dynacompile.compile(torch.mm, isolate_recompiles=True)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(compiled(a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.usefixtures("ours")
def test_every_level_of_the_program():
    args = matrix(20, 30), matrix(30, 40, 1), matrix(1, 40, 2)[0]
    plan = compare(trace(lambda a, b, c: torch.addmm(c, a, b).relu(), args), args, rtol=1e-5, atol=1e-5)
    assert plan.facts()["externs"] == 0 and plan.facts()["launches"] == 2


@pytest.mark.usefixtures("ours")
def test_golden():
    """To renew it after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/lower/test_blocked_products.py"""
    args = matrix(20, 30), matrix(40, 30, 1), matrix(1, 40, 2)[0]
    _, plan = stages(trace(lambda a, w, c: torch.addmm(c, a, w.t()) @ w, args))
    text = "\n".join(emit_kernel(kernel, ENV).text for kernel in plan.kernels.values())
    path = GOLDEN / "blocked_product.cpp"
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("processor", "extents", "along", "is_ours"),
    [
        (AVX512, (2048, 384, 128), (True, True), True),
        (AVX512, (256, 32, 512), (True, True), True),
        (AVX512, (255, 64, 64), (True, True), False),
        (AVX512, (2048, 10, 128), (True, True), False),
        (AVX512, (2048, AVX512.cached // 128 + 1, 128), (True, True), False),
        (AVX512, (2048, 384, 128), (False, True), False),
        (AVX2, (2048, 384, 128), (True, False), True),
        (AVX2, (32, 384, 128), (True, False), False),
        (AVX2, (32, 384, 128), (True, True), True),
        (AVX2, (128, 512, 2048), (False, False), False),
    ],
    ids=str,
)
def test_choices(processor, extents, along, is_ours):
    choice = choose_blocks(Product(0, *extents, F32, *along), processor)
    assert (choice is not None) is is_ours
    assert choice is None or choice.loops


@pytest.mark.parametrize("extents", [(512, 688, 256), (256, 688, 512), (8, 1024, 1024), (33, 47, 65)], ids=str)
def test_products_of_16_bit_numbers_are_ours_where_the_library_takes_them_one_by_one(extents):
    for dtype in (BF16, F16):
        for along in ((True, True), (True, False), (False, False)):
            product = Product(0, *extents, dtype, *along)
            assert choose_blocks(product, AVX512) is None
            choice = choose_blocks(product, AVX2)
            assert choice is not None and choice.loops_us < choice.library_us
