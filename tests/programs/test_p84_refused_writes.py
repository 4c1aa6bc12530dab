"""Writes that autograd refuses: what the frame did before them is done, and the next call is asked whether they still are."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.checking import check

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
