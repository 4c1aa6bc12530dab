"""A slice of what jumps behind rounded numbers; `python -m tests.fuzz.jumps FIRST LAST` runs any others."""

from __future__ import annotations

from tests.fuzz.jumps import JUMPS, check, generate


def test_interpreted_kernels():
    programs = [generate(seed) for seed in range(120)]
    for program in programs:
        check(program)
    assert len({program.jump for program in programs}) > len(JUMPS) * 0.8


def test_built_kernels():
    for seed in range(200, 204):
        check(generate(seed), reference=False)
