"""A slice of the writes between forward and backward; `python -m tests.fuzz.writes FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

import dynacompile
from tests.fuzz.derivatives import generate
from tests.fuzz.writes import differences


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_backward_passes_after_writes(first):
    dynacompile.reset()
    for seed in range(first, first + 10):
        program = generate(seed)
        assert not [d for d in differences(program, seed, "aot_eager") if not d.known], f"seed {seed}\n{program.source}"
