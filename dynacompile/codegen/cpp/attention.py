"""Attention as C++ text: the template of attention.h, with the extents and strides of one kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dynacompile.ir.calls import Call
from dynacompile.ir.index import Extent, Symbol
from dynacompile.ir.loops import Buffer
from dynacompile.ir.schedule import Kernel

HEADER = '#include "attention.h"'
FORWARD = ("query", "key", "value", "attn_mask")
BACKWARD = ("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask")
STRUCTS = {"attention_forward": ("AttentionForward", FORWARD), "attention_backward": ("AttentionBackward", BACKWARD)}


def statements(kernel: Kernel, call: Call) -> list[str]:
    """The body of the kernel's function, after its symbols."""
    struct, names = STRUCTS[call.template]
    places = {p.name: i for i, p in enumerate(kernel.params)}
    given: Mapping[str, Buffer | None] = {name: call.argument(name) for name in names}
    query, key, mask = call.argument("query"), call.argument("key"), given["attn_mask"]
    scores = (*query.size[:3], key.size[2])
    fields = [matrices(places, expanded(mask, scores) if name == "attn_mask" and mask is not None else view, "const f32") for name, view in given.items()]
    fields += [matrices(places, view, "f32") for view in call.outputs()]
    scale = call.argument("scale")
    factor = 1 / math.sqrt(query.size[3]) if scale is None else scale
    fields += [*map(str, scores), f"(f32){factor.name if isinstance(factor, Symbol) else repr(float(factor))}"]
    causal, masked = ("true" if has else "false" for has in (call.argument("is_causal"), mask is not None))
    lines = [f"const {struct}<Heads<{query.size[3]}, {causal}, {masked}>> attention = {{"]
    return [*lines, *(f"  {field}," for field in fields), "};", "attention.run();"]


def expanded(mask: Buffer, scores: tuple[Extent, ...]) -> Buffer:
    """The mask as numbers of all scores: those that several share have stride 0."""
    missing = len(scores) - len(mask.size)
    stride = (*([0] * missing), *(0 if n == 1 else s for n, s in zip(mask.size, mask.stride, strict=True)))
    return Buffer(mask.name, mask.dtype, mask.device, scores, stride, mask.kind, mask.offset, mask.base)


def matrices(places: Mapping[str, int], view: Buffer | None, element: str) -> str:
    """Where the first element is, and how far batches, heads and rows are apart."""
    if view is None:
        return "{nullptr, {0, 0, 0}}"
    apart = ", ".join(map(str, view.stride[:3]))
    return f"{{({element}*)params[{places[str(view.base)]}] + ({view.offset}), {{{apart}}}}}"
