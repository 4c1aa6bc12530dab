"""Triton kernels with symbolic sizes on the GPU: one entry for all shapes, with eager's outputs and gradients at each."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from scripts.workload_models import Block
from tests.programs.test_p03_modules import seeded

pytestmark = pytest.mark.gpu
PLANES = [(64, 48), (1021, 257), (1000, 768), (2, 1031)]
BATCHES = [(64,), (127,), (1000,), (2,)]
TEXTS = [(4, 32), (3, 17), (2, 128), (5, 61)]


def plane(rows, columns):
    return (normal(rows, columns),)


def normal(*size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).cuda().requires_grad_()


def mlp():
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10))


def norm(x, weight, bias):
    return F.layer_norm(x, x.shape[1:], weight, bias)


def loss(x):
    return F.cross_entropy(x, torch.arange(x.shape[0], device=x.device) % x.shape[1])


PROGRAMS = {
    "pointwise": (lambda x: (x * 2 + 1).sin() * torch.sigmoid(x), plane, PLANES),
    "transposed": (lambda x: (x.t() * 2).contiguous() + x.t(), plane, PLANES),
    "softmax": (lambda x: F.softmax(x * 0.5, -1), plane, PLANES),
    "sums": (lambda x: (x.sum(0), x.sum(1), x.sum()), plane, PLANES),
    "variances": (lambda x: (x.var(0), x.var(1)), plane, PLANES),
    "concatenation": (lambda x: torch.cat([x, x * 2], 1), plane, PLANES),
    "layer norm": (norm, lambda n, m: (normal(n, m), normal(m), normal(m)), PLANES),
    "layer norm, sums of columns beside rows": (norm, lambda n, m: (normal(n, m), normal(m), normal(m)), [(8192, 64), (8191, 63), (67, 200), (8192, 64)]),
    "cross entropy": (loss, lambda n, m: (normal(n, 40),), PLANES),
    "mlp": (mlp, lambda n: (normal(n, 32),), BATCHES),
    "gpt block": (lambda: Block(64, 2), lambda b, t: (normal(b, t, 64),), TEXTS),
}
MODULES = ("mlp", "gpt block")


def results(fn, call, args):
    """Outputs and gradients of all inputs and parameters."""
    outputs = call(*args)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [*args, *(fn.parameters() if isinstance(fn, nn.Module) else ())]
    return [o.detach() for o in outputs], torch.autograd.grad([o.cos().mean() for o in outputs], wanted)


def check(name, entries, shapes=None, atol=5e-4, **options):
    fn, inputs, known = PROGRAMS[name]
    if name in MODULES:
        fn = seeded(fn).cuda()
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(fn, isolate_recompiles=True, **options)
        for shape in shapes or known:
            args = inputs(*shape)
            torch.testing.assert_close(results(fn, compiled, args), results(fn, fn, args), rtol=2e-3, atol=atol)
    finally:
        end()
    assert not [e for e in events if isinstance(e, (FrameSkipped, GraphBroke))]
    assert sum(isinstance(e, Compiled) for e in events) == entries
    return events


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_entry_for_all_shapes(name):
    check(name, 1, dynamic=True)


@pytest.mark.parametrize("name", ["pointwise", "softmax", "sums", "variances", "concatenation", "layer norm"])
@pytest.mark.parametrize("shapes", [[(64, 48), (61, 47), (128, 256), (48, 31), (64, 48)], [(61, 47), (64, 48), (31, 256), (4096, 1024), (61, 47)]])
def test_both_forms_of_kernels(name, shapes):
    """Sizes that are multiples of 16 and others, in both orders."""
    check(name, 1, shapes, dynamic=True)


@pytest.mark.parametrize("name", ["softmax", "mlp", "gpt block"])
def test_what_has_changed_is_symbolic(name):
    check(name, 2)


@pytest.mark.parametrize("name", ["softmax", "layer norm", "sums"])
def test_tuned(name):
    check(name, 1, dynamic=True, mode="max-autotune-no-cudagraphs")


@pytest.mark.parametrize("name", ["softmax", "mlp"])
def test_cuda_graphs_have_one_for_each_shape(name):
    check(name, 1, dynamic=True, mode="reduce-overhead")


@pytest.mark.parametrize("name", ["pointwise", "softmax", "sums", "mlp", "concatenation"])
def test_one(name):
    """Size 1 in the entry for others."""
    shapes = [(64,), (1,), (7,)] if name == "mlp" else [(64, 48), (1, 31), (7, 1), (1, 1)]
    check(name, 1, shapes, dynamic=True, options={"specialize_zero_one": False})
