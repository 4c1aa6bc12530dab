"""Scales of attention that are negative, zero, or numbers that a dtype has rounded: as in eager, by torch's operator, too."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

import dynacompile

ROWS = 6


def operands(grad):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn((2, 4, ROWS, 16), generator=generator).requires_grad_(grad) for _ in range(3)]


def causal_negative(q, k, v):
    return (q @ k.mT * -0.25).masked_fill(torch.ones(ROWS, ROWS).triu(1) > 0, -math.inf).softmax(-1) @ v


def filled_and_negated(q, k, v):
    return ((q @ k.mT).masked_fill(torch.ones(ROWS, ROWS).triu(1) > 0, 1e9) / -4).softmax(-1) @ v


def steep_and_negative(q, k, v):
    return (q @ k.mT * -8.0).softmax(-1) @ v


def operator_negative(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(ROWS, ROWS, dtype=torch.bool).tril(), scale=-0.25)


def operator_of_nothing(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(ROWS, ROWS, dtype=torch.bool).tril(), scale=0.0)


def rounded_number(q, k, v):
    return (q @ k.mT * torch.tensor(0.3, dtype=torch.bfloat16)).softmax(-1) @ v


def rounded_divisor(q, k, v):
    return (q @ k.mT / torch.full((), 3.3, dtype=torch.float16)).softmax(-1) @ v


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("form", [
    causal_negative, filled_and_negated, steep_and_negative, operator_negative, operator_of_nothing, rounded_number, rounded_divisor,
])  # fmt: skip
def test_scales_that_are_not_positive_and_such_as_a_dtype_has_rounded(form, grad):
    outcomes = []
    for call in (form, dynacompile.compile(form, backend="aot_eager", isolate_recompiles=True, options={"attention_scores": 1})):
        leaves = operands(grad)
        made = call(*leaves)
        outcomes.append([made, *(torch.autograd.grad(made.sin().sum(), leaves) if grad else ())])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=1e-4, atol=2e-5)
