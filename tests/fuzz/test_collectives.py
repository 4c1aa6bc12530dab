"""A slice of the fuzzer of collectives."""

from __future__ import annotations

import pytest

from tests.fuzz.collectives import both


@pytest.mark.slow
def test_programs_with_collectives_on_two_ranks():
    for rank, ended in enumerate(both(0, 12)):
        assert f"rank {rank}: 0 of 12 programs differ" in ended.out, ended.err[-3000:]
