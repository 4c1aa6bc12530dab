"""Reads at computed places as they are lowered for GPUs, run by the reference: tables of places have ranges, and results are eager's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dynacompile.lower.indexing as indexing
import dynacompile.ops.interpolation as interpolation
from dynacompile.codegen.reference import run_kernel, run_program, run_schedule
from dynacompile.codegen.triton import emit_kernel
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from dynacompile.schedule.inline import inline
from tests.codegen.interpreted import interpret
from tests.codegen.triton_cases import storages
from tests.lower.tracing import ENV, decompositions

SIZES = (((5, 7), (10, 14)), ((5, 7), (9, 11)), ((8, 6), (4, 5)))
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def as_on_gpus(monkeypatch):
    """On CPUs eager raises for a place beyond the end, so that ATen reads there."""
    monkeypatch.setattr(indexing, "raises", lambda device: False)


def scheduled(function, x, table=None):
    graph = make_fx(function, decomposition_table=decompositions() | (table or {}), tracing_mode="fake")(x)
    graph.graph.eliminate_dead_code()
    return schedule(lower(graph, ENV), ENV)


@pytest.mark.parametrize("size, results", SIZES)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", [name for name in interpolation.NAMES if name.endswith("2d")])
def test_interpolation(name, backward, size, results):
    kind, has_corners = interpolation.NAMES[name]
    more = (*([False] if has_corners else []), None, None)
    if backward:
        op, x = getattr(aten, name + "_backward").default, torch.randn(2, 3, *results)
        table = {op: lambda grad, out, sizes, *rest: interpolation.of_gradient(kind, grad, out, sizes, rest, has_corners)}
        function = lambda grad: op(grad, list(results), [2, 3, *size], *more)  # noqa: E731
    else:
        op, x = getattr(aten, name).default, torch.randn(2, 3, *size)
        table = {op: lambda x, out, *rest: interpolation.of_input(kind, x, out, rest, has_corners)}
        function = lambda x: op(x.relu(), list(results), *more)  # noqa: E731
    made = scheduled(function, x, table)
    (found,) = run_schedule(made, [x])
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-5)


def kernels_of(name):
    kind, has_corners = interpolation.NAMES[name]
    op, more = getattr(aten, name).default, (*([False] if has_corners else []), None, None)
    table = {op: lambda x, out, *rest: interpolation.of_input(kind, x, out, rest, has_corners)}
    made = scheduled(lambda x: op(x.relu(), [9, 11], *more), torch.randn(2, 3, 5, 7), table)
    return [kernel for kernel in made.kernels.values() if not kernel.is_list]


def test_triton_reads_at_places_that_nothing_checks(tmp_path):
    """Kernels in Triton's interpreter, which refuses what lies outside of a tensor, beside the reference; tables hold what their ranges allow."""
    jobs, wanted = [], []
    for kernel in [*kernels_of("upsample_nearest2d"), *kernels_of("upsample_bilinear2d")]:
        source = emit_kernel(replace(kernel, device=torch.device("cuda", 0)), ENV)
        assert "require(" not in source.text
        tensors = storages(kernel)
        for param in kernel.params:
            if param.range is not None:
                tensors[param.name] = torch.randint(param.range[0], param.range[1] + 1, tensors[param.name].shape, dtype=param.dtype)
        jobs.append((source.text, source.entry, dict(source.candidates[0].blocks), source.grids[0], [t.clone() for t in tensors.values()]))
        run_kernel(kernel, list(tensors.values()), [])
        wanted.append(list(tensors.values()))
    assert len(jobs) >= 2 and any(".to(tl.int32)" in text for text, *_ in jobs)
    for found, expected in zip(interpret(jobs, tmp_path), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_table_of_places_has_a_range_where_it_is_read():
    op = aten.upsample_bilinear2d.default
    table = {op: lambda x, out, *rest: interpolation.of_input("linear", x, out, rest, True)}
    made = scheduled(lambda x: op(x, [60, 60], False, None, None), torch.randn(2, 3, 30, 30), table)
    ranges = [p.range for kernel in made.kernels.values() for p in kernel.params if p.mode == "in" and p.dtype == torch.int64]
    assert ranges and set(ranges) == {(0, 29)}, ranges


def test_places_that_the_caller_gives_are_checked():
    made = scheduled(lambda x: x[torch.tensor([0, 2, -1])] * 2, torch.randn(5, 3))
    assert all(p.range is None for kernel in made.kernels.values() for p in kernel.params)


def on(device, program):
    """The program with all its memory on another device."""
    return replace(program, buffers={name: replace(buffer, device=torch.device(device)) for name, buffer in program.buffers.items()})


@pytest.mark.parametrize("name, sizes, remain", [("upsample_bilinear2d", (5, 7), False), ("upsample_trilinear3d", (5, 7, 6), True)])
def test_tables_of_positions_that_few_nests_read_are_computed_anew_on_gpus(name, sizes, remain):
    kind, has_corners = interpolation.NAMES[name]
    op, results = getattr(aten, name).default, [4 * n for n in sizes]
    table = {op: lambda x, out, *rest: interpolation.of_input(kind, x, out, rest, has_corners)}
    x = torch.randn(2, 3, *sizes)
    graph = make_fx(lambda x: op(x, results, False), decomposition_table=decompositions() | table, tracing_mode="fake")(x)
    graph.graph.eliminate_dead_code()
    made = on("cpu", inline(on("cuda", lower(graph, ENV))))
    for program, tables in ((made, remain), (inline(lower(graph, ENV)), True)):
        assert any(not nest.loads() for nest in program.steps) == tables
    torch.testing.assert_close(run_program(made, [x])[0], op(x, results, False), rtol=1e-4, atol=1e-5)
