"""What is stored once for a group of lanes, in place, from what was there: each of the group's vectors would do it again (statistics of batch norms)."""

from __future__ import annotations

import copy

import pytest
import torch

import dynacompile

ALONE = {"dynamic": False, "fullgraph": True, "isolate_recompiles": True, "fallback": "none"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("batch", [2, 16, 64])
def test_batch_norms_update_their_statistics_once(batch, side, dtype):
    torch.manual_seed(0)
    eager = torch.nn.BatchNorm2d(32).to(dtype)
    ours = copy.deepcopy(eager)
    compiled = dynacompile.compile(lambda x: torch.relu(ours(x)), **ALONE)
    x = torch.randn(batch, 32, side, side).to(dtype) + 1
    for step in range(2):
        expected, found = torch.relu(eager(x + step)), compiled(x + step)
        torch.testing.assert_close(found, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(
            ours.state_dict()[name], tensor, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2 if dtype == torch.bfloat16 else 1e-6
        )


@pytest.mark.parametrize("side", [3, 4, 5, 8])
def test_sums_and_extremes_enter_what_is_there_once(side):
    """Cheap values, which a store for each lane would compute from memory, and several that need each other's old values."""

    def step(x, total, peak, both, turned):
        s, m = x.sum((0, 2, 3)), x.amax((0, 2, 3))
        both.copy_(total + peak * m)
        total.add_(s)
        peak.mul_(2).add_(m)
        turned.sub_(s)
        return (x - s[:, None, None] / 64).relu()

    torch.manual_seed(0)
    x = torch.randn(64, 16, side, side)
    eager = [torch.randn(16) for _ in range(4)]
    ours = [tensor.clone() for tensor in eager]
    compiled = dynacompile.compile(step, **ALONE)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, *ours), step(x, *eager), rtol=1e-4, atol=1e-4)
    for found, expected in zip(ours, eager, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
