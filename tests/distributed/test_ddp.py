"""DDP over two processes of gloo: as in eager, to the bit, with everything that DDP can be asked."""

from __future__ import annotations

import pytest

from tests.distributed.ddp_ranks import CASES
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    return start("tests.distributed.ddp_ranks")


@pytest.mark.slow
@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
