"""Graphs that fall apart into like parts: what is connected, what is alike, and that each part is differentiated, lowered and fused once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

import dynacompile
from dynacompile.autograd import alike
from dynacompile.events import StageFinished
from tests.checking import check


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts are made of small graphs, too."""
    monkeypatch.setattr(alike, "WORTH", 1)


def counts(function: Callable, *args: object) -> tuple[int, int] | None:
    """How many parts and occurrences the compiled function has; None where it is compiled as a whole. Its results are eager's."""
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        check(function, *args, backward=False)
    finally:
        end()
    facts = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "schedule"]
    found = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "lower"]
    assert facts
    return (found[0]["parts"], found[0]["copies"]) if "parts" in found[0] else None


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s) for s in shapes]


def each(*ts: torch.Tensor) -> list[torch.Tensor]:
    return [(t * 2).exp() + 1 for t in ts]


def test_members_of_one_shape_are_one_part():
    assert counts(each, *tensors((3,), (3,), (3,), (3,))) == (1, 4)


def test_members_of_two_shapes_are_two_parts():
    assert counts(each, *tensors((3,), (4, 2), (3,), (4, 2), (3,))) == (2, 5)


def test_a_graph_without_repetitions_is_compiled_as_a_whole():
    assert counts(each, *tensors((3,), (4,))) is None


def test_strides_tell_parts_apart():
    a, b, c, d = tensors((4, 3), (3, 4), (4, 3), (3, 4))
    assert counts(each, a, b.t(), c, d.t()) == (2, 4)


def test_constants_tell_parts_apart():
    def function(*ts):
        return [t.sin().cos() * (1.0 if i % 2 else -0.0) for i, t in enumerate(ts)]

    assert counts(function, *tensors((3,), (3,), (3,), (3,))) == (2, 4)


def test_what_data_flow_connects_is_one_part():
    def function(*ts):
        total = torch.stack([t.sum() for t in ts]).sum()
        return [t * total for t in ts]

    assert counts(function, *tensors((3,), (3,), (3,))) is None


def test_an_input_that_all_read_connects_them():
    def function(x, *ts):
        return [t * x for t in ts]

    assert counts(function, *tensors((3,), (3,), (3,), (3,))) is None


def test_a_rate_that_all_read_connects_nothing():
    def function(rate, *ts):
        for t in ts:
            t.mul_(1 - rate).add_(t.abs(), alpha=0.5)

    assert counts(function, *tensors((), (3,), (3,), (3,))) == (1, 3)


def test_a_rate_that_is_written_connects_all():
    def function(rate, *ts):
        rate.mul_(0.5)
        for t in ts:
            t.mul_(1 - rate).add_(t.abs(), alpha=0.5)

    assert counts(function, *tensors((), (3,), (3,), (3,))) is None


def test_a_rate_that_is_read_through_a_view_connects_nothing():
    def function(rate, *ts):
        return [t.sin() * rate.reshape(()) for t in ts]

    assert counts(function, *tensors((1,), (3,), (3,), (3,), (5,), (5,), (5,))) == (2, 6)


def test_a_number_of_one_element_is_written_through_a_view():
    def function(rate, *ts):
        rate.view(()).mul_(2)
        return [t * rate for t in ts]

    assert counts(function, *tensors((1,), (3,), (3,), (3,))) is None


def test_operations_over_lists_go_member_by_member():
    def function(*ts):
        n = len(ts) // 2
        a, b = list(ts[:n]), list(ts[n:])
        torch._foreach_mul_(a, 0.5)
        roots = torch._foreach_sqrt(torch._foreach_abs(b))
        torch._foreach_add_(a, roots, alpha=2)
        return torch._foreach_norm(a)

    assert counts(function, *tensors((3,), (4,), (3,), (4,), (3,), (4,), (3,), (4,))) == (2, 4)


def test_one_tensor_twice_in_a_list_is_a_part_with_two_members():
    def function(*ts):
        return torch._foreach_mul([*ts, ts[0]], 2), torch._foreach_sin([*ts, ts[0]])

    assert counts(function, *tensors(*[(3,)] * 7)) == (2, 7)


def test_a_stack_that_is_taken_apart_connects_nothing():
    def function(*ts):
        parts = torch.unbind(torch.stack([t.sum() for t in ts]))
        return torch._foreach_mul(list(ts), list(parts))

    assert counts(function, *tensors((3,), (3,), (3,))) == (1, 3)


def test_parts_of_a_stack_that_are_results_stay_views_of_it():
    def function(*ts):
        return torch.unbind(torch.stack([t.sin() for t in ts]))

    assert counts(function, *tensors((3,), (3,), (3,))) is None


def test_inputs_and_constants_are_results_too():
    def function(*ts):
        return [*[t.sin().cos() for t in ts], ts[0], None, 3, ts[1]]

    assert counts(function, *tensors((3,), (3,), (3,))) == (1, 3)


def test_views_of_inputs_and_of_results_are_results():
    def function(*ts):
        made = [t.sin() for t in ts]
        return [*[t.view(-1) for t in ts], *made, *[m.t() for m in made]]

    assert counts(function, *tensors((3, 2), (3, 2), (3, 2))) == (1, 3)


def test_calls_are_made_for_each_copy():
    def function(*ts):
        return [(t @ t).relu() for t in ts]

    assert counts(function, *tensors((3, 3), (3, 3), (3, 3), (4, 4), (4, 4))) == (2, 5)


def test_inputs_that_share_memory_are_connected():
    base = torch.randn(6)

    def function(*ts):
        return [t.sin().cos() for t in ts]

    assert counts(function, base[:3], base[3:], *tensors((3,), (3,), (3,))) is not None


def test_what_autograd_takes_part_in_is_compiled_as_a_whole():
    given = [t.requires_grad_() for t in tensors((3,), (3,), (3,), (3,))]
    assert counts(each, *given) is None


def test_random_numbers_are_drawn_as_in_eager():
    def function(*ts):
        return [torch.rand_like(t) * t for t in ts]

    assert counts(function, *tensors((3,), (5,), (3,), (5,))) is None


def optimizer_facts(count: int, form: dict) -> list[Sequence[dict]]:
    parameters = [torch.nn.Parameter(torch.randn(*((8, 6), (10,))[i % 2])) for i in range(count)]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, **form)
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        step = dynacompile.compile(lambda: optimizer.step(), isolate_recompiles=True, options={"reference": True})
        step()
        step()
    finally:
        end()
    return [[dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == stage] for stage in ("differentiate", "lower", "schedule")]


@pytest.mark.parametrize("form", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=["single", "foreach", "fused"])
def test_an_optimizers_work_does_not_grow_with_the_number_of_parameters(form):
    few, many = optimizer_facts(6, form), optimizer_facts(40, form)
    for told, other in zip(few[0] + few[1], many[0] + many[1], strict=True):
        assert (told["copies"], other["copies"]) == (6, 40)
        assert {k: v for k, v in told.items() if k != "copies"} == {k: v for k, v in other.items() if k != "copies"}
    assert [t["launches"] for t in few[2]] == [t["launches"] for t in many[2]] == [2]


def clipped(*ts):
    norm = torch.linalg.vector_norm(torch.stack([t.norm() for t in ts]))
    factor = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    for t in ts:
        t.mul_(factor)
    return norm


def unscaled_and_clipped(*ts):
    for t in ts:
        t.mul_(0.25)
    norm = torch.stack(torch._foreach_norm(list(ts))).sum()
    torch._foreach_mul_(list(ts), 1.0 / norm)
    return [t.exp() for t in ts]


def clipped_twice(*ts):
    for _ in range(2):
        norm = torch.stack([t.square().sum() for t in ts]).sum().sqrt()
        for t in ts:
            t.div_(norm).add_(1.0)


def norms_and_all(*ts):
    norms = [t.norm() for t in ts]
    total = torch.stack(norms).max()
    return [(t / total).sin() for t in ts], norms, total, total * 2


def norms_used_again(*ts):
    norms = [t.norm() for t in ts]
    total = torch.stack(norms).max()
    return [t / (total + n) for t, n in zip(ts, norms)]


@pytest.mark.parametrize("function, parts", [(clipped, 3), (unscaled_and_clipped, 3), (clipped_twice, 5), (norms_and_all, 3), (norms_used_again, 3)])
def test_a_join_of_many_numbers_divides_a_graph_into_phases(function, parts):
    few, many = (counts(function, *tensors(*[(3,)] * n)) for n in (5, 12))
    assert few == (parts, parts // 2 + 5 * (parts // 2 + 1)) and many == (parts, parts // 2 + 12 * (parts // 2 + 1))


def test_phases_of_several_shapes():
    assert counts(clipped, *tensors(*[(3,), (4, 2)] * 4)) == (5, 17)


def test_large_results_that_pass_a_join_keep_the_graph_whole():
    def function(*ts):
        made = [t.exp() for t in ts]
        total = torch.stack([m.sum() for m in made]).sum()
        return [m / total for m in made]

    assert counts(function, *tensors(*[(3,)] * 6)) is None


def test_joined_inputs_that_share_memory_keep_the_graph_whole():
    base = torch.arange(24.0).view(6, 4)

    def function(x, *ts):
        norm = torch.stack([t.norm() for t in ts]).sum()
        return [t * norm + x[0] for t in ts]

    assert counts(function, base, *base.clone().unbind(0)) is None


def test_a_joined_number_that_is_written_as_out_is_read_before():
    def function(*ts):
        total = torch.stack([t.square().sum() for t in ts]).sum()
        copy = total.clone()
        scaled = [t * copy for t in ts]
        torch.add(total, 1.0, out=copy)
        return scaled, copy

    assert counts(function, *tensors(*[(3,)] * 6)) is None


def test_outputs_that_are_views_of_what_an_earlier_phase_made():
    def function(*ts):
        norm = torch.stack([t.norm() for t in ts]).sum()
        return [t * norm for t in ts], norm.expand(5), norm.as_strided((2, 2), (0, 0))

    assert counts(function, *tensors(*[(3,)] * 6)) is None


def rate_through_a_view(rate):
    rate.view(1).mul_(0.5)


def rate_through_data(rate):
    rate.data.mul_(0.5)


def rate_by_an_activation(rate):
    torch.nn.functional.hardtanh(rate, -0.1, 0.1, True)


@pytest.mark.parametrize("write", [rate_through_a_view, rate_through_data, rate_by_an_activation])
def test_a_rate_that_is_written_between_phases_is_read_behind_the_write(write):
    def function(rate, *ts):
        total = torch.stack([t.square().sum() for t in ts]).sum()
        scaled = [t * total for t in ts]
        write(rate)
        factor = total * rate
        return [t * factor for t in scaled]

    counts(function, torch.tensor(0.75), *tensors(*[(3,)] * 6))
