"""Texts of numbers that a graph computes: what raises for some of them, or for all, is left to Python, as an except clause around it may take that."""

from __future__ import annotations

import math

import pytest
import torch

from tests.checking import check

FOR_SOME = ['"%d" % v', '"%c" % i', '"%d" % t.sum()', 'f"{i:c}"', 'format(i, "c")', '"%*d" % (i, 3)', '"{:{}}".format(v, i)']
FOR_ALL = [
    *('"{:d}".format(v)', 'f"{v:d}"', 'f"{v:zork}"', 'f"{i:s}"', 'f"{i:.3d}"', '"%x" % v', 'f"{t.sum():d}"', 'f"{t:.3f}"', '"%d" % t', 'format(v, "d")'),
    *('f"{t.sum().long():zz}"', 'f"{v:1000000000000000000000}"', '"%s %s" % v', '"{0[1]}".format(v)', 'f"{(t > 0).any():s}"', '"%q" % v'),
]
FOR_NONE = [
    *('"Epoch %d loss %.4f" % (3, v)', 'f"{v:>12.3e} {i:08b} {v!r:^20}"', '"%5.1f|%-8s|%+d" % (v, i, i)', 'f"{i:%} {v:g} {v:n}"', '"{:>{w}}".format(v, w=12)'),
    *('f"{t.sum().long():d} {t.mean():.2f} {(t > 0).any():d}"', '"%x %r %.1f" % (i, t, t.mean())', '"{0.real} {1}".format(v, t)', 'f"{t:}"'),
]


def program(text):
    names = {}
    lines = f"v = t.mean().item(); i = t.sum().long().item()\n  try: s = {text}\n  except (ValueError, TypeError, OverflowError) as e: s = f'caught {{e}}'"
    exec(f"def shown(t):\n  {lines}\n  return s, t * 2", names)
    return names["shown"]


@pytest.mark.parametrize("number", [1.5, 16.0, math.nan, -math.inf])
@pytest.mark.parametrize("text,left", [*((t, True) for t in FOR_SOME + FOR_ALL), *((t, False) for t in FOR_NONE)])
def test_is_as_in_eager(text, left, number):
    check(program(text), torch.full((3, 4), number), graphs=None, breaks=int(left), recompiles=None, options={"backend": "eager"})


def rated(t, epoch, rate):
    return t * rate, "Epoch %d rate %.4f" % (epoch, rate)  # noqa: UP031


def test_an_int_beside_a_float_that_varies():
    t = torch.ones(2)
    for epoch, rate in ((1, 0.5), (2, 0.25), (3, 0.125)):
        check(rated, t, epoch, rate, options={"backend": "eager"})
