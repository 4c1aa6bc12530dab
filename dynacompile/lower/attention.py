"""Attention on CPUs: ATen's operator and its backward as a kernel of ours, where that is expected to take less time.

The call stays what it computes: its template writes the same results, the logarithms of the sums included, so that one of the two may be ATen's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from dynacompile.ir.index import hint
from dynacompile.ir.loops import Buffer, Extern
from dynacompile.ir.symbols import bare_symbol
from dynacompile.lower.context import Lowering, arguments, geometry, origin
from dynacompile.ops.attention_costs import Attention, choose, may_be_ours

aten = torch.ops.aten
TEMPLATES = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: "attention_forward",
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: "attention_backward",
}
HEADS = ("query", "key", "value", "grad_out", "out")  # arguments whose rows a kernel reads as vectors


def lower_attention(low: Lowering, node: torch.fx.Node, args: tuple, kwargs: dict[str, object]) -> bool:
    """Appends the call with its template. False: nothing was done. args, kwargs: as the call has them, with a Ref for each tensor."""
    template = TEMPLATES.get(node.target)  # type: ignore[call-overload]
    if template is None:
        return False
    found = attention_of(low, node)
    if found is None:
        return False
    choice = choose(found)
    low.products.append((node, choice))
    if not choice.loops:
        return False
    results = [low.add(name, val).name for name, val in zip(low.parts(node, len(node.meta["val"])), node.meta["val"], strict=True)]
    low.values[node] = results
    low.steps.append(Extern(node.name, node.target, args, kwargs, tuple(results), origins=(origin(node),), template=template))  # type: ignore[arg-type]
    return True


def attention_of(low: Lowering, node: torch.fx.Node) -> Attention | None:
    """The extents of attention that our kernel computes, else None: float32 on the CPU without dropout, rows of consecutive elements."""
    given = arguments(node)
    scale = 1.0 if given["scale"] is None else given["scale"]
    varies = bare_symbol(scale) is not None  # capture guards that it is positive and finite
    if given["dropout_p"] != 0 or not varies and (not isinstance(scale, (int, float)) or not 0 < scale < math.inf):
        return None  # a scale that keeps the order of scores: their maximum is found before they are scaled
    tensors = {name: low.buffer_of(a) for name, a in given.items() if isinstance(a, torch.fx.Node)}
    if not all(fits(low, b) for b in tensors.values()) or not all(rows(b) for name, b in tensors.items() if name in HEADS):
        return None
    if not all(isinstance(val, torch.Tensor) and val.dtype == torch.float32 for val in node.meta["val"]) or not all(map(is_laid_out, node.meta["val"])):
        return None
    query, key, value = (tensors[name].size for name in ("query", "key", "value"))
    size = query[3]
    if key != value or key[:2] != query[:2] or key[3] != size or type(size) is not int or not may_be_ours(torch.float32, "cpu", size):
        return None
    mask = tensors.get("attn_mask")
    if mask is not None and not takes_mask(mask, (*query[:3], key[2])):
        return None
    batch, heads, queries = map(hint, query[:3])
    return Attention(batch * heads, queries, hint(key[2]), size, bool(given["is_causal"]), "grad_out" in tensors)


def fits(low: Lowering, buffer: Buffer) -> bool:
    """Elements of float32 on the CPU, in memory that is of float32, too. What has no elements in every call is left to ATen."""
    owner = low.buffers[buffer.base or buffer.name]
    return buffer.dtype == owner.dtype == torch.float32 and buffer.device.type == "cpu" and 0 not in buffer.size


def rows(buffer: Buffer) -> bool:
    return len(buffer.size) == 4 and (buffer.stride[3] == 1 or buffer.size[3] == 1)


def is_laid_out(val: Any) -> bool:
    """Whether results lie as a kernel writes them: heads in rows of consecutive elements; the logarithms in any way."""
    size, stride = geometry(val)
    return len(size) == 3 or stride[3] == 1 or size[3] == 1


def takes_mask(mask: Buffer, scores: tuple) -> bool:
    """A mask that is the same for some batches, heads or queries, with numbers for every key, one after the other."""
    alike = all(n in (1, wanted) for n, wanted in zip(reversed(mask.size), reversed(scores), strict=False))
    return 2 <= len(mask.size) <= 4 and alike and mask.size[-1] == scores[3] and (mask.stride[-1] == 1 or scores[3] == 1)
