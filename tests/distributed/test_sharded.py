"""FSDP2, FSDP1 and tensor parallelism over two processes of gloo: as in eager, to the bit."""

from __future__ import annotations

import pytest

from tests.distributed import fsdp1_ranks
from tests.distributed.ranks import Ended, start
from tests.distributed.sharded_ranks import CASES


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    return start("tests.distributed.sharded_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"


@pytest.fixture(scope="module")
def wrapped() -> list[Ended]:
    return start("tests.distributed.fsdp1_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in fsdp1_ranks.CASES])
def test_both_ranks_train_as_in_eager_under_fsdp1(case, wrapped):
    for rank, process in enumerate(wrapped):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
