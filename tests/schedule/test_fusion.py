"""How many kernels known programs become, and that the schedule computes what eager does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynacompile
from dynacompile.events import FusionDecided, Scheduled
from dynacompile.ir.loops import Buffer
from dynacompile.ir.schedule import Schedule
from dynacompile.schedule.emit import lay_out
from tests.codegen.triton_cases import F32, Build
from tests.lower.tracing import ENV, UNFUSED, compare, products_are_calls, stages, trace

M = torch.manual_seed(0)


def checked(function: Callable, *args: torch.Tensor, **tolerances: float) -> Schedule:
    """The program's schedule, which computes what eager does."""
    return compare(trace(function, args), args, **tolerances)


def launches(function: Callable, *args: torch.Tensor, **tolerances: float) -> int:
    return checked(function, *args, **tolerances).facts()["launches"]


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(11):
        x = torch.tanh(x * 1.5) + 0.25
    return x


def grads(function: Callable, *args: torch.Tensor) -> Callable:
    """A function of (grad, *args) that gives the output's gradients only."""

    def run(grad: torch.Tensor, *given: torch.Tensor) -> tuple:
        leaves = [g.detach().requires_grad_() for g in given]
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def test_pointwise_chain_is_one_kernel() -> None:
    assert launches(chain, torch.randn(16, 32)) == 1


def test_pointwise_of_broadcast_and_permuted_operands() -> None:
    assert launches(lambda x, b, y: (x + b).relu() * y.t(), torch.randn(8, 6), torch.randn(6), torch.randn(6, 8)) == 1


@pytest.mark.parametrize("sizes", [(1, 1, 4, 5), (2, 3, 5, 7)])
def test_a_part_of_a_larger_result_is_computed_in_its_readers(sizes: tuple[int, ...]) -> None:
    """Rows of the part lie in memory with gaps between: its elements are found by the strides, not by its sizes."""

    def padded(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (1, 1, 1, 1), mode="circular")

    x = torch.randn(sizes)
    torch.testing.assert_close(dynacompile.compile(padded, isolate_recompiles=True, options={"reference": True})(x), padded(x), rtol=0, atol=0)


def test_two_shapes_of_one_memory_meet() -> None:
    assert launches(lambda x: (x.exp().view(4, 6) + 1, x.exp().sin()), torch.randn(24)) == 1


def test_permuted_copy_joins_its_producer() -> None:
    assert launches(lambda x: (x * 2).transpose(1, 2).contiguous() + 1, torch.randn(3, 4, 5)) == 1


@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_softmax_is_one_kernel(dim: int) -> None:
    assert launches(lambda x: F.softmax(x, dim), torch.randn(6, 7, 8)) == 1


def test_softmax_backward_is_one_kernel() -> None:
    assert launches(lambda g, y: torch.ops.aten._softmax_backward_data(g, y, -1, torch.float32), torch.randn(6, 8), torch.randn(6, 8)) == 1


def test_layer_norm_is_one_kernel() -> None:
    assert launches(lambda x, w, b: F.layer_norm(x, (16,), w, b), torch.randn(6, 4, 16), torch.randn(16), torch.randn(16)) == 1


def test_layer_norm_backward_is_rows_and_columns() -> None:
    """With the statistics saved, one kernel over rows, and one for the weight's and the bias's gradient."""

    def backward(g, x, mean, rstd, w, b):
        return torch.ops.aten.native_layer_norm_backward(g, x, [16], mean, rstd, w, b, [True, True, True])

    assert launches(backward, torch.randn(6, 16), torch.randn(6, 16), torch.randn(6, 1), torch.rand(6, 1), torch.randn(16), torch.randn(16)) == 2


def test_residual_layer_norm_is_one_kernel() -> None:
    assert (
        launches(lambda x, y, w, b: ((s := x + y), F.layer_norm(s, (16,), w, b)), torch.randn(6, 16), torch.randn(6, 16), torch.randn(16), torch.randn(16)) == 1
    )


def test_gelu_mlp() -> None:
    """Two matmuls, and one kernel between them."""
    x, w, b, v, c = torch.randn(64, 128), torch.randn(512, 128) / 8, torch.randn(512), torch.randn(128, 512) / 16, torch.randn(128)
    with products_are_calls():
        facts = checked(lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c), x, w, b, v, c).facts()
    assert (facts["launches"], facts["externs"]) == (1, 2)


def test_small_gelu_mlp() -> None:
    """Small products are kernels, which the activation joins."""
    x, w, b, v, c = torch.randn(3, 8), torch.randn(16, 8), torch.randn(16), torch.randn(8, 16), torch.randn(8)
    facts = checked(lambda x, w, b, v, c: F.linear(F.gelu(F.linear(x, w, b)), v, c), x, w, b, v, c).facts()
    assert (facts["launches"], facts["externs"]) == (2, 0)


def test_reductions_of_the_same_rows_are_one_kernel() -> None:
    assert launches(lambda x: (x.sum(-1), x.amax(-1), (x * x).mean(-1)), torch.randn(6, 32)) == 1


def test_group_norm_of_channels_last_images_is_one_pass_each_way() -> None:
    """Statistics and results go through the groups in one order, though the results are stored in another one."""

    def grouped(x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x.to(memory_format=torch.channels_last), 8).relu()

    x = torch.randn(4, 64, 16, 16, requires_grad=True)
    made: list[Scheduled] = []
    end = dynacompile.subscribe(lambda event: made.append(event) if isinstance(event, Scheduled) else None)
    try:
        out = dynacompile.compile(grouped, isolate_recompiles=True)(x)
        tangent = torch.randn_like(out)
        found = torch.autograd.grad(out, x, tangent)
    finally:
        end()
    torch.testing.assert_close(found, torch.autograd.grad(grouped(x), x, tangent), rtol=1e-4, atol=1e-5)
    image, statistic = x.numel() * 4, 4 * 8 * 4
    forward, backward = ([moved for _, _, moved, _, _ in program.kernels] for program in made)
    assert forward == [2 * image + 2 * statistic]
    assert backward == [3 * image + 2 * statistic]


def moved_in_training(module: torch.nn.Module, x: torch.Tensor) -> list[list[int]]:
    """The bytes that each kernel of the forward and of the backward moves, whose gradients are eager's, with their strides."""
    made: list[Scheduled] = []
    end = dynacompile.subscribe(lambda event: made.append(event) if isinstance(event, Scheduled) else None)
    wanted = (x, *module.parameters())
    try:
        out = dynacompile.compile(module, isolate_recompiles=True)(x)
        tangent = torch.randn_like(out)
        found = torch.autograd.grad(out, wanted, tangent)
    finally:
        end()
    expected = torch.autograd.grad(module(x), wanted, tangent)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    assert [g.stride() for g in found] == [g.stride() for g in expected]
    return [[moved for _, _, moved, _, _ in program.kernels] for program in made]


def test_gradients_of_a_group_norm_of_channels_last_images_read_memory_twice() -> None:
    """Sums for each channel of an image give the gradients of weights, and all that that of the image needs: one kernel reads images and tangents for
    the sums, another for the image's gradient. The rest moves numbers of channels."""
    x = torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    forward, backward = moved_in_training(torch.nn.GroupNorm(32, 64), x)
    image = x.numel() * 4
    assert [moved // image for moved in forward if moved >= image] == [2]
    assert sorted(moved // image for moved in backward if moved >= image) == [2, 3]


def test_an_activation_of_a_group_norm_joins_its_gradients() -> None:
    x = torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last).requires_grad_()
    forward, backward = moved_in_training(torch.nn.Sequential(torch.nn.GroupNorm(32, 64), torch.nn.SiLU()), x)
    image = x.numel() * 4
    assert [moved // image for moved in forward if moved >= image] == [2]
    assert sorted(moved // image for moved in backward if moved >= image) == [3, 3]


def test_group_norm_of_images_beyond_a_cache_has_its_statistics_in_one_pass() -> None:
    """Squares are summed about the means of chunks that are still near, since groups of channels lie between each other and an image is read as a whole."""

    def moved(x: torch.Tensor) -> list[int]:
        made: list[Scheduled] = []
        end = dynacompile.subscribe(lambda event: made.append(event) if isinstance(event, Scheduled) else None)
        try:
            out = dynacompile.compile(lambda x: F.group_norm(x, 16), isolate_recompiles=True, dynamic=False)(x)
        finally:
            end()
        torch.testing.assert_close(out.float(), F.group_norm(x.double(), 16).float(), rtol=1e-2 if x.dtype == torch.bfloat16 else 1e-5, atol=1e-5)
        image = x.numel() * x.element_size()
        return [moved // image for _, _, moved, _, _ in made[0].kernels if moved >= image]

    assert moved(torch.randn(2, 64, 64, 64).to(memory_format=torch.channels_last)) == [2]
    assert moved(torch.randn(2, 64, 112, 112).to(memory_format=torch.channels_last)) == [1, 2]
    assert moved(torch.randn(2, 64, 160, 160).to(memory_format=torch.channels_last).bfloat16()) == [1, 2]
    assert moved(torch.randn(2, 64, 112, 112)) == [2]


def test_row_and_column_sums_are_two_kernels() -> None:
    assert launches(lambda x: (x.sum(0), x.sum(1)), torch.randn(16, 16)) == 2


def test_argmax_order_is_kept() -> None:
    x = torch.randint(0, 3, (5, 4, 6)).float()
    checked(lambda x: (x.permute(2, 0, 1).reshape(6, 20).argmax(1), x.sum((0, 1)), x.argmax()), x)


def test_batch_norm_updates_running_statistics() -> None:
    def step(x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, training=True)

    plan = checked(step, torch.randn(4, 3, 5, 5), torch.randn(3), torch.randn(3), torch.zeros(3), torch.ones(3))
    assert plan.facts()["externs"] in (0, 1)


def test_mutation_keeps_the_order_of_reads() -> None:
    def step(x, y):
        old = x.flip(0)
        x.copy_(x * 2 + y)
        return old + 1, x + 1

    def functional(x, y):
        new = x * 2 + y
        out = x.flip(0) + 1, new + 1
        torch.ops.aten.copy_.default(x, new)
        return out

    checked(functional, torch.randn(6, 4), torch.randn(6, 4))


def test_shifted_self_copy_is_not_fused_over() -> None:
    def functional(x):
        new = x.flip(0) * 2
        torch.ops.aten.copy_.default(x, new)
        return new + 1

    checked(functional, torch.randn(8, 4))


def test_cat_of_parts() -> None:
    assert launches(lambda x, y: torch.cat([x * 2, y.sin()], 1) + 1, torch.randn(4, 3), torch.randn(4, 5)) == 1


def test_split_and_rotate() -> None:
    def rope(x, c, s):
        a, b = x.chunk(2, -1)
        return x * c + torch.cat([-b, a], -1) * s

    assert launches(rope, torch.randn(2, 6, 8), torch.randn(6, 8), torch.randn(6, 8)) == 1


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.before(x)).split(d, -1))
        scores = (q @ k.transpose(-2, -1)) * 0.25
        scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).tril().logical_not(), -torch.inf)
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.after(x))))


def blocks(count: int) -> tuple[Callable, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(16, 2) for _ in range(count)])
    names = [n for n, _ in model.named_parameters()]

    def run(x: torch.Tensor, *parameters: torch.Tensor) -> tuple:
        y = torch.func.functional_call(model, dict(zip(names, parameters)), (x,))
        return (y, *torch.autograd.grad(y.square().mean(), parameters))

    return run, [torch.randn(2, 6, 16), *model.parameters()]


def test_equal_blocks_share_their_kernels() -> None:
    """Blocks in the middle add launches, but no kernels."""
    few, many = (stages(trace(*blocks(n)))[1].facts() for n in (3, 4))
    assert many["kernels"] == few["kernels"]
    assert many["launches"] > few["launches"]


def test_transformer_blocks_compute_what_eager_does() -> None:
    run, args = blocks(2)
    graph = trace(run, args)
    fused = compare(graph, args, rtol=1e-4, atol=1e-5).facts()
    alone = compare(graph, args, UNFUSED, rtol=1e-4, atol=1e-5).facts()
    assert fused["launches"] * 3 < alone["launches"]
    assert fused["bytes"] * 2 < alone["bytes"]


def test_same_input_same_schedule() -> None:
    run, args = blocks(2)
    first, second = (stages(trace(run, args))[1] for _ in range(2))
    assert first.text() == second.text()


def test_fusions_are_reported() -> None:
    events: list = []
    env = replace(ENV, emit=events.append)
    stages(trace(lambda x: F.softmax(x, -1), [torch.randn(6, 8)]), env)
    (event,) = [e for e in events if isinstance(e, FusionDecided)]
    assert event.fused and len(event.members) > 1 and event.bytes_saved > 6 * 8 * 4


def test_a_kernel_goes_through_what_it_stores_in_the_order_of_memory():
    """Groups of channels that are scaled, channels last, with axes in the order of the reduction that was to be the same kernel."""
    b = Build("scaled", (2, 8, 14400, 8))
    place = b.at(921600, 8, 64, 1)
    b.store("out", F32, place, b.mul(b.load("x", F32, place), b.load("factor", F32, b.at(8, 1, 0, 0))))
    nest = b.kernel().nest
    buffers = {name: Buffer(name, F32, torch.device("cpu"), (n,), (1,), "input") for name, n in (("x", 1843200), ("out", 1843200), ("factor", 16))}
    axes = lay_out(nest, buffers).axes
    assert [a.size for a in axes] == [2, 14400, 8, 8]
    on_gpu = {name: replace(buffer, device=torch.device("cuda", 0)) for name, buffer in buffers.items()}
    assert lay_out(nest, on_gpu).axes == nest.axes
