"""Graphs for tests of lowering and scheduling, made with make_fx, and the oracle that compares every level with eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.graphs import output_args
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.schedule import Schedule
from dynacompile.lower import lower, products
from dynacompile.ops.product_costs import Choice
from dynacompile.schedule import schedule

ENV = Env(CompileConfig(verify=True), lambda event: None, "test", -1, Path("."))
UNFUSED = ENV.with_config(fuse=False)
aten = torch.ops.aten
KEEP = (aten.addmm.default, aten.baddbmm.default, aten.var_mean.correction, aten.gelu.default)
FURTHER = (
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten._softmax,
    aten._softmax_backward_data,
    aten._log_softmax,
    aten._log_softmax_backward_data,
    aten.gelu_backward,
    aten.nll_loss_forward,
    aten.nll_loss_backward,
)


@contextmanager
def products_are_calls() -> Iterator[None]:
    """Products of matrices of any size are calls of the library, as those of large matrices are on CPUs, and all on GPUs."""
    with patch.object(products, "choose", lambda product: Choice(False, "the test says so")), patch.object(products, "choose_blocks", lambda product: None):
        yield


@functools.cache
def decompositions() -> dict:
    """Made once: torch looks through all of its ops for each of these tables."""
    table = dict(core_aten_decompositions()) | get_decompositions(FURTHER)
    return {op: f for op, f in table.items() if op not in KEEP}


def trace(function: Callable, args: Sequence[object], decompose: bool = True) -> torch.fx.GraphModule:
    """The ATen graph of function(*args), with fakes."""
    graph = make_fx(function, decomposition_table=decompositions() if decompose else {}, tracing_mode="fake")(*args)
    graph.graph.eliminate_dead_code()
    return graph


def stages(graph: torch.fx.GraphModule, env: Env = ENV) -> tuple[LoopProgram, Schedule]:
    program = lower(graph, env)
    return program, schedule(program, env)


def compare(graph: torch.fx.GraphModule, args: Sequence[object], env: Env = ENV, **tolerances: float) -> Schedule:
    """Runs the graph eagerly, its loop program and its schedule on copies of args; outputs and mutated args must agree. Gives the schedule."""
    program, plan = stages(graph, env)
    wanted, given = copies(args), copies(args)
    torch.manual_seed(0)
    with torch.no_grad():
        eager = graph(*wanted)
    eager = list(eager) if isinstance(eager, (tuple, list)) else [eager]
    for run, level in ((lambda: run_program(program, given), "program"), (lambda: run_schedule(plan, given), "schedule")):
        given[:] = copies(args)
        torch.manual_seed(0)
        outputs = run()
        check_same(outputs, eager, level, tolerances)
        check_strides(graph, outputs)
        check_same(given, wanted, level + ", inputs", tolerances)
    return plan


def copies(args: Sequence[object]) -> list:
    """Tensors with storages of their own and the same geometry."""
    return [with_storage(a) if isinstance(a, torch.Tensor) else a for a in args]


def with_storage(tensor: torch.Tensor) -> torch.Tensor:
    whole = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(whole, tensor.storage_offset(), tensor.size(), tensor.stride())


def check_same(got: Sequence[object], wanted: Sequence[object], level: str, tolerances: dict) -> None:
    assert len(got) == len(wanted)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m, i=i: f"{level}, {i}: {m}", **tolerances)


def check_strides(graph: torch.fx.GraphModule, outputs: Sequence[object]) -> None:
    """Outputs have the strides of the graph's fakes."""
    for node, got in zip(output_args(graph), outputs, strict=True):
        if isinstance(got, torch.Tensor) and got.numel():
            fake = node.meta["val"]
            assert all(a == b or n == 1 for a, b, n in zip(got.stride(), fake.stride(), got.shape)), (node, got.stride(), fake.stride())
