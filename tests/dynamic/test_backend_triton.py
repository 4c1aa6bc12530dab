"""Triton kernels over symbolic sizes: their numbers through Triton's interpreter, at sizes that they were not made for, and their cubins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dynacompile.build import forms
from dynacompile.build.store import Store
from dynacompile.build.triton import build_triton
from dynacompile.codegen.reference import program as interpreter
from dynacompile.codegen.reference import run_kernel, run_schedule
from dynacompile.codegen.triton import emit_kernel
from dynacompile.ir.schedule import Kernel
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.asked import asked
from tests.codegen.interpreted import interpret
from tests.dynamic.test_backend_programs import CASES
from tests.dynamic.tracing import stages, trace, value_of
from tests.lower.tracing import ENV, aten, copies
from tests.schedule.test_columns import CPU, CUDA, on


def planes(*sizes: tuple[int, int]) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(*size),) for size in sizes]


CHOSEN = ("bias", "transposed", "sums", "extrema", "softmax", "norm", "norm_grads", "cat", "slices", "moves", "views", "triangles", "factories", "scalars")
# Compiled for the first sizes; run at the others.
RUNS = {name: (function, calls[0], calls[-1:], dims) for name, (function, calls, dims) in CASES.items() if name in CHOSEN}
RUNS |= {
    f"{name}, {kind}": (CASES[name][0], calls[0], calls[1:], CASES[name][2])
    for name in ("softmax", "sums", "variances")
    for kind, calls in (("even first", planes((32, 48), (64, 32), (7, 100), (31, 47))), ("odd first", planes((7, 9), (6, 5), (32, 16), (48, 64))))
}


def norm_backward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    width = [x.shape[1]]
    _, mean, scale = aten.native_layer_norm.default(x, width, weight, bias, 1e-5)
    return aten.native_layer_norm_backward.default(grad, x, width, mean, scale, weight, bias, [True, True, True])


def norm_inputs(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(rows, columns), torch.randn(columns), torch.randn(columns), torch.randn(rows, columns)


# Scheduled as for a GPU, where sums of columns join the kernel of rows: those of a row in one block, and longer ones.
FOLDED = {
    "folded, rows": (norm_backward, norm_inputs(4096, 40), [norm_inputs(67, 40)], {0: [0], 3: [0]}),
    "folded, rows and columns": (
        norm_backward, norm_inputs(4099, 48),
        [norm_inputs(70, 48), norm_inputs(33, 31), norm_inputs(37, 150)], {0: [0, 1], 1: [0], 2: [0], 3: [0, 1]},
    ),
}  # fmt: skip


class Recorder:
    """Runs kernels by the oracle, and keeps what each launch got and made."""

    def __init__(self) -> None:
        self.launches: list[tuple[Kernel, list[torch.Tensor], list[int], list[torch.Tensor]]] = []

    def __call__(self, kernel: Kernel, tensors: list[torch.Tensor], sizes: list[int]) -> None:
        before = [t.clone() for t in tensors]
        run_kernel(kernel, tensors, sizes)
        self.launches.append((kernel, before, sizes, [t.clone() for t in tensors]))


@pytest.fixture(scope="module")
def launches() -> dict[str, Recorder]:
    """The launches of each run."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, (function, first, calls, dims) in (RUNS | FOLDED).items():
            program = lower(trace(function, first, dims), ENV)
            plan = on(CPU, schedule(on(CUDA, program), ENV)) if name in FOLDED else schedule(program, ENV)
            found[name] = Recorder()
            patch.setattr(interpreter, "run_kernel", found[name])
            for args in calls:
                run_schedule(plan, copies(args))
    return found


@pytest.fixture(scope="module")
def interpreted(request, launches, tmp_path_factory) -> dict[str, list[list[torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("triton")
    jobs, owners = [], []
    names = [case["name"] for case in asked(request, "test_numbers")]
    for name, recorder in ((name, launches[name]) for name in names):
        for seed, (kernel, before, sizes, _) in enumerate(recorder.launches):
            source = emit_kernel(kernel, ENV)
            choice = seed % len(source.candidates)
            candidate, values = source.candidates[choice], dict(zip(kernel.symbols, sizes, strict=True))
            grid = tuple(value_of(n, values) for n in source.grids[choice])
            constants = forms.constants(source, candidate, value_of(forms.chooses(source, candidate), values))
            jobs.append((source.text, source.entry, constants, grid, [*before, *sizes]))
            owners.append(name)
    found: dict[str, list[list[torch.Tensor]]] = {name: [] for name in names}
    for name, got in zip(owners, interpret(jobs, folder), strict=True):
        found[name].append(got)
    return found


def test_sums_of_columns_are_folded(launches):
    for name in FOLDED:
        assert sum(bool(kernel.nest.folded) for kernel, *_ in launches[name].launches) == len(FOLDED[name][2])


@pytest.mark.parametrize("name", [*RUNS, *FOLDED])
def test_numbers(launches, interpreted, name):
    for (kernel, _, _, wanted), got in zip(launches[name].launches, interpreted[name], strict=True):
        for a, b in zip(got[: len(wanted)], wanted, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, atol=1e-4, rtol=1e-4, msg=lambda m, k=kernel: f"{k.name}: {m}")


def test_symbols_are_arguments_and_sizes_are_not_in_the_text():
    function, calls, dims = CASES["softmax"]
    _, plan = stages(trace(function, calls[0], dims))
    for kernel in plan.kernels.values():
        source = emit_kernel(kernel, ENV)
        names = ", ".join(s.name for s in kernel.symbols)
        assert f"{names}, XBLOCK: tl.constexpr" in source.text
        assert not source.wide


def test_cubins(tmp_path: Path):
    function, calls, dims = CASES["norm_grads"]
    _, plan = stages(trace(function, calls[0], dims))
    sources = {name: emit_kernel(kernel, ENV) for name, kernel in plan.kernels.items()}
    built = build_triton(sources, ENV, Store(tmp_path))
    for name, kernel in built.items():
        assert kernel.cubin[:4] == b"\x7fELF"
        assert kernel.grid == sources[name].grids[0]
        assert 0 <= kernel.extra <= 2
    assert any(not isinstance(kernel.grid[0], int) for kernel in built.values())
