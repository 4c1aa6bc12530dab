"""What jumps behind rounded numbers of half precision, on a GPU: `python -m tests.fuzz.jumps FIRST LAST --native --device cuda` runs any others."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.jumps import check, generate

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_kernels(first):
    for seed in range(first, first + 25):
        check(generate(seed), reference=False, device="cuda")
