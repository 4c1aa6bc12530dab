"""Triton kernels over lists of tensors: their numbers through Triton's interpreter against the oracle, what their text promises, and cubins of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dynacompile
from dynacompile.build.pool import shared_pool
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton
from dynacompile.codegen.cpp import emit_kernel as emit_for_cpu
from dynacompile.codegen.reference import run_kernel
from dynacompile.codegen.triton import emit_kernel
from dynacompile.ir.schedule import Kernel, KernelSource, Launch, Member, Schedule
from dynacompile.runtime.link import list_tables
from tests.codegen.interpreted import interpret
from tests.lower.tracing import ENV, stages, trace

CUDA = torch.device("cuda", 0)
GOLDEN = Path(__file__).parent / "golden"


def adam(*ts):
    """A step of Adam over three tensors, with the bias correction of a step count on the device."""
    for p, g, m, v, step in zip(*(ts[i::5] for i in range(5)), strict=True):
        count = step + 1
        first = m + (g - m) * 0.1
        second = v * 0.999 + g * g * 0.001
        p.copy_(p - 0.001 * first / (1 - 0.9**count) / (second.sqrt() / (1 - 0.999**count).sqrt() + 1e-8))
        m.copy_(first)
        v.copy_(second)
        step.copy_(count)
    return ()


def adam_of(*sizes: int) -> list[torch.Tensor]:
    return [t for n in sizes for t in (torch.randn(n), torch.randn(n), torch.randn(n), torch.rand(n), torch.tensor(3.0))]


PROGRAMS: dict[str, tuple[Callable, list[torch.Tensor]]] = {
    "adam": (adam, adam_of(4100, 17, 130)),
    "adam of large tensors": (adam, adam_of(70001, 66000, 5)),
    "casts": (lambda *ts: [t.bfloat16() for t in ts], [torch.randn(n) for n in (5, 1030, 64)]),
    "of one size": (lambda *ts: [(t * 2).exp() for t in ts], [torch.randn(6, 7), torch.randn(42), torch.randn(2, 21)]),
    "sums": (lambda *ts: [t.square().sum() for t in ts], [torch.randn(n) for n in (700, 33, 2051)]),
    "sums of rows": (lambda *ts: [t.softmax(-1) for t in ts], [torch.randn(n, m) for n, m in ((5, 40), (3, 77), (9, 130))]),
    "flags": (lambda *ts: [t > 0 for t in ts], [torch.randn(n) for n in (5, 300)]),
    "transposes": (lambda *ts: [t.t().contiguous() for t in ts], [torch.randn(n, m) for n, m in ((80, 96), (65, 70), (64, 128))]),
}


def lists(name: str) -> tuple[Schedule, list[Launch]]:
    function, given = PROGRAMS[name]
    _, plan = stages(trace(function, given))
    return plan, [s for s in plan.steps if isinstance(s, Launch) and s.sizes]


def on_gpu(kernel: Kernel) -> KernelSource:
    return emit_kernel(replace(kernel, device=CUDA), ENV)


def memories(kernel: Kernel, step: Launch, plan: Schedule) -> list[torch.Tensor]:
    """Flat memory for each buffer of each member."""
    found = []
    for i, name in enumerate(step.buffers):
        dtype, n = kernel.params[i % len(kernel.params)].dtype, plan.buffers[name].storage_elements
        found.append((torch.rand(n) + 0.5).to(dtype) if dtype.is_floating_point else torch.zeros(n, dtype=dtype))
    return found


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> dict[str, list[tuple[list, list]]]:
    """For each program, of each list what the interpreter and the oracle stored."""
    folder = tmp_path_factory.mktemp("lists")
    jobs: list = []
    wanted: dict[str, list] = {name: [] for name in PROGRAMS}
    for name in PROGRAMS:
        plan, steps = lists(name)
        assert steps, f"{name} has no list"
        for step in steps:
            kernel = plan.kernels[step.kernel]
            source = on_gpu(kernel)
            given = memories(kernel, step, plan)
            expected = [t.clone() for t in given]
            count = len(kernel.params)
            for k, sizes in enumerate(step.sizes):
                run_kernel(Member(kernel, sizes), expected[k * count : (k + 1) * count])
            blocks, numbers = list_tables(kernel, source.grids[0][0], step)
            jobs.append((source.text, source.entry, dict(source.candidates[0].blocks), (len(blocks), 1, 1), [blocks, numbers, given]))
            wanted[name].append(expected)
    results = iter(interpret(jobs, folder))
    return {name: [(next(results)[2], expected) for expected in all_of_them] for name, all_of_them in wanted.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers(interpreted, name):
    for stored, expected in interpreted[name]:
        for got, want in zip(stored, expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-2 if want.dtype == torch.bfloat16 else 1e-4, atol=1e-5)  # the interpreter cuts 16-bit values off


@pytest.mark.parametrize("kind", ["py.txt", "cpp"])
def test_golden(interpreted, kind):
    """The text of Adam's two kernels for GPUs and for CPUs, looked at only after their numbers were eager's.

    To renew it after a deliberate change: DYNACOMPILE_WRITE_GOLDEN=1 pytest tests/codegen/test_triton_lists.py"""
    plan, steps = lists("adam")
    if kind == "cpp":
        given = adam_of(4100, 17, 130)
        wanted = [t.clone() for t in given]
        dynacompile.compile(adam, options={"fallback": "none"})(*given)
        adam(*wanted)
        torch.testing.assert_close(given, wanted)
        text = "\n".join(emit_for_cpu(plan.kernels[s.kernel], ENV).text for s in steps)
    else:
        test_numbers(interpreted, "adam")
        text = "\n".join(on_gpu(plan.kernels[s.kernel]).text for s in steps)
    file = GOLDEN / f"adam_lists.{kind}"
    if os.environ.get("DYNACOMPILE_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


def test_text_reads_pointers_from_a_table():
    plan, steps = lists("adam")
    texts = [on_gpu(plan.kernels[s.kernel]).text for s in steps]
    assert len(texts) == 2
    assert all("(list_blocks, list_numbers, list_pointers, XBLOCK: tl.constexpr)" in t for t in texts)
    assert "n0 = tl.load(list_numbers + member * 1 + 0)" in texts[1] and texts[1].count("tl.multiple_of") == len(plan.kernels[steps[1].kernel].params)
    assert " <= n0:" in texts[1], "blocks within a member access memory in full width"


def test_programs_of_members():
    plan, steps = lists("adam")
    source = on_gpu(plan.kernels[steps[1].kernel])
    blocks, numbers = list_tables(source.kernel, source.grids[0][0], steps[1])
    counts = [-(-n // source.candidates[0].blocks["XBLOCK"]) for n in (4100, 17, 130)]
    assert numbers.tolist() == [4100, 17, 130]
    assert blocks.tolist() == [[member, k] for member, count in enumerate(counts) for k in range(count)]


def test_cubins(tmp_path):
    kernels = {f"{name} {i}": on_gpu(plan.kernels[s.kernel]) for name in ("adam", "sums") for plan, steps in [lists(name)] for i, s in enumerate(steps)}
    env = ENV.with_config(workers=2)
    try:
        built = build_triton(kernels, env, Store(tmp_path))
    finally:
        shared_pool(2).close()
        shared_pool.cache_clear()
    assert all(k.cubin and k.extra >= 0 for k in built.values())
