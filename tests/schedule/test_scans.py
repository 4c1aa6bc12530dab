"""Scans and what is around them: how many kernels programs become, on CPUs and on GPUs (none is needed), that both compute what eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dynacompile.codegen.reference import run_schedule
from dynacompile.ir.loops import Scan
from dynacompile.ir.schedule import Schedule
from dynacompile.ops import scans
from tests.codegen.product_cases import ENV, on_cpu, plan_on_gpu
from tests.lower.tracing import compare, trace

M = torch.manual_seed(0)


def on_gpu(function: Callable, *args: torch.Tensor) -> Schedule:
    """The schedule for a GPU, which computes what eager does, and calls nothing."""
    plan = plan_on_gpu(function, args, ENV, None)
    results = function(*args)
    for got, wanted in zip(run_schedule(on_cpu(plan), list(args)), results if isinstance(results, (tuple, list)) else (results,), strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
    assert not plan.facts()["externs"]
    return plan


def launches(function: Callable, *args: torch.Tensor) -> tuple[int, int]:
    """Kernels on a CPU, and on a GPU."""
    plan = compare(trace(function, args), args)
    assert not plan.facts()["externs"]
    return plan.facts()["launches"], on_gpu(function, *args).facts()["launches"]


def scans_of(plan: Schedule) -> list[Scan]:
    return [scan for kernel in plan.kernels.values() for scan in kernel.nest.scans()]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_scan_joins_its_producer_and_its_consumer(dim):
    x, y = torch.randn(6, 7, 20), torch.randn(6, 7, 20)
    assert launches(lambda x, y: (x.sin() + y).cumsum(dim) * y, x, y) == (1, 1)
    assert launches(lambda x, y: torch.exp(torch.logcumsumexp(x * 0.5, dim)) - y, x, y) == (1, 1)
    assert launches(lambda x, y: (x.cummax(dim).values - y).relu(), x, y) == (1, 1)


def test_values_and_places_of_a_running_extremum_are_one_kernel():
    assert launches(lambda x: x.abs().cummin(1), torch.randn(5, 30).round()) == (1, 1)


def test_a_scan_joins_reductions_of_its_row():
    def nucleus(logits: torch.Tensor) -> torch.Tensor:
        p = logits.softmax(-1)
        sums = p.cumsum(-1)
        kept = torch.where(sums - p < 0.9, p, 0.0)
        return kept / kept.sum(-1, keepdim=True)

    assert launches(nucleus, torch.randn(8, 50).sort(-1, descending=True).values) == (1, 1)


def test_a_scan_between_flips_runs_from_the_end():
    x = torch.randn(4, 30)
    plan = on_gpu(lambda x: (x * 2).flip(1).cumsum(1).flip(1) + 1, x)
    assert scans_of(plan) == [Scan("sum", reverse=True)] and plan.facts()["launches"] == 1
    assert launches(lambda x: x.flip(0).cumprod(0).flip(0), x) == (1, 1)
    (kernel,) = plan.kernels.values()
    assert all(a.index.stride(kernel.nest.r_axes[0].var) == 1 for a in (*kernel.nest.loads(), *kernel.nest.stores())), "memory is read in its order"


def test_a_flipped_result_beside_the_scan_is_a_kernel_of_its_own():
    """Its elements would be stored against the order of memory."""
    assert launches(lambda x: (y := x.cumsum(1), y.flip(1)), torch.randn(4, 30)) == (2, 2)


def test_places_in_a_flipped_tensor_count_from_its_end():
    assert launches(lambda x: x.flip(1).cummax(1), torch.randn(5, 30).round()) == (1, 1)


def test_gradients_of_scans_are_one_kernel():
    x, g = torch.randn(6, 40), torch.randn(6, 40)

    def gradient(function: Callable) -> Callable:
        def run(x: torch.Tensor, g: torch.Tensor) -> tuple:
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                return torch.autograd.grad(function(x), x, g)

        return run

    assert launches(gradient(lambda x: x.sin().cumsum(1)), x, g) == (1, 1)
    assert launches(gradient(lambda x: x.cumsum(0).exp()), x * 0.1, g) == (2, 1), "a scan each way"
    assert on_gpu(gradient(lambda x: x.sin().logcumsumexp(1)), x, g).facts()["launches"] == 1
    zeros = torch.where(torch.rand(6, 40) < 0.04, 0.0, 1 + 0.1 * x)
    assert on_gpu(lambda g, x: scans.product_gradient(g, x, 1, x.cumprod(1)), g, zeros).facts()["launches"] == 1
    places = x.round().cummax(1).indices
    assert launches(lambda g, places: scans.EXTREMUM_BACKWARD(g, places, 1) * 2, g, places) == (1, 1)


def test_scans_both_ways_of_long_rows_are_two_kernels():
    assert on_gpu(lambda x: x.cumsum(1).sin().flip(1).cumsum(1).flip(1), torch.randn(600, 40)).facts()["launches"] == 1
    assert on_gpu(lambda x: x.cumsum(1).sin().flip(1).cumsum(1).flip(1), torch.randn(2, 9000)).facts()["launches"] == 2


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "logaddexp", "from the end", "places"])
def test_few_long_rows_are_cut_into_chunks(name):
    functions = {
        "sum": lambda x: x.sin().cumsum(0),
        "prod": lambda x: (1 + 0.01 * x).cumprod(0),
        "max": lambda x: x.cummax(0).values,
        "min": lambda x: x.cummin(0).values * 2,
        "logaddexp": lambda x: x.logcumsumexp(0),
        "from the end": lambda x: x.flip(0).cumsum(0).flip(0),
        "places": lambda x: x.cummax(0).indices,
    }
    for size in (20000, 16411):  # the last chunk of the second is not full
        x = (torch.randn(size) * 4).round() / 4
        x[-5:] = float("nan") if name in ("max", "min", "places") else 1.0
        assert on_gpu(functions[name], x).facts()["launches"] in (3, 4)


@pytest.mark.parametrize("size", [20_000, 16_384])
def test_what_is_before_and_after_a_scan_of_chunks_joins_it(size):
    x = torch.randn(5, size)
    assert on_gpu(lambda x: x.abs().cumsum(1) * 2.0, x.round()).facts()["launches"] == 3
    assert on_gpu(lambda x: (x > 0).cumsum(1), x).facts()["launches"] == 3
    assert on_gpu(lambda x: x.flip(1).cumsum(1).flip(1) - x, x.round()).facts()["launches"] == 3


def test_chunks_of_columns():
    plan = on_gpu(lambda x: x.cumsum(0) * 2, torch.randn(2048, 33).round())
    assert plan.facts()["launches"] == 3


def test_a_choice_before_a_scan_is_made_for_all_that_the_scan_takes_in():
    """The scan's result is wanted only where the condition holds, and what it sums up elsewhere counts as well."""
    x = torch.tensor([[1.0, float("inf"), 2.0, 3.0]])
    plan = on_gpu(lambda x: torch.where(x < 5, torch.where(x < 5, x, 0.0).cumsum(1), -1.0), x)
    assert plan.facts()["launches"] == 1


def test_like_scans_are_one_kernel_over_a_list():
    xs = [torch.randn(4, n) for n in (30, 50, 20, 40)]
    assert on_gpu(lambda *xs: [x.sin().cumsum(1) for x in xs], *xs).facts()["launches"] == 1
