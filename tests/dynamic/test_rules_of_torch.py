"""What symbols elsewhere in a program may not change: operations of static sizes run by the operators that eager runs."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import dynacompile
from dynacompile.ops import composites
from dynacompile.private import of_torch


@pytest.fixture
def interpolation_in_float32():
    """On CPUs, too, as autocast has it on GPUs."""
    library = torch.library.Library("aten", "IMPL")

    def widened(x, *args):
        with of_torch.ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return torch.ops.aten.upsample_linear1d.default(x.float(), *args)

    library.impl("upsample_linear1d", widened, "AutocastCPU")
    yield
    library._destroy()


class Counted(nn.Module):
    """Its count of calls is a symbol."""

    def __init__(self):
        super().__init__()
        self.seen = 0
        self.layer = nn.Conv1d(8, 8, 1)

    def forward(self, x):
        self.seen = self.seen + 1
        y = self.layer(x)
        return F.interpolate(y, y.shape[2:], mode="linear"), y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_autocast_reaches_operators_within_composite_ones(interpolation_in_float32, backend):
    module = Counted()
    compiled = dynacompile.compile(module, backend=backend)
    x = torch.randn(2, 8, 20)
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            wide, narrow = compiled(x)
        assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
        wide.sum().backward()
        assert module.layer.weight.grad.dtype == torch.float32


class Passing(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [nullcontext, Passing])
def test_composite_functions_are_chosen_where_a_mode_has_named_all_arguments(mode):
    def loss(x, t):
        with mode():
            return F.cross_entropy(x, t.softmax(1), label_smoothing=0.1)

    graphs = []
    compiled = dynacompile.compile(loss, backend=lambda graph, inputs: graphs.append(graph) or graph)
    for n in (4, 5, 6):
        x, t = torch.randn(2, 3, n), torch.randn(2, 3, n)
        dynacompile.mark_dynamic(x, 2)
        dynacompile.mark_dynamic(t, 2)
        torch.testing.assert_close(compiled(x, t), loss(x, t))
    assert len(graphs) == 1
    assert composites.cross_entropy in {node.target for node in graphs[0].graph.nodes}


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss, lambda x, y: F.mse_loss(x[:, 0], y.float())])
def test_a_size_that_has_to_equal_a_constant_violates_its_mark(loss):
    x, y = torch.randn(8, 3), torch.randint(0, 3, (8,))
    dynacompile.mark_dynamic(x, 0)
    with pytest.raises(dynacompile.errors.MarkViolated, match="right only where it is 8"):
        dynacompile.compile(loss, backend="eager")(x, y)
