"""Torch's own samples of its modules, forward and backward, called twice and then with twice as many rows: results, gradients, buffers and written inputs."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

import dynacompile

CHUNKS = 12
FEW = 1
"""Samples of each module that the short test takes."""
NAMES = ("results", "gradients of inputs", "gradients of parameters", "buffers", "inputs")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_modules(chunk):
    assert different(chunk, FEW) == {}


@pytest.mark.further
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_all_samples_of_modules(chunk):
    assert different(chunk, None) == {}


def different(chunk, count):
    """By module and sample: what differs from eager."""
    found = {}
    for info in module_db[chunk::CHUNKS]:
        for training in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                samples = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
                for sample in samples[:count]:
                    if sample.forward_input is not None and (unlike := compared(info.module_cls, sample, training)):
                        found[info.name, training, sample.desc] = unlike
    return found


def compared(cls, sample, training):
    """How the sample's module differs once it is compiled; empty where it doesn't."""
    torch.manual_seed(0)
    module = cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
    compiled = copy.deepcopy(module)
    run = dynacompile.compile(compiled, options={"reference": True})
    given = (sample.forward_input.args, sample.forward_input.kwargs)
    for arguments in (given, given, tree_map(doubled, given)):
        want, got = step(module, module, *arguments), step(run, compiled, *arguments)
        if isinstance(want, str) or isinstance(got, str):
            if want != got:
                return f"{got}, eager: {want}"
            continue
        for name, expected, result in zip(NAMES, want, got, strict=True):
            for a, b in zip(expected, result, strict=True):
                try:
                    torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-4, equal_nan=True, check_stride=name == "results")
                except AssertionError as error:
                    return f"{name}: {error}"
    return ""


def doubled(value):
    return torch.cat([value.detach()] * 2).requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) and value.dim() > 1 else value


def step(call, module, args, kwargs):
    """(results, gradients of inputs and of parameters, buffers, inputs), or the kind of the error."""
    args, kwargs = tree_map(lambda v: v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else copy.deepcopy(v), (args, kwargs))
    torch.manual_seed(1)
    module.zero_grad()
    try:
        results = tensors(call(*args, **kwargs))
        weighted = [(r.double() * torch.arange(1.0, r.numel() + 1).view(r.shape).cos()).sum() for r in results if r.requires_grad]
        if weighted:
            torch.stack(weighted).sum().backward()
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__
    inputs = tensors((args, kwargs))
    return results, [t.grad for t in inputs if t.requires_grad], [p.grad for p in module.parameters()], list(module.buffers()), inputs


def tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]
