"""A slice of the programs at the edges of dtypes; `python -m tests.fuzz.extremes FIRST LAST` runs any others."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.extremes import KINDS, Program, differences, generate, reachable, wrong


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


@pytest.mark.parametrize("expression", ["x.exp()", "x.cos().log()", "(x + 2048) - 2048", "(x - y).rsqrt()"])
def test_what_roundings_do_not_reach_is_told(expression):
    """Of a chain whose roundings are amplified, an error of a few roundings is right, and one of hundreds is not."""
    program = Program(0, "chains", torch.float32, (64,), False, (expression,))
    x = torch.linspace(0.01, 1.5, 64)
    given = [x, x / 2]
    (exact,) = program.function()(*(t.double() for t in given))

    def told(roundings: float) -> str | None:
        moved = [t.double() * (1 + roundings * torch.finfo(torch.float32).eps) for t in given]
        (got,) = program.function()(*moved)
        got = got.float() if "2048" not in expression else (exact + roundings * 2048 * torch.finfo(torch.float32).eps).float()
        return wrong(got, exact.float(), exact, [exact], program, reachable(got, exact, program, given))

    assert told(1) is None
    assert told(300) is not None
