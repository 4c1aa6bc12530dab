"""A slice of the fuzzer of operands' types, and points that it has found."""

import pytest

from tests.fuzz.operand_types import point, unlike

REFERENCE = {"options": {"reference": True}}


@pytest.mark.parametrize("first", [*range(0, 400, 100), 500_000, 1_000_000, 2_000_000])
def test_slice(first):
    assert {seed: found for seed in range(first, first + 100) if (found := unlike(point(seed), REFERENCE))} == {}
