"""CPU tensors in a program that runs on a GPU: known numbers are computed now, unknown ones copied over, all else is a call of the op."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from dynacompile.ir.loops import Buffer, Extern, Ref
from dynacompile.lower.context import Lowering, origin

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
TO_COPY = torch.ops.aten._to_copy.default


def main_device(graph: torch.fx.Graph) -> torch.device:
    """The first device of the graph's tensors that is no CPU, else the CPU."""
    for node in graph.nodes:
        val = node.meta.get("val")
        for one in val if isinstance(val, (tuple, list)) else (val,):
            if isinstance(one, torch.Tensor) and one.device.type != "cpu":
                return one.device
    return torch.device("cpu")


def is_elsewhere(low: Lowering, node: torch.fx.Node) -> bool:
    """The op makes a CPU tensor in a program whose kernels run on another device."""
    val = node.meta.get("val")
    return low.device.type != "cpu" and any(isinstance(v, torch.Tensor) and v.device.type == "cpu" for v in (val if isinstance(val, (tuple, list)) else (val,)))


def fold(low: Lowering, node: torch.fx.Node) -> bool:
    """True where the node is a number on the CPU made of known numbers, and has become a constant; outputs of the graph get memory of their own."""
    val, op = node.meta.get("val"), node.target
    if not isinstance(val, torch.Tensor) or val.dim() or val.device.type != "cpu" or not isinstance(op, torch._ops.OpOverload):
        return False
    if op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags or any(u.op == "output" or is_mutable(u) for u in node.users):
        return False
    if any(isinstance(a, SYMBOLIC) for a in torch.utils._pytree.tree_leaves((node.args, node.kwargs))):
        return False
    for arg in node.all_input_nodes:
        if isinstance(arg.meta.get("val"), SYMBOLIC):
            return False
        name = low.values[arg]
        if isinstance(name, str) and (name not in low.constants or low.constants[name].dim() or low.constants[name].device.type != "cpu"):
            return False

    def given(arg: torch.fx.Node) -> Any:
        name = low.values[arg]
        return low.constants[name] if isinstance(name, str) else name

    with torch.no_grad():
        result = op(*torch.fx.map_arg(node.args, given), **torch.fx.map_arg(node.kwargs, given))  # type: ignore[operator]
    low.constants[node.name] = result
    low.values[node] = low.add(node.name, result, "constant").name
    return True


def is_mutable(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def on_device(low: Lowering, name: str, device: torch.device, node: torch.fx.Node) -> str:
    """The buffer that a nest on `device` reads for `name`: itself, or, for an unknown number on the CPU, its copy there, made once."""
    buffer = low.buffers[name]
    if buffer.device == device or buffer.device.type != "cpu" or buffer.size or name in low.constants:
        return name
    copies = low.copies.setdefault(device, {})
    if name not in copies:
        copy = copies[name] = low.fresh(f"{name}_on_{device.type}")
        low.buffers[copy] = Buffer(copy, buffer.dtype, device, (), (), "extern")
        low.steps.append(Extern(copy, TO_COPY, (Ref(name),), {"device": device}, (copy,), origins=(origin(node),)))
    return copies[name]
