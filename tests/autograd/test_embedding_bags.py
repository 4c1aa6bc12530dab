"""Embedding bags with all of their options, in every dtype: what torch's rule for fakes says of a call's results is what the call gives."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

import dynacompile


@pytest.mark.parametrize("grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_options(dtype, grad):
    generator = torch.Generator().manual_seed(0)
    indices, offsets = torch.randint(0, 7, (15,), generator=generator), torch.tensor([0, 3, 3, 15])
    for mode, last, padding, weighted, transposed in itertools.product(("sum", "mean", "max"), (False, True), (None, 1), (False, True), (False, True)):
        if weighted and mode != "sum":
            continue

        def bags(weight, scale, mode=mode, last=last, padding=padding):
            return F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=last, padding_idx=padding, per_sample_weights=scale)

        weight = torch.randn(7, 4, generator=generator, dtype=torch.float64).to(dtype)
        weight = (weight.t().contiguous().t() if transposed else weight).requires_grad_(grad)
        scale = torch.rand(15, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad) if weighted else None
        found = []
        for call in (bags, dynacompile.compile(bags, isolate_recompiles=True, fullgraph=True, options={"reference": True, "fallback": "none"})):
            result = call(weight, scale)
            asked = [t for t in (weight, scale) if t is not None and grad]
            found.append([result, *(torch.autograd.grad(result.sum(), asked) if asked else ())])
        torch.testing.assert_close(found[1], found[0])
