"""A slice of the fuzzer of strategies."""

from __future__ import annotations

import pytest

from tests.fuzz.strategies import both


@pytest.mark.further
def test_fits_on_two_ranks():
    for rank, ended in enumerate(both(0, 2)):
        assert f"rank {rank}: 0 of 2 programs differ" in ended.out, ended.err[-3000:]
