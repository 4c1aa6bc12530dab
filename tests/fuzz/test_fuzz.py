"""A slice of the random programs; `python -m tests.fuzz FIRST LAST` runs any others."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.compare import blame, difference
from tests.fuzz.graphs import generate

FOUND = (92, 140, 273, 326, 368, 484, 500, 742, 1135, 1887, 5831, 1070, 1161, 200067, 200155)  # showed a bug once


def check(seed: int, native: bool) -> None:
    program = generate(seed)
    dtype, grad = (torch.float64 if seed % 2 else torch.float32), seed % 3 != 0
    told = difference(program, dtype, grad, options={"reference": not native})
    assert told is None, f"seed {seed}, {dtype}, gradients {grad}: {told}\n{program.source}\n{blame(program, dtype, grad)}"


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_interpreted(first):
    for seed in range(first, first + 8):
        check(seed, False)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_native(seed):
    check(seed, True)


@pytest.mark.parametrize("seed", FOUND)
def test_found(seed):
    check(seed, False)


def test_programs_are_what_they_were():
    assert generate(7).source == generate(7).source
    assert len({generate(seed).source for seed in range(20)}) == 20
