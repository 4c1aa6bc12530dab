"""Pipeline parallelism over two processes of gloo: stages that are compiled by themselves train as in eager, under torch's schedules."""

from __future__ import annotations

import pytest

from tests.distributed.pipeline_ranks import CASES
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    return start("tests.distributed.pipeline_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
