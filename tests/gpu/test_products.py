"""Products of matrices with what is computed of their results on the GPU: every candidate's values, choices that are measured, and what the library does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynacompile
from dynacompile import pipeline
from dynacompile.build.device import LoadedKernel
from dynacompile.build.store import Store
from dynacompile.build.triton import build_candidates
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.events import ProductDecided, StageFinished
from dynacompile.ir.schedule import Launch
from tests.codegen.product_cases import (
    CASES,
    F8,
    F32,
    Case,
    always,
    gated_and_kept,
    gradient,
    kept,
    plan_on_gpu,
    scaled,
    scaled_fast,
    scaled_rows,
)

pytestmark = pytest.mark.gpu
LARGE = {
    "gelu of a linear layer": Case(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((2048, 512), (512, 3072), (3072,)), turned=(1,)),
    "before and after, odd rows": Case(kept, ((2000, 520), (520, 3080), (3080,)), turned=(1,)),
    "gradient of gelu": Case(gradient, ((4096, 768), (768, 3072), (4096, 3072))),
    "float16 residual": Case(lambda x, w, r: x @ w + r, ((4096, 3072), (3072, 768), (4096, 768)), torch.float16, turned=(1,)),
    "float32 residual": Case(lambda x, w, r: (x @ w).float() + r.float(), ((4096, 3072), (3072, 768), (4096, 768)), turned=(1,)),
    "weights' gradient": Case(lambda g, x: (g @ x).float() * 2, ((1536, 4096), (4096, 1536)), turned=(0,)),
    "gate and values": Case(gated_and_kept, ((2048, 512), (512, 2816), (512, 2816)), turned=(1, 2)),
    "scores of heads": Case(lambda q, k, mask: torch.bmm(q, k.mT) * 0.125 + mask, ((96, 512, 64), (96, 512, 64), (512,))),
    "experts": Case(lambda x, w: F.gelu(torch.bmm(x, w)), ((8, 512, 512), (8, 512, 2048))),
    "one matrix for all": Case(lambda c, x, w: torch.baddbmm(c, x, w.expand(8, 512, 2048)).relu(), ((2048,), (8, 520, 512), (512, 2048))),
    "float32": Case(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), ((1024, 512), (512, 1024), (1024,)), F32, turned=(1,)),
    "tf32": Case(lambda x, w, b: F.gelu(torch.addmm(b, x, w)), ((2048, 512), (512, 3072), (3072,)), F32, turned=(1,), precision="tf32"),
    "tf32, weights as they are": Case(lambda x, w, r: x @ w + r, ((2048, 512), (512, 3072), (2048, 3072)), F32, precision="tf32"),
    "8-bit numbers": Case(scaled, ((2048, 512), (3072, 512), (), (), (3072,)), F8),
    "8-bit numbers, fast sums": Case(scaled_fast, ((2048, 512), (3072, 512), (), (), (3072,)), F8),
    "8-bit numbers, scales of rows and columns": Case(scaled_rows, ((2048, 512), (3072, 512), (2048, 1), (1, 3072)), F8),
}


def env_of(folder: Path) -> Env:
    return Env(CompileConfig(), lambda event: None, "test", -1, folder)


@contextmanager
def float32_as(precision: str) -> Iterator[None]:
    """Under this setting of torch."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch._C._set_fp32_precision_setter("cuda", "matmul", before)


def check(got, wanted, dtype):
    scale = wanted.abs().max().item()
    tolerance = {F8: 1.6e-2, torch.bfloat16: 1.6e-2, torch.float16: 2e-3, F32: 2e-3}[dtype]
    torch.testing.assert_close(got.float(), wanted.float(), rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", [*CASES, *LARGE])
def test_every_candidate_gives_what_eager_gives(name, tmp_path):
    """Twice, the second time on memory that holds something else."""
    case = (CASES | LARGE)[name]
    args = tuple(a.cuda() for a in case.args())
    with float32_as(case.precision):
        plan = plan_on_gpu(case.function, args, choose=always)
    (launch,) = [s for s in plan.steps if isinstance(s, Launch)]
    source = emit_kernel(plan.kernels[launch.kernel], env_of(tmp_path))
    wanted = case.function(*args)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    names = dict(zip(plan.inputs, args, strict=True))
    built = build_candidates({"k": source}, [("k", i) for i in range(len(source.candidates))], env_of(tmp_path), Store(tmp_path / "binaries"))
    assert built
    for kernel in built.values():
        loaded = LoadedKernel(kernel)
        for _ in range(2):
            tensors = [names[b] if b in names else memory(plan.buffers[b]) for b in launch.buffers]
            loaded.launch(tensors)
            torch.cuda.synchronize()
            for output, want in zip(plan.outputs, wanted, strict=True):
                b = plan.buffers[output]
                check(tensors[launch.buffers.index(output)].as_strided(b.size, b.stride), want, case.dtype)
        loaded.close()


def memory(buffer):
    if buffer.dtype.is_floating_point:
        return torch.full((buffer.storage_elements,), float("nan"), dtype=buffer.dtype, device="cuda")
    return torch.empty(buffer.storage_elements, dtype=buffer.dtype, device="cuda")


def compiled(function, mode="default"):
    return dynacompile.compile(function, isolate_recompiles=True, mode=mode, options={"fallback": "none"})


@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs", "max-autotune"])
@pytest.mark.parametrize("name", ["gelu of a linear layer", "float32 residual", "gate and values", "scores of heads", "tf32", "8-bit numbers"])
def test_modes(name, mode):
    case, events = LARGE[name], []
    args = tuple(a.cuda() for a in case.args())
    end = dynacompile.subscribe(events.append)
    with float32_as(case.precision):
        try:
            with torch.no_grad():
                function = compiled(case.function, mode)
                for _ in range(4):
                    got = function(*args)
        finally:
            end()
        wanted = case.function(*args)
    for one, other in zip(got if isinstance(got, tuple) else (got,), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        check(one, other, case.dtype)
    told = [e for e in events if isinstance(e, ProductDecided)]
    assert told and all(e.reason for e in told)
    if mode != "default":
        assert any(e.measured for e in told)
        assert all(e.fused_us < e.apart_us for e in told if e.fused)


def test_another_precision_of_float32_is_another_entry(monkeypatch):
    """What is fused relies on torch's setting, and is not run under another one."""
    monkeypatch.setattr(pipeline, "choice", lambda env: always)
    torch.manual_seed(0)
    x, w, b = torch.randn(16384, 512, device="cuda"), torch.randn(1024, 512, device="cuda"), torch.randn(1024, device="cuda")

    def layer(x, w, b):
        return torch.relu(torch.addmm(b, x, w.t()))

    exact, function, errors = layer(x.double(), w.double(), b.double()), compiled(layer), []
    with torch.no_grad():
        for setting in ("tf32", "ieee", "tf32", "ieee"):
            with float32_as(setting):
                errors.append(((function(x, w, b).double() - exact).norm() / exact.norm()).item())
    assert 1e-4 < errors[0] < 2e-3 and errors[0] == errors[2], "tf32, cut off by the tensor cores"
    assert errors[1] < 1e-6 and errors[3] < 1e-6


@pytest.mark.parametrize("bias", [False, True])
def test_convolutions_of_pixels(bias):
    """With their activation and a residual."""
    torch.manual_seed(0)
    layer = nn.Conv2d(128, 256, 1, bias=bias).cuda().bfloat16().to(memory_format=torch.channels_last)
    x, r = (torch.randn(16, c, 28, 28, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last) for c in (128, 256))
    with torch.no_grad():
        for mode in ("default", "max-autotune-no-cudagraphs"):
            got = compiled(lambda x, r: torch.relu(layer(x) + r), mode)(x, r)
            exact = torch.relu(torch.conv2d(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()) + r.double())
            assert got.is_contiguous(memory_format=torch.channels_last)
            check(got, exact, torch.bfloat16)


class Block(nn.Module):
    def __init__(self, width: int = 768):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("autocast", [True, False])
def test_gradients_of_weights_are_stored_as_float32_by_the_library(autocast):
    """Under autocast."""
    torch.manual_seed(0)
    module = Block().cuda()
    module = module if autocast else module.bfloat16()
    dtype = torch.float32 if autocast else torch.bfloat16
    x = torch.randn(1024, 768, device="cuda", dtype=dtype, requires_grad=True)
    events: list = []

    def step(f):
        with torch.autocast("cuda", torch.bfloat16) if autocast else nullcontext():
            y = f(x)
        return torch.autograd.grad(y.float().square().mean(), [x, *module.parameters()])

    end = dynacompile.subscribe(events.append)
    try:
        got = step(compiled(module))
    finally:
        end()
    for one, other in zip(got, step(module), strict=True):
        check(one, other, torch.bfloat16)
        assert one.dtype == other.dtype and one.stride() == other.stride()
    reasons = [e.reason for e in events if isinstance(e, ProductDecided)]
    assert sum("float32" in r for r in reasons) == (3 if autocast else 0)
    assert all(dict(e.facts)["launches"] < 12 for e in events if isinstance(e, StageFinished) and e.stage == "schedule")


@pytest.mark.parametrize("name", ["relu", "gelu"])
@pytest.mark.parametrize("grad", [False, True])
def test_activations_that_the_library_applies(name, grad):
    """As near to float64 as eager is. Backward needs what comes before gelu, which so stays a kernel of its own there."""
    torch.manual_seed(0)
    activation = torch.relu if name == "relu" else lambda y: F.gelu(y, approximate="tanh")
    one, other = nn.Linear(512, 1024, device="cuda", dtype=torch.bfloat16), nn.Linear(1024, 256, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8, 128, 512, device="cuda", dtype=torch.bfloat16)

    def two(t):
        return activation(F.linear(t, one.weight.to(t.dtype), one.bias.to(t.dtype))), other(activation(one(t))) if t.dtype == torch.bfloat16 else None

    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        with torch.set_grad_enabled(grad):
            function = compiled(lambda t: other(activation(one(t))))
            got = function(x)
            hidden = compiled(lambda t: activation(one(t)))(x)
    finally:
        end()
    exact, eager = two(x.double())[0], two(x)
    assert (hidden.double() - exact).norm() <= 1.2 * (eager[0].double() - exact).norm()
    check(got, eager[1], torch.bfloat16)
    applied = sum("activation" in e.reason for e in events if isinstance(e, ProductDecided))
    assert applied == (0 if grad and name == "gelu" else 2)
    if grad:
        wanted = torch.autograd.grad(other(activation(one(x))).float().square().sum(), [one.weight, other.weight])
        for a, b in zip(torch.autograd.grad(got.float().square().sum(), [one.weight, other.weight]), wanted, strict=True):
            check(a, b, torch.bfloat16)


def test_odd_sizes_and_symbolic_ones():
    events: list = []
    function = dynacompile.compile(lambda x, w, r: torch.relu(x @ w) + r, isolate_recompiles=True, dynamic=True, options={"fallback": "none"})
    end = dynacompile.subscribe(events.append)
    try:
        for rows in (128, 256, 333):
            x, w, r = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in ((rows, 128), (128, 256), (rows, 256)))
            check(function(x, w, r), torch.relu(x @ w) + r, torch.bfloat16)
    finally:
        end()
    assert all(not e.fused and "differ from call to call" in e.reason for e in events if isinstance(e, ProductDecided))


def test_one_buffer_for_descriptors_serves_launches_in_a_row():
    """Two products of one program, each of which writes its descriptors to the same memory."""
    case = CASES["residual"]
    args = tuple(a.cuda() for a in Case(case.function, ((4096, 768), (768, 768), (4096, 768)), turned=(1,)).args())

    def two(x, w, r):
        y = torch.relu(x @ w) * 0.05 + r
        return (y @ w) * 0.05 + r

    plan = plan_on_gpu(two, args, choose=always)
    assert plan.facts()["launches"] == 2 and plan.facts()["externs"] == 0
    descriptors = {s.buffers[-1] for s in plan.steps if isinstance(s, Launch)}
    assert len(descriptors) == 1
    run = dynacompile.compile(two, isolate_recompiles=True, mode="max-autotune-no-cudagraphs", options={"fallback": "none"})
    with torch.no_grad():
        check(run(*args), two(*args), torch.bfloat16)


def test_a_candidate_that_triton_refuses_is_left_out(tmp_path):
    case = CASES["plain operands"]
    plan = plan_on_gpu(case.function, case.args(), choose=always)
    source = emit_kernel(next(iter(plan.kernels.values())), env_of(tmp_path))
    broken = replace(source, text=source.text.replace("tl.dot(", "tl.no_such_function("))
    wanted = [("k", i) for i in range(len(broken.candidates))]
    assert build_candidates({"k": broken}, wanted, env_of(tmp_path), Store(tmp_path / "binaries")) == {}
