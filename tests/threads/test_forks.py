"""Processes that are forked while something is compiled: what another thread was at is nobody's in the child."""

from __future__ import annotations

import os

import pytest

from tests.forked import TORCH, run
from tests.fuzz.devices import NONE

CASES = [
    ("forks_spread_over_a_compile", "first_call"),
    ("forks_spread_over_a_compile", "break_and_resume"),
    ("forks_spread_over_a_compile", "ahead_of_time"),
    ("a_fork_while_a_backend_runs_on_another_thread",),
    ("a_fork_while_a_compile_imports",),
    ("a_backend_forks",),
    ("a_backward_whose_kernels_were_being_built_at_the_fork",),
]


@pytest.mark.parametrize("words", CASES, ids="-".join)
def test_forks(words):
    done = run(TORCH, "-m", "tests.threads.forking", *words, env=os.environ | NONE)
    assert done.returncode == 0, done.stderr[-4000:]
