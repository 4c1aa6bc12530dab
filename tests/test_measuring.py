"""How products are decided under max-autotune, with measurements that the tests make up: no GPU is needed, kernels are run by the interpreter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dynacompile import measuring
from dynacompile.build.autotune import lengths
from dynacompile.build.store import Store
from dynacompile.codegen.reference import run_kernel
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.events import KernelTuned, ProductDecided
from dynacompile.ir.schedule import CudaKernel
from tests.codegen.product_cases import CASES, plan_on_gpu

CASE = CASES["before and after"]


def drawn(source, device):
    """As `autotune.inputs`, on the CPU."""
    reach = lengths(source)
    assert reach is not None
    made = ((p, torch.rand(reach[p.name], dtype=torch.float32)) for p in source.kernel.params)
    return [t.to(p.dtype) if p.dtype.is_floating_point else torch.zeros(len(t), dtype=p.dtype) for p, t in made]


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    """Gives a function: of the microseconds of each candidate and of the library with its kernel, what is decided, and the events."""
    monkeypatch.setattr(measuring, "inputs", drawn)
    monkeypatch.setattr(measuring, "build_candidates", lambda sources, wanted, env, store: {place: number(*place) for place in wanted})
    monkeypatch.setattr(measuring, "build_triton", lambda sources, env, store: {"reader": number("reader", 0)})
    held: dict = {}
    monkeypatch.setattr(measuring, "emit", lambda kernel, env: held.setdefault(kernel.digest(), emit_kernel(kernel, env)))

    def number(name: str, index: int) -> CudaKernel:
        return CudaKernel(b"", name, (index, 1, 1), 4, 0, 0)

    def run(times: dict[int, float], apart: float, wrong: tuple[int, ...] = ()) -> tuple[ProductDecided, list]:
        events: list = []
        env = Env(CompileConfig(mode="max-autotune"), events.append, "test", -1, tmp_path)
        asked: list[int] = []

        def measure(kernel, tensors, before=None):
            fused = before is None
            if not fused:
                before()
            (kernel_of,) = [s.kernel for s in held.values() if s.kernel.nest.is_product == fused]
            run_kernel(replace(kernel_of, device=torch.device("cpu")), tensors)
            if not fused:
                return apart
            index = int(kernel.grid[0])
            asked.append(index)
            if index in wrong:
                tensors[-2].fill_(3.0)
            return times.get(index, 1000.0)

        monkeypatch.setattr(measuring, "measure_run", measure)
        plan_on_gpu(CASE.function, CASE.args(), env, measuring.Measured(env, Store(tmp_path / "binaries")))
        (told,) = [e for e in events if isinstance(e, ProductDecided)]
        return told, [*[e for e in events if isinstance(e, KernelTuned)], asked]

    return run


def test_the_fastest_way_wins_and_is_remembered(made_up):
    told, (tuned, asked) = made_up({0: 90.0, 1: 80.0}, 100.0)
    assert (told.fused, told.measured, told.fused_us, told.apart_us) == (True, True, 80.0, 100.0)
    assert tuned.winner == tuned.candidates[1][0] and len(asked) == len(tuned.candidates)
    again, (asked,) = made_up({}, 1.0)
    assert (again.fused, again.reason, again.apart_us, asked) == (True, "measured before", 100.0, [])


def test_what_is_hardly_faster_stays_apart(made_up):
    told, _ = made_up({0: 99.0}, 100.0)
    assert not told.fused and told.measured and "as fast" in told.reason


def test_a_candidate_with_other_results_never_wins(made_up):
    told, (tuned, _) = made_up({0: 10.0, 1: 50.0}, 100.0, wrong=(0,))
    assert told.fused and told.fused_us == 50.0
    assert len(tuned.candidates) >= 1


def test_where_all_differ_the_library_stays(made_up):
    told, _ = made_up({}, 100.0, wrong=tuple(range(50)))
    assert not told.fused and told.measured and "no candidate" in told.reason


def test_without_autotuning_the_model_decides():
    env = Env(CompileConfig(), lambda event: None, "test", -1, Path("unused"))
    assert measuring.choice(env) is measuring.expected
