"""The stage's entry: a captured graph to a forward and a backward graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from dynacompile.autograd.attention_choices import with_attention_kernels
from dynacompile.autograd.decompose import decomposition_table
from dynacompile.autograd.gathers import gather_ahead
from dynacompile.autograd.joint import trace_joint
from dynacompile.autograd.joint_graph import JointGraph
from dynacompile.autograd.large_losses import with_chunked_losses
from dynacompile.autograd.passes import simplify
from dynacompile.autograd.passes.buckets import bucket_collectives
from dynacompile.autograd.passes.packing import pack_weights
from dynacompile.autograd.split import split
from dynacompile.env import Env
from dynacompile.events import LossChunked, MaskRead
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.ops.attention import KeptAsWritten
from dynacompile.ops.chunked_losses import WrittenBetween


def differentiate(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> ForwardBackward:
    """Functional, decomposed ATen graphs of a torch-level graph under the grad and autocast mode of the caller.

    graph: call_function and call_method nodes, a flat tuple as output; nodes may carry meta["site"]. fakes: one per placeholder: FakeTensors of
    static shape whose requires_grad and is_leaf are the real inputs', or numbers, which become constants. backward is None where no output
    needs a gradient. Raises Unsupported, naming the op, where functionalization or autograd can't follow.
    """
    joint = trace_chosen(graph, fakes, env)
    for site, found in joint.masks:
        env.emit(MaskRead(region=env.region, bucket=env.bucket, site=site, found=found))
    simplify(joint.graph, env.config.precise)
    if env.config.freeze and not joint.tangents:
        weights = {n for i, (n, fake) in enumerate(zip(joint.placeholders, fakes, strict=False)) if is_parameter(fake) and i not in joint.written}
        pack_weights(joint.graph, weights)
    pair = split(joint, env.config.memory_budget, env.config.regather)
    if env.config.collective_bytes or env.config.regather:
        for part in (pair.forward, *pair.stages, *((pair.backward,) if pair.backward is not None else ())):
            if env.config.regather:
                gather_ahead(part.graph, env.config.flight_bytes)
            if env.config.collective_bytes:
                bucket_collectives(part.graph, env.config.collective_bytes)
            part.recompile()
    return pair


def is_parameter(fake: object) -> bool:
    return isinstance(fake, torch.nn.Parameter) or (isinstance(fake, torch.Tensor) and fake.is_leaf and fake.requires_grad)


def trace_chosen(graph: torch.fx.GraphModule, fakes: Sequence[object], env: Env) -> JointGraph:
    """The graph, traced with what was chosen for its attention and its losses. Tells of both."""
    kept: dict[str, str] = {}
    in_chunks = True
    while True:
        chosen, told = with_attention_kernels(graph, env, kept)
        chosen = (with_chunked_losses(chosen, env) if in_chunks else None) or chosen
        try:
            joint = trace_joint(chosen, fakes, decomposition_table(), keeps_views=env.breaks)
        except KeptAsWritten as refused:
            kept |= refused.reasons
        except WrittenBetween:
            in_chunks = False
            reason = "the graph writes an operand of the layer before the loss reads it"
            env.emit(LossChunked(region=env.region, bucket=env.bucket, chunked=False, reason=reason, bytes=0))
        else:
            for event in told:
                env.emit(event)
            return joint
