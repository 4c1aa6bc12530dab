"""The two forms of Triton kernels with symbols: for sizes that are multiples of 16, whose accesses are wide, and for all others."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from dynacompile.build import triton as building
from dynacompile.build.alignment import is_even, multiples
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton, job, kernel_key
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked
from dynacompile.ir.schedule import CudaKernel, KernelSource, Launch, Module
from dynacompile.ir.sizes import ADD, MOD, NUMBER, SYMBOL
from dynacompile.runtime.link import Numbers, kernel_rows, launch_row
from tests.dynamic.tracing import stages, trace

PROGRAMS: dict[str, Callable] = {
    "pointwise": lambda x: x.sin() + 1,
    "softmax": lambda x: F.softmax(x * 0.5, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "row sums": lambda x: x.sum(1),
    "column sums": lambda x: x.sum(0),
    "concatenation": lambda x: torch.cat([x, x * 2], 1),
}


def plan_of(name: str, size: Sequence[int], dims: Sequence[int] = (0, 1)):
    return stages(trace(PROGRAMS[name], (torch.randn(*size),), {0: dims}))[1]


def source_of(name: str, size: Sequence[int], dims: Sequence[int] = (0, 1)) -> KernelSource:
    (kernel,) = plan_of(name, size, dims).kernels.values()
    return emit_kernel(kernel, None)


@pytest.fixture
def events() -> list:
    return []


@pytest.fixture
def env(events) -> Env:
    return Env(CompileConfig(), events.append, "test", -1, Path("unused"))


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("triton_worker", Path(building.__file__).with_name("triton_worker.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loads(worker: ModuleType, source: KernelSource, other: bool) -> tuple[int, int, int]:
    """Vector loads, loads, vector stores in the PTX."""
    _, ptx, cubin = worker.compile_text(job(source, source.candidates[0], other))
    assert cubin[:4] == b"\x7fELF"
    wide, every, stored = r"ld\.global[.\w:]*\.v[248]", r"ld\.global", r"st\.global[.\w:]*\.v[248]"
    return len(re.findall(wide, ptx)), len(re.findall(every, ptx)), len(re.findall(stored, ptx))


@pytest.mark.parametrize("name", PROGRAMS)
def test_accesses_are_wide_where_sizes_are_multiples(worker, name):
    source = source_of(name, (512, 256))
    wide, every, stored = loads(worker, source, other=False)
    assert wide == every > 0
    assert stored or "sums" in name
    wide, every, _ = loads(worker, source, other=True)
    assert wide < every


def test_the_order_of_forms_follows_the_example(worker):
    odd, even = source_of("softmax", (512, 255)), source_of("softmax", (512, 256))
    assert job(odd, odd.candidates[0])["multiples"] == [] == job(even, even.candidates[0], other=True)["multiples"]
    assert job(odd, odd.candidates[0], other=True)["multiples"] == job(even, even.candidates[0])["multiples"] == [1]
    assert len({kernel_key(even, even.candidates[0]), kernel_key(even, even.candidates[0], other=True)}) == 2
    assert kernel_key(even, even.candidates[0]) == kernel_key(odd, odd.candidates[0], other=True), "the text is the same"


@pytest.mark.parametrize(
    ("name", "size", "dims", "relied", "even"),
    [
        ("softmax", (31, 64), (0, 1), [64], True),  # how many rows there are is of no matter
        ("softmax", (32, 63), (0, 1), [63], False),
        ("pointwise", (31, 64), (0, 1), [64], True),  # one of a product's
        ("pointwise", (64, 31), (0, 1), [64], True),
        ("pointwise", (7, 9), (0, 1), None, False),
        ("pointwise", (7, 64), (0,), [], True),  # 7 * 64 is a multiple
        ("softmax", (7, 64), (0,), [], True),
        ("column sums", (7, 64), (0, 1), [64], True),
        ("concatenation", (7, 64), (0, 1), [64], True),
    ],
)
def test_what_the_forms_rely_on(name, size, dims, relied, even):
    (kernel,) = plan_of(name, size, dims).kernels.values()
    found = [kernel.symbols[i].hint for i in multiples(kernel)]
    assert is_even(kernel) == even
    assert len(found) == 1 if relied is None else found == relied


def test_the_other_forms_of_a_program_are_built_when_one_is_needed(env, events, tmp_path):
    sources = {"a": source_of("softmax", (512, 256)), "b": source_of("row sums", (512, 255)), "c": source_of("softmax", (512, 256), (0,))}
    built = build_triton(sources, env, Store(tmp_path))
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [False] * 3
    assert built["a"].forms.even and not built["b"].forms.even and built["c"].forms is None
    assert all(s in sources["a"].kernel.symbols for s in built["a"].forms.multiples)
    others = {name: built[name].forms.other() for name in ("a", "b")}
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [False] * 5
    for name, other in others.items():
        assert other.cubin[:4] == b"\x7fELF" and other.cubin != built[name].cubin
        assert (other.grid, other.warps) == (built[name].grid, built[name].warps)
        assert built[name].forms.other() is other
    events.clear()
    again = build_triton(sources, env, Store(tmp_path))
    assert again == built and again["a"].forms.other() == others["a"]
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [True] * 5


def test_a_form_that_cannot_be_built_is_an_error_that_names_the_kernel(env, tmp_path):
    good, store = source_of("softmax", (512, 256)), Store(tmp_path)
    bad = replace(good, text=good.text.replace("tl.max", "tl.no_such_function"))
    build_triton({"k": good}, env, store)
    found = store.get(kernel_key(good, good.candidates[0]))
    assert found is not None
    store.put(kernel_key(bad, bad.candidates[0]), found)
    built = build_triton({"k": bad}, env, store)["k"]
    for _ in range(2):
        with pytest.raises(BuildError, match=f"{bad.entry}: .*(?s:.*)no_such_function"):
            built.forms.other()


def test_tuning_is_at_the_examples_sizes_and_serves_both_forms(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # the program is for the CPU; tests/gpu tunes real kernels
    env = Env(CompileConfig(mode="max-autotune"), lambda event: None, "test", -1, Path("unused"))
    source = source_of("softmax", (48, 256))
    assert len({c.warps for c in source.candidates[:2]}) == 2
    asked: list[CudaKernel] = []

    def measure(kernel, tensors):
        asked.append(kernel)
        assert [t.numel() for t in tensors] == [48 * 256] * 2
        return 1.0 if len(asked) == 2 else 9.0

    built = build_triton({"k": source}, env, Store(tmp_path), measure)["k"]
    assert len(asked) == len(source.candidates) and built.cubin == asked[1].cubin
    assert built.warps == source.candidates[1].warps == built.forms.other().warps
    assert [s.hint for s in built.symbols] == [48, 256]
    build_triton({"k": source}, env, Store(tmp_path), measure)
    assert len(asked) == len(source.candidates)


def test_launches_choose_by_a_number_of_the_call(env, tmp_path):
    plan = replace(plan_of("softmax", (512, 256)), device=torch.device("cuda", 0))
    built = build_triton({name: emit_kernel(k, env) for name, k in plan.kernels.items()}, env, Store(tmp_path))
    module = Module(plan, built)
    rows, numbers = kernel_rows(module)
    assert len(rows) == 2 and len(rows[1]) == 1 and set(numbers.values()) == {0}
    (kernel,) = built.values()
    assert rows[1][0]() == (kernel.forms.other().cubin, *rows[0][1:])
    sizes = Numbers(plan.sizes)
    (step,) = [s for s in plan.steps if isinstance(s, Launch)]
    place, even = launch_row(module, {name: i for i, name in enumerate(plan.buffers)}, numbers, sizes, step)[-1]
    assert even == 1
    (relied,) = kernel.forms.multiples
    assert sizes.codes[place - len(plan.sizes.sources)] == (NUMBER, 0, SYMBOL, sizes.places[relied], NUMBER, 16, MOD, 0, ADD, 0)
    assert sizes.remainder(kernel.forms.multiples) == place
