"""Means far from zero beside what their numbers spread, results that cancel in half precision, and masks made of constants."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.ir.index import hint
from tests import forked
from tests.lower.tracing import ENV, stages, trace

STATISTICS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var of rows": lambda x: x.var(-1),
    "var of columns": lambda x: x.var(0),
    "var of all": lambda x: x.var(),
    "std of columns": lambda x: x.std(0, correction=0),
    "mean of rows": lambda x: torch.var_mean(x, -1)[1] - 1e4,
    "mean of columns": lambda x: torch.var_mean(x, 0)[1] - 1e4,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group norm": lambda x: F.group_norm(x[None].movedim(-1, 1).contiguous(), 1),
    "instance norm": lambda x: F.instance_norm(x[None]),
    "covariances": lambda x: torch.cov(x[:3]),
}
SHAPES = [(33, 48), (3000, 5), (4, 50000), (50000, 3)]


@pytest.mark.parametrize("reference", [False, True], ids=["built", "interpreted"])
@pytest.mark.parametrize("ratio", [1e4, 1e6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_statistics_of_numbers_far_from_zero(shape, ratio, reference):
    """No worse than a rounding of the mean makes them: eager's errors are such, too, where it keeps the mean in float32."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) + ratio

    def program(x):
        return tuple(f(x) for f in STATISTICS.values())

    got = dynacompile.compile(program, dynamic=False, options={"reference": reference})(x)
    for name, out, eager, exact in zip(STATISTICS, got, program(x), program(x.double()), strict=True):
        error, allowed = (out - exact).abs().max(), (eager - exact).abs().max()
        normalized = "norm" in name or "mean" in name
        limit = 0.6 * torch.finfo(torch.float32).eps * ratio if normalized else 2e-6 * exact.abs().max()
        assert error <= max(2 * allowed.item(), limit), f"{name}: off by {error:.3g}, eager by {allowed:.3g}"


def gradients(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    results = (x.var(-1), x.std(0), F.layer_norm(x, x.shape[-1:], w, w), F.batch_norm(x, None, None, w, w, training=True))
    return torch.autograd.grad(sum((r * r.detach().sin()).sum() for r in results), (x, w))


def test_gradients_of_statistics_far_from_zero():
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(64, 48, generator=generator) + 1e4, torch.rand(48, generator=generator)
    leaves = lambda dtype: [t.to(dtype, copy=True).requires_grad_() for t in (x, w)]  # noqa: E731
    got, eager, exact = dynacompile.compile(gradients)(*leaves(x.dtype)), gradients(*leaves(x.dtype)), gradients(*leaves(torch.float64))
    for a, b, e in zip(got, eager, exact, strict=True):
        assert (a - e).abs().max() <= 2 * (b - e).abs().max() + 1e-5 * e.abs().max()


@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan"), 3e38, 1e-45], ids=str)
def test_statistics_of_rows_with_extreme_numbers(number):
    x = torch.randn(6, 40)
    x[1, 3] = x[4, 0] = number
    x[5] = 7.0

    def program(x):
        return x.var(-1), torch.var_mean(x, -1)[0], x.var(0), x.mean(-1)

    for got, eager in zip(dynacompile.compile(program)(x), program(x), strict=True):
        torch.testing.assert_close(got, eager, equal_nan=True)


def test_equal_numbers_spread_by_nothing_but_rounding():
    x = torch.full((8, 1000), 123456.7)
    for got in dynacompile.compile(lambda x: (x.var(-1), x.std(-1), x.std(0), x.var()))(x):
        assert (got >= 0).all() and got.max() < 1e-3


LONG = {
    "columns": ((40000, 4), 0),
    "few columns": ((3000, 3), 0),
    "wide columns": ((3000, 700), 0),
    "columns times rows": ((5000, 40), 0),
    "a row": ((70000,), 0),
    "rows": ((20, 9000), -1),
    "outer and inner": ((300, 5, 40), (0, 2)),
    "outer and long inner": ((20, 5, 3000), (0, 2)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", LONG)
def test_means_of_equal_numbers_are_those_numbers(name, dynamic):
    """Each addition of equal numbers is rounded the same way, so that an accumulator that takes in many of them one by one is far off."""
    shape, dims = LONG[name]
    compiled = dynacompile.compile(lambda x: (x.mean(dims), (x * 2).exp().mean(dims)), dynamic=dynamic)
    for number in (0.7, 1.1, 1.3, 1.9):
        x = torch.full(shape, number)
        for got, exact in zip(compiled(x), (x.double().mean(dims), (x.double() * 2).exp().mean(dims)), strict=True):
            assert ((got - exact).abs() <= 4.5 * torch.finfo(torch.float32).eps * exact).all()


def test_sums_with_infinite_parts_are_infinite():
    x = torch.randn(3000, 5)
    x[1500, 0], x[2999, 1], x[0, 2], x[7, 2], x[5, 3] = float("inf"), float("-inf"), float("inf"), float("-inf"), float("nan")
    for compiled in (dynacompile.compile(lambda x: (x.sum(0), x.t().contiguous().sum(-1)), dynamic=d) for d in (False, True)):
        for got, eager in zip(compiled(x), (x.sum(0), x.sum(0)), strict=True):
            torch.testing.assert_close(got, eager, equal_nan=True, rtol=1e-5, atol=1e-4)


def test_a_variance_in_chunks_reads_memory_once():
    """Sums, differences from the mean and their squares are one kernel over chunks, and one over its results."""
    _, plan = stages(trace(lambda x: torch.var_mean(x, 0), [torch.randn(40000, 4)]), ENV)
    read = [sum(hint(plan.buffers[b].numel) for b in step.buffers if b in plan.inputs) for step in plan.steps if hasattr(step, "kernel")]
    assert plan.facts()["launches"] == 2 and sum(read) == 160000


CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "cancelled": lambda x, y: (x + 2048) - 2048,
    "products": lambda x, y: ((x * y + x) * 0.3 - y) / (x.abs() + 1) * y.exp(),
    "reduced": lambda x, y: (x * y).sum(-1) + (x - y).mean(-1),
    "normalized": lambda x, y: F.layer_norm(x + y, x.shape[-1:]) * 3 - y,
    "masked": lambda x, y: torch.where(x * 3 > y * 3, x / 3, y / 3),
    "padded": lambda x, y: F.pad(x, (1, 2), value=0.3) * 7,
    "through views": lambda x, y: ((x * 1.1).t() + y.t() * 0.7).t() - x,
}


@pytest.mark.parametrize("reference", [False, True], ids=["built", "interpreted"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", CHAINS)
def test_precise_rounds_as_eager_does(name, dtype, reference):
    x, y = (torch.randn(31, 96, generator=torch.Generator().manual_seed(k)).mul(3).to(dtype) for k in (1, 2))
    program = CHAINS[name]
    got = dynacompile.compile(program, options={"precise": True, "reference": reference})(x, y)
    assert torch.equal(got, program(x, y))


FACTORS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda x, y, a: torch.add(x, y, alpha=a),
    "sub": lambda x, y, a: torch.sub(x, y, alpha=a),
    "rsub": lambda x, y, a: torch.rsub(x, y, alpha=a),
    "in place": lambda x, y, a: x.clone().add_(y, alpha=a),
    "foreach": lambda x, y, a: torch._foreach_add([x, y], [y, x], alpha=a)[0],
    "to a number": lambda x, y, a: torch.add(x, 0.7, alpha=a),
    "from a number": lambda x, y, a: torch.rsub(x, 0.7, alpha=a),
}


@pytest.mark.parametrize("varying", [[], ["a"]], ids=["constant", "symbol"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", FACTORS)
def test_alpha_is_rounded_to_half_precision_as_eager_does_on_cpus(name, dtype, varying):
    """Steps of SGD take the learning rate so."""
    x, y = (torch.randn(31, 96, generator=torch.Generator().manual_seed(k)).to(dtype) for k in (1, 2))
    compiled = dynacompile.compile(FACTORS[name], options={"reference": True, "varying": varying})
    assert torch.equal(compiled(x, y, 0.3), FACTORS[name](x, y, 0.3))


def test_without_precise_a_chain_is_rounded_once():
    x = torch.tensor([1.2998], dtype=torch.float16)
    program = CHAINS["cancelled"]
    assert program(x, x) == 2.0
    assert dynacompile.compile(program)(x, x) == torch.tensor([1.2998], dtype=torch.float32).add(2048).sub(2048).half()
    assert dynacompile.compile(program, options={"precise": True})(x, x) == 2.0


def test_precise_gradients_of_half_precision():
    def program(x, w):
        return torch.autograd.grad((((x * w).relu() * 1.7 + x) * 0.3).sum(), (x, w))

    made = lambda: [torch.randn(16, 32, generator=torch.Generator().manual_seed(k)).bfloat16().requires_grad_() for k in (1, 2)]  # noqa: E731
    for got, eager in zip(dynacompile.compile(program, options={"precise": True})(*made()), program(*made()), strict=True):
        assert torch.equal(got, eager)


MASKS = """
import torch, dynacompile
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int16, torch.uint8, torch.bool, torch.bfloat16)
def masks(x):
    at = torch.arange(16)
    triangles = [torch.ones(n, n, dtype=dtype).tril() for n, dtype in zip((16, 8, 8, 16, 16, 16, 33), DTYPES)]
    return (*triangles, at[:, None] >= at, torch.where(at[:, None] < at, float("-inf"), 0.0), at < 4, (at == 3).to(torch.int32), x + 1)
got = dynacompile.compile(masks, dynamic=False, fullgraph=True, options={"cpp_flags": "FLAGS"})(torch.ones(3))
for a, b in zip(got, masks(torch.ones(3)), strict=True):
    assert torch.equal(a, b), (a, b)
"""


@pytest.mark.parametrize("flags", ["-march=native", "-march=x86-64-v4"])
def test_masks_of_constants(flags, tmp_path):
    if flags != "-march=native" and "avx512vl" not in open("/proc/cpuinfo").read().split():
        pytest.skip("needs AVX-512")
    environment = {**os.environ, "DYNACOMPILE_CACHE_DIR": str(tmp_path)}
    done = forked.run(forked.TORCH, "-c", MASKS.replace("FLAGS", flags), env=environment, timeout=600)
    assert done.returncode == 0, done.stderr


ONE_ELEMENT = {
    "sum": lambda z: z.sum(1),
    "sum of all": lambda z: z[:1].sum(),
    "mean": lambda z: z.mean(1),
    "running sum": lambda z: z.cumsum(1),
    "running logarithm of a sum": lambda z: z.logcumsumexp(1),
    "sum without NaN": lambda z: z.nansum(1),
    "average in windows": lambda z: F.avg_pool1d(z, 1),
    "average of parts": lambda z: F.adaptive_avg_pool1d(z, 1),
    "average in windows of several": lambda z: F.avg_pool2d(z.expand(3, 2)[None], 2, 1),
    "einsum": lambda z: torch.einsum("ij->i", z),
    "product": lambda z: z.prod(1),
}


@pytest.mark.parametrize("reference", [False, True], ids=["built", "interpreted"])
@pytest.mark.parametrize("name", ONE_ELEMENT)
def test_sums_of_one_element_begin_at_zero(name, reference):
    """The sign of -0 is seen by copysign, atan2 and division."""
    z = torch.zeros(3, 1)
    expected = ONE_ELEMENT[name](-z)
    got = dynacompile.compile(lambda z: ONE_ELEMENT[name](-z), fullgraph=True, isolate_recompiles=True, options={"reference": reference})(z)
    assert torch.equal(got.signbit(), expected.signbit())
