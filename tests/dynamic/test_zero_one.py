"""Sizes 0 and 1: entries of their own by default; one entry for 1 and others where it is asked for, and the program treats them alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.errors import ConfigError
from dynacompile.events import Compiled
from tests.dynamic.varying import check_varying

SIZES = (4, 1, 0, 2, 7)
LINEAR = torch.nn.Linear(3, 4)
BIAS = torch.arange(3.0)

# program -> entries over SIZES with the opt-out: 0 always has its own
PROGRAMS = {
    "pointwise": (lambda x: (x * 2).sin() + BIAS, 2),
    "broadcast": (lambda x: x * x.sum(1, keepdim=True) + x.mean(0), 2),
    "columns": (lambda x: x.sum(0), 2),
    "a size as a number": (lambda x: x * len(x), 2),
    "positions": (lambda x: x + torch.arange(x.shape[0])[:, None], 2),
    "pairs": (lambda x: x[:, None] - x[None], 2),
    "softmax": (lambda x: F.softmax(x, -1), 2),
    "layer norm": (lambda x: F.layer_norm(x, (3,)), 2),
    "linear": (lambda x: F.gelu(LINEAR(x)), 2),
    "products": (lambda x: x @ x.t(), 2),
    "loss": (lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.int64)), 2),
    "concatenation": (lambda x: torch.cat([x, x + 1], 1), 2),
    "heads": (lambda x: x.view(x.shape[0], 3, 1).transpose(0, 1).sum(0), 2),
    "flat": (lambda x: (x + 1).flatten() * 2, 2),
    # these treat 1 otherwise
    "branch": (lambda x: x * 2 if x.shape[0] == 1 else x + 1, 3),
    "squeeze": (lambda x: x.squeeze(0) + 1, 3),
    "copy or not": (lambda x: x.t().contiguous(), 3),
    "view or copy": (lambda x: x.t().reshape(-1) * 2, 3),
    "variance": (lambda x: x.var(0), 3),
    "running sums": (lambda x: x.cumsum(0), 3),
}


def calls(sizes=SIZES, grad=False):
    return [(torch.randn(n, 3, requires_grad=grad),) for n in sizes]


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_opt_out(name, backend):
    fn, entries = PROGRAMS[name]
    assert check_varying(fn, calls(), entries, backward=False, dynamic=True, backend=backend, options={"specialize_zero_one": False})


@pytest.mark.parametrize("name", ["pointwise", "broadcast", "columns", "softmax", "layer norm", "linear", "products", "loss", "pairs"])
def test_gradients(name):
    fn, _ = PROGRAMS[name]
    assert check_varying(fn, calls((4, 1, 7), grad=True), 1, dynamic=True, backend="default", options={"specialize_zero_one": False})


def test_the_default():
    assert check_varying(PROGRAMS["pointwise"][0], calls(), 3, dynamic=True, backend="default")
    assert check_varying(PROGRAMS["pointwise"][0], calls((5, 1, 0, 4, 6)), 4)


def test_what_has_changed_is_symbolic_for_1_too():
    assert check_varying(PROGRAMS["linear"][0], calls((5, 4, 1, 6)), 2, options={"specialize_zero_one": False})


def test_a_first_call_of_1_has_its_own():
    assert check_varying(PROGRAMS["linear"][0], calls((1, 4, 1, 6)), 2, dynamic=True, options={"specialize_zero_one": False})


def test_declared_from_1():
    shapes = {"x": {0: {"min": 1, "max": 4096}}}

    def double(x):
        return x * 2 + x.mean(1, keepdim=True)

    assert check_varying(double, calls((4, 1, 4096, 7)), 1, dynamic=shapes, backend="default")
    assert check_varying(double, calls((1, 4, 7)), 2, dynamic=shapes, backend="default")


def test_marked_from_1():
    given = calls((4, 1, 6))
    for (x,) in given:
        dynacompile.mark_dynamic(x, 0, min=1)
    compiled, seen = dynacompile.compile(lambda x: x * 2, backend="eager", isolate_recompiles=True), []
    end = dynacompile.subscribe(lambda e: seen.append(e) if isinstance(e, Compiled) else None)
    for (x,) in given:
        torch.testing.assert_close(compiled(x), x * 2)
    end()
    assert len(seen) == 1


def test_two_sizes():
    given = [(torch.randn(a, b), torch.randn(b)) for a, b in ((4, 3), (1, 3), (5, 1), (1, 1), (6, 7))]
    assert check_varying(lambda x, y: (x + y) * 2, given, 1, dynamic=True, backend="default", options={"specialize_zero_one": False})


def test_a_broadcast_1_is_another_program():
    given = [(torch.randn(4, 3), torch.randn(4, 3)), (torch.randn(4, 3), torch.randn(1, 3)), (torch.randn(1, 3), torch.randn(1, 3))]
    assert check_varying(lambda x, y: x + y, given, 2, dynamic=True, backend="default", options={"specialize_zero_one": False})


def test_a_wrong_name():
    with pytest.raises(ConfigError, match="specialize_zero_one"):
        dynacompile.compile(LINEAR, options={"specialise_zero_one": False})
