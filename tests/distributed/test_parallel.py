"""Tensor parallelism over processes of gloo: DTensors in graphs, as in eager, each region one graph."""

from __future__ import annotations

import pytest

from tests.distributed import parallel_ranks, square_ranks
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    return start("tests.distributed.parallel_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in parallel_ranks.CASES])
def test_both_ranks_compute_as_in_eager(case, ended):
    held(case, ended)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in square_ranks.CASES])
def test_four_ranks_compute_as_in_eager(case):
    held(case, start("tests.distributed.square_ranks", case, ranks=4))


def held(case: str, ended: list[Ended]) -> None:
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
