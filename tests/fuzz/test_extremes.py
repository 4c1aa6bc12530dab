"""A slice of the programs at the edges of dtypes; `python -m tests.fuzz.extremes FIRST LAST` runs any others."""

from __future__ import annotations

import pytest

from tests.fuzz.extremes import KINDS, differences, generate


@pytest.mark.parametrize("seed", range(3000, 3000 + len(KINDS)))
def test_built_kernels(seed):
    program = generate(seed)
    told = list(differences(program))
    assert not told, "\n".join([program.source(), *told])


@pytest.mark.parametrize("seed", range(3100, 3100 + len(KINDS)))
def test_interpreted(seed):
    program = generate(seed)
    told = list(differences(program, reference=True))
    assert not told, "\n".join([program.source(), *told])


def test_programs_are_what_they_were():
    assert generate(7).source() == generate(7).source()
    assert len({generate(seed).source() for seed in range(20)}) == 20
