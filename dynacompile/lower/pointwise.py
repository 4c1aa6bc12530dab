"""Ops that compute each element of the result by itself, and those that make tensors from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from dynacompile.ir.body import Body
from dynacompile.ir.index import Extent, Index, strided
from dynacompile.ir.loops import Extern, Nest, Op, Ref
from dynacompile.lower.context import DTYPES, Lowering, geometry, origin, plain
from dynacompile.lower.numbers import number
from dynacompile.lower.placement import as_number, is_elsewhere, is_readable
from dynacompile.lower.values import Expander, Value, nearest
from dynacompile.ops.checks import is_held
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.scalars import NEAREST, compute_dtype
from dynacompile.ops.table import TABLE, Row

FILL = torch.ops.aten.masked_fill.Tensor
CONVERSIONS = frozenset({"to_copy", "cast_prims"})
"""Explicit conversions. Of a narrow number they see what its tensor holds, rounded; so do operations whose result has another type by its other operands."""
JUMPS = frozenset(
    f"aten::{name}"
    for name in (
        *("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "nan_to_num", "sign", "sgn", "logical_not", "logical_and", "logical_or", "logical_xor"),
        *("floor", "ceil", "trunc", "round", "frac", "remainder", "fmod", "floor_divide", "threshold", "threshold_backward"),
        *("hardtanh_backward", "hardsigmoid_backward", "hardswish_backward", "leaky_relu_backward"),
    )
)
"""Results that jump where rounding moves a number: the greatest of some numbers, once stored, equals none of these before they are rounded, and a product
that is inf in half precision is a number in float32."""
CALLS = frozenset(f"aten::{name}" for name in ("bucketize", "searchsorted", "sort", "topk", "kthvalue", "median", "mode", "histc"))
"""Of those that jump, what is no loop: memory holds what these read."""
UNSTEADY = frozenset({"extremum", "running_extremum"})
EXACT = frozenset({"any", "all", "max", "min", "argmax", "argmin"})
"""Reductions that jump, or that a backward compares with what they were made of, which is rounded there."""
LOOPS = frozenset({"pointwise", "view", "reduction", "cat", "pad", "flip", "roll", "repeat", "triangle", "slice_scatter", "select_scatter", "index", "gather"})
DIVISIONS = frozenset({"floordiv", "mod", "fmod"})
CONVERTING = frozenset(
    {
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add.Scalar,
        torch.ops.aten.sub.Tensor,
        torch.ops.aten.sub.Scalar,
        torch.ops.aten.rsub.Scalar,
        torch.ops.aten.rsub.Tensor,
        torch.ops.aten.remainder.Scalar,
        torch.ops.aten.remainder.Tensor,
        torch.ops.aten.remainder.Scalar_Tensor,
        torch.ops.aten.fmod.Scalar,
        torch.ops.aten.fmod.Tensor,
        torch.ops.aten.pow.Tensor_Scalar,
        torch.ops.aten.pow.Scalar,
    }
)
"""Operations whose kernels on the CPU have no form for a number in float32 beside tensors of half precision, as mul and div have."""


def lower_pointwise(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """One nest over the result's shape: loads, the row's formula, a store."""
    val = node.meta["val"]
    promoted = promote(node) if row.operands == "args" else val.dtype
    size = geometry(val)[0]
    o = Expander(Body(), compute_dtype(promoted), val.dtype)
    raw = row.operands == "own"
    is_jump = jumps(node)
    converts = promoted in NEAREST and (row.operands == "args" or converts_numbers(node, val))

    def operand(arg: object) -> object:
        if isinstance(arg, torch.fx.Node):
            given = low.values[arg]
            if isinstance(given, str) and node.target is FILL and arg is node.args[2]:
                given = check_held(low, node, given, val)
            if isinstance(given, str):
                given = as_number(low, given, val.device, node)
                buffer = low.buffers[given]
                require_element(low, given, val.device)
                value = low.load(o, buffer, low.broadcast(buffer, size))
                if is_jump or (buffer.dtype != val.dtype and (row.samples in CONVERSIONS or val.dtype.is_floating_point)):
                    value = nearest(o, value, buffer)
                if is_jump and promoted in NEAREST and buffer.dtype != promoted:
                    value = getattr(o, NEAREST[promoted])(o.cast(value, o.compute))
                return value if raw else o.cast(value, o.compute)
            arg = given
        arg = plain(arg)
        if isinstance(arg, torch.SymFloat):
            arg = number(o, arg)
            if isinstance(arg, Value):
                if raw and not val.dtype.is_floating_point:
                    raise NotCovered
                value = o.cast(arg, o.compute)
                return getattr(o, NEAREST[val.dtype if raw else promoted])(value) if converts or (raw and val.dtype in NEAREST) else value
        if isinstance(arg, Index) and (promoted in (torch.bfloat16, torch.float16) or row.operands == "own"):
            raise NotCovered
        if isinstance(arg, (int, float)) and converts:
            return torch.tensor(arg, dtype=promoted).item()
        if isinstance(arg, complex):
            raise NotCovered
        return o.constant(arg) if isinstance(arg, Index) else arg  # a value, which combines with numbers of any type

    args = [operand(a) for a in node.args]
    result = row.expand(o, *args, **{k: operand(v) for k, v in node.kwargs.items()})  # type: ignore[misc]
    if node.target is torch.ops.aten.reciprocal.default and val.dtype in NEAREST:  # half of a division of a number, which is one operation to the user
        result = getattr(o, NEAREST[val.dtype])(result)
    if val.device.type == "cpu" and any(may_divide_by_zero(op, o.body.ops) for op in o.body.ops):
        raise NotCovered
    buffer = low.add(node.name, val)
    low.finish_pointwise(o, result, buffer, node)
    low.values[node] = node.name


def check_held(low: Lowering, node: torch.fx.Node, name: str, val: torch.Tensor) -> str:
    """A value that fills CPU memory, which eager refuses where the type of the memory does not hold it: a step before fills one element by eager's operator,
    which raises its error. Gives the buffer of that element, or the one of `name` where no value of its type is refused."""
    buffer = low.buffers[name]
    if val.device.type != "cpu" or buffer.device.type != "cpu" or is_held(val.dtype, buffer.dtype, known_number(low, name)):
        return name
    element, where = (low.add_temp(low.fresh(f"{node.name}_{part}"), dtype, val.device, ()) for part, dtype in (("element", val.dtype), ("where", torch.bool)))
    for made in (element, where):
        o = low.expander(made.dtype)
        o.body.store(o.constant(True, made.dtype).id, made.name, Index())
        low.steps.append(Nest(made.name, (), tuple(o.body.ops), (origin(node),)))
    held = replace(element, name=low.fresh(f"{node.name}_held"), kind="extern")
    low.buffers[held.name] = held
    low.steps.append(Extern(held.name, FILL, (Ref(element.name), Ref(where.name), Ref(name)), {}, (held.name,), origins=(origin(node),)))
    return held.name


def known_number(low: Lowering, name: str) -> float | None:
    """What a tensor of one element holds in every call: a baked tensor, or what a step before has stored there."""
    baked = low.constants.get(name)
    if baked is not None and baked.numel() == 1 and not baked.is_complex():
        return baked.item()
    made = next((step for step in reversed(low.steps) if isinstance(step, Nest) and step.name == name and not step.axes), None)
    return made.body[0].attr if made is not None and [op.name for op in made.body] == ["constant", "store"] else None


def jumps(node: torch.fx.Node) -> bool:
    """Whether a result jumps where rounding moves an operand: see JUMPS. A quotient does if it is rounded to a whole number."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and (schema.name in JUMPS or node.kwargs.get("rounding_mode") is not None)


def rounded_before_jumps(graph: torch.fx.Graph) -> frozenset[str]:
    """Names of the results of half precision that lead to a jump through others, by loops alone: each is rounded as in eager, so that what jumps sees eager's
    number, and not one that was rounded once. What a jump reads itself it rounds as it loads it."""
    read = {node for last in graph.nodes if is_unsteady(last) for node in deciding(last) if is_computed_in_half(node)}
    pending = [node for direct in read for node in direct.all_input_nodes]
    found: set[torch.fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in found and is_computed_in_half(node):
            found.add(node)
            pending += node.all_input_nodes
    return frozenset(node.name for node in found)


def deciding(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands that tell where a result jumps: of a derivative not the gradient, which comes first."""
    gradient = node.args[0] if "_backward" in str(node.target) else None
    return [operand for operand in node.all_input_nodes if operand is not gradient]


def is_unsteady(node: torch.fx.Node) -> bool:
    """Whether a result jumps, that of a reduction or a scan and a conversion to ints or bools among them."""
    if node.op != "call_function":
        return False
    row, schema = TABLE.get(str(node.target)), getattr(node.target, "_schema", None)
    if row is None:
        return schema is not None and schema.name in CALLS
    val = node.meta.get("val")
    to_int = row.samples in CONVERSIONS and isinstance(val, torch.Tensor) and not val.dtype.is_floating_point
    return row.kind in UNSTEADY or to_int or jumps(node) or row.kind == "reduction" and row.detail in EXACT


def is_computed_in_half(node: torch.fx.Node) -> bool:
    val = node.meta.get("val")
    row = TABLE.get(str(node.target)) if node.op == "call_function" else None
    return row is not None and row.kind in LOOPS and isinstance(val, torch.Tensor) and val.dtype in NEAREST


def converts_numbers(node: torch.fx.Node, val: torch.Tensor) -> bool:
    """Whether eager's kernel takes a number beside a tensor, and `alpha`, in the tensor's dtype: of half precision it is rounded before the operation."""
    return val.device.type == "cpu" and val.dtype in NEAREST and node.target in CONVERTING


def may_divide_by_zero(op: Op, body: Sequence[Op]) -> bool:
    """An integer division whose divisor is not known to be another number: on the CPU eager raises, on GPUs the result is undefined."""
    if op.name not in DIVISIONS or op.dtype.is_floating_point:
        return False
    divisor = body[op.args[1]]
    return divisor.name != "constant" or divisor.attr == 0


def require_element(low: Lowering, name: str, device: torch.device) -> None:
    """A nest on `device` can read the buffer, and bodies have its dtype."""
    if low.buffers[name].dtype not in DTYPES or not is_readable(low, name, device):
        raise NotCovered


def promote(node: torch.fx.Node) -> torch.dtype:
    """The dtype in which a comparison's arguments meet."""
    values: list[Any] = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args]
    values = [1 if isinstance(v, torch.SymInt) else 1.0 if isinstance(v, torch.SymFloat) else v for v in values]
    dtypes = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    if len(dtypes) == 1:
        (dtype,) = dtypes
        numbers = [v for v in values if not isinstance(v, torch.Tensor)]
        if all(isinstance(v, bool) or (isinstance(v, int) and dtype != torch.bool) or (isinstance(v, float) and dtype.is_floating_point) for v in numbers):
            return dtype
    stand_ins = [torch.empty((1,) * min(v.dim(), 1), dtype=v.dtype) if isinstance(v, torch.Tensor) else v for v in values]
    return torch.result_type(*stand_ins)  # type: ignore[arg-type]


def lower_create(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """A nest without loads."""
    val = node.meta["val"]
    buffer = low.add(node.name, val)
    axes, indices = low.axes(buffer.size)
    o = low.expander(val.dtype)
    value = create_value(low, o, node, row.detail, indices)
    low.finish_pointwise(o, value, buffer, node)
    low.values[node] = node.name


def create_value(low: Lowering, o: Expander, node: torch.fx.Node, what: str, indices: tuple) -> Value:
    args: list[Any] = [low.values[a] if isinstance(a, torch.fx.Node) else plain(a) for a in node.args]
    start: Any
    step: Any
    match what:
        case "fill" | "scalar":
            value = args[0] if what == "scalar" else args[2] if node.target is torch.ops.aten.new_full.default else args[1]
            if isinstance(value, torch.SymFloat):
                return o.cast(number(o, value), o.compute)
            if not isinstance(value, (bool, int, float, Index)):
                raise NotCovered
            return o.constant(value)
        case "0" | "1" | "empty":
            return o.constant(1 if what == "1" else 0)
        case "eye":
            return o.cast(o.eq(o.index(indices[0]), o.index(indices[1])), o.compute)
        case "arange":
            start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) > 2 else 1)
        case "iota":
            start, step = plain(node.kwargs["start"]), plain(node.kwargs["step"])
        case _:
            raise AssertionError(what)
    if not all(isinstance(v, (int, float, Index)) for v in (start, step)):
        raise NotCovered
    if not node.meta["val"].dtype.is_floating_point:  # eager counts in ints, from real numbers without their fractions
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    if isinstance(start, (int, Index)) and isinstance(step, (int, Index)):
        return o.cast(o.index(indices[0] * step + start), o.compute)
    exact = torch.float64 if o.compute == torch.float64 or node.meta["val"].device.type == "cpu" else torch.float32
    return o.cast(o.cast(o.index(indices[0]), exact) * step + start, o.compute)


def lower_copy_into(low: Lowering, node: torch.fx.Node, row: Row) -> None:
    """aten.copy_: stores into the memory of its first argument, an input."""
    target, source = low.buffer_of(node.args[0]), node.args[1]
    low.values[node] = target.name
    if isinstance(source, torch.fx.Node) and low.values[source] == target.name:
        return
    o = low.expander(target.dtype)
    if isinstance(source, torch.fx.Node):
        read = low.buffers[as_number(low, low.buffer_of(source).name, target.device, node)]
        require_element(low, read.name, target.device)
        require_element(low, target.name, target.device)
        value = low.load(o, read, low.broadcast(read, target.size))
    else:
        value = o.constant(plain(source))
    low.finish_pointwise(o, value, target, node)


def copy_reshaped(low: Lowering, node: torch.fx.Node, source: str) -> None:
    """A reshape whose elements have to move: a nest that reads the source at the same row-major position."""
    val = node.meta["val"]
    if is_elsewhere(low, node):
        raise NotCovered
    read = low.buffers[source]
    require_element(low, source, val.device)
    buffer = low.add(node.name, val)
    low.values[node] = node.name
    if buffer.numel == 0:
        return
    axes, indices = low.axes(buffer.size)
    o = low.expander(val.dtype)
    position = strided(indices, contiguous(buffer.size))
    inner: Extent = 1
    places = []
    for n in reversed(read.size):
        places.append((position // inner) % n)
        inner = inner * n
    value = low.load(o, read, strided(reversed(places), read.stride, read.offset))
    low.finish_pointwise(o, value, buffer, node)


def contiguous(size: tuple[Extent, ...]) -> list[Extent]:
    strides: list[Extent] = []
    step: Extent = 1
    for n in reversed(size):
        strides.append(step)
        step = step * n
    return strides[::-1]
