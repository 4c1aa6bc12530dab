"""Stage 5: a functional, decomposed ATen graph becomes a program of loop nests and extern calls."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.events import AttentionFound, Drawn
from dynacompile.ir.index import Index
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.sizes import Sizes, sizes_of, symbols_in
from dynacompile.ir.symbols import extent, sources
from dynacompile.lower.adding import lower_embedding_backward, lower_index_add, lower_index_put, lower_scatter_add
from dynacompile.lower.context import DTYPES, EIGHTHS, Lowering, origin
from dynacompile.lower.draws import lower_draw
from dynacompile.lower.extern import lower_extern
from dynacompile.lower.indexing import lower_embedding, lower_gather, lower_index, lower_index_select
from dynacompile.lower.movement import lower_cat, lower_flip, lower_pad, lower_repeat, lower_roll, lower_select_scatter, lower_slice_scatter, lower_triangle
from dynacompile.lower.placement import fold, has_loops, is_elsewhere, main_device
from dynacompile.lower.pointwise import lower_copy_into, lower_create, lower_pointwise, rounded_before_jumps
from dynacompile.lower.products import decided
from dynacompile.lower.prune import prune
from dynacompile.lower.reduction import lower_extremum, lower_reduction, lower_variance
from dynacompile.lower.scans import lower_running_extremum, lower_running_extremum_backward, lower_scan
from dynacompile.lower.views import lower_view
from dynacompile.lower.windows import (
    lower_adaptive_avg_pool,
    lower_adaptive_avg_pool_backward,
    lower_adaptive_max_pool,
    lower_adaptive_max_pool_backward,
    lower_avg_pool,
    lower_avg_pool_backward,
    lower_max_pool,
    lower_max_pool_backward,
)
from dynacompile.ops.chunked_losses import AFTER, KEEP
from dynacompile.ops.picked import computed_once
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.table import TABLE, Row
from dynacompile.private import of_torch

__all__ = ["lower"]

KINDS: dict[str, Callable[[Lowering, torch.fx.Node, Row], None]] = {
    "pointwise": lower_pointwise,
    "create": lower_create,
    "copy_into": lower_copy_into,
    "view": lower_view,
    "reduction": lower_reduction,
    "extremum": lower_extremum,
    "variance": lower_variance,
    "scan": lower_scan,
    "running_extremum": lower_running_extremum,
    "running_extremum_backward": lower_running_extremum_backward,
    "cat": lower_cat,
    "pad": lower_pad,
    "slice_scatter": lower_slice_scatter,
    "select_scatter": lower_select_scatter,
    "flip": lower_flip,
    "roll": lower_roll,
    "repeat": lower_repeat,
    "triangle": lower_triangle,
    "index": lower_index,
    "gather": lower_gather,
    "index_select": lower_index_select,
    "embedding": lower_embedding,
    "index_add": lower_index_add,
    "scatter_add": lower_scatter_add,
    "index_put": lower_index_put,
    "embedding_backward": lower_embedding_backward,
    "max_pool": lower_max_pool,
    "avg_pool": lower_avg_pool,
    "adaptive_avg_pool": lower_adaptive_avg_pool,
    "max_pool_backward": lower_max_pool_backward,
    "avg_pool_backward": lower_avg_pool_backward,
    "adaptive_avg_pool_backward": lower_adaptive_avg_pool_backward,
    "adaptive_max_pool": lower_adaptive_max_pool,
    "adaptive_max_pool_backward": lower_adaptive_max_pool_backward,
    "extern": lower_extern,
}


def lower(graph: torch.fx.GraphModule, env: Env) -> LoopProgram:
    """The loop program of a functional ATen graph whose nodes carry fakes in `meta["val"]`.

    Placeholders may be tensors or numbers (baked in); the output is a flat tuple of tensors and Nones. A trailing `aten.copy_` into a
    placeholder mutates that input. Sizes may be symbolic, where placeholders show each symbol (see `ir.symbols.sources`). Raises Unsupported
    for other numbers that are not known at compile time.
    """
    low = Lowering((node.name for node in graph.graph.nodes), main_device(graph.graph), env.config.precise)
    low.rounded = rounded_before_jumps(graph.graph)
    inputs: list[str | None] = []
    outputs: tuple[str | None, ...] = ()
    for node in graph.graph.nodes:
        match node.op:
            case "placeholder":
                inputs.append(lower_placeholder(low, node))
            case "get_attr":
                lower_attribute(low, node, graph)
            case "call_function":
                lower_call(low, node)
            case "output":
                args = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                outputs = tuple(output_name(low, a) for a in args)
            case _:
                raise Unsupported("graph-node", f"a {node.op} node ({node.target}) in a graph of ATen ops")
    for node, choice in low.products:
        env.emit(decided(env, node, choice))
    for node, reason in low.draws:
        site, kernel = str(node.meta.get("site") or ""), not reason
        env.emit(Drawn(region=env.region, bucket=env.bucket, op=origin(node).op, kernel=kernel, reason=reason, site=site))
    for node in low.unfused_attention:
        site, reason = str(node.meta.get("site") or ""), "its functions have an operation that kernels lack, so that the scores are computed as a whole"
        env.emit(AttentionFound(region=env.region, bucket=env.bucket, kernel=False, reason=reason, site=site))
    program = LoopProgram(tuple(inputs), outputs, low.buffers, tuple(low.steps), low.constants)
    for node in computed_once(list(graph.graph.nodes)):
        if isinstance(name := low.values.get(node), str):
            base = low.buffers[name].base or name
            low.buffers[base] = replace(low.buffers[base], once=True)
    program = prune(program)
    program = replace(program, sizes=program_sizes(program, graph))
    if env.config.verify:
        program.verify()
    return program


def program_sizes(program: LoopProgram, graph: torch.fx.GraphModule) -> Sizes:
    """The symbols that the program uses, and where its inputs show them."""
    used = {s for b in program.buffers.values() for s in symbols_in((b.size, b.stride, b.offset))}
    for step in program.steps:
        used.update(step.symbols())
    shown, checks = sources(graph)
    return sizes_of(used, shown, checks)


def lower_placeholder(low: Lowering, node: torch.fx.Node) -> str | None:
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        low.values[node] = extent(val) if isinstance(val, torch.SymInt) else val
        return None
    if not node.users:
        return None
    low.values[node] = low.add(node.name, val, "input").name
    return node.name


def lower_attribute(low: Lowering, node: torch.fx.Node, graph: torch.fx.GraphModule) -> None:
    value = operator.attrgetter(str(node.target))(graph)
    if not isinstance(value, torch.Tensor):
        low.values[node] = value
        return
    tensor = value.detach()
    low.constants[node.name] = tensor
    low.values[node] = low.add(node.name, tensor, "constant").name


def lower_call(low: Lowering, node: torch.fx.Node) -> None:
    if node.target is operator.getitem:
        low.values[node] = low.values[node.args[0]][node.args[1]]  # type: ignore[index]
        return
    if node.target in (KEEP, AFTER):
        low.values[node] = low.values[node.args[0]]  # type: ignore[index]
        return
    if isinstance(node.meta.get("val"), torch.SymInt) and node.meta["val"].node.has_hint():
        low.values[node] = extent(node.meta["val"])
        return
    if isinstance(node.meta.get("val"), torch.SymFloat) and node.meta["val"].node.has_hint():
        low.values[node] = node.meta["val"]
        return
    if lower_draw(low, node):
        return
    row = TABLE.get(str(node.target))
    elsewhere = is_elsewhere(low, node)
    if elsewhere and fold(low, node):
        return
    ours = row is not None and row.kind != "extern" and is_plain(node, row.kind) and (not elsewhere or row.kind == "view" or has_loops(low, node, row.kind))
    if row is not None and ours and not takes_unfitting_number(low, node):
        before = len(low.steps)
        try:
            KINDS[row.kind](low, node, row)
            return
        except NotCovered:
            del low.steps[before:]
    lower_extern(low, node, row)


def takes_unfitting_number(low: Lowering, node: torch.fx.Node) -> bool:
    """Whether a number among the arguments may be one that the result's dtype does not hold: ATen raises for some of those, and takes others."""
    val = node.meta["val"]
    dtype = val.dtype if isinstance(val, torch.Tensor) else None
    if dtype is None or dtype.is_complex or dtype in ANY_NUMBER or not isinstance(node.target, of_torch.OpOverload):
        return False
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    parameters = node.target._schema.arguments
    given = [*zip(parameters, node.args), *((p, node.kwargs[p.name]) for p in parameters if p.name in node.kwargs)]
    return any(not fits(low, arg, limits) and str(parameter.type) in NUMBERS for parameter, arg in given)


ANY_NUMBER = frozenset({torch.bool, torch.int64, torch.float64})
NUMBERS = frozenset({"number", "Optional[number]"})


def fits(low: Lowering, arg: object, limits: Any) -> bool:
    value = low.values[arg] if isinstance(arg, torch.fx.Node) else extent(arg) if isinstance(arg, torch.SymInt) else arg
    if isinstance(value, Index):
        lowest, highest = value.bounds()
        return lowest is not None and highest is not None and limits.min <= lowest and highest <= limits.max
    return not isinstance(value, (int, float)) or not math.isfinite(value) or limits.min <= value <= limits.max


def is_plain(node: torch.fx.Node, kind: str) -> bool:
    """Results are strided tensors of dtypes that bodies have, or views of 8-bit floats, which products take."""
    val = node.meta["val"]
    dtypes = DTYPES | EIGHTHS if kind == "view" else DTYPES
    for one in val if isinstance(val, (tuple, list)) else (val,):
        if not isinstance(one, torch.Tensor) or one.dtype not in dtypes or one.layout != torch.strided:
            return False
    return True


def output_name(low: Lowering, arg: object) -> str | None:
    if not isinstance(arg, torch.fx.Node):
        if arg is not None:
            raise Unsupported("graph-output", f"the number {arg} is an output of the graph")
        return None
    value = low.values[arg]
    if isinstance(value, Index) or (value is not None and not isinstance(value, str)):
        raise Unsupported("graph-output", f"{arg} is an output of the graph, but no tensor")
    return value
