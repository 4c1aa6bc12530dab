"""Small products of matrices as loops: every form, layout and dtype against eager, and which are chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import ProductDecided
from dynacompile.lower import lower, products
from dynacompile.ops.product_costs import AVX512, Choice, Product, choose
from tests.lower.tracing import ENV, compare, stages, trace

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of any size are loops."""
    monkeypatch.setattr(products, "choose", lambda product: Choice(True, "the test says so"))
    yield


def matrix(dtype: torch.dtype, *size: int) -> torch.Tensor:
    made = torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))) * 3
    return made.to(dtype)


def run(function, *args: torch.Tensor):
    """Every level of the program, and the kernels, against eager."""
    wide = args[0].dtype in (torch.float32, torch.float64)
    tolerances = {"rtol": 1e-5, "atol": 1e-5} if wide else {"rtol": 2e-2, "atol": 5e-2}
    plan = compare(trace(function, args), args, **tolerances)
    torch.testing.assert_close(dynacompile.compile(function, isolate_recompiles=True, fullgraph=True)(*args), function(*args), **tolerances)
    return plan


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
def test_layouts_and_dtypes(dtype, turned):
    a, b = (matrix(dtype, *(size[::-1] if t else size)) for size, t in zip(((7, 19), (19, 21)), turned, strict=True))
    a, b = a.t() if turned[0] else a, b.t() if turned[1] else b
    plan = run(lambda a, b: a @ b, a, b)
    assert plan.facts()["externs"] == 0 and plan.facts()["launches"] == 1


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 40, 1), (5, 1, 9), (1, 17, 33), (33, 17, 1), (20, 3, 2), (2, 300, 3)], ids=str)
def test_extents_of_one_and_few(sizes):
    m, k, n = sizes
    for batch in ((), (3,)):
        plan = run(lambda a, b: a @ b, matrix(torch.float32, *batch, m, k), matrix(torch.float32, *batch, k, n))
        assert plan.facts()["externs"] == 0


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("added", [(1,), (6,), (1, 6), (5, 1), (5, 6)], ids=str)
def test_what_a_product_is_added_to(added):
    args = matrix(torch.float32, *added), matrix(torch.float32, 5, 4), matrix(torch.float32, 4, 6)
    for factors in ({}, {"beta": 0.5, "alpha": -2.0}, {"beta": 2, "alpha": 1}):
        assert run(partial(torch.addmm, **factors), *args).facts()["externs"] == 0
    batches = matrix(torch.float32, 3, 5, 6), matrix(torch.float32, 3, 5, 4), matrix(torch.float32, 3, 4, 6)
    assert run(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.25, alpha=3), *batches).facts()["externs"] == 0


@pytest.mark.usefixtures("loops")
def test_a_beta_of_zero_takes_no_part():
    nothing = torch.full((5, 6), float("nan"))
    out = dynacompile.compile(lambda c, a, b: torch.addmm(c, a, b, beta=0))(nothing, torch.ones(5, 4), torch.ones(4, 6))
    assert torch.equal(out, torch.full((5, 6), 4.0))


@pytest.mark.usefixtures("loops")
def test_integers_wrap():
    big = torch.full((3, 4), 2**31 - 1, dtype=torch.int32)
    assert torch.equal(dynacompile.compile(lambda a, b: a @ b)(big, big.t()), big @ big.t())


@pytest.mark.usefixtures("loops")
def test_nan_and_infinity():
    a, b = matrix(torch.float32, 6, 20), matrix(torch.float32, 20, 9)
    a[1, 3], a[2, 4], a[3, 5], b[6, 2] = float("nan"), float("inf"), float("-inf"), float("inf")
    torch.testing.assert_close(dynacompile.compile(lambda a, b: a @ b)(a, b), a @ b, equal_nan=True)


@pytest.mark.usefixtures("loops")
def test_products_of_no_elements_are_calls():
    for m, k, n in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
        run(lambda a, b: a @ b, torch.randn(m, k), torch.randn(k, n))


def test_a_small_layer_is_one_kernel():
    """The product, its bias and its activation, and in training the gradients of a layer."""
    args = torch.randn(4, 16), torch.randn(8, 16), torch.randn(8)
    _, plan = stages(trace(lambda x, w, b: torch.relu(F.linear(x, w, b)), args))
    assert (plan.facts()["launches"], plan.facts()["externs"]) == (1, 0)
    args = tuple(t.bfloat16() for t in args)
    _, plan = stages(trace(lambda x, w, b: torch.relu(F.linear(x, w, b)), args))
    assert (plan.facts()["launches"], plan.facts()["externs"]) == (1, 0)


def test_each_decision_is_told():
    events: list = []
    env = replace(ENV, emit=events.append)
    for size in (4, 800):
        lower(trace(lambda x, w: x @ w, (torch.randn(size, size), torch.randn(size, size))), env)
    told = [e for e in events if isinstance(e, ProductDecided)]
    assert [e.fused for e in told] == [True, False]
    assert all(e.fused_us > 0 and e.apart_us > 0 and e.reason and e.product == "mm" for e in told)


def test_products_in_place_stay():
    """A running sum is added to where it is."""
    args = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)
    program = lower(trace(lambda a, b, c: torch.addmm(a @ b, b, c), args), ENV)
    assert str(program.steps[-1].op) == "aten.addmm_.default"  # type: ignore[union-attr]


# batch, m, n, k, dtype, along_a, along_b: microseconds of the library's call and of the loops, on one AVX-512 core
MEASURED = {
    (0, 48, 3, 4096, torch.float32, False, False): (54.0, 21.9),
    (0, 3, 2, 3, torch.float32, True, False): (1.4, 0.6),
    (0, 48, 1, 48, torch.float32, True, True): (1.4, 0.8),
    (64, 2, 12, 16, torch.float32, False, False): (21.6, 2.3),
    (8, 4, 24, 3, torch.float32, True, False): (3.9, 0.8),
    (0, 128, 64, 128, torch.float32, False, False): (15.3, 30.0),
    (0, 64, 64, 12, torch.float32, True, True): (2.4, 11.1),
    (2, 512, 512, 4, torch.float32, True, True): (74.6, 1541.6),
    (0, 24, 24, 16, torch.bfloat16, True, False): (19.2, 1.4),
    (8, 24, 24, 256, torch.bfloat16, True, False): (28.0, 75.0),
    (0, 12, 96, 8, torch.int64, True, False): (7.0, 2.3),
}


@pytest.mark.parametrize("extents", MEASURED, ids=str)
def test_the_model_expects_what_was_measured(extents):
    library, ours = MEASURED[extents]
    assert choose(Product(*extents), AVX512).loops == (ours < library)
