"""A number that is read from a tensor, compared with numbers of other kinds, and with what is no number."""

from __future__ import annotations

import decimal
import enum
import fractions

import numpy as np
import pytest
import torch

from tests.checking import check


class Twelve(enum.IntEnum):
    WHOLE = 12


class OwnFloat(float):
    pass


KINDS = {
    **{f"numpy {cls.__name__}": cls(12) for cls in (np.float64, np.float32, np.int64, np.bool_)},
    **{type(other).__name__: other for other in (12 + 0j, Twelve.WHOLE, OwnFloat(12), fractions.Fraction(12), decimal.Decimal(12), True, 12, 12.0)},
    **{repr(other): other for other in ("12", b"12", None, (12,), frozenset([12]), torch.float32, float, range(12), ...)},
}


@pytest.mark.parametrize("other", KINDS.values(), ids=KINDS)
def test_equality(other):
    def compared(t):
        number, whole, flag = t.sum().item(), t.sum().long().item(), (t.sum() > 0).item()
        return [n == other for n in (number, whole, flag)], [other != n for n in (number, whole, flag)], number in (1, other), t * 2

    check(compared, torch.ones(3, 4), graphs=None, breaks=None, recompiles=None, options={"backend": "eager"})


def beside_truth(t):
    number = t.mean().item()
    return (
        (t.sum() > 0).item().real,
        number.real,
        number / True,
        number + False,
        True - number,
        number * True,
        number**True,
        round(number, True),
        max(number, True),
    )


def states(t):
    generator = torch.Generator()
    state = torch.get_rng_state()
    return (state == state).all(), state == True, generator.get_state() == 3, generator == 3, t + 1  # noqa: E712


@pytest.mark.parametrize("program", [beside_truth, states])
def test_programs(program):
    check(program, torch.full((3,), 2.5), graphs=None, breaks=None, recompiles=None, options={"backend": "eager"})
