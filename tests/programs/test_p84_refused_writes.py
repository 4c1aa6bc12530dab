"""Writes that autograd refuses: what the frame did before them is done, and the next call is asked whether they still are."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

LOG: list = []
BACKENDS = pytest.mark.parametrize("backend", ["eager", "default"])


@pytest.fixture(autouse=True)
def fresh():
    LOG.clear()


def leaf():
    return torch.arange(6.0).reshape(2, 3).requires_grad_()


INPUTS = {
    "leaf": lambda: leaf(),
    "view of a leaf": lambda: leaf().view(3, 2),
    "view of a view": lambda: leaf().view(3, 2)[:2],
    "one of several": lambda: leaf().chunk(1)[0],
    "one of several computed": lambda: (leaf() * 2).unbind(0)[1],
    "computed": lambda: leaf() * 2,
    "view of computed": lambda: (leaf() * 2).view(3, 2),
    "plain": lambda: torch.ones(2, 3),
}


def writes(x):
    LOG.append("before")
    x += 1
    LOG.append("after")
    return x * 2


def outcome(fn, x):
    LOG.clear()
    try:
        result = fn(x).tolist()
    except RuntimeError as error:
        result = str(error)[:40]
    return result, list(LOG), x.tolist()


def check_outcome(compiled, make):
    assert outcome(compiled, make()) == outcome(writes, make())


@BACKENDS
@pytest.mark.parametrize("name", INPUTS)
def test_first_call(name, backend):
    dynacompile.reset()
    check_outcome(dynacompile.compile(writes, backend=backend, isolate_recompiles=True), INPUTS[name])


@pytest.mark.parametrize("later", [n for n in INPUTS if n not in ("one of several", "one of several computed")])
@pytest.mark.parametrize("name", INPUTS)
def test_later_call(name, later):
    """Which of several views of one operation a tensor is, nobody can ask natively: such a one after others of its kind raises in the graph."""
    dynacompile.reset()
    compiled = dynacompile.compile(writes, backend="eager", isolate_recompiles=True)
    for make in (INPUTS[name], INPUTS[later], INPUTS[name]):
        check_outcome(compiled, make)


@BACKENDS
@pytest.mark.parametrize("name", ["computed", "view of computed", "part of computed"])
def test_tensors_that_autograd_computed_are_written_in_the_graph(name, backend):
    def story(wrap):
        run = wrap(lambda t: t.mul_(3) + 1)
        w = leaf()
        t = {**INPUTS, "part of computed": lambda: (w * 2)[:, ::2]}[name]()
        yield run(t), t, t._base
        (run(t) * t).sum().backward()
        yield w.grad

    events = check_same(story, backend=backend)
    assert not any(isinstance(event, dynacompile.events.GraphBroke) for event in events)


def test_writes_under_no_grad_are_no_matter():
    """Parameters that an optimizer writes have no such guard."""

    def steps(p):
        with torch.no_grad():
            p.mul_(0.5)
        return p * 2

    check(steps, leaf(), graphs=1)


def test_a_view_without_a_history():
    def story(t):
        t = t.clone()
        part, _ = t
        t += t
        dynacompile.graph_break()
        LOG.append("then")
        return t * 2 if len(LOG) > 5 else (t * 2, part.shape)

    for backend in ("eager", "default"):
        LOG.clear()
        compiled = dynacompile.compile(story, backend=backend, isolate_recompiles=True, options={"verify": True})
        got, shape = compiled(leaf())
        assert torch.equal(got, leaf() * 4) and shape == (3,) and LOG == ["then"]


UNFOLLOWED = {
    "detached": lambda t: t.detach().add_(1),
    "a view of it": lambda t: t[:1].detach().mul_(2),
    "data": lambda t: t.data.add_(1),
    "a part": lambda t: t.detach()[0].zero_(),
}
ALLOWED = {
    "view of a leaf": lambda w: w.view(3, 2),
    "view of a view of a leaf": lambda w: w.view(3, 2).t(),
    "row of a leaf": lambda w: w[0],
    "computed": lambda w: w * 1,
    "one of several": lambda w: w.unbind()[0],
}


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
@pytest.mark.parametrize("write", UNFOLLOWED)
def test_what_autograd_does_not_follow_may_be_written(write, backend):
    """Autograd refuses to write a view of a leaf. A detached tensor of it is none, and the history stays that of the view."""

    def frame(t):
        UNFOLLOWED[write](t)
        return t.shape

    def story(wrap):
        run = wrap(frame)
        for make in ALLOWED.values():
            w = torch.linspace(-1, 2, 6).view(2, 3).clone().requires_grad_()
            t = make(w)
            before = type(t.grad_fn)
            yield run(t), t.detach().clone(), w, w._version, t._version
            if make is not ALLOWED["one of several"]:  # of which autograd tells nothing once it was written
                yield type(t.grad_fn) is before
                (t * 2).sum().backward()
                yield w.grad

    check_same(story, backend=backend)


def test_a_view_of_a_leaf_with_a_hook_is_written_where_it_is_detached():
    def frame(w):
        t = w.view(3, 2)
        w.register_hook(lambda grad: grad * 2)
        t.detach().add_(1)
        return t * 2, t

    def story(wrap):
        w = torch.zeros(2, 3, requires_grad=True)
        result, t = wrap(frame)(w)
        yield result, t, w
        (result * 3).sum().backward()
        yield w.grad

    check_same(story, backend="aot_eager")
