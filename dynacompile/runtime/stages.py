"""Gives a graph autograd whose outputs are computed from each other: one node for each stage of the backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynacompile.ir.graphs import Hidden, RuntimeContract, Stage
from dynacompile.native import core as native_core
from dynacompile.runtime.differentiable import differentiable, marks_row, symbol_rows
from dynacompile.runtime.link import Numbers

TO = {"input": 0, "output": 1, "written": 2, "hidden": 3}  # as enum To of region.h


def in_stages(forward: Callable, make_backwards: Sequence[Callable[[], Callable]], contract: RuntimeContract) -> tuple[Any, tuple[Any, ...]]:
    """As `differentiable`, of a contract with stages. Also the differentiable callables that stand for the stages."""
    numbers = Numbers(contract.sizes)
    hidden = [tuple(hidden_row(h, numbers) for h in stage.hidden) for stage in contract.stages]  # before the callable is made: each call computes these
    whole = differentiable(forward, make_backwards[0], contract, numbers)
    stages = tuple(one(whole, make, stage, contract) for make, stage in zip(make_backwards, contract.stages, strict=True))
    rows = []
    for made, stage, gradients in zip(stages, contract.stages, hidden, strict=True):
        rows.append((made, tuple((TO[t.kind], t.index, t.slot) for t in (*stage.edges, *stage.further)), gradients))
    native_core().set_stages(whole, tuple(rows))
    return whole, stages


def one(whole: Any, make_backward: Callable[[], Callable], stage: Stage, contract: RuntimeContract) -> Any:
    """A callable that is never called: it has the contract of one stage, and its backward."""
    positions = 1 + max([-1, *stage.saved_positions, *stage.tangents])
    return native_core().make_differentiable(
        never,
        make_backward,
        contract.inputs,
        positions,
        (),
        (),
        (),
        stage.saved_inputs,
        stage.saved_positions,
        stage.tangents,
        tuple(range(len(stage.edges))),
        stage.sources,
        symbol_rows(stage.symbols),
        Numbers(type(contract.sizes)()).shared(),
        marks_row(stage.marks, len(stage.tangents) + len(stage.hidden), len(stage.edges), len(stage.saved_inputs) + len(stage.saved_positions)),
    )


def never(*_: object) -> None:
    raise AssertionError("the stage of a backward is not called")


def hidden_row(hidden: Hidden, numbers: Numbers) -> tuple:
    size, stride = tuple(map(numbers.extent, hidden.size)), tuple(map(numbers.extent, hidden.stride))
    return size, stride, torch.empty(1, dtype=hidden.dtype, device=hidden.device)
