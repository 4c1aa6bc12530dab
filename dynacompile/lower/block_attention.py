"""Attention on GPUs whose scores and mask functions of points change: operators of ours as kernels, with the functions as their bodies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.fx

from dynacompile.ir.loops import Buffer, Extern, Nest, Origin
from dynacompile.lower.context import Lowering, arguments, geometry, origin
from dynacompile.lower.items import used_items
from dynacompile.lower.points import body_of, points_over
from dynacompile.ops.attention_kernels import DEVICES, FORWARD, KEY_GRADIENT, QUERY_GRADIENT
from dynacompile.ops.pointwise import NotCovered

TEMPLATES = {FORWARD: "attention", QUERY_GRADIENT: "attention_query_gradient", KEY_GRADIENT: "attention_key_gradient"}
FUNCTIONS = ("score", "mask", "derivative")


def lower_block_attention(low: Lowering, node: torch.fx.Node, args: tuple, kwargs: dict[str, object]) -> bool:
    """Appends the call with its template. False: nothing was done. args, kwargs: as the call has them, with a Ref for each tensor."""
    template = TEMPLATES.get(node.target)  # type: ignore[call-overload]
    if template is None:
        return False
    val = node.meta["val"]
    if val[0].device.type not in DEVICES:
        return False
    before = len(low.steps)
    given = arguments(node)
    used = used_items(node, len(val))
    made = [low.add(name, one) if i in used else None for i, (name, one) in enumerate(zip(low.parts(node, len(val)), val, strict=True))]
    results = [buffer for buffer in made if buffer is not None]
    sums = {f"r{i}": buffer for i, buffer in zip(given.get("wanted", ()), made[1:], strict=False) if buffer is not None}
    try:
        bodies = bodies_of(low, given, sums)
    except NotCovered:
        for buffer in results:
            del low.buffers[buffer.name]
        del low.steps[before:]
        low.unfused_attention.append(node)
        return False
    for buffer in sums.values():
        o = low.expander(buffer.dtype)
        low.finish_pointwise(o, o.constant(0.0), buffer, node)
        low.steps[-1] = replace(low.steps[-1], origins=(Origin("zeros", node.meta.get("site")),))
    names = tuple(None if buffer is None else buffer.name for buffer in made)
    added = tuple(buffer.name for buffer in sums.values())
    low.values[node] = list(names)
    low.steps.append(Extern(node.name, node.target, args, kwargs, names, None, added, False, (origin(node),), template=template, bodies=bodies))  # type: ignore[arg-type]
    return True


def bodies_of(low: Lowering, given: dict[str, Any], sums: dict[str, Buffer]) -> dict[str, Nest]:
    """The functions of a call. Raises NotCovered for one that has an operation without a row."""
    query, key = given["query"], given["key"]
    sizes = (*geometry(query.meta["val"])[0][:3], geometry(key.meta["val"])[0][2])
    points = points_over(sizes, given["reads"], given["numbers"], query)
    return {role: body_of(low, points, role, given[role], sums if role == "derivative" else {}) for role in FUNCTIONS if given.get(role)}
