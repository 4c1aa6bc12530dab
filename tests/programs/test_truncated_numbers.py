"""int() of floats that are read from tensors, in one graph, and errors of Python's functions of such numbers where a clause takes them."""

from __future__ import annotations

import math

import pytest
import torch

import dynacompile

VALUES = [(-1.0, 2.0), (1.0, 4.0), (math.nan, math.nan), (math.inf, math.inf), (1e20, 1e20), (-1.5, -1.5), (0.2, 0.3)]


def scales(x):
    return x * int(x[1, 1])


def shows(x):
    return x, f"{int(x.sum())} of {x.mean().item():.2f}"


def gives(x):
    n = int(x.sum())
    return x + n, n


def computes(x):
    n = int(x.sum())
    return x > n, x.double() * n, torch.tensor(n), x.half() * n


def compares(x):
    n = int(x.sum())
    return (n > 2) is True, n == 3, x.sum().item() > n


def selects(x):
    return (x > 0) if int(x.sum()) > 2 else x


def of_ints(x):
    return (x * 3).long() * int(x[0, 0]), x // int(x[1, 1])


def takes_a_part(x):
    return x[:, : int(x.sum() * 0.5)]


def takes_the_largest(x):
    return x.view(-1).topk(int(x.abs().mean().item())).values


def has_a_clause(x):
    try:
        n = int(x.sum())
    except (ValueError, OverflowError):
        n = -1
    return x * n


def stores_before(x):
    kept = [1]
    n = int(x.sum())
    kept.append(n)
    return x * n, kept


def breaks_behind(x):
    log = SEEN
    log.append(x.sum().item())
    return x * 2 if int(x.sum()) % 2 == 0 else x * 3


def root_with_a_clause(x):
    try:
        n = math.sqrt(x.sum().item())
    except ValueError:
        n = -1
    return x * n


def outcome(fn, ends):
    SEEN.clear()
    try:
        return fn(torch.linspace(*ends, 6).view(2, 3)), SEEN[:]
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, str(error), SEEN[:]


SEEN = []
PROGRAMS = [scales, shows, gives, computes, compares, selects, of_ints, stores_before, breaks_behind]
BY_VALUE = [takes_a_part, takes_the_largest]  # of ints of more than 64 bits the graph says that it can't take them


@pytest.mark.parametrize("fn", [*PROGRAMS, *BY_VALUE, has_a_clause, root_with_a_clause])
def test_as_in_eager(fn):
    compiled = dynacompile.compile(fn, isolate_recompiles=True, backend="eager")
    for ends in VALUES:
        if fn not in BY_VALUE or ends[0] < 1e19:
            assert repr(outcome(compiled, ends)) == repr(outcome(fn, ends))


@pytest.mark.parametrize("fn", [scales, shows, gives, computes, takes_a_part, takes_the_largest])
def test_one_graph(fn):
    compiled = dynacompile.compile(fn, isolate_recompiles=True, backend="eager", fullgraph=True)
    for ends in VALUES:
        if fn not in BY_VALUE or ends[0] < 1e19:
            assert repr(outcome(compiled, ends)) == repr(outcome(fn, ends))


def test_a_call_that_the_graph_cannot_take_is_made_as_python():
    compiled, x = dynacompile.compile(takes_a_part, backend="eager", fullgraph=True), torch.full((2, 3), 1e20)
    assert repr(outcome(compiled, x)) == repr(outcome(takes_a_part, x))


@pytest.mark.parametrize("fn", [root_with_a_clause, has_a_clause])
def test_a_clause_takes_the_error_of_one_graph(fn):
    """The call starts again as Python (`test_restarts.py`)."""
    compiled = dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)
    for ends in [(1.0, 4.0), (-1.0, -1.0) if fn is root_with_a_clause else (math.nan, math.nan), (0.2, 0.3)]:
        assert repr(outcome(compiled, ends)) == repr(outcome(fn, ends))
    assert len(dynacompile.cache_entries(compiled)) == 1
