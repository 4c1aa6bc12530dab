"""Tensor parallelism over processes of gloo: DTensors in graphs, as in eager, each region one graph."""

from __future__ import annotations

import pytest

from tests.asked import asked, cases_of
from tests.distributed import parallel_ranks, square_ranks
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended(request) -> list[Ended]:
    return start("tests.distributed.parallel_ranks", *(case["case"] for case in asked(request, "test_both_ranks_compute_as_in_eager")))


@pytest.fixture(scope="module")
def square(request) -> list[Ended]:
    return start("tests.distributed.square_ranks", *(case["case"] for case in asked(request, "test_four_ranks_compute_as_in_eager")), ranks=4)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(parallel_ranks))
def test_both_ranks_compute_as_in_eager(case, ended):
    held(case, ended)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(square_ranks))
def test_four_ranks_compute_as_in_eager(case, square):
    held(case, square)


def held(case: str, ended: list[Ended]) -> None:
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
