"""Strategies of several processes on the GPUs of one host: the cases that tests/distributed runs over gloo, over NCCL."""

from __future__ import annotations

import pytest
import torch

from tests.distributed import backward_ranks, context_ranks, ddp_ranks, fsdp1_ranks, parallel_ranks, pipeline_ranks, placed_ranks, sharded_ranks, square_ranks
from tests.distributed.ranks import Ended, start
from tests.fuzz import placed

MODULES = (ddp_ranks, sharded_ranks, fsdp1_ranks, parallel_ranks, placed_ranks, backward_ranks, pipeline_ranks, context_ranks)
PLACED_SEEDS = (4000, 4040)
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
needs_four = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="needs four GPUs")


@pytest.fixture(scope="module")
def ended() -> dict[str, list[Ended]]:
    return {module.__name__: start(module.__name__, timeout=400, RANKS_DEVICE="cuda") for module in MODULES}


def held(case: str, processes: list[Ended]) -> None:
    for rank, process in enumerate(processes):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"


@needs_two
@pytest.mark.parametrize("module, case", [(module.__name__, case.__name__) for module in MODULES for case in module.CASES])
def test_two_gpus_compute_as_in_eager(module, case, ended):
    held(case, ended[module])


@needs_two
@pytest.mark.parametrize("backend", placed.BACKENDS)
def test_random_programs_over_two_gpus(backend):
    first, last = PLACED_SEEDS
    for process in start("tests.fuzz.placed", str(first), str(last), "--rank", "--backend", backend, timeout=280, RANKS_DEVICE="cuda"):
        assert f"0 of {last - first} programs differ" in process.out, (process.out[-2000:], process.err[-4000:])


@needs_four
def test_four_gpus_compute_as_in_eager():
    ended = start("tests.distributed.square_ranks", ranks=4, RANKS_DEVICE="cuda")
    for case in square_ranks.CASES:
        held(case.__name__, ended)
