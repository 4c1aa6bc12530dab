"""Whether CPUs have a kernel for types is asked of operations with small operands, whatever sizes the program has."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.capture import missing_kernels
from tests.scenarios import attempt

LARGE = missing_kernels.MOST + 1
REFUSED = (
    "torch.softmax(x, 0, dtype=torch.int64)",
    "F.log_softmax(x, 0, dtype=torch.int32)",
    "torch.logcumsumexp(x.long(), 0)",
    "torch.randn(x.shape[0] * 40, dtype=torch.int64)",
    "torch.rand(3_000_000, dtype=torch.int32)",
    "x.to(torch.float8_e4m3fn) + x.to(torch.float8_e4m3fn)",
    "torch.logcumsumexp(x[x >= 0].long(), 0)",
)


@pytest.mark.parametrize("size", [5, LARGE])
@pytest.mark.parametrize("call", REFUSED)
def test_refused_at_every_size(call, size):
    scope = {"torch": torch, "F": F}
    exec(f"def caught(x):\n try: return {call}\n except RuntimeError as error: return str(error), x + 1", scope)
    x = torch.zeros(size)
    dynacompile.reset()
    want, have = (attempt(function, x) for function in (scope["caught"], dynacompile.compile(scope["caught"], backend="eager")))
    assert isinstance(want[0], str)
    assert str(have) == str(want)


def test_large_operands_are_not_made(monkeypatch):
    """Sizes are small ones where operands or results are large, and equal sizes are equal."""
    asked = []
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda sizes, **how: asked.append(tuple(sizes)) or zeros(sizes, **how))
    a, b = torch.ones(500, 300, dtype=torch.bfloat16), torch.ones(300, 400, dtype=torch.bfloat16)
    assert missing_kernels.refused("call_function", torch.matmul, (a, b), {}) is None
    assert asked == [(11, 9), (9, 10)]
