"""Every kind of Triton kernel on the GPU: every candidate against the oracle on the same device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dynacompile
from dynacompile.build.device import LoadedKernel, measure_on_device
from dynacompile.build.store import Store
from dynacompile.build.triton import build_forms, build_triton, first_forms
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.events import KernelTuned
from tests.lower.tracing import ENV

from ..codegen import triton_cases as cases

pytestmark = pytest.mark.gpu

LARGE = {
    "chain_large": lambda: cases.chain(1 << 22),
    "chain_bf16_large": lambda: cases.chain(1_000_003, cases.BF16),
    "broadcast_large": lambda: cases.broadcast(513, 771),
    "transpose_large": lambda: cases.transpose(500, 700, 3),
    "gather_large": lambda: cases.gather(4096, 768),
    "softmax_wide": lambda: cases.softmax(257, 8192, cases.BF16),
    "softmax_many": lambda: cases.softmax(5000, 128),
    "layer_norm_large": lambda: cases.layer_norm(1000, 768),
    "columns_large": lambda: cases.columns_sum(5000, 300),
    "many_large": lambda: cases.many(300, 50),
    "whole_large": lambda: cases.whole(60000),
    "sums_of_both_large": lambda: cases.sums_of_both(256, 64, 16384),
}
ALL = {**cases.CASES, **LARGE}


def environment(events: list, mode: str = "default") -> Env:
    return Env(CompileConfig(mode=mode), events.append, "test", -1, Path("unused"))


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("binaries"))


@pytest.fixture(scope="module")
def built(store) -> dict:
    """All candidates of all cases, compiled together."""
    sources = {name: emit_kernel(make(), ENV) for name, make in ALL.items()} | {name: make() for name, make in cases.WALKED.items()}
    wanted = [(name, i) for name, s in sources.items() for i in range(len(s.candidates))]
    return build_forms(first_forms(sources, wanted), environment([]), store)


@pytest.mark.parametrize("name", [*ALL, *cases.WALKED])
def test_numbers(built, name):
    kernel = ALL[name]() if name in ALL else cases.WALKED[name]().kernel
    tensors = cases.storages(kernel, 1, "cuda")
    expected = {k: t.clone() for k, t in tensors.items()}
    cases.oracle(kernel, expected)
    for (other, index), image in built.items():
        if other != name:
            continue
        got = {k: t.clone() for k, t in tensors.items()}
        loaded = LoadedKernel(image)
        loaded.launch([got[p.name] for p in kernel.params])
        torch.cuda.synchronize()
        loaded.close()
        try:
            cases.assert_same(got, expected)
        except AssertionError as error:
            raise AssertionError(f"candidate {index}: {error}") from error


def test_tuning_on_the_device(store):
    events: list = []
    source = emit_kernel(cases.softmax(4096, 1024), ENV)
    build_triton({"k": source}, environment(events, "max-autotune"), store)
    (tuned,) = [e for e in events if isinstance(e, KernelTuned)]
    assert len(tuned.candidates) == len(source.candidates)
    assert all(0 < t < 1e5 for _, t in tuned.candidates), "every candidate agrees with the first"


def test_measuring_leaves_one_launch_in_the_tensors(store):
    kernel = cases.CASES["scalar"]()
    image = build_triton({"k": emit_kernel(kernel, ENV)}, environment([]), store)["k"]
    step = torch.zeros(1, device="cuda")
    assert measure_on_device(image, [step]) > 0
    assert step.item() == 1.0


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_trigonometry_on_the_device(name, store):
    """Every binade, both signs, blocks with and without large arguments."""
    generator = torch.Generator().manual_seed(0)
    anywhere = torch.randint(0, 0x7F800000, (1 << 20,), generator=generator, dtype=torch.int32).view(torch.float32)
    usual = torch.randn(1 << 20, generator=generator) * 5
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 65536.0, 65536.01, 3.4e38] * 128)
    x = torch.cat([anywhere, -anywhere, usual, special])
    b = cases.Build("trigonometry", (x.numel(),))
    value = b.load("x", torch.float32, b.at(1))
    b.store("out", torch.float32, b.at(1), getattr(b, name)(value))
    loaded = LoadedKernel(build_triton({"k": emit_kernel(b.kernel(), ENV)}, environment([]), store)["k"])
    got = torch.empty_like(x, device="cuda")
    loaded.launch([x.cuda(), got])
    got = got.cpu()
    wanted = getattr(x.double(), name)()
    finite = x.isfinite()
    assert got[~finite].isnan().all()
    reference = wanted[finite].abs().float()
    ulp = (torch.nextafter(reference, torch.tensor(float("inf"))) - reference).double()
    assert ((got[finite].double() - wanted[finite]).abs() / ulp).max() <= 2.1
    assert torch.equal(got[x == 0].signbit(), wanted[x == 0].signbit())


@pytest.mark.parametrize("call", ["F.embedding(i, w)", "w[i] * 2", "w.index_select(0, i) + 1", "F.cross_entropy(w.t()[:2], i).expand(2, 8)"])
def test_positions_out_of_range_are_a_device_assertion(call):
    """As in eager; in a process of its own, whose context is lost with it."""
    text = f"""
import torch, torch.nn.functional as F, dynacompile
fn = dynacompile.compile(lambda w, i: {call})
w = torch.randn(4, 8, device="cuda")
print(fn(w, torch.tensor([3, 0], device="cuda")).shape, flush=True)
print(fn(w, torch.tensor([3, 4], device="cuda")).sum().item())
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "torch.Size([2, 8])" in run.stdout and "device-side assert" in run.stderr, run.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_comparison_holds_of_what_is_no_number(dtype):
    """ptxas takes what holds of all numbers for true."""
    made = [torch.Tensor.abs, torch.square, torch.exp, torch.sin, torch.tanh, torch.sigmoid, lambda x: x.abs() + x * x, lambda x: x.relu(), lambda x: -x.abs()]
    bounds = [lambda v: v >= -1, lambda v: v > -1, lambda v: v < 2, lambda v: v <= 2, lambda v: ~(v < -1), lambda v: v >= torch.zeros_like(v), lambda v: v != 3]

    def program(x):
        values = [make(x) for make in made]
        return [torch.where(holds(v), v, 7) for v in values for holds in bounds] + [holds(v) for v in values for holds in bounds]

    x = torch.randn(4096, device="cuda").to(dtype)
    x[::5] = float("nan")
    for precise in (False, True):
        for got, expected in zip(dynacompile.compile(program, options={"precise": precise})(x), program(x), strict=True):
            torch.testing.assert_close(got, expected, equal_nan=True)


def test_dynacompile_is_loaded_beside_a_gpu_as_the_default_device():
    """What it asks torch on being loaded leaves the process its GPU."""
    text = """
import torch
torch.set_default_device("cuda")
import dynacompile
step = dynacompile.compile(lambda x: torch.nn.functional.binary_cross_entropy(torch.dropout(x, 0.3, True).sigmoid(), torch.rand(4, 8)))
x = torch.randn(4, 8, requires_grad=True)
step(x).backward()
print(x.grad.device, torch.cuda.synchronize())
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert run.stdout.strip() == "cuda:0 None", run.stderr[-2000:]
