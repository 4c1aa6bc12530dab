"""A slice of the programs whose gradients leave the backward early; `python -m tests.fuzz.early_gradients FIRST LAST` runs any others."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile
from tests.fuzz.early_gradients import run


@pytest.fixture(autouse=True)
def two_processes():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_gradients_are_those_of_eager(first):
    for seed in range(first, first + 10):
        dynacompile.reset()
        assert not run(seed), f"seed {seed}"


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_built_kernels(seed):
    assert not run(seed, "default")
