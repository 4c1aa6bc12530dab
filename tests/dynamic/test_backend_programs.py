"""Programs over symbolic sizes: loop programs and schedules interpreted, C++ kernels and the native runtime, against eager at several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dynacompile.build import build
from dynacompile.codegen import generate
from dynacompile.codegen.reference import run_kernel
from dynacompile.env import Env
from dynacompile.ir.schedule import Launch
from dynacompile.runtime import link
from tests.dynamic.tracing import Dims, compare, stages, trace
from tests.lower.tracing import ENV, UNFUSED, check_same, copies

R = torch.randn
INTERPRETED = ENV.with_config(reference=True)
LOOSE = {"atol": 1e-4, "rtol": 1e-4}
Case = tuple[Callable, Sequence[Sequence[object]], Dims]


def grads(function: Callable) -> Callable:
    """A function of (grad, *args) that gives the output's gradients only."""

    def run(grad: torch.Tensor, *given: torch.Tensor) -> tuple:
        leaves = [g.detach().requires_grad_() for g in given]
        return torch.autograd.grad(function(*leaves), leaves, grad)

    return run


def attention(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    q, k, v = (y.view(b, t, 4, c // 4).transpose(1, 2) for y in (x @ w1).split(c, 2))
    seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
    scores = (q @ k.transpose(-1, -2) * 0.1).masked_fill(~seen, -math.inf).softmax(-1)
    return (scores @ v).transpose(1, 2).reshape(b, t, c) @ w2


def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (16,), w, b)


def conv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu(F.conv2d(x, w, stride=2, padding=1)).mean((2, 3))


def lengths(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(x.shape[1])[None] < n[:, None], x, 0.0).sum(1)


PLANE = [(R(6, 5),), (R(9, 7),), (R(2, 2),), (R(70, 40),)]
BOTH = {0: [0, 1]}
CASES: dict[str, Case] = {
    "bias": (lambda x, b: (x + b).relu() * 2, [(R(6, 8), R(8)), (R(9, 8), R(8)), (R(300, 8), R(8))], {0: [0]}),
    "strips": (
        lambda x, y: ((x.t() + y).relu(), (x * 2).t().contiguous()),
        [(R(600, 700), R(700, 600)), (R(33, 17), R(17, 33)), (R(512, 528), R(528, 512)), (R(5, 900), R(900, 5))],
        {0: [0, 1], 1: [0, 1]},
    ),
    "transposed": (lambda x, y: x.tanh() + y.t(), [(R(6, 5), R(5, 6)), (R(9, 4), R(4, 9))], {0: [0, 1], 1: [0, 1]}),
    "sums": (lambda x: (x.sum(0), x.mean(1), x.sum(), x.prod(1)), PLANE, BOTH),
    "variances": (lambda x: (x.var(0), x.std(1), x.var()), PLANE, BOTH),
    "extrema": (lambda x: (x.amax(0), x.argmax(1), *x.max(0), x.argmin()), PLANE, BOTH),
    "softmax": (lambda x: (F.softmax(x, -1), F.log_softmax(x, 0)), PLANE, BOTH),
    "norm": (norm, [(R(6, 5, 16), R(16), R(16)), (R(3, 4, 16), R(16), R(16))], BOTH),
    "norm_grads": (grads(norm), [(R(6, 5, 16), R(6, 5, 16), R(16), R(16)), (R(3, 4, 16), R(3, 4, 16), R(16), R(16))], {0: [0, 1], 1: [0, 1]}),
    "cat": (lambda x, y: torch.cat([x, y * 2, x], 1), [(R(6, 5), R(6, 3)), (R(9, 7), R(9, 2)), (R(3, 2), R(3, 90))], {0: [0, 1], 1: [0, 1]}),
    "slices": (lambda x: (x[1:, :-1] + 1, x[:, ::2] * 2, x[: x.shape[0] // 2].exp()), PLANE, BOTH),
    "moves": (lambda x: (x.flip(0), x.roll(2, 1), x.roll(-1, 0), x.repeat(2, 3)), PLANE, BOTH),
    "views": (lambda x: (x.view(-1, 4).sum(0), x.permute(2, 0, 1).reshape(4, -1) + 1), [(R(6, 5, 4),), (R(9, 7, 4),)], BOTH),
    "halves": (lambda x: x.view(x.shape[0] // 2, 2, 4).sum(1), [(R(6, 4),), (R(10, 4),)], {0: [0]}),
    "triangles": (lambda x: x.tril() + x.triu(1), PLANE, BOTH),
    "factories": (lambda x: x + torch.arange(x.shape[1]) + torch.full((x.shape[0], 1), x.shape[0]), PLANE, BOTH),
    "scalars": (lambda x: x * x.shape[0] + x / x.shape[1] + (x + 1 / (x.shape[0] - 0.5)), PLANE, BOTH),
    "linear": (lambda x, w, b: F.linear(x, w, b).relu(), [(R(6, 2, 8), R(5, 8), R(5)), (R(9, 3, 8), R(5, 8), R(5))], BOTH),
    "attention": (attention, [(R(2, 6, 16), R(16, 48), R(16, 16)), (R(3, 9, 16), R(16, 48), R(16, 16))], BOTH),
    "attention_grads": (
        grads(attention),
        [(R(2, 6, 16), R(2, 6, 16), R(16, 48), R(16, 16)), (R(3, 9, 16), R(3, 9, 16), R(16, 48), R(16, 16))],
        {0: [0, 1], 1: [0, 1]},
    ),
    "conv_grads": (grads(conv), [(R(2, 4), R(2, 3, 8, 8), R(4, 3, 3, 3)), (R(3, 4), R(3, 3, 11, 9), R(4, 3, 3, 3))], {0: [0], 1: [0, 2, 3]}),
    "embedding": (lambda i, w: F.embedding(i, w).sum(1), [(torch.randint(0, 9, (2, 5)), R(9, 4)), (torch.randint(0, 9, (3, 7)), R(9, 4))], BOTH),
    "loss": (lambda x, t: F.cross_entropy(x, t), [(R(6, 11), torch.randint(0, 11, (6,))), (R(9, 11), torch.randint(0, 11, (9,)))], {0: [0], 1: [0]}),
    "lengths": (lengths, [(R(3, 5), torch.tensor([1, 2, 5])), (R(2, 9), torch.tensor([9, 4]))], {0: [0, 1], 1: [0]}),
    "in_place": (lambda x: x.copy_(x * 2 + 1), PLANE, BOTH),
    "long_rows": (lambda x: (x * x).sum() + x.argmax(), [(R(100, 700),), (R(3, 900),), (R(900, 40),)], BOTH),
    "long_columns": (lambda x: (x.sum(0), x.var(0)), [(R(7000, 20),), (R(9001, 20),), (R(30, 20),)], {0: [0]}),
    "rounded_up": (lambda x: x.new_ones(math.ceil(x.shape[0] / 32) * 32) * x.sum(), [(R(17, 3),), (R(32, 3),), (R(65, 3),)], {0: [0]}),
    "long_variances": (lambda x: ((x + 100).var(0), x.std(0)), [(R(8192, 24),), (R(9001, 24),), (R(30, 24),), (R(2, 24),)], {0: [0]}),
}


@pytest.mark.parametrize("name", CASES)
def test_interpreted(name: str) -> None:
    function, calls, dims = CASES[name]
    compare(function, calls, dims, **LOOSE)


@pytest.mark.parametrize("name", ["norm_grads", "cat", "attention", "slices", "loss"])
def test_interpreted_nest_by_nest(name: str) -> None:
    function, calls, dims = CASES[name]
    compare(function, calls, dims, UNFUSED, **LOOSE)


def linked(case: Case, env: Env) -> Callable:
    function, calls, dims = case
    _, plan = stages(trace(function, calls[0], dims), env)
    sources = generate(plan, env)
    return link(build(sources, env), env, run_kernel)


def check_calls(case: Case, program: Callable) -> None:
    function, calls, _ = case
    for args in calls:
        wanted, given = copies(args), copies(args)
        eager = function(*wanted)
        outputs = program(*given)
        check_same(outputs, list(eager) if isinstance(eager, (tuple, list)) else [eager], "native", LOOSE)
        check_same(given, wanted, "inputs", LOOSE)


@pytest.mark.parametrize("name", CASES)
def test_native_runtime(name: str) -> None:
    check_calls(CASES[name], linked(CASES[name], INTERPRETED))


@pytest.mark.parametrize(
    "name", ["sums", "variances", "extrema", "cat", "strips", "norm_grads", "attention_grads", "long_rows", "long_columns", "long_variances", "scalars"]
)
def test_kernels(name: str, tmp_path: Path) -> None:
    check_calls(CASES[name], linked(CASES[name], replace(ENV, cache=tmp_path)))


def test_fusion_is_that_of_static_sizes() -> None:
    """Members of lists, which are of static sizes alone, count one each. No products are among them: small ones are kernels where sizes are static."""
    for name in ("bias", "softmax", "norm_grads", "loss", "cat"):
        function, calls, dims = CASES[name]
        plans = [stages(trace(function, calls[0], d))[1] for d in (dims, {})]
        counts = {sum(max(len(s.sizes), 1) for s in plan.steps if isinstance(s, Launch)) for plan in plans}
        assert len(counts) == 1, (name, counts)


def test_a_static_graph_has_no_symbols() -> None:
    program, plan = stages(trace(norm, CASES["norm"][1][0], {}))
    assert not program.sizes and not plan.sizes and not any(b.is_symbolic for b in plan.buffers.values())


def test_inputs_must_keep_what_was_promised() -> None:
    case: Case = (lambda x, y: x + y, [(R(4, 5), R(4, 5))], {0: [0], 1: [0]})
    program = linked(case, INTERPRETED)
    with pytest.raises(ValueError, match=r"sizes \[6, 5\] and strides \[5, 1\], not \[7, 5\]"):
        program(R(6, 5), R(7, 5))
    with pytest.raises(ValueError, match="strides"):
        program(R(6, 5), R(5, 6).t())
    with pytest.raises(RuntimeError, match=r"is 1 in input 0, compiled for 2 to"):
        program(R(1, 5), R(1, 5))
    with pytest.raises(RuntimeError, match="must be a tensor"):
        program(3, R(1, 5))


def test_shared_symbols_are_one() -> None:
    _, plan = stages(trace(lambda x, y: x @ y, (R(4, 5), R(5, 3)), {0: [0, 1], 1: [0]}))
    assert [s.text() for s in plan.sizes.sources] == ["input 0 dimension 0", "input 0 dimension 1"]


def test_joined_sizes_are_compared_in_32_bits() -> None:
    """A sum of sizes within a loop's is as short as the loop, whose length each call checks."""
    _, plan = stages(trace(lambda x, y: torch.cat([x, y, x], 1), (torch.randn(6, 40), torch.randn(6, 50)), {0: [0, 1], 1: [0, 1]}))
    [text] = [source.text for source in generate(plan, ENV).kernels.values()]
    assert "convert<i64>" not in text and "lanes_of(4)" in text
