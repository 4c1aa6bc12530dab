"""The slice of the random programs, compiled in the background, that runs with the tests; `python -m tests.fuzz.background FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.background import difference
from tests.fuzz.language.programs import WIDER_FROM, generate


@pytest.mark.parametrize("first", [0, WIDER_FROM])
def test_as_in_eager(first):
    for seed in range(first, first + 20):
        program = generate(seed)
        told = difference(program, reference=seed % 10 == 5)
        assert told is None, f"seed {seed}: {told}\n{program.source}"
