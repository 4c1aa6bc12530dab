"""Column sums in the kernel of a row reduction: what joins, what it computes, and what stays apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from dynacompile.autograd import differentiate
from dynacompile.codegen.reference import run_schedule
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.schedule import Launch, Schedule
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.autograd.recording import record
from tests.dynamic.tracing import trace as symbolic_trace
from tests.lower.tracing import ENV, aten, trace
from tests.schedule.test_differentiated import values

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def on(device: torch.device, hand_off):
    """A program or schedule whose buffers are on `device`."""
    buffers = {n: replace(b, device=device) for n, b in hand_off.buffers.items()}
    if isinstance(hand_off, LoopProgram):
        return replace(hand_off, buffers=buffers)
    return replace(hand_off, buffers=buffers, device=device, kernels={n: replace(k, device=device) for n, k in hand_off.kernels.items()})


def scheduled(graph: torch.fx.GraphModule, error: float = 2e-4) -> Schedule:
    """The schedule for a GPU, its numbers checked on the CPU."""
    plan = schedule(on(CUDA, lower(graph, ENV)), ENV)
    given = values(graph)
    got, wanted = run_schedule(on(CPU, plan), given), graph(*given)
    for a, b in zip(got, wanted, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=error, atol=error * float(b.abs().max()))
    return plan


def folded(plan: Schedule) -> list[tuple[int, ...]]:
    return [tuple(a.size for a in k.nest.folded) for k in plan.kernels.values() if k.nest.folded]


def backward(fn, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    graph, fakes, _ = record(fn, list(inputs))
    return differentiate(graph, fakes, ENV).backward


def leaf(*size: int) -> torch.Tensor:
    return torch.empty(size, requires_grad=True)


def test_sums_that_nothing_reads_are_not_computed():
    """What a copy writes over tells it nothing but a size: sums of columns without readers had no place among those that others follow."""

    def over(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (aten.copy.default(x / x.square().sum(0, keepdim=True).sqrt(), y),)

    plan = scheduled(trace(over, [torch.randn(4096, 17), torch.randn(1, 17)]))
    (kernel,) = plan.kernels.values()
    assert not kernel.nest.is_reduction


def test_norm_backward_reads_once():
    graph = backward(lambda x, w, b: (F.layer_norm(x, (96,), w, b),), leaf(65536, 96), leaf(96), leaf(96))
    plan = scheduled(graph)
    assert folded(plan) == [(128,)]
    launches = [s for s in plan.steps if isinstance(s, Launch)]
    assert len(launches) == 2, "the rows with the partial sums, and the sums of those"
    assert sum(plan.buffers[b].bytes > 1 << 24 for b in launches[0].buffers) == 3, "reads the gradient and the input, writes the gradient"


def test_values_of_rows_do_not_hide_columns():
    """In 16 bits the statistics of rows are the only loads that step by one along the summed axis."""

    def norm(x, w, b):
        return (F.layer_norm(x, (64,), w, b),)

    plan = scheduled(backward(norm, *(t.detach().to(torch.bfloat16).requires_grad_() for t in (leaf(8192, 64), leaf(64), leaf(64)))), 3e-2)
    assert folded(plan) == [(16,)] and plan.facts()["launches"] == 2


@pytest.mark.parametrize("rows, blocks, size", [(16384, 512, 32), (4096, 512, 8), (3 * 4096, 768, 16)])
def test_blocks_are_made_smaller_where_there_are_few(rows, blocks, size):
    graph = backward(lambda x, w, b: (F.layer_norm(x, (64,), w, b),), leaf(rows, 64), leaf(64), leaf(64))
    plan = scheduled(graph)
    assert folded(plan) == [(size,)]
    (kernel,) = (k for k in plan.kernels.values() if k.nest.folded)
    assert kernel.nest.axes[0].size == blocks


def norm_backward(x, weight, grad):
    _, mean, scale = aten.native_layer_norm.default(x, [x.shape[1]], weight, None, 1e-5)
    return aten.native_layer_norm_backward.default(grad, x, [x.shape[1]], mean, scale, weight, None, [True, True, False])[:2]


@pytest.mark.parametrize(
    ("rows", "columns", "dims", "calls"),
    [
        (8192, 64, {0: [0], 2: [0]}, [(8192, 64), (8191, 64), (5, 64), (9001, 64)]),
        (8192, 64, {0: [0, 1], 1: [0], 2: [0, 1]}, [(8192, 64), (8191, 63), (3, 200)]),
        (8191, 48, {}, [(8191, 48)]),
        (8191, 48, {0: [0], 2: [0]}, [(8191, 48), (4096, 48)]),
    ],
)
def test_the_last_block_of_rows_need_not_be_full(rows, columns, dims, calls):
    def inputs(n, m):
        return torch.randn(n, m), torch.randn(m), torch.randn(n, m)

    plan = schedule(on(CUDA, lower(symbolic_trace(norm_backward, inputs(rows, columns), dims), ENV)), ENV)
    assert folded(plan) == [(16,)] and plan.facts()["externs"] == 0
    for call in calls:
        given = inputs(*call)
        wanted = norm_backward(*(t.double() for t in given))
        for got, want in zip(run_schedule(on(CPU, plan), list(given)), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-3)


def test_two_norms_in_a_row():
    def norms(x, w1, b1, w2, b2):
        return (F.layer_norm(F.gelu(F.layer_norm(x, (64,), w1, b1)), (64,), w2, b2),)

    plan = scheduled(backward(norms, leaf(8192, 64), *(leaf(64) for _ in range(4))))
    assert folded(plan) == [(16,)] and plan.facts()["launches"] == 2


def test_sums_of_different_kernels_join_the_same_rows():
    """The bias before a norm gets the column sums of what the norm's backward makes."""

    def function(x, v, c, w, b):
        return (F.layer_norm(F.linear(x, v, c), (64,), w, b),)

    graph = backward(function, leaf(16384, 64), leaf(64, 64), leaf(64), leaf(64), leaf(64))
    plan = scheduled(graph)
    (kernel,) = (k for k in plan.kernels.values() if k.nest.folded)
    assert len([a for a in kernel.nest.stores() if a.summed]) == 3


@pytest.mark.parametrize("rows, columns", [(1024, 64), (8192, 8192)])
def test_too_few_rows_or_too_wide_ones_stay_apart(rows, columns):
    graph = backward(lambda x, w, b: (F.layer_norm(x, (columns,), w, b),), leaf(rows, columns), leaf(columns), leaf(columns))
    plan = schedule(on(CUDA, lower(graph, ENV)), ENV)
    assert not folded(plan)


@pytest.mark.slow
@pytest.mark.parametrize("rows, columns, dtype, block", [(2048, 8192, torch.bfloat16, 8), (4096, 12288, torch.float32, 16)])
def test_sums_of_rows_and_of_columns_are_one_pass(rows, columns, dtype, block):
    """Rows of up to 16384 elements, where nothing but sums is made of them."""
    graph = trace(lambda x: (x.sum(0), (x * 2.0).sum(1), x.float().amax(1)), [torch.empty(rows, columns, dtype=dtype)])
    plan = scheduled(graph, 1e-4 if dtype is torch.float32 else 1e-2)
    first, last = (s for s in plan.steps if isinstance(s, Launch))
    assert folded(plan) == [(block,)]
    assert [n for n in first.buffers if plan.buffers[n].numel == rows * columns] == [plan.inputs[0]], "the matrix is read, and nothing as large is written"
    assert plan.inputs[0] not in last.buffers, "it is read once"
    assert sum(plan.buffers[n].bytes for n in last.buffers) < rows * columns * dtype.itemsize // 3, "the partial sums are few"


def test_wide_rows_that_are_read_twice_stay_apart():
    graph = trace(lambda x: (x.sum(0), x.softmax(1)), [torch.empty(4096, 8192)])
    assert not folded(schedule(on(CUDA, lower(graph, ENV)), ENV))


def test_on_the_cpu_nothing_is_folded():
    graph = backward(lambda x, w, b: (F.layer_norm(x, (64,), w, b),), leaf(4096, 64), leaf(64), leaf(64))
    assert not folded(schedule(lower(graph, ENV), ENV))


def test_an_op_between_keeps_them_apart():
    """The column sums need a matmul of what the rows make."""

    def function(x, w):
        y = aten._softmax.default(x, 1, False)
        return (y, aten.sum.dim_IntList(aten.mul.Tensor(aten.mm.default(y, w), y), [0]))

    graph = trace(function, [torch.randn(8192, 64), torch.randn(64, 64)])
    assert not folded(scheduled(graph))


def test_a_sum_of_all_elements_that_a_kernel_reads_is_no_column():
    plan = scheduled(trace(lambda x, y, z: (x - y.sum() * 2, y - z.sum() * 2), [torch.randn(7, 1), torch.randn(5), torch.randn(40)]))
    assert not folded(plan)
