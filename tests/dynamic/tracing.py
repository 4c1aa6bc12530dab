"""ATen graphs whose sizes are symbols, and their comparison with eager at several sizes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.env import Env
from dynacompile.ir.index import Extent, Symbol, evaluated
from dynacompile.ir.schedule import Schedule
from dynacompile.ir.shapes import symbolic_rules
from dynacompile.lower import lower
from dynacompile.schedule import schedule
from tests.lower.tracing import ENV, check_same, copies, decompositions

Dims = Mapping[int, Sequence[int]]  # positions of arguments -> their dimensions that are symbolic


def trace(function: Callable, args: Sequence[object], dims: Dims, device: str = "cpu") -> torch.fx.GraphModule:
    """The ATen graph of function(*args), with the named dimensions symbolic."""
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(i: int, arg: object) -> object:
        if not isinstance(arg, torch.Tensor):
            return arg
        kinds = [DimDynamic.DYNAMIC if d in dims.get(i, ()) else DimDynamic.STATIC for d in range(arg.dim())]
        made = mode.from_tensor(arg, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
        return made if device == "cpu" else torch.empty_strided(made.size(), made.stride(), dtype=arg.dtype, device=device)

    with mode, symbolic_rules(mode):
        fakes = [fake(i, a) for i, a in enumerate(args)]
        graph = make_fx(function, decomposition_table=decompositions())(*fakes)
    graph.graph.eliminate_dead_code()
    return graph


def stages(graph: torch.fx.GraphModule, env: Env = ENV) -> tuple:
    program = lower(graph, env)
    return program, schedule(program, env)


def compare(function: Callable, calls: Sequence[Sequence[object]], dims: Dims, env: Env = ENV, **tolerances: float) -> Schedule:
    """Compiles function for the first call's arguments; each call's outputs, interpreted, must be eager's. Gives the schedule."""
    program, plan = stages(trace(function, calls[0], dims), env)
    for args in calls:
        wanted = copies(args)
        eager = function(*wanted)
        eager = list(eager) if isinstance(eager, (tuple, list)) else [eager]
        for level, run in (("program", lambda given: run_program(program, given)), ("schedule", lambda given: run_schedule(plan, given))):
            given = copies(args)
            torch.manual_seed(0)
            outputs = run(given)
            check_same(outputs, eager, level, tolerances)
            check_same(given, wanted, level + ", inputs", tolerances)
            for got, want in zip(outputs, eager, strict=True):
                assert got.stride() == want.stride() or not want.numel()
    return plan


def value_of(number: Extent, values: dict[Symbol, int]) -> int:
    """A number of a call, with what it is computed of."""
    for s in () if isinstance(number, int) else number.symbols():
        if s.definition is not None and s not in values:
            name, *operands = s.definition
            a, b = (value_of(n, values) for n in operands)
            values[s] = {"floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max}[name](a, b)
    return evaluated(number, values)
