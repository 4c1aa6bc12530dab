"""Which attention of a captured graph becomes torch's operator: written attention, flex_attention, and torch's own layer where nobody reads its weights.

Only a copy of the graph changes, so that a backward that is differentiated again runs the user's own. An event tells what was decided of each, and why.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx
from torch.nn import functional as F

from dynacompile.autograd.attention_kernels import by_kernels
from dynacompile.autograd.attention_patterns import SOFTMAXES, Chain, chain_from, refused_kernel, refused_size
from dynacompile.autograd.score_functions import Refused
from dynacompile.env import Env
from dynacompile.events import AttentionFound
from dynacompile.ops.attention import by_operator
from dynacompile.ops.attention_kernels import DEVICES
from dynacompile.ops.flexible_attention import Flexible, FlexibleKernel
from dynacompile.private.of_torch import FakeTensor, LazyGraphModule

Node = torch.fx.Node
LAYERS = {F.multi_head_attention_forward: inspect.signature(F.multi_head_attention_forward)}


def with_attention_kernels(graph: torch.fx.GraphModule, env: Env, kept: Mapping[str, str]) -> tuple[torch.fx.GraphModule, list[AttentionFound]]:
    """The graph with its hand-written attention as torch's operator, and what to tell of each. kept: attention that stays as it is, by the name of
    its last node, and why."""
    if env.config.attention_scores < 0 or not any(n.target in SOFTMAXES or n.target in LAYERS or isinstance(n.target, Flexible) for n in graph.graph.nodes):
        return graph, []
    places = {node: place for place, node in enumerate(graph.graph.nodes)}
    found = [c for n in graph.graph.nodes if (c := flexible(n, env) or layer(n, env) or chain_from(n, places, env, kept)) is not None]
    told = [event_of(chain, env) for chain in found]
    chains = [c for c in found if not c.reason]
    if not chains:
        return graph, told
    copied = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    copied.output(copied.graph_copy(graph.graph, copies))
    next(iter(reversed(copied.nodes))).meta = dict(next(iter(reversed(graph.graph.nodes))).meta)
    for chain in chains:
        for node, (target, args) in zip(chain.nodes, chain.steps, strict=True):
            placed = copies[node]
            placed.op, placed.target = "call_function", target
            placed.args, placed.kwargs = torch.fx.node.map_arg(args, copies.__getitem__), {}
    return LazyGraphModule(graph, copied), told


def event_of(chain: Chain, env: Env) -> AttentionFound:
    site = str(chain.nodes[-1].meta.get("site") or "")
    told = chain.told or ("torch's operator needs no memory for the scores" if not chain.reason else "")
    reason = "; ".join(part for part in (told, chain.reason) if part)
    return AttentionFound(region=env.region, bucket=env.bucket, kernel=not chain.reason, ours=chain.ours, reason=reason, site=site)


def flexible(node: Node, env: Env) -> Chain | None:
    """flex_attention, as a chain of one node: by kernels of ours, or else by torch's operator, or else as written."""
    if not isinstance(node.target, Flexible):
        return None
    chain = Chain()
    refused = refused_operator(node, env)
    if not refused and node.target.mask is None:
        chain.add(node, (by_operator, (*node.args, FlexibleKernel(node.target))))
        return chain
    try:
        form: Any = by_kernels(node, None if refused else FlexibleKernel(node.target), env)
    except Refused as why:
        form = FlexibleKernel(node.target)
        chain.refuse(refused)
        if kernels_exist(node):
            chain.told = f"no kernel of ours, since {why}"
    else:
        chain.ours, chain.told = True, "block by block, its functions are part of them, unless its mask is one that torch's kernels know"
    chain.add(node, (by_operator, (*node.args, form)))
    return chain


def kernels_exist(node: Node) -> bool:
    return node.args[0].meta["val"].device.type in DEVICES  # type: ignore[union-attr]


def refused_operator(node: Node, env: Env) -> str:
    """Why torch's operator does not compute a flex_attention."""
    query, key, value = (n.meta["val"] for n in node.args[:3])  # type: ignore[union-attr]
    if node.target.score is not None or node.target.auxiliary:  # type: ignore[union-attr]
        return "a function changes its scores, or more is asked for than its result"
    if query.dtype != key.dtype or query.dtype != value.dtype:
        return "operands have several dtypes"
    dtype = query.dtype
    if torch.is_autocast_enabled(query.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(query.device.type)
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return refused_kernel(query, value) or refused_size((query.shape[-2], key.shape[-2]), value.shape[-1], dtype, query.device.type, recorded, env)


def layer(node: Node, env: Env) -> Chain | None:
    """torch's own layer, which computes its weights by hand, as is its default; as a chain of one node, where nobody reads them."""
    if node.op != "call_function" or node.target not in LAYERS:
        return None
    bound = LAYERS[node.target].bind(*node.args, **node.kwargs)  # type: ignore[index]
    bound.apply_defaults()
    given: dict[str, Any] = bound.arguments
    operands: list[Any] = [given[name].meta.get("val") if isinstance(given[name], Node) else None for name in ("query", "key", "value")]
    heads = given["num_heads"]
    if given["need_weights"] is not True or not all(type(t) is FakeTensor for t in operands) or type(heads) is not int:
        return None
    query, key, _ = operands
    chain = Chain()
    chain.add(node, (node.target, tuple((given | {"need_weights": False}).values())))  # type: ignore[arg-type]
    if any(user.target is not operator.getitem or (user.args[1] != 0 and user.users) for user in node.users):
        chain.refuse("the layer's weights are read")
    elif given["training"] is not False and given["dropout_p"] != 0:
        chain.refuse("dropout draws random numbers, which must be eager's")
    elif given["attn_mask"] is not None or given["key_padding_mask"] is not None:
        chain.refuse("the layer has a mask, which may hide all keys of a query")
    else:
        kind, recorded = query.device.type, torch.is_grad_enabled() and node_grows(node)
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
        head = query.new_empty(*query.shape[:-1], query.shape[-1] // heads)
        scores = query.shape[0], key.shape[0]  # it is given sequences first
        chain.refuse(refused_kernel(head, head) or refused_size(scores, head.shape[-1], dtype, kind, recorded, env))
    return chain


def node_grows(node: Node) -> bool:
    return any(t.requires_grad for t in node.meta["val"] if isinstance(t, torch.Tensor))
