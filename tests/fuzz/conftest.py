"""Every test leaves torch's settings, which hold for the whole process, as they were: what another test compiles would differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

PRECISIONS = (("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"))
PATCHED = (F, torch, torch.Tensor, torch.nn.Module, torch.nn.Linear, torch.nn.Tanh)
NAMES = ("linear", "relu", "layer_norm", "sin", "tanh", "forward", "__call__", "_call_impl", "__add__", "added")


def settings() -> dict[str, Any]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic algorithms": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "precision of matrix multiplications": torch.get_float32_matmul_precision(),
        "precisions": {place: torch._C._get_fp32_precision_getter(*place) for place in PRECISIONS},
        "benchmark": torch._C._get_cudnn_benchmark(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "weight cache of autocast": torch.is_autocast_cache_enabled(),
        "torch functions": torch._C._is_torch_function_enabled(),
        "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "anomaly mode": torch.is_anomaly_enabled(),
        "functions": {(holder.__name__, name): vars(holder).get(name) for holder in PATCHED for name in NAMES},
    }


@pytest.fixture(autouse=True)
def settings_as_before() -> Iterator[None]:
    before = settings()
    yield
    after = settings()
    changed = {name: (value, after[name]) for name, value in before.items() if value != after[name]}
    assert not changed, f"the test leaves behind: {changed}"
