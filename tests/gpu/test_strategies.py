"""Lightning's strategies on the GPUs of one host, those among them that Lightning has on no CPU: fits as in eager."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("lightning")

from tests.distributed.ranks import Ended, start
from tests.gpu.strategy_ranks import CASES


@pytest.fixture(scope="module")
def ended() -> list[Ended]:
    return start("tests.gpu.strategy_ranks", timeout=280)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", CASES)
def test_fits_are_as_in_eager(case, ended):
    if all(f"not installed {case}" in process.out for process in ended):
        pytest.skip("its package is not installed")
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.out[-2000:]}\n{process.err[-3000:]}"
