"""Pipeline parallelism over two processes of gloo: stages that are compiled by themselves train as in eager, under torch's schedules."""

from __future__ import annotations

import pytest

from tests.asked import asked, cases_of
from tests.distributed import pipeline_ranks
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended(request) -> list[Ended]:
    return start("tests.distributed.pipeline_ranks", *(case["case"] for case in asked(request, "test_both_ranks_train_as_in_eager")))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(pipeline_ranks))
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
