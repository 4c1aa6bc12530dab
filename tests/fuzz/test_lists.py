"""A slice of the programs over lists of tensors; `python -m tests.fuzz.lists FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.lists import NUMBERED, VIEWED, WIDER, check_compiled, generate, lists_of, scheduled


@pytest.mark.parametrize("first", [0, 20, 40, WIDER])
def test_schedules(first):
    found = [lists_of(scheduled(generate(seed))) for seed in range(first, first + 20)]
    assert sum(map(bool, found)) >= 10, "most programs have lists"


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_built_kernels(seed):
    check_compiled(generate(seed), native=True)


def test_like_parts():
    assert sum(check_compiled(generate(seed)) for seed in range(2000, 2010)) > 5, "some programs fall apart into like parts"


def test_phases_between_joins():
    assert sum(check_compiled(generate(seed)) for seed in range(100000, 100010)) > 15, "inputs that are clipped by a norm of all are like parts"


def test_views_between_phases():
    found = [check_compiled(generate(seed)) for seed in range(VIEWED + 14, VIEWED + 20)]
    assert any(found), "some programs fall apart into like parts"


def test_numbers_written_between_phases():
    found = [check_compiled(generate(seed)) for seed in range(NUMBERED, NUMBERED + 10)]
    assert any(found), "some programs fall apart into like parts"
