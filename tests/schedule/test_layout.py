"""Rows with gaps for matmuls: only on accelerators, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.ir.loops import LoopProgram
from dynacompile.lower import lower
from dynacompile.schedule import layout, schedule
from tests.lower.tracing import ENV, trace


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers={n: replace(b, device=torch.device(device)) for n, b in program.buffers.items()})


def head(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = x @ w.t()
    probabilities = (logits * 2).softmax(-1)
    return logits, probabilities @ w, probabilities.t() @ x, probabilities[:, 1:4].sum()


@pytest.fixture
def small_results_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "WORTH", 1)


def test_rows_are_padded(small_results_count: None) -> None:
    args = [torch.randn(6, 16), torch.randn(101, 16)]
    program = lower(trace(head, args), ENV)
    assert layout.pad_rows(program) is program
    plan = schedule(on(program, "cuda"), ENV)
    wide = [b for b in plan.buffers.values() if b.stride == (128, 1)]
    assert len(wide) >= 2
    padded = on(layout.pad_rows(on(program, "cuda")), "cpu")
    for got, wanted in zip(run_program(padded, args), head(*args), strict=True):
        torch.testing.assert_close(got, wanted)
        assert got.stride() == wanted.stride()
    back = replace(plan, device=torch.device("cpu"), buffers={n: replace(b, device=torch.device("cpu")) for n, b in plan.buffers.items()})
    for got, wanted in zip(run_schedule(back, args), head(*args), strict=True):
        torch.testing.assert_close(got, wanted)


def test_aligned_rows_stay() -> None:
    args = [torch.randn(6, 16), torch.randn(64, 16)]
    program = on(lower(trace(head, args), ENV), "cuda")
    assert layout.pad_rows(program) is program


def test_other_externs_keep_the_strides_of_their_fakes(small_results_count: None) -> None:
    args = [torch.randn(6, 16), torch.randn(101, 16)]
    program = on(lower(trace(lambda x, w: (x @ w.t()).exp().cumsum(1) @ w, args), ENV), "cuda")
    padded = layout.pad_rows(program)
    ops = {s.name: s for s in padded.steps}
    assert padded.buffers[ops["cumsum"].reads()[0]].stride == (101, 1)
