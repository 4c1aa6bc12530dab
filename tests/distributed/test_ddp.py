"""DDP over two processes of gloo: as in eager, to the bit, with everything that DDP can be asked."""

from __future__ import annotations

import pytest

from tests.asked import asked, cases_of
from tests.distributed import ddp_ranks
from tests.distributed.ranks import Ended, start


@pytest.fixture(scope="module")
def ended(request) -> list[Ended]:
    return start("tests.distributed.ddp_ranks", *(case["case"] for case in asked(request, "test_both_ranks_train_as_in_eager")))


@pytest.mark.slow
@pytest.mark.parametrize("case", cases_of(ddp_ranks))
def test_both_ranks_train_as_in_eager(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
