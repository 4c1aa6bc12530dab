"""Operations on tensors that look the same are run on fakes once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynacompile
from dynacompile.capture.recorder import Recorder
from tests.checking import check


def runs(function: Callable, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many operations on fakes the capture of a call runs."""
    seen = []
    original = Recorder.run
    monkeypatch.setattr(Recorder, "run", lambda self, *args, **kwargs: seen.append(args) or original(self, *args, **kwargs))
    function()
    monkeypatch.undo()
    return len(seen)


@pytest.mark.parametrize("foreach", [False, True], ids=["single", "foreach"])
def test_an_optimizers_second_parameter_runs_none(foreach, monkeypatch):
    found = []
    for count in (2, 9):
        parameters = [torch.nn.Parameter(torch.randn(4, 3)) for _ in range(count)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters, foreach=foreach)
        optimizer.step()
        step = dynacompile.compile(lambda o=optimizer: o.step(), isolate_recompiles=True, backend="eager")
        found.append(runs(step, monkeypatch))
    assert found[0] == found[1]


@torch.no_grad()
def repeated(x, y):
    made = []
    for t in (x, y):
        u = t * 2
        u.add_(1).mul_(t)
        v = u.clamp(min=0, max=1)
        made += [u, v, t.t() + 0, torch.zeros(2, dtype=torch.float64) + 1]
    x.mul_(3)
    y.mul_(3)
    return made


def test_results_in_memory_of_their_own_and_writes():
    check(repeated, torch.randn(3, 3), torch.randn(3, 3), backward=False)


@torch.no_grad()
def views(x, y):
    a, b = x.view(-1), y.view(-1)
    a.add_(1)
    b.add_(1)
    return a, b, x[0], y[0]


def test_views_keep_what_they_are_views_of():
    check(views, torch.randn(3, 3), torch.randn(3, 3), backward=False)


@torch.no_grad()
def transposed_in_place(x, y):
    x, y = x + 1, y + 1
    x.t_()
    y.t_()
    return x @ x.t(), y @ y.t()


def test_sizes_that_change_in_place():
    check(transposed_in_place, torch.randn(3, 4), torch.randn(3, 4), backward=False)


@torch.no_grad()
def numbers(x):
    return [x * torch.tensor(k) for k in (1.0, 2.0)], [x * k for k in (0.0, -0.0, 1, True)]


def test_known_numbers_stay_apart():
    check(numbers, torch.randn(3), backward=False)


def other_defaults(x):
    with torch.no_grad():
        a = torch.zeros(2)
        torch.set_default_dtype(torch.float64)
        b = torch.zeros(2)
        torch.set_default_dtype(torch.float32)
        return a + x, b + x


def test_the_default_dtype_tells_operations_apart():
    check(other_defaults, torch.randn(2), backward=False, graphs=None, breaks=None)


def gradients(x):
    with torch.no_grad():
        a = x * 2
    b = x * 2
    with torch.no_grad():
        c = x * 2
    return a + b * c


def test_what_gradients_flow_through_is_run():
    check(gradients, torch.randn(3, requires_grad=True))


@torch.no_grad()
def over_lists(ts, others):
    made = list(torch._foreach_add(ts, others, alpha=0.5))
    torch._foreach_mul_(ts, 2.0)
    torch._foreach_lerp_(made, ts, 0.25)
    made += torch._foreach_norm(made)
    torch._foreach_add_(made[-2:], 1.0)
    return made, torch._foreach_mul(ts, torch.ones(()))


@pytest.mark.parametrize("sizes", [(3,), (3, 4, 5)], ids=["one shape", "three shapes"])
def test_operations_over_lists_are_run_once_for_each_kind_of_members(sizes, monkeypatch):
    found = []
    for count in (12, 30):
        shapes = [(sizes[i % len(sizes)], 2) for i in range(count)]
        given = [torch.randn(s) for s in shapes], [torch.randn(s) for s in shapes]
        check(over_lists, *given, backward=False)
        seen = []
        original = Recorder.run
        monkeypatch.setattr(Recorder, "run", lambda self, *args, to=seen, original=original: to.append(args[2]) or original(self, *args))
        dynacompile.compile(over_lists, isolate_recompiles=True, backend="eager")(*given)
        monkeypatch.undo()
        found.append([len(args[0]) for args in seen if args and isinstance(args[0], (list, tuple))])
    assert found[0][:4] == found[1][:4] == [len(sizes)] * 4


def test_lists_whose_members_share_memory_are_run_whole():
    base = torch.arange(40.0).view(20, 2)

    @torch.no_grad()
    def function(x):
        rows = list(x.unbind(0))
        made = torch._foreach_mul(rows, 2.0)
        torch._foreach_add_(rows, 1.0)
        return made, x * 1.0

    check(function, base, backward=False)


@torch.no_grad()
def read_twice(ts, others):
    torch._foreach_addcmul_(ts, others, others, 0.5)
    return torch._foreach_mul(ts, torch.stack([t.sum() for t in others]).unbind())


@torch.no_grad()
def read_elsewhere(ts, others):
    torch._foreach_add_(ts, [ts[-1], *others[1:]])


@pytest.mark.parametrize("varying", [(), ("rate",)], ids=["constants", "symbols"])
def test_members_that_are_read_may_share_memory(varying, monkeypatch):
    """Members that run on fakes are those of one kind each, but where one that is written is another's operand."""
    sizes = []
    original = Recorder.run

    def counted(self, kind, target, args, kwargs, reads=None):
        if getattr(target, "__name__", "").startswith("_foreach_"):
            sizes.append(len(args[0]))
        return original(self, kind, target, args, kwargs, reads)

    def run(function, rate):
        ts, others = [torch.rand(3, 2) for _ in range(20)], [torch.rand(3, 2) for _ in range(20)]
        return dynacompile.compile(lambda ts, others, rate: function([t * rate for t in ts], others), backend="eager", options={"varying": varying})(
            ts, others, rate
        )

    monkeypatch.setattr(Recorder, "run", counted)
    run(read_twice, 0.5)
    assert sizes == [1, 1]
    run(read_elsewhere, 0.5)
    assert sizes == [1, 1, 20]
    monkeypatch.undo()
    for function in (read_twice, read_elsewhere):
        check(function, [torch.rand(3, 2) for _ in range(20)], [torch.rand(3, 2) for _ in range(20)], backward=False)
