"""Operations that raise by the values of their operands raise also where nothing uses what they give."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.lower import lower
from dynacompile.lower.prune import prune
from tests.lower.tracing import ENV, trace
from tests.scenarios import attempt

DIVISIONS = """
j // k; j % k; torch.fmod(j, k); torch.div(j, k, rounding_mode="trunc"); torch.remainder(j, k); 7 // k; 7 % k; j // 0; j % 0
"""
OTHERS = """
torch.linalg.eigh(m); torch.linalg.svdvals(m); torch.linalg.eig(m); torch.linalg.pinv(m); torch.linalg.matrix_rank(m); torch.cholesky_inverse(x * 0)
F.multi_margin_loss(x, i); F.multilabel_margin_loss(x, i[None].expand(3, 3)); F.embedding_bag(i[None], x); x.index_reduce(0, i, x, "amax")
F.max_unpool2d(x[None, None], i.expand(3, 3)[None, None] + 50, 1); torch.searchsorted(x, x, sorter=i.expand(3, 3))
x.masked_scatter(x >= 0, x[0]); torch.segment_reduce(x, "sum", lengths=i - 9); x.sort(7); x.argsort(7)
F.gumbel_softmax(x, dim=7); x.index_reduce(7, i, x, "amax")
"""


@pytest.mark.parametrize("call", [call.strip() for line in (DIVISIONS + OTHERS).strip().splitlines() for call in line.split(";") if call.strip()])
def test_raises_unused(call):
    scope = {"torch": torch, "F": F}
    exec(f"def unused(x, j, k, m, i):\n  r = {call}\n  return x + 1", scope)
    given = torch.rand(3, 3), torch.tensor([[4, -3, 2]]), torch.tensor([[2, 0, 1]]), torch.full((3, 3), float("nan")), torch.tensor([0, 3, 5])
    want = attempt(scope["unused"], *given)
    have = attempt(dynacompile.compile(scope["unused"], options={"reference": True}), *given)
    assert isinstance(want, Exception)
    assert type(have) is type(want), have


def test_divisions_that_can_not_raise_are_dropped():
    """Of floats, and by numbers other than zero."""

    def unused(x, j):
        torch.floor_divide(x, x), torch.remainder(x, x), torch.floor_divide(j, 3), torch.remainder(j, 3)
        return x + 1

    program = lower(trace(unused, [torch.zeros(3), torch.zeros(3, dtype=torch.int64)]), ENV)
    assert len(prune(program).steps) == 1
