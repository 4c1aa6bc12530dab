"""Like nests over different tensors become one launch over a list of them, and compute what eager does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynacompile.codegen.triton import emit_kernel
from dynacompile.errors import VerifyError
from dynacompile.events import FusionDecided
from dynacompile.ir.schedule import Launch, Schedule
from dynacompile.ir.sizes import computed
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from dynacompile.schedule.lists import above, below
from tests.lower.tracing import ENV, UNFUSED, compare, products_are_calls, stages, trace
from tests.schedule.test_columns import on

SIZES = ((3, 5), (7,), (), (2, 3, 4), (1,))


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(s) for s in shapes]


def members(plan: Schedule) -> list[int]:
    """The number of members of each launch; 0 for one that is no list."""
    return [len(s.sizes) for s in plan.steps if isinstance(s, Launch)]


def test_one_update_of_many_tensors() -> None:
    given = [*tensors(*SIZES), *tensors(*SIZES, seed=1)]
    n = len(SIZES)

    def update(*all_of_them):
        for p, g in zip(all_of_them[:n], all_of_them[n:], strict=True):
            p.copy_(p * 0.9 + g * 0.1)
        return ()

    plan = compare(trace(update, given), given)
    assert sorted(members(plan)) == [2, 3]  # a tensor of one element has no loop
    assert {s for k in plan.kernels.values() if k.is_list for s in map(str, k.own or ())} == {"Symbol('n0', 24)"}


def test_members_of_one_size_need_no_numbers() -> None:
    given = tensors((4, 4), (16,), (2, 8))
    plan = compare(trace(lambda *ts: [t.exp() + 1 for t in ts], given), given)
    assert members(plan) == [3] and [k.own for k in plan.kernels.values()] == [()]


def test_what_depends_on_a_list_is_the_next_list() -> None:
    """Each tensor's sum, and the tensor divided by it."""
    given = tensors((300, 5), (9, 11), (40, 7))
    plan = compare(trace(lambda *ts: [t / t.sum() for t in ts], given), given, rtol=1e-4, atol=1e-4)
    assert all(n in (3, 2, 0) for n in members(plan)) and len(members(plan)) <= 2


def test_the_norm_of_all_and_what_it_scales() -> None:
    given = tensors((30, 5), (9, 11), (40, 7), (64,), (5, 5))

    def clip(*ts):
        total = torch.stack([t.square().sum() for t in ts]).sum().sqrt()
        return [t * (1.0 / total).clamp(max=1.0) for t in ts]

    plan = compare(trace(clip, given), given, rtol=1e-4, atol=1e-4)
    assert sorted(members(plan)) == [0, 5, 5]


def test_a_tensor_that_others_need_first_is_of_another_list() -> None:
    """Members of a list do not depend on each other."""
    given = tensors((5,), (6,))

    def chained(a, b):
        x = a.exp()
        y = (b * x.sum()).exp()
        return x, y

    compare(trace(chained, given), given)


def test_updates_at_the_end_meet_whatever_their_gradients_wait_for() -> None:
    weights = [torch.randn(8, 8) for _ in range(4)]
    x = torch.randn(8, 8)

    def step(x, *ws):
        for w in ws:
            x = x @ w
            w.copy_(w - x * 0.1)
        return x

    with products_are_calls():
        plan = compare(trace(step, [x, *weights]), [x, *weights], rtol=1e-3, atol=1e-2)
    assert members(plan) == [4]


def test_rows_and_columns_are_not_alike() -> None:
    given = [torch.randn(16, 16)]
    assert members(compare(trace(lambda x: (x.sum(0), x.sum(1)), given), given)) == [0, 0]


def test_large_temporary_results_are_not_kept_alive_together() -> None:
    given = tensors((1024, 512), (1024, 512))

    def program(*ts):
        return [(t.exp() @ t.mT)[:2] for t in ts]  # the product wants its operand in memory

    events: list = []
    graph = trace(program, given)
    with products_are_calls():
        _, plan = stages(graph, replace(ENV, emit=events.append))
    assert members(plan) == [0, 0]
    assert [e.reason.split(" of ")[0] for e in events if isinstance(e, FusionDecided) and not e.fused] == ["each"]


def test_decisions_are_events_with_their_reason() -> None:
    given = tensors((30,), (40,))
    events: list = []
    stages(trace(lambda *ts: [t.exp() for t in ts], given), replace(ENV, emit=events.append))
    told = [e for e in events if isinstance(e, FusionDecided)]
    assert [(len(e.members), e.fused, "list" in e.reason) for e in told] == [(2, True, True)]


def test_without_fusing_there_are_no_lists() -> None:
    given = tensors((4,), (5,))
    assert members(compare(trace(lambda *ts: [t.exp() for t in ts], given), given, UNFUSED)) == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_dtypes_are_lists_of_their_own(dtype: torch.dtype) -> None:
    given = [torch.ones(3), torch.ones(4), torch.ones(5, dtype=dtype), torch.ones(6, dtype=dtype)]
    assert members(compare(trace(lambda *ts: [t * 2 for t in ts], given), given)) == [2, 2]


@pytest.mark.parametrize("large", [96, 40, 5000])
def test_a_later_list_of_larger_tensors_has_programs_for_all_of_them(large: int) -> None:
    """Two lists of one body, the first of small tensors: what its kernel relies on has to hold of the second, or that has a kernel of its own."""
    given = tensors((32, 1), (2, 1), (large, 32), (3, 2))

    def doubled(a, b, c, d):
        a, b = a * 2, b * 2
        return (c @ a) * 2, (d @ b) * 2

    with products_are_calls():
        plan = schedule(on(torch.device("cuda", 0), lower(trace(doubled, given), ENV)), ENV)
    plan.verify()
    launches = [step for step in plan.steps if isinstance(step, Launch) and step.sizes]
    assert [step.sizes for step in launches] == [((32,), (2,)), ((large,), (3,))]
    for step in launches:
        kernel = plan.kernels[step.kernel]
        source = emit_kernel(kernel, ENV)
        for row in step.sizes:
            programs = computed(source.grids[0][0], dict(zip(kernel.own or (), row, strict=True)))
            assert programs * source.candidates[0].blocks["XBLOCK"] >= row[0] > (programs - 1) * source.candidates[0].blocks["XBLOCK"]


def test_members_that_a_kernel_is_not_for_are_refused() -> None:
    plan = compare(trace(lambda *ts: [t.exp() for t in ts], given := tensors((30,), (40,))), given)
    (launch,) = (step for step in plan.steps if isinstance(step, Launch))
    wrong = replace(plan, steps=tuple(replace(s, sizes=((30,), (65,))) if s is launch else s for s in plan.steps))
    with pytest.raises(VerifyError, match=r"other sizes.*\('n0', \(16, 64\)\)"):
        wrong.verify()


@pytest.mark.parametrize(
    ("n", "low", "high"), [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 2, 4), (480, 256, 512), (1 << 31, 1 << 31, 1 << 31), (-1, -1, -1), (-3, -4, -2)]
)
def test_bounds_are_powers_of_two(n: int, low: int, high: int) -> None:
    assert (below(n), above(n)) == (low, high)
