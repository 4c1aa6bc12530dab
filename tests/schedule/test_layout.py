"""Matmuls on padded matrices: only on accelerators, and the results stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.ir.loops import Extern, LoopProgram
from dynacompile.lower import lower
from dynacompile.schedule import layout, schedule
from tests.lower.tracing import ENV, products_are_calls, trace


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers={n: replace(b, device=torch.device(device)) for n, b in program.buffers.items()})


@pytest.fixture(autouse=True)
def small_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "WORTH", 1)
    monkeypatch.setattr(layout, "LEAST", 2)


@pytest.fixture(autouse=True)
def calls() -> Iterator[None]:
    with products_are_calls():
        yield


def half(*size: int) -> torch.Tensor:
    return torch.randn(size).to(torch.bfloat16)


def check(function: Callable, *args: torch.Tensor) -> LoopProgram:
    """Every level on the padded program against eager; gives it."""
    program = lower(trace(function, args), ENV)
    assert layout.pad_matrices(program) is program  # on the CPU
    padded = layout.pad_matrices(on(program, "cuda"))
    padded.verify()
    plan = schedule(on(program, "cuda"), ENV)
    back = replace(plan, device=torch.device("cpu"), buffers={n: replace(b, device=torch.device("cpu")) for n, b in plan.buffers.items()})
    for run in (lambda: run_program(on(padded, "cpu"), args), lambda: run_schedule(back, args)):
        for got, wanted in zip(run(), function(*args), strict=True):
            torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)
            assert got.stride() == wanted.stride()
    return padded


def matmuls(program: LoopProgram) -> list[tuple[tuple[int, ...], ...]]:
    return [tuple(program.buffers[n].size for n in (*s.reads(), s.outputs[0])) for s in program.steps if isinstance(s, Extern)]


def test_language_head() -> None:
    """Forward and backward of a head whose vocabulary is odd; its logits leave the program too."""

    def head(x, w):
        logits = x @ w.to(torch.bfloat16).t()
        grads = (logits.float() * 2).softmax(-1).to(torch.bfloat16)
        return logits, grads @ w.to(torch.bfloat16), grads.t() @ x, grads[:, 1:4].float().sum()

    padded = check(head, half(8, 16), torch.randn(101, 16))
    assert matmuls(padded) == [((8, 16), (16, 128), (8, 128)), ((8, 128), (128, 16), (8, 16)), ((128, 8), (8, 16), (128, 16))]


def test_inputs_are_copied_once() -> None:
    padded = check(lambda x, w: (x @ w, x.exp() @ w), half(8, 37), half(37, 16))
    assert sum("_padded" in n for n in padded.buffers) == 3


def test_bias_is_padded_with_the_result() -> None:
    check(lambda x, w, b: (torch.addmm(b, x, w.t()).exp(),), half(8, 16), half(37, 16), half(37))


def test_result_as_operand() -> None:
    """What a matmul made has no zeros appended: as an inner extent it is copied."""
    check(lambda x, w: ((x @ w) @ w.t(),), half(8, 16), half(16, 37))


def test_even_ones_stay() -> None:
    program = on(lower(trace(lambda x, w: x @ w, [half(8, 16), half(16, 64)]), ENV), "cuda")
    assert layout.pad_matrices(program) is program


def test_other_externs_keep_the_strides_of_their_fakes() -> None:
    padded = check(lambda x, w: ((x @ w).exp().sort(1).values @ w.t(),), half(8, 16), half(16, 37))
    step = next(s for s in padded.steps if s.name == "sort")
    assert padded.buffers[step.reads()[0]].stride == (37, 1)


def test_a_result_whose_rows_are_padded_already() -> None:
    """As one that is saved for backward: the matmul writes into it, and nothing is copied."""
    args = (half(8, 16), half(101, 16))
    graph = trace(lambda x, w: ((y := x @ w.t()), y.float().exp().sum(1)), args)
    (node,) = (n for n in graph.graph.nodes if n.target is torch.ops.aten.mm.default)
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty_strided((8, 101), (128, 1), dtype=torch.bfloat16)
    program = on(lower(graph, ENV), "cuda")
    padded = layout.pad_matrices(program)
    assert matmuls(padded) == [((8, 16), (16, 128), (8, 128))]
    assert len(padded.steps) == len(program.steps) + 1, "the weight is copied, the result is not"
    product, total = run_program(on(padded, "cpu"), list(args))
    assert product.stride() == (128, 1)
    torch.testing.assert_close(product, args[0] @ args[1].t())
    torch.testing.assert_close(total, (args[0] @ args[1].t()).float().exp().sum(1))
