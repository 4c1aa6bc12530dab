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

from dynacompile.autograd.attention_patterns import SOFTMAXES, Chain, chain_from, refused_kernel, refused_size
from dynacompile.env import Env
from dynacompile.events import AttentionFound
from dynacompile.ops.attention import by_operator
from dynacompile.ops.flexible_attention import Flexible, FlexibleKernel
from dynacompile.private.of_torch import FakeTensor

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
    return torch.fx.GraphModule(graph, copied), told


def event_of(chain: Chain, env: Env) -> AttentionFound:
    site, reason = str(chain.nodes[-1].meta.get("site") or ""), chain.reason or "torch's operator needs no memory for the scores"
    return AttentionFound(region=env.region, bucket=env.bucket, kernel=not chain.reason, reason=reason, site=site)


def flexible(node: Node, env: Env) -> Chain | None:
    """flex_attention, as a chain of one node."""
    if not isinstance(node.target, Flexible):
        return None
    query, key, value = (n.meta["val"] for n in node.args[:3])  # type: ignore[union-attr]
    chain = Chain()
    chain.add(node, (by_operator, (*node.args, FlexibleKernel(node.target))))
    if node.target.score is not None or node.target.auxiliary:
        chain.refuse("a function changes its scores, or more is asked for than its result")
    elif query.dtype != key.dtype or query.dtype != value.dtype:
        chain.refuse("operands have several dtypes")
    else:
        dtype = query.dtype
        if torch.is_autocast_enabled(query.device.type) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(query.device.type)
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
        chain.refuse(refused_kernel(query, value) or refused_size((query.shape[-2], key.shape[-2]), value.shape[-1], dtype, query.device.type, recorded, env))
    return chain


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
