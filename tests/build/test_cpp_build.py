"""Building C++ kernels: the store, the compiler's errors, the one OpenMP runtime."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dynacompile.build import build, cpp
from dynacompile.build.cpp import HEADERS, compile_unit, openmp_library, torchs_runtime, unit_key, units
from dynacompile.build.processor import measure_here
from dynacompile.codegen import generate
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked, KernelTuned
from dynacompile.ir.captured import Site
from dynacompile.ir.index import var
from dynacompile.ir.loops import Access, Axis, Buffer, Nest, Op, Origin
from dynacompile.ir.schedule import Allocate, CpuKernel, Kernel, Launch, Param, ReferenceKernel, Schedule

N = 100_000


def program(name: str = "double", line: int = 3, kernels: int = 1) -> Schedule:
    """out = x + x, `kernels` times under different names."""
    i = var("x0", N)
    f32 = torch.float32
    made = {}
    for k in range(kernels):
        body = (Op("load", (), f32, Access("x", i)), Op("add", (0, 0), f32), Op("store", (1,), f32, Access("out", i + 0 * k)))
        nest = Nest(name, (Axis(i.terms[0][0][0], "x"),), body, (Origin("add", Site("model.py", line, "forward")),))
        made[f"{name}_{k}"] = Kernel(f"{name}_{k}", nest, (Param("x", f32, "in"), Param("out", f32, "out")), torch.device("cpu"))
    buffers = {n: Buffer(n, f32, torch.device("cpu"), (N,), (1,), kind) for n, kind in (("x", "input"), ("out", "temp"))}
    return Schedule(("x",), ("out",), buffers, made, (Allocate("out"), *(Launch(k, ("x", "out")) for k in made)), 0, torch.device("cpu"))


def env(folder: Path, **config) -> tuple[Env, list]:
    events: list = []
    return Env(CompileConfig(**config), events.append, "test", 3, folder), events


def hits(events: list) -> list[bool]:
    assert all(isinstance(e, CacheLooked) and e.tier == "binaries" and e.bucket == 3 for e in events)
    return [e.hit for e in events]


def call(kernel: CpuKernel, *tensors: torch.Tensor) -> None:
    getattr(ctypes.CDLL(str(kernel.library)), kernel.symbol)((ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors]))


def test_a_kernel_is_built_once(tmp_path):
    first, events = env(tmp_path)
    module = build(generate(program(), first), first)
    x, out = torch.randn(N), torch.empty(N)
    call(module.kernels["double_0"], x, out)
    assert torch.equal(out, x + x)
    again, later = env(tmp_path)
    assert build(generate(program(), again), again).kernels == module.kernels
    assert hits(events) == [False] and hits(later) == [True]


def test_the_user_line_is_no_part_of_the_key_but_of_the_text(tmp_path):
    one, events = env(tmp_path)
    sources = generate(program(line=3), one), generate(program(line=90), one)
    assert "model.py:3 in forward" in sources[0].text() and "model.py:90 in forward" in sources[1].text()
    for s in sources:
        build(s, one)
    assert hits(events) == [False, True]


def test_what_the_key_covers(monkeypatch):
    base = unit_key("text", ())
    assert unit_key("text", ()) == base
    assert unit_key("other", ()) != base
    assert unit_key("text", ("-O2",)) != base
    monkeypatch.setattr("dynacompile.build.cpp.processor", lambda: "another processor")
    assert unit_key("text", ()) != base
    monkeypatch.undo()
    monkeypatch.setattr("dynacompile.build.cpp.header_text", lambda: "another header")
    assert unit_key("text", ()) != base


def test_a_damaged_library_is_built_anew(tmp_path):
    one, events = env(tmp_path)
    library = build(generate(program(), one), one).kernels["double_0"].library
    library.path.write_bytes(library.path.read_bytes()[:-7])
    build(generate(program(), one), one)
    assert hits(events) == [False, False]


def test_flags_reach_the_compiler(tmp_path):
    refused, _ = env(tmp_path, cpp_flags="-fno-such-flag")
    with pytest.raises(BuildError, match="no-such-flag") as raised:
        build(generate(program(), refused), refused)
    assert "fix:" in str(raised.value)
    accepted, _ = env(tmp_path, cpp_flags="-march=x86-64-v3 -O1" if os.uname().machine == "x86_64" else "-O1")
    x, out = torch.randn(N), torch.empty(N)
    call(build(generate(program(), accepted), accepted).kernels["double_0"], x, out)
    assert torch.equal(out, x + x)


def test_the_real_intrinsics_are_the_fallback(tmp_path, monkeypatch):
    """Where a compiler refuses our spelling of the intrinsics, it gets its own header."""
    headers = tmp_path / "headers"
    shutil.copytree(HEADERS, headers)
    ours = (headers / "intrinsics.h").read_text()
    assert "typedef float __m128 " in ours
    (headers / "intrinsics.h").write_text(ours.replace("typedef float __m128 ", "typedef no_such_type __m128 "))
    monkeypatch.setattr("dynacompile.build.cpp.HEADERS", headers)
    one, _ = env(tmp_path / "cache")
    x, out = torch.randn(N), torch.empty(N)
    call(build(generate(program(), one), one).kernels["double_0"], x, out)
    assert torch.equal(out, x + x)


def test_a_missing_compiler_is_named(tmp_path, monkeypatch):
    one, _ = env(tmp_path)
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(BuildError, match="/nowhere/g\\+\\+"):
        build(generate(program(), one), one)


def test_large_graphs_are_cut_into_units_alike_every_time(tmp_path):
    one, _ = env(tmp_path)
    sources = generate(program(kernels=60), one).kernels
    groups = units(sources)
    assert len(groups) > 1 and sum(map(len, groups)) == 60
    assert [list(g) for g in groups] == [list(g) for g in units(dict(reversed(sources.items())))]
    assert len(set(build(generate(program(kernels=60), one), one).kernels.values())) == 60


def test_the_fastest_variant_is_chosen_and_remembered(tmp_path, monkeypatch):
    flattered = lambda kernel, tensors: measure_here(kernel, tensors) * (0.001 if kernel.symbol.endswith("_2") else 1.0)  # noqa: E731
    monkeypatch.setattr("dynacompile.build.cpp.measure_here", flattered)
    one, events = env(tmp_path, mode="max-autotune")
    sources = generate(program(), one)
    assert len(sources.kernels["double_0"].variants) == 3
    module = build(sources, one)
    (tuned,) = [e for e in events if isinstance(e, KernelTuned)]
    assert tuned.winner == "unroll=4" and len(tuned.candidates) == 3
    x, out = torch.randn(N), torch.empty(N)
    call(module.kernels["double_0"], x, out)
    assert torch.equal(out, x + x)
    again, later = env(tmp_path, mode="max-autotune")
    assert build(sources, again).kernels == module.kernels and hits(later) == [True]


def test_reference_kernels_are_not_built(tmp_path):
    one, events = env(tmp_path, reference=True)
    module = build(generate(program(), one), one)
    assert module.kernels == {"double_0": ReferenceKernel(program().kernels["double_0"])} and events == []


SCRIPT = """
import ctypes, sys, threading, torch
def mapped():
    return {line.split()[-1] for line in open("/proc/self/maps") if any(n in line.rsplit("/", 1)[-1] for n in ("gomp", "iomp", "libomp"))}
before = mapped()
library = ctypes.CDLL(sys.argv[1])
x, out = torch.randn(100_000), torch.empty(100_000)
def call():
    getattr(library, sys.argv[2])((ctypes.c_void_p * 2)(x.data_ptr(), out.data_ptr()))
    assert torch.equal(out, x + x)
call()
other = threading.Thread(target=call)
other.start(); other.join()
torch.set_num_threads(1); call()
assert mapped() == before and len(before) == 1, (before, mapped())
"""


@pytest.mark.parametrize(("torchs", "others"), [
    ("/envs/torch/site-packages/torch/lib/libgomp.so.1", ["/envs/torch/site-packages/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0", "/usr/lib/libgomp.so.1"]),
    ("/envs/torch/site-packages/torch.libs/libgomp-0c.so.1", ["/envs/torch/site-packages/a.libs/libgomp-1.so.1", "/usr/lib/libgomp.so.1"]),
    ("/envs/torch/lib/libiomp5.so", ["/envs/torch/site-packages/scikit_learn.libs/libgomp-e985bcbb.so.1.0.0"]),
    (None, []),
])  # fmt: skip
def test_torchs_runtime_is_told_from_those_of_other_packages(torchs, others):
    """Also where the environment has torch in its name."""
    given = [*others, torchs] if torchs else others
    found = [torchs_runtime(map(Path, order), Path("/envs/torch/site-packages/torch")) for order in (given, given[::-1])]
    assert found == [Path(torchs) if torchs else None] * 2


def test_one_openmp_runtime(tmp_path):
    assert openmp_library() is not None
    one, _ = env(tmp_path)
    kernel = build(generate(program(), one), one).kernels["double_0"]
    subprocess.run([sys.executable, "-c", SCRIPT, str(kernel.library), kernel.symbol], check=True, timeout=60)


def test_equal_names_of_different_kernels_are_refused(tmp_path):
    one, _ = env(tmp_path)
    sources = dict(generate(program(kernels=2), one).kernels)
    sources["double_1"] = dataclasses.replace(sources["double_1"], entry=sources["double_0"].entry)
    with pytest.raises(BuildError, match="a bug in dynacompile"):
        build(dataclasses.replace(generate(program(kernels=2), one), kernels=sources), one)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_number_of_threads_can_be_set(tmp_path, threads):
    text = """#include "vecmath.h"
extern "C" void team(i64* out) {
  *out = 0;
  parallel<true>(64, [=](i64 begin, i64 end) { if (begin == 0) *out = omp_get_num_threads(); });
}
"""
    library = tmp_path / "team.so"
    library.write_bytes(compile_unit(text, [f"-DDC_THREADS={threads}"]))
    out = ctypes.c_int64()
    ctypes.CDLL(str(library)).team(ctypes.byref(out))
    assert out.value == threads


def test_threads_are_part_of_the_text(monkeypatch, tmp_path):
    asked = []
    made = cpp.compile_unit
    monkeypatch.setattr(cpp, "compile_unit", lambda text, flags: asked.append(flags) or made(text, flags))
    for threads in (0, 2):
        given, _ = env(tmp_path, threads=threads)
        build(generate(program(), given), given)
    assert asked == [[], ["-DDC_THREADS=2"]]
