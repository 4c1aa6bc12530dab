"""Interpolation on the GPU: eager's results and gradients, without calls of ATen."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.ir.loops import Extern
from tests.gpu.test_loops import modules

pytestmark = pytest.mark.gpu
MODES = {"nearest": 2, "nearest-exact": 2, "linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("factor", [2.0, 0.5, 1.7])
@pytest.mark.parametrize("mode", MODES)
def test_results_and_gradients(mode, factor, form):
    dims = MODES[mode]
    if form is torch.channels_last and dims != 2:
        pytest.skip("a format of images")
    x = torch.randn(4, 16, *(17, 20, 23)[:dims], device="cuda").to(memory_format=form).requires_grad_()

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x.sin(), scale_factor=factor, mode=mode).cos()

    compiled = dynacompile.compile(program, isolate_recompiles=True)
    wanted = program(x)
    tangent = torch.randn_like(wanted)
    built, got = modules(lambda: compiled(x))
    more, (grad,) = modules(lambda: torch.autograd.grad(got, x, tangent))
    assert built and more and not any(isinstance(s, Extern) for m in built + more for s in m.schedule.steps)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted, x, tangent)[0], rtol=1e-3, atol=1e-3)
    assert got.stride() == wanted.stride()
