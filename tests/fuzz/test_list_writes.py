"""A slice of the writes to lists of tensors; `python -m tests.fuzz.list_writes FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.list_writes import check, generate


def test_interpreted_kernels():
    assert sum(check(generate(seed)) for seed in range(40)) > 20, "most programs raise nothing"


@pytest.mark.parametrize("seed", range(1000, 1004))
def test_built_kernels(seed):
    check(generate(seed), native=True)
