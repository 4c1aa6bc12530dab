"""A slice of the fuzzer of programs over DTensors."""

from __future__ import annotations

import pytest

from tests.fuzz.placed import both


@pytest.mark.further
def test_programs_over_dtensors_on_two_ranks():
    for rank, ended in enumerate(both(0, 8)):
        assert f"rank {rank}: 0 of 8 programs differ" in ended.out, ended.out + ended.err[-3000:]
