"""A slice of what jumps behind rounded numbers; `python -m tests.fuzz.jumps FIRST LAST` runs any others."""

from __future__ import annotations

from tests.fuzz.jumps import JUMPS, check, generate


def test_interpreted_kernels():
    programs = [generate(seed) for seed in range(120)]
    for program in programs:
        check(program)
    assert len({program.jump for program in programs}) > len(JUMPS) * 0.8


def test_chains_of_rounded_numbers():
    for seed in range(100_000, 100_030):
        check(generate(seed))


def test_built_kernels():
    for seed in (*range(200, 203), *range(100_000, 100_002)):
        check(generate(seed), reference=False)
