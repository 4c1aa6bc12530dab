"""torch.nn.attention.bias: causal biases, which are tensors of a class of torch's own, and questions about the kernels that attention can use."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left

from dynacompile.events import Compiled
from tests.scenarios import check_same

BIAS = causal_lower_right(4, 6)


def square(q, k):
    return F.scaled_dot_product_attention(q, q, q, attn_mask=causal_upper_left(4, 4))


def lower_right(q, k):
    return F.scaled_dot_product_attention(q, k, k, causal_lower_right(q.shape[2], k.shape[2]), scale=0.3)


def given(q, k):
    return F.scaled_dot_product_attention(q, k, k, attn_mask=BIAS)


def its_elements(q, k):
    return BIAS._materialize() + q.sum(), BIAS.seq_len_q, BIAS.variant, BIAS.shape, type(BIAS) is CausalBias


def questions(q, k):
    params = torch.backends.cuda.SDPAParams(q, k, k, None, 0.0, False, False)
    return q + 1, torch.backends.cuda.can_use_flash_attention(params), torch.backends.cuda.can_use_efficient_attention(params)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [square, lower_right, given, its_elements, questions])
def test_one_graph(fn, backend):
    def story(wrap):
        run = wrap(fn)
        for seed in range(2):
            torch.manual_seed(seed)
            yield run(torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8))

    check_same(story, backend=backend, fullgraph=True, rtol=1e-4, atol=1e-5)


def test_lengths_that_vary():
    def story(wrap):
        run = wrap(lower_right)
        for length in (6, 7, 9, 12):
            yield run(torch.ones(1, 2, 4, 8), torch.linspace(0, 1, length * 16).reshape(1, 2, length, 8))

    events = check_same(story, fullgraph=True, rtol=1e-4, atol=1e-5)
    assert sum(isinstance(e, Compiled) for e in events) == 2


def test_gradients():
    def story(wrap):
        q, k = torch.linspace(0, 1, 64).reshape(1, 2, 4, 8).requires_grad_(), torch.linspace(1, 0, 96).reshape(1, 2, 6, 8).requires_grad_()
        wrap(lower_right)(q, k).square().sum().backward()
        yield q.grad, k.grad

    check_same(story, fullgraph=True, rtol=1e-4, atol=1e-5)
