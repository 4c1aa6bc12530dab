"""Whatever has no row, or arguments outside its row: a call of the op itself on whole tensors."""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.index import Extent
from dynacompile.ir.index import extent as simplest
from dynacompile.ir.loops import Extern, Ref
from dynacompile.ir.symbols import bare_symbol, extent
from dynacompile.lower.attention import lower_attention
from dynacompile.lower.block_attention import lower_block_attention
from dynacompile.lower.context import Lowering, geometry, origin
from dynacompile.lower.items import used_items
from dynacompile.lower.products import lower_blocked_product, lower_small_product
from dynacompile.ops.chunked_losses import ADD_PRODUCT, ADD_TO, AFTER, PRODUCT_INTO
from dynacompile.ops.collectives import is_collective, is_wait
from dynacompile.ops.table import TABLE, Row
from dynacompile.private import of_torch

aten = torch.ops.aten
OUT = {"mm.out": aten.mm.out, "addmm.out": aten.addmm.out, "bmm.out": aten.bmm.out, "baddbmm.out": aten.baddbmm.out}
WITHOUT_ROWS = {  # ops of GPUs alone, or that GPUs are made for
    aten.mm.dtype: aten.mm.dtype_out,
    aten._addmm_activation.default: aten._addmm_activation.out,
    aten._scaled_mm.default: aten._scaled_mm.out,
}


def lower_extern(low: Lowering, node: torch.fx.Node, row: Row | None) -> None:
    """Appends the call. Its results get the strides of the fakes; an op that writes to an argument gives that argument's buffer."""
    op = node.target
    if not isinstance(op, of_torch.OpOverload):
        raise Unsupported("operator", f"{op} is not an ATen or custom operator", "register it with torch.library")
    if op is PRODUCT_INTO:
        lower_product_into(low, node)
        return
    if is_sum_in_place(low, node):
        lower_sum_in_place(low, node)
        return
    if starts_as_a_fill(low, node):
        lower_into_fill(low, node)
        return
    args, kwargs = template(low, node.args), {k: template(low, v) for k, v in node.kwargs.items()}
    if lower_blocked_product(low, node, args, kwargs) or lower_small_product(low, node):  # type: ignore[arg-type]
        return
    if lower_attention(low, node, args, kwargs) or lower_block_attention(low, node, args, kwargs):  # type: ignore[arg-type]
        return
    mutated = mutated_args(low, node, op)
    random = torch.Tag.nondeterministic_seeded in op.tags or (is_collective(op) and not is_wait(op))
    out = OUT.get(row.detail) if row is not None else WITHOUT_ROWS.get(op)
    val = node.meta.get("val")
    aliased = [r.alias_info is not None and r.alias_info.is_write for r in op._schema.returns]
    if any(aliased):
        low.values[node] = mutated[0] if len(aliased) == 1 else mutated
        outputs: tuple[str | None, ...] = (None,) * len(aliased)
    elif isinstance(val, torch.Tensor):
        if out is not None and dense(val):
            outputs = (low.add(node.name, val).name,)
        else:
            out, outputs = None, (low.add(node.name, val, "extern").name,)
        low.values[node] = node.name
    elif isinstance(val, (tuple, list)):
        results = [result(low, name, v) for name, v in zip(low.parts(node, len(val)), val, strict=True)]
        low.values[node] = results
        used = used_items(node, len(results))
        outputs = tuple(r if isinstance(r, str) and i in used else None for i, r in enumerate(results))
    else:
        refuse_symbols(val, node)
        low.values[node] = val
        outputs = ()
    roots = tuple(dict.fromkeys(low.buffers[m].base or m for m in mutated))
    low.steps.append(Extern(node.name, op, args, kwargs, outputs, out, roots, random, (origin(node),), made_before(low, node)))  # type: ignore[arg-type]


def made_before(low: Lowering, node: torch.fx.Node) -> tuple[str, ...]:
    """What a call waits for and does not read; for the wait for a collective what that one reads, which is kept until then."""
    if is_wait(node.target):
        begun = cast(torch.fx.Node, node.args[0])
        while begun.target is operator.getitem or getattr(begun.target, "is_view", False):
            begun = begun.all_input_nodes[0]
        return tuple(low.buffer_of(a).name for a in begun.all_input_nodes) if is_collective(begun.target) else ()
    return tuple(low.buffer_of(a.args[1]).name for a in node.all_input_nodes if a.target is AFTER)


PRODUCTS = frozenset({aten.mm.default, aten.mm.dtype, aten.addmm.default, ADD_PRODUCT})
SUMS = frozenset({aten.addmm.default, ADD_PRODUCT})


def is_sum_in_place(low: Lowering, node: torch.fx.Node) -> bool:
    """Whether a product is added to one that nothing else reads: a running sum, which stays where it is."""
    if node.target is ADD_TO:
        return True
    before = node.args[0] if node.target in SUMS else None
    if not isinstance(before, torch.fx.Node) or before.target not in PRODUCTS or before in node.args[1:]:
        return False
    if any(u is not node and (u.target is not AFTER or u.args[0] is before) for u in before.users):  # what only waits for it does not read it
        return False
    have, made = low.buffer_of(before), node.meta["val"]
    return (have.size, have.stride) == geometry(made) and have.dtype == made.dtype and have.base is None


def lower_sum_in_place(low: Lowering, node: torch.fx.Node) -> None:
    args, kwargs = template(low, node.args), {k: template(low, v) for k, v in node.kwargs.items()}
    sum_of = low.values[node.args[0]]  # type: ignore[index]
    op = aten.add_.Tensor if node.target is ADD_TO else aten.addmm_.default
    if node.target is ADD_PRODUCT:
        op, kwargs = aten.addmm.dtype_out, {"out_dtype": torch.float32, "out": Ref(str(sum_of))}
    low.values[node] = sum_of
    low.steps.append(Extern(node.name, op, args, kwargs, (None,), None, (str(sum_of),), False, (origin(node),), made_before(low, node)))  # type: ignore[arg-type]


INTO_A_COPY = {
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.index_add.default: aten.index_add_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}
"""Operators that write to some elements of a copy of their first argument, and those that write to the argument."""


def starts_as_a_fill(low: Lowering, node: torch.fx.Node) -> bool:
    """Whether the node writes to some elements of a tensor that was filled for it alone, as gradients of reads at places do: it needs no copy."""
    before = node.args[0] if node.target in INTO_A_COPY and node.args else None
    row = TABLE.get(str(before.target)) if isinstance(before, torch.fx.Node) else None
    if row is None or row.kind != "create" or len(before.users) != 1:  # type: ignore[union-attr]
        return False
    others: list[torch.fx.Node] = []  # those in lists, too, as places are
    torch.fx.node.map_arg((node.args[1:], node.kwargs), others.append)
    if before in others:
        return False
    have, made = low.buffer_of(before), node.meta["val"]
    return (have.size, have.stride) == geometry(made) and have.dtype == made.dtype and have.base is None and have.kind == "temp"


def lower_into_fill(low: Lowering, node: torch.fx.Node) -> None:
    args, kwargs = template(low, node.args), {k: template(low, v) for k, v in node.kwargs.items()}
    filled = str(low.values[node.args[0]])  # type: ignore[index]
    low.values[node] = filled
    op = INTO_A_COPY[node.target]  # type: ignore[index]
    low.steps.append(Extern(node.name, op, args, kwargs, (None,), None, (filled,), False, (origin(node),), made_before(low, node)))  # type: ignore[arg-type]


def lower_product_into(low: Lowering, node: torch.fx.Node) -> None:
    rows, a, b, given = cast(tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node, Any], node.args)
    start = cast(Extent, low.values[given] if isinstance(given, torch.fx.Node) else template(low, given))
    whole, count = low.buffer_of(rows), a.meta["val"].shape[0]
    low.add_view(node.name, whole, (extent(count), *whole.size[1:]), whole.stride, simplest(whole.offset + start * whole.stride[0]))
    args, kwargs = (template(low, a), template(low, b)), {"out": Ref(node.name)}
    written = (whole.base or whole.name,)
    low.steps.append(Extern(node.name, aten.mm.out, args, kwargs, (None,), None, written, False, (origin(node),), made_before(low, node)))
    low.values[node] = whole.name


def result(low: Lowering, name: str, val: object) -> object:
    if isinstance(val, torch.Tensor):
        return low.add(name, val, "extern").name
    if isinstance(val, torch.SymInt):
        return extent(val) if val.node.has_hint() else None
    return None if isinstance(val, (torch.SymFloat, torch.SymBool)) else val


def refuse_symbols(val: object, node: torch.fx.Node) -> None:
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unsupported(
            "data-dependent-value",
            f"{node.target} gives a number that depends on tensor values",
            "keep it out of the compiled region",
            str(node.meta.get("site") or ""),
        )


def mutated_args(low: Lowering, node: torch.fx.Node, op: of_torch.OpOverload) -> list[str]:
    """Buffers that the op writes to, in schema order."""
    if not op._schema.is_mutable:
        return []
    found = []
    for i, parameter in enumerate(op._schema.arguments):
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            arg = node.args[i] if i < len(node.args) else node.kwargs.get(parameter.name)
            for one in arg if isinstance(arg, (tuple, list)) else (arg,):
                if isinstance(one, torch.fx.Node):
                    found.append(low.buffer_of(one).name)
    return found


def template(low: Lowering, arg: object) -> object:
    """The argument with a Ref for each tensor."""
    if isinstance(arg, torch.fx.Node):
        return of_value(low.values[arg], arg)
    if isinstance(arg, (tuple, list)):
        return tuple(template(low, a) for a in arg)
    if isinstance(arg, dict):
        return {k: template(low, v) for k, v in arg.items()}
    if isinstance(arg, slice):
        return slice(template(low, arg.start), template(low, arg.stop), template(low, arg.step))
    if isinstance(arg, torch.SymInt):
        return extent(arg)
    if isinstance(arg, torch.SymFloat):
        found = bare_symbol(arg)
        if found is not None:
            return found
    refuse_numbers(arg)
    return arg


def of_value(value: object, node: torch.fx.Node) -> object:
    if isinstance(value, str):
        return Ref(value)
    if isinstance(value, (tuple, list)):
        return tuple(of_value(v, node) for v in value)
    if isinstance(value, torch.SymFloat) and node.op == "placeholder":
        return bare_symbol(value)
    refuse_symbols(value, node)
    return value


def refuse_numbers(arg: object) -> None:
    if isinstance(arg, (torch.SymFloat, torch.SymBool)):
        raise Unsupported("symbolic-shape", f"the number {arg} is computed of sizes that differ from call to call", "compile with dynamic=False")


def dense(val: torch.Tensor) -> bool:
    """Row-major, or a matrix stored transposed or with padded rows: what the out= overload keeps as it is."""
    size, stride = geometry(val)
    if len(size) == 2 and stride[1] == 1 and (stride[0] == size[1] or (isinstance(size[1], int) and isinstance(stride[0], int) and stride[0] >= size[1])):
        return True
    expected: Extent = 1
    for n, s in sorted(((n, s) for n, s in zip(size, stride, strict=True) if n != 1), key=lambda p: p[1]):
        if s != expected:
            return False
        expected = simplest(expected * n)
    return True
