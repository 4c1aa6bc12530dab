"""Reductions in two steps give what they give in one."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch

from dynacompile.codegen.reference import run_program
from dynacompile.ir.loops import Nest
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from dynacompile.schedule.domain import normalize
from dynacompile.schedule.inline import inline
from dynacompile.schedule.split import split
from dynacompile.schedule.starved import chunks, split_reductions
from tests.lower.tracing import ENV, compare, trace


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: x.sum(1),
        lambda x: x.sum(),
        lambda x: x.amax((0, 2)),
        lambda x: x.mean((0, 1)),
        lambda x: (x > 0).all(),
        lambda x: x.sum((0, 2)) * 2,
    ],
    ids=["outer", "middle", "all", "max", "mean", "and", "two"],
)
def test_two_steps(count: int, function) -> None:
    x = torch.randn(6, 7, 10)
    program = lower(trace(function, [x]), ENV)
    buffers = dict(program.buffers)
    steps = []
    for step in program.steps:
        step = normalize(step) if isinstance(step, Nest) else step
        steps += split(step, count, buffers) if isinstance(step, Nest) and step.r_axes else [step]
    cut = replace(program, steps=tuple(steps), buffers=buffers)
    cut.verify()
    assert len(cut.steps) > len(program.steps)
    torch.testing.assert_close(run_program(cut, [x])[0], function(x))


def test_only_starved_reductions_are_cut() -> None:
    wide, narrow = torch.randn(4096, 64), torch.randn(4, 1 << 16)
    for x, expected in ((wide, False), (narrow, True)):
        program = lower(trace(lambda x: x.sum(1), [x]), ENV)
        assert (chunks(normalize(program.steps[0]), dict(program.buffers)) > 1) is expected


def test_chunks_join_their_producer() -> None:
    """A pointwise producer goes into the first step: three nests, two kernels."""
    x = torch.randn(2, 1 << 17)
    assert compare(trace(lambda x: (x * 2 + 1).tanh().sum(), [x]), [x], rtol=1e-4, atol=1e-2).facts()["launches"] == 2


def test_variance_passes_memory_once() -> None:
    """Mean and squares about it: partial results in one kernel, their combination in another."""

    def moments(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = x.mean((0, 2, 3), keepdim=True)
        return mean, (x - mean).square().sum((0, 2, 3)) / 7

    x = torch.randn(8, 4, 96, 96).to(memory_format=torch.channels_last) + 3
    program = lower(trace(moments, [x]), ENV)
    on = {n: replace(b, device=torch.device("cuda")) for n, b in program.buffers.items()}
    cut = split_reductions(replace(program, steps=tuple(normalize(s) for s in inline(replace(program, buffers=on)).steps), buffers=on))
    assert [s.name for s in cut.steps] == ["mean_partial", "mean", "sum_1_partial", "sum_1", "div"]
    cut = replace(cut, buffers={n: replace(b, device=torch.device("cpu")) for n, b in cut.buffers.items()})
    cut.verify()
    for got, wanted in zip(run_program(cut, [x]), moments(x.double()), strict=True):
        torch.testing.assert_close(got, wanted.float(), rtol=1e-5, atol=1e-5)
    plan = schedule(replace(program, buffers=on), ENV)
    assert plan.facts()["launches"] == 2


def test_chunks_of_column_variances_fit_the_cache() -> None:
    """They are read twice: 2048 rows would be two chunks of 3 MB each."""
    program = lower(trace(lambda x: x.var(0), [torch.empty(2048, 768)]), ENV)
    first = next(iter(schedule(program, ENV).kernels.values())).nest
    (deep,) = {a.index for a in first.loads()}
    assert len(first.stores()) == 3, "sums, differences and squares of a chunk are one kernel"
    assert deep.variables() and prod(a.size for a in first.r_axes) * 768 * 4 <= 1 << 19


def test_only_variances_of_wide_floats_sum_differences() -> None:
    for dtype, expected in ((torch.float32, 3), (torch.bfloat16, 2), (torch.float16, 2)):
        program = lower(trace(lambda x: x.var(1), [torch.empty(64, 512, dtype=dtype)]), ENV)
        assert sum(op.name == "reduce" for step in program.steps if isinstance(step, Nest) for op in step.body) == expected, dtype
