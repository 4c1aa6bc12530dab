"""CPU tensors in a program that runs on a GPU: known numbers are computed now, unknown ones by loops on the CPU, all else is a call of the op.

A kernel of the GPU may read a number of the CPU, a tensor without dimensions, as if it were in the GPU's memory: the runtime reads it as it launches the
kernel, and hands the value over with the launch. Nothing waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from dynacompile.ir.loops import Buffer
from dynacompile.lower.context import DTYPES, Lowering
from dynacompile.ops.collectives import is_collective
from dynacompile.private import of_torch

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
ON_HOST = frozenset({"pointwise", "create", "copy_into"})  # rows that have loops on the CPU for numbers beside a GPU


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
    if not isinstance(val, torch.Tensor) or val.dim() or val.device.type != "cpu" or not isinstance(op, of_torch.OpOverload):
        return False
    if is_collective(op) or op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags or any(u.op == "output" or is_mutable(u) for u in node.users):
        return False
    if any(isinstance(a, SYMBOLIC) for a in of_torch.tree_leaves((node.args, node.kwargs))):
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
    return isinstance(node.target, of_torch.OpOverload) and node.target._schema.is_mutable


def is_number(low: Lowering, buffer: Buffer) -> bool:
    """A tensor on the CPU that kernels of a GPU can read: all of some memory, which has one element."""
    owner = low.buffers[buffer.base or buffer.name]
    return buffer.device.type == "cpu" and not buffer.size and not owner.size and not buffer.offset and owner.dtype == buffer.dtype and buffer.dtype in DTYPES


def as_number(low: Lowering, name: str, device: torch.device, node: torch.fx.Node) -> str:
    """What a nest on `device` reads for `name`: itself, or, for one element of a larger tensor on the CPU, a number of its own with the same value."""
    buffer = low.buffers[name]
    if device.type != "cuda" or buffer.device.type != "cpu" or buffer.size or buffer.dtype not in DTYPES or name in low.constants or is_number(low, buffer):
        return name
    number = Buffer(low.fresh(f"{name}_number"), buffer.dtype, buffer.device, (), (), "temp")
    low.buffers[number.name] = number
    o = low.expander(buffer.dtype)
    low.finish_pointwise(o, low.load(o, buffer, low.broadcast(buffer, ())), number, node)
    return number.name


def has_loops(low: Lowering, node: torch.fx.Node, kind: str) -> bool:
    """Whether what the op makes on the CPU, beside a GPU, is a number that a loop of ours computes."""
    val = node.meta.get("val")
    return kind in ON_HOST and isinstance(val, torch.Tensor) and val.device.type == "cpu" and val.dim() == 0


def is_readable(low: Lowering, name: str, device: torch.device) -> bool:
    """A nest on `device` can read the buffer: it is there, or a number of the CPU, known or not."""
    buffer, baked = low.buffers[name], low.constants.get(name)
    if buffer.device == device or (baked is not None and baked.dim() == 0 and baked.device.type == "cpu"):
        return True
    return device.type == "cuda" and is_number(low, buffer)
