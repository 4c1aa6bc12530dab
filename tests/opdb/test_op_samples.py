"""A sample of every third of torch's ops through capture, and of every sixth through the whole compiler with gradients.

What scripts/op_samples.py runs in full."""

import argparse
import warnings

import pytest
import torch
from torch.testing._internal import common_methods_invocations

from scripts.op_trials import names, seedless, tried

OPS = names()
PARTS = 3
BREAKS = {
    "data-dependent-shape": (
        *("allclose", "argwhere", "combinations", "corrcoef", "cov", "equal", "linalg.lstsq", "linalg.lstsq.grad_oriented", "masked_select", "narrow"),
        *("nn.functional.ctc_loss", "nn.functional.gaussian_nll_loss", "nonzero", "tensor_split", "unique", "unique_consecutive"),
    ),
    "to-python": ("item",),
    "tensor-attribute": ("as_strided", "as_strided.partial_views", "resize_", "resize_as_", "to_sparse"),
    "unknown-object": ("sparse.mm.reduce", "sparse.sampled_addmm"),
    "logging": ("nn.functional.linear_cross_entropy.chunked", "nn.functional.linear_cross_entropy.chunked_none"),
}
"""Ops whose sample may not be captured whole, by the reason."""
DIFFERENT = {
    "unsafe_chunk": "its results share the input's memory in eager, without being views",
    "unsafe_split": "its results share the input's memory in eager, without being views",
    **dict.fromkeys(
        ("native_layer_norm", "nn.functional.layer_norm", "_native_batch_norm_legit"),
        "the gradient of the weight of one element is exactly 0; eager's is 1e-4, by rounding",
    ),
    "linalg.householder_product": "its result of no elements does not require gradients",
    "nn.functional.max_unpool2d": "fake tensors do not know that its result is channels-last",
    "nn.functional.max_unpool2d.grad": "fake tensors do not know that its result is channels-last",
}


@pytest.fixture(autouse=True)
def unseeded(monkeypatch):
    """op_db seeds random ops by itself, which is no part of them."""
    monkeypatch.setattr(common_methods_invocations, "wrapper_set_seed", seedless)


def told(name, backend, grad):
    """What became of the middle sample of an op."""
    op = OPS[name]
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=grad and op.supports_autograd))
        if not samples:
            return "ok", ""
        return tried(op, op.op, "function", samples[len(samples) // 2], argparse.Namespace(backend=backend, grad=grad, rival=False))


def is_expected(name, status, detail):
    if status in ("ok", "eager-raises"):
        return True
    if status == "break":
        return any(f"[{code}]" in detail and name in ops for code, ops in BREAKS.items())
    return name in DIFFERENT


@pytest.mark.parametrize("part", range(PARTS))
def test_captured_whole(part):
    results = {name: told(name, "eager", False) for name in supported()[part :: 3 * PARTS]}
    assert {name: result for name, result in results.items() if not is_expected(name, *result)} == {}


@pytest.mark.parametrize("part", range(PARTS))
def test_values_and_gradients(part):
    results = {name: told(name, "reference", True) for name in supported()[part :: 6 * PARTS]}
    assert {name: result for name, result in results.items() if result[0] not in ("ok", "eager-raises", "break") and name not in DIFFERENT} == {}


def supported():
    return [name for name, op in OPS.items() if torch.float32 in op.supported_dtypes("cpu")]
