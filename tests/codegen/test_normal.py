"""The normal distribution function in Triton kernels: gelu and its gradient over every number of 16 bits, and many of 32, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dynacompile.codegen.triton import emit_kernel
from dynacompile.ir.schedule import Launch
from tests.codegen.interpreted import interpret
from tests.codegen.product_cases import ENV, plan_on_gpu

HALVES = (torch.bfloat16, torch.float16)


def gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x)


def by_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def tanh_gradient(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate="tanh")


FUNCTIONS = {"gelu": F.gelu, "gradient": gradient, "by tanh": by_tanh}


def every(dtype: torch.dtype) -> torch.Tensor:
    """Each bit pattern once; of float32 those of the first 16 bits, and numbers between -9 and 9."""
    if dtype == torch.float32:
        return torch.cat([every(torch.bfloat16).float(), torch.linspace(-9, 9, 2**15)])
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def source_of(function, dtype: torch.dtype):
    plan = plan_on_gpu(function, (every(dtype),), choose=None)
    (launch,) = [s for s in plan.steps if isinstance(s, Launch)]
    return emit_kernel(plan.kernels[launch.kernel], ENV)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> dict[tuple[str, torch.dtype], torch.Tensor]:
    folder = tmp_path_factory.mktemp("normal")
    keys = [(name, dtype) for name in FUNCTIONS for dtype in HALVES] + [("gelu", torch.float32), ("gradient", torch.float32)]
    jobs = []
    for name, dtype in keys:
        source = source_of(FUNCTIONS[name], dtype)
        x = every(dtype)
        tensors = [x if p.mode == "in" else torch.full_like(x, 7) for p in source.kernel.params]
        jobs.append((source.text, source.entry, dict(source.candidates[0].blocks), source.grids[0], tensors))
    return {key: got[-1] for key, got in zip(keys, interpret(jobs, folder), strict=True)}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_the_nearest_numbers_but_for_a_hundredth_of_a_step(interpreted, name, dtype):
    """Down to where float32, in which eager computes, can tell 1 + erf from 0; beyond, both are as good as nothing."""
    x, got = every(dtype), interpreted[name, dtype]
    exact = FUNCTIONS[name](x.double())
    assert torch.equal(got.isnan(), exact.isnan())
    known = exact.isfinite()
    assert torch.equal(got[exact.isinf()].double(), exact[exact.isinf()])
    one, wanted = got[known].double(), exact[known]
    step = torch.finfo(dtype).eps * torch.pow(2.0, torch.frexp(wanted).exponent.double() - 1)
    steps = 1.01 if dtype == torch.bfloat16 else 0.51  # Triton's interpreter cuts float32 off to bfloat16, subnormal numbers more than that
    spread = (steps * step).clamp(min=torch.finfo(dtype).smallest_normal) + 3e-7 * x[known].double().abs().clamp(max=8)
    far = (one - wanted).abs() > spread
    assert not far.any(), list(zip(x[known][far].tolist(), one[far].tolist(), wanted[far].tolist(), strict=True))[:9]


@pytest.mark.parametrize("name", ["gelu", "gradient"])
def test_results_of_float32_keep_what_is_small(interpreted, name):
    """Where 1 + erf cancels, eager's are off by a part of the argument. From where it is 0 in float32 on, so are results."""
    x, got = every(torch.float32), interpreted[name, torch.float32]
    exact = FUNCTIONS[name](x.double())
    assert torch.equal(got.isnan(), exact.isnan()) and torch.equal(got[exact.isinf()].double(), exact[exact.isinf()])
    known = exact.isfinite()
    x, got, exact = x[known].double(), got[known].double(), exact[known]
    seen = x > -5.5
    spread = 4e-6 * exact.abs() + (1e-7 if name == "gradient" else 0) + 2e-7 * exact.abs().clamp(min=1e-30)
    far = seen & ((got - exact).abs() > spread)
    assert not far.any(), list(zip(x[far].tolist(), got[far].tolist(), exact[far].tolist(), strict=True))[:9]
    near = seen & (x.abs() < 4) & ((got - exact).abs() > 2e-6 * exact.abs() + 1e-7)
    assert not near.any(), list(zip(x[near].tolist(), got[near].tolist(), exact[near].tolist(), strict=True))[:9]
    if name == "gelu":
        assert (got[x < -5.55] == 0).all() and (got[(x < -5.55)].signbit()).all()


def test_what_kernels_call():
    text = source_of(F.gelu, torch.float32).text
    assert "ndtr_f32(" in text and "erf_f32(" not in text
    text = source_of(torch.erf, torch.float32).text
    assert "erf_f32(" in text and "ndtr" not in text
    text = source_of(by_tanh, torch.bfloat16).text
    assert "sigmoid_f32(" in text and "tanh_f32(" not in text
    text = source_of(tanh_gradient, torch.bfloat16).text
    assert "sigmoid_f32(" not in text and text.count("= tanh_f32(") == 1, "the gradient needs the tanh itself"
    text = source_of(F.gelu, torch.bfloat16).text
    assert "ndtr_narrow(" in text and "erf_f32(" not in text
