"""A rank that dies, or stops with an error, makes the others end with an error: nobody waits for ever."""

from __future__ import annotations

import signal

import pytest

from tests.distributed.ranks import start


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dies in a compile", "dies in a step", "refuses to compile"])
def test_the_other_rank_ends_with_an_error(how):
    other, dying = start("tests.distributed.dying_ranks", how, timeout=100)
    if how == "refuses to compile":
        assert dying.code == 1 and "Unsupported" in dying.err
    else:
        assert dying.code == -signal.SIGKILL
    assert other.code not in (0, -signal.SIGKILL) and "trained" not in other.out, other.err[-2000:]
