"""A slice of flex_attention by kernels; `python -m tests.fuzz.flexible FIRST LAST` runs any others."""

from __future__ import annotations

import os

from tests.codegen.interpreted import ENVIRONMENT
from tests.forked import TORCH, run
from tests.fuzz.flexible import check, generate


def test_operators_as_they_are_defined():
    events = [event for seed in range(300, 304) for event in check(generate(seed), interpret=False)[0]]
    assert sum(event.ours for event in events) >= 3, "kernels take nearly all programs"


def test_kernels_by_tritons_interpreter():
    done = run(TORCH, "-W", "ignore", "-m", "tests.fuzz.flexible", "400", "402", env=os.environ | ENVIRONMENT, timeout=900)
    assert done.returncode == 0 and "2 programs, 0 differ" in done.stdout, done.stdout + done.stderr


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)
    found = [generate(seed) for seed in range(300)]
    assert len({step for program in found for step in program.steps}) == 20 and len({program.mask for program in found}) == 12
