"""Accuracy of the emitted functions against float64, lanes against scalars, rounding of bf16 and f16, and memory that must not be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy
import pytest
import torch

from dynacompile.ir.index import constant
from dynacompile.ir.schedule import Kernel
from dynacompile.ops.scalars import SCALARS

from .cpp_running import Library
from .triton_cases import BF16, BOOL, F16, F32, F64, I64, Build

UNARY = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf",
    "floor", "ceil", "trunc", "round", "abs", "neg",
)  # fmt: skip
BINARY = ("pow", "atan2", "min", "max", "fmod", "mod", "floordiv", "truediv")
N = 40003
LIMIT = 2.5  # units in the last place
EDGES = [
    0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1.5, 2.5, -2.5, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 1e-38, 1e-39,
    3e38, -3e38, 88.7, 88.8, 89.0, -87.4, -88.0, -103.0, -104.0, -105.0, 1e-7, -1e-7, 1e-10, 127.9, 128.0, -126.5, -149.0, -150.0, -151.0,
    1e5, 65536.0, 65537.0, 1e10, 0.9, 3.92, 3.95, 4.0, 9.0, 9.1, 16777216.0, 8388609.0, 8388607.5,
]  # fmt: skip


def function(name: str, dtype: torch.dtype, n: int = N) -> Kernel:
    b = Build(f"{name}_{n}", (n,) if n > 1 else ())
    at = b.at(1) if n > 1 else constant(0)
    args = [b.load(p, dtype, at) for p in ("x", "y")[: SCALARS[name].operands]]
    b.store("out", dtype, at, getattr(b, name)(*args))
    return b.kernel()


def rounding(dtype: torch.dtype) -> Kernel:
    b = Build("rounding", (N,))
    b.store("out", dtype, b.at(1), b.load("x", F32, b.at(1)))
    return b.kernel()


def widening(dtype: torch.dtype) -> Kernel:
    b = Build("widening", (65536,))
    b.store("out", F32, b.at(1), b.load("x", dtype, b.at(1)))
    return b.kernel()


def tails(n: int) -> Kernel:
    """Loads of every width that end with their memory."""
    b = Build("tails", (n,))
    flag = b.load("flag", BOOL, b.at(1))
    wide = b.cast(b.load("wide", I64, b.at(1)), F32)
    half = b.load("half", BF16, b.at(1), mask=flag, other=3.0)
    b.store("out", F32, b.at(1), b.add_(half, b.where(flag, b.load("x", F32, b.at(1)), wide)))
    return b.kernel()


KERNELS = {
    **{f"{f}_{str(d)[6:]}": function(f, d) for f in (*UNARY, *BINARY) for d in (F32, F64)},
    **{f"{f}_one": function(f, F32, 1) for f in UNARY},
    **{f"{which.__name__}_{str(d)[6:]}": which(d) for which in (rounding, widening) for d in (BF16, F16)},
    **{f"tails_{n}": tails(n) for n in (1, 7, 15, 17, 31)},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return Library(KERNELS, tmp_path_factory.mktemp("store"))


def samples(dtype: torch.dtype, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (10000,), generator=g).to(torch.int32).view(F32)
    ordinary = torch.cat([torch.randn(10000, generator=g), torch.randn(10000, generator=g) * 30, torch.rand(10000, generator=g)])
    return torch.cat([torch.tensor(EDGES), ordinary, bits])[:N].to(dtype).contiguous()


def ulps(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error in units of the last place of the rounded exact value; infinite where a special value differs."""
    wanted = exact.to(got.dtype)
    special = ~wanted.isfinite() | ~got.isfinite()
    other_zero = (got == 0) & (wanted == 0) & (got.signbit() != wanted.signbit())
    if not torch.equal(got[special].nan_to_num(nan=7.0), wanted[special].nan_to_num(nan=7.0)) or bool(other_zero.any()):
        return float("inf")
    digits, least = (23, -149) if got.dtype == F32 else (52, -1074)
    size = exact.double().abs().clamp(min=1e-300)
    unit = torch.maximum(2.0 ** (torch.log2(size).floor() - digits), torch.tensor(2.0**least if got.dtype == F32 else 2.0**-1022, dtype=F64))
    return float(((got.double() - exact.double()).abs() / unit)[~special].max())


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", UNARY)
def test_unary(library, name, dtype):
    x = samples(dtype, 1)
    out = torch.empty_like(x)
    library(f"{name}_{str(dtype)[6:]}", [x, out])
    exact = SCALARS[name].run(x.double())
    if name == "sigmoid":  # eager's overflows below -709
        exact = torch.where(x < 0, torch.exp(x.double()) / (1 + torch.exp(x.double())), exact)
    assert ulps(out, exact) <= LIMIT


@pytest.mark.parametrize("name", UNARY)
def test_scalars_compute_as_lanes_do(library, name):
    x = torch.tensor(EDGES)
    x = torch.cat([x, torch.zeros(N - len(x))])
    lanes, one = torch.empty_like(x), torch.empty(len(EDGES))
    library(f"{name}_float32", [x, lanes])
    for i in range(len(EDGES)):
        library(f"{name}_one", [x[i:], one[i:]])
    assert torch.equal(one.view(torch.int32)[~one.isnan()], lanes[: len(EDGES)].view(torch.int32)[~one.isnan()])
    assert torch.equal(one.isnan(), lanes[: len(EDGES)].isnan())


@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_binary_accuracy(library, name):
    edges = torch.tensor(EDGES)
    x = torch.cat([edges.repeat_interleave(len(edges)), samples(F32, 2)])[:N].contiguous()
    y = torch.cat([edges.repeat(len(edges)), samples(F32, 3).round()])[:N].contiguous()
    out = torch.empty_like(x)
    library(f"{name}_float32", [x, y, out])
    assert ulps(out, SCALARS[name].run(x.double(), y.double())) <= LIMIT


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", [n for n in BINARY if n not in ("pow", "atan2")])
def test_binary_is_eager(library, name, dtype):
    edges = torch.tensor(EDGES, dtype=dtype)
    x = torch.cat([edges.repeat_interleave(len(edges)), samples(dtype, 2)])[:N].contiguous()
    y = torch.cat([edges.repeat(len(edges)), samples(dtype, 3)])[:N].contiguous()
    out = torch.empty_like(x)
    library(f"{name}_{str(dtype)[6:]}", [x, y, out])
    expected = SCALARS[name].run(x, y)
    if name in ("fmod", "mod"):  # exact for any quotient, which eager's vectors are not
        with numpy.errstate(all="ignore"):
            expected = torch.from_numpy({"fmod": numpy.fmod, "mod": numpy.remainder}[name](x.numpy(), y.numpy()))
    assert torch.equal(out.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_narrow_floats(library, dtype):
    x = samples(F32, 4)
    x[1000:2000] = x[1000:2000].to(dtype).float()
    x[2000:3000] = x[2000:3000] * 1e-5
    out = torch.empty(N, dtype=dtype)
    library(f"rounding_{str(dtype)[6:]}", [x, out])
    assert torch.equal(out.float().nan_to_num(nan=7.0), x.to(dtype).float().nan_to_num(nan=7.0))
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = torch.empty(65536)
    library(f"widening_{str(dtype)[6:]}", [every, wide])
    assert torch.equal(wide.nan_to_num(nan=7.0), every.float().nan_to_num(nan=7.0))


@pytest.mark.parametrize("n", [1, 7, 15, 17, 31])
def test_no_access_beyond_the_end(library, n):
    """Every tensor ends where an unreadable page begins."""
    pages, tensors = [], {}
    for name, dtype in (("flag", BOOL), ("wide", I64), ("half", BF16), ("x", F32), ("out", F32)):
        page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
        tensors[name] = torch.frombuffer(page, dtype=dtype, count=n, offset=mmap.PAGESIZE - n * dtype.itemsize)
        pages.append((page, start))
    tensors["flag"].copy_(torch.arange(n) % 3 == 0)
    for name in ("wide", "half", "x"):
        tensors[name].copy_(torch.arange(n) + 1)
    library(f"tails_{n}", list(tensors.values()))
    expected = torch.where(tensors["flag"], tensors["half"].float() + tensors["x"], 3.0 + tensors["wide"])
    assert torch.equal(tensors["out"], expected)
    for _, start in pages:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 3)
