"""Small programs over DTensors in two processes of gloo: results, placements, shared memory, gradients and writes are eager's."""

from __future__ import annotations

import pytest

from tests.asked import asked
from tests.distributed import backward_ranks, placed_ranks
from tests.distributed.ranks import Ended, start

MODULES = {case.__name__: module.__name__ for module in (placed_ranks, backward_ranks) for case in module.CASES}


@pytest.fixture(scope="module")
def ended(request) -> dict[str, list[Ended]]:
    cases = [case["case"] for case in asked(request, "test_both_ranks_compute_as_in_eager")]
    return {module: start(module, *(case for case in cases if MODULES[case] == module)) for module in {MODULES[case] for case in cases}}


@pytest.mark.slow
@pytest.mark.parametrize("case", MODULES)
def test_both_ranks_compute_as_in_eager(case, ended):
    for rank, process in enumerate(ended[MODULES[case]]):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"
