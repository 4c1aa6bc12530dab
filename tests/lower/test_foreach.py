"""Foreach operations that optimizers, clipping and averages use are loops of ours, in every overload."""

from __future__ import annotations

import torch

from dynacompile.events import StageFinished
from tests.checking import check


def lists():
    return [torch.randn(5), torch.randn(3, 4)], [torch.randn(5), torch.randn(3, 4)]


def test_overloads_are_no_calls_of_torch():
    def program(ts, us):
        zeroed, copied, halves = torch._foreach_add(ts, 1), torch._foreach_add(ts, us), [t.half() for t in ts]
        torch._foreach_zero_(zeroed)
        torch._foreach_copy_(copied, us)
        torch._foreach_copy_(halves, us)
        clamped = torch._foreach_clamp_min(ts, us), torch._foreach_clamp_max(ts, [0.1, 0.2]), torch._foreach_clamp_min(ts, 0.5)
        powers = torch._foreach_pow(2.0, us), torch._foreach_pow(ts, [2.0, 3.0])
        return zeroed, copied, halves, clamped, powers, torch._foreach_lerp(ts, us, [0.1, 0.9])

    events = check(program, *lists(), backward=False)
    (facts,) = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "schedule"]
    assert facts["externs"] == 0


def test_a_broadcast_copy_is_a_call_of_torch():
    check(lambda ts, us: torch._foreach_copy_(ts, us), [torch.randn(3, 4)], [torch.randn(4)], backward=False)


def test_what_is_stacked_and_taken_apart_again_is_not_stacked():
    def program(ts):
        whole = torch.stack([t.sum() for t in ts])
        return [t * s for t, s in zip(ts, whole.unbind(), strict=True)], [t - whole[i] for i, t in enumerate(ts)]

    events = check(program, lists()[0], backward=False)
    graphs = [e for e in events if isinstance(e, StageFinished) and e.stage == "lower"]
    assert dict(graphs[0].facts)["buffers"] == 8, "no buffer for the stack"


def test_a_number_where_a_mask_is_true_is_a_choice():
    def program(x, y, mask):
        x[x > 0] = 1.5
        y[mask] = 2.0
        return x, y

    events = check(program, torch.randn(4, 5), torch.randn(3, 2, 2), torch.tensor([[True, False], [False, False], [True, True]]), backward=False)
    (facts,) = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "schedule"]
    assert facts["externs"] == 0
