"""The forms of Triton kernels with symbols: for sizes that are multiples of 16, whose accesses are wide, for rows that one block takes in, and others."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from dynacompile.build import forms
from dynacompile.build.alignment import multiples
from dynacompile.build.autotune import named
from dynacompile.build.forms import Property
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton, job, kernel_key
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked, KernelRefused
from dynacompile.ir.schedule import CudaKernel, KernelSource, Launch, Module
from dynacompile.runtime.link import Numbers, kernel_rows, launch_row
from tests.dynamic.tracing import stages, trace, value_of
from tests.lower.tracing import ENV
from tests.workers import triton_worker

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
    return emit_kernel(kernel, ENV)


@pytest.fixture
def events() -> list:
    return []


@pytest.fixture
def env(events) -> Env:
    return Env(CompileConfig(), events.append, "test", -1, Path("unused"))


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    return triton_worker()


def number(source: KernelSource, even: bool, short: bool = True) -> int:
    """The number of a form of the first candidate."""
    lacking = {Property.EVEN: not even, Property.SHORT: not short}
    return sum(lacking[one] << bit for bit, one in enumerate(forms.properties(source, source.candidates[0])))


def example(source: KernelSource) -> int:
    return forms.first(source, source.candidates[0])


def loads(worker: ModuleType, source: KernelSource, form: int) -> tuple[int, int, int]:
    """Vector loads, loads, vector stores in the PTX."""
    _, ptx, cubin = worker.compile_text(job(source, source.candidates[0], form))
    assert cubin[:4] == b"\x7fELF"
    wide, every, stored = r"ld\.global[.\w:]*\.v[248]", r"ld\.global", r"st\.global[.\w:]*\.v[248]"
    return len(re.findall(wide, ptx)), len(re.findall(every, ptx)), len(re.findall(stored, ptx))


@pytest.mark.parametrize("name", PROGRAMS)
def test_accesses_are_wide_where_sizes_are_multiples(worker, name):
    source = source_of(name, (512, 256))
    for short in (True, False):
        wide, every, stored = loads(worker, source, number(source, True, short))
        assert wide == every > 0
        assert stored or "sums" in name
        wide, every, _ = loads(worker, source, number(source, False, short))
        assert wide < every


@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_a_row_that_one_block_takes_in_is_read_once(worker, name):
    source = source_of(name, (512, 255))
    (short, *_), (long, *_) = (loads(worker, source, number(source, True, short)) for short in (True, False))
    assert 0 < short < long
    fixed = source_of(name, (512, 255), (0,))
    assert fixed.row is None and loads(worker, fixed, 0)[1] == loads(worker, source, number(source, False, True))[1]


def test_which_form_a_call_needs():
    source = source_of("softmax", (512, 255))
    block = source.candidates[0].blocks["RBLOCK"]
    wanted = {block: (True, True), block - 1: (False, True), block + 1: (False, False), block * 4: (True, False), 255: (False, True), 0: (True, True)}
    for columns, properties in wanted.items():
        values = dict(zip(source.kernel.symbols, (3, columns), strict=True))
        assert value_of(forms.chooses(source, source.candidates[0]), values) == number(source, *properties)


def test_the_order_of_forms_follows_the_example(worker):
    odd, even = source_of("softmax", (512, 255)), source_of("softmax", (512, 256))
    assert (example(odd), example(even)) == (1, 0)
    for source in (odd, even):
        assert [job(source, source.candidates[0], form)["multiples"] for form in range(4)] == [[1], [], [1], []]
        assert [job(source, source.candidates[0], form)["constants"]["SHORT"] for form in range(4)] == [True, True, False, False]
    assert len({kernel_key(even, even.candidates[0], form) for form in range(4)}) == 4
    assert kernel_key(even, even.candidates[0], 3) == kernel_key(odd, odd.candidates[0], 3), "the text is the same"


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
    source = emit_kernel(kernel, ENV)
    found = [kernel.symbols[i].hint for i in multiples(kernel)]
    assert forms.has(source, source.candidates[0], example(source)).get(Property.EVEN, True) == even
    assert len(found) == 1 if relied is None else found == relied


def test_the_other_forms_of_a_program_are_built_when_one_is_needed(env, events, tmp_path):
    sources = {"a": source_of("softmax", (512, 256)), "b": source_of("row sums", (512, 255)), "c": source_of("softmax", (512, 256), (0,))}
    built = build_triton(sources, env, Store(tmp_path))
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [False] * 3
    assert {name: (kernel.forms.first, kernel.forms.count) for name, kernel in built.items() if kernel.forms} == {"a": (0, 4), "b": (1, 4)}
    others = {"a": built["a"].forms.make(1), "b": built["b"].forms.make(0)}
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [False] * 5
    for name, other in others.items():
        assert other.cubin[:4] == b"\x7fELF" and other.cubin != built[name].cubin
        assert (other.grid, other.warps) == (built[name].grid, built[name].warps)
        assert built[name].forms.make(1 if name == "a" else 0) is other
    long = built["a"].forms.make(2)
    assert long.cubin not in (built["a"].cubin, others["a"].cubin) and [e.hit for e in events if isinstance(e, CacheLooked)] == [False] * 7
    events.clear()
    again = build_triton(sources, env, Store(tmp_path))
    assert again == built and again["a"].forms.make(1) == others["a"]
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
            built.forms.make(1)


def test_where_a_form_is_refused_one_that_every_call_can_take_stands_in(env, events, tmp_path):
    source = source_of("softmax", (512, 256))
    chosen = source.candidates[0]
    start = source.text.index("):\n", source.text.index(f"def {source.entry}(")) + 3
    refused = f"    tl.static_assert(SHORT or tl.extra.cuda.num_warps() != {chosen.warps})\n"
    source = replace(source, text=source.text[:start] + refused + source.text[start:])
    other = next(c for c in source.candidates if c.warps != chosen.warps)
    built = build_triton({"k": source}, env, Store(tmp_path))["k"]
    assert built.warps == chosen.warps and built.forms is not None
    long = built.forms.make(number(source, even=True, short=False))
    (told,) = {e.candidate for e in events if isinstance(e, KernelRefused)}
    assert told == named(chosen) and (long.grid, long.warps) == (source.grids[source.candidates.index(other)], other.warps)


def test_where_the_first_form_of_each_candidate_is_refused_one_for_every_call_is_built(env, events, tmp_path):
    """Triton 3.6 refuses rows in one block of some kernels, whatever the block."""
    source = source_of("softmax", (512, 256))
    start = source.text.index("):\n", source.text.index(f"def {source.entry}(")) + 3
    source = replace(source, text=f"{source.text[:start]}    tl.static_assert(not SHORT)\n{source.text[start:]}")
    built = build_triton({"k": source}, env, Store(tmp_path))["k"]
    assert {e.candidate for e in events if isinstance(e, KernelRefused)} == {named(c) for c in source.candidates}
    assert built.cubin[:4] == b"\x7fELF" and built.warps == source.candidates[0].warps and built.grid == source.grids[0]
    assert built.forms is not None and built.forms.make(number(source, even=False, short=True)).cubin[:4] == b"\x7fELF"


def test_tuning_is_at_the_examples_sizes_and_serves_all_forms(tmp_path, monkeypatch):
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
    assert built.warps == source.candidates[1].warps == built.forms.make(1).warps
    assert [s.hint for s in built.symbols] == [48, 256]
    build_triton({"k": source}, env, Store(tmp_path), measure)
    assert len(asked) == len(source.candidates)


def test_launches_choose_by_a_number_of_the_call(env, tmp_path):
    plan, cuda = plan_of("softmax", (512, 256)), torch.device("cuda", 0)
    plan = replace(plan, device=cuda, kernels={name: replace(k, device=cuda) for name, k in plan.kernels.items()})
    built = build_triton({name: emit_kernel(k, env) for name, k in plan.kernels.items()}, env, Store(tmp_path))
    module = Module(plan, built)
    (of_cpu, rows), numbers = kernel_rows(module)
    assert not of_cpu
    assert list(map(len, rows)) == [6, 1, 1, 1] and set(numbers.values()) == {0}
    (kernel,) = built.values()
    for form in (1, 2, 3):
        assert rows[form][0]() == (kernel.forms.make(form).cubin, *rows[0][1:])
    sizes = Numbers(plan.sizes)
    (step,) = [s for s in plan.steps if isinstance(s, Launch)]
    place, count = launch_row(module, {name: i for i, name in enumerate(plan.buffers)}, numbers, sizes, step)[-1]
    assert count == 4 and place == sizes.extent(kernel.forms.chooses) >= len(plan.sizes.sources)


@pytest.mark.parametrize("dims", [{}, {0: [0, 1]}], ids=["numbers", "symbols"])
def test_places_that_come_out_as_numbers(dims):
    """Of one element, an interpolation reads element 0 alone."""

    def enlarged(x):
        return torch.ops.aten.upsample_bilinear2d.default(x, [2, 2], False, None, None).relu()

    _, plan = stages(trace(enlarged, [torch.randn(2, 12, 1, 1)], dims, device="cuda"))
    assert [emit_kernel(kernel, ENV).entry for kernel in plan.kernels.values()]
