"""FSDP2, FSDP1 and tensor parallelism over two processes of gloo: as in eager, to the bit."""

from __future__ import annotations

import pytest

from tests.asked import asked, cases_of
from tests.distributed import fsdp1_ranks, sharded_ranks
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended(request) -> list[Ended]:
    return start("tests.distributed.sharded_ranks", *(case["case"] for case in asked(request, "test_both_ranks_train_as_in_eager")))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(sharded_ranks))
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"


@pytest.fixture(scope="module")
def wrapped(request) -> list[Ended]:
    return start("tests.distributed.fsdp1_ranks", *(case["case"] for case in asked(request, "test_both_ranks_train_as_in_eager_under_fsdp1")))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(fsdp1_ranks))
def test_both_ranks_train_as_in_eager_under_fsdp1(case, wrapped):
    for rank, process in enumerate(wrapped):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
