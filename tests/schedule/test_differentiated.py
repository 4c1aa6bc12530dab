"""The graphs that autograd makes of its own test programs: forward and backward, every level against ATen."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from dynacompile.autograd import differentiate
from dynacompile.env import Env
from tests.autograd.programs import PROGRAMS
from tests.autograd.recording import record
from tests.lower.tracing import ENV, UNFUSED, compare


def values(graph: torch.fx.GraphModule) -> list[object]:
    """Values for the placeholders, with the geometry of their fakes. Places of maxima lie in their windows."""
    generator = torch.Generator().manual_seed(0)
    found = {node: value(node.meta.get("val"), generator) for node in graph.graph.nodes if node.op == "placeholder"}
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.max_pool2d_with_indices_backward.default):
        _, pooled, *window, places = node.args
        found[places] = torch.ops.aten.max_pool2d_with_indices(torch.rand(pooled.meta["val"].shape, generator=generator), *window)[1]
    return list(found.values())


def value(fake: object, generator: torch.Generator) -> object:
    if not isinstance(fake, torch.Tensor):
        return fake
    size = 1 + sum((n - 1) * s for n, s in zip(fake.shape, fake.stride(), strict=True)) if fake.numel() else 0
    if fake.dtype.is_floating_point:
        flat = (torch.rand(size, generator=generator) * 0.8 + 0.1).to(fake.dtype)  # probabilities are, too
    else:
        flat = torch.randint(0, 2, (size,), generator=generator).to(fake.dtype)
    return flat.as_strided(fake.shape, fake.stride())


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused(name: str) -> None:
    check(name, ENV)


@pytest.mark.parametrize("name", ["gpt_block", "conv_batch_norm_train", "buffer_slices_written", "written_through_views", "views_of_a_view"])
def test_apart(name: str) -> None:
    check(name, UNFUSED)


def check(name: str, env: Env) -> None:
    program = PROGRAMS[name]
    leaves = program.leaves()
    inputs = list(program.prepare(*leaves)) if program.prepare else leaves
    graph, fakes, _ = record(program.fn, inputs)
    pair = differentiate(graph, fakes, ENV)
    for graph in (pair.forward, pair.backward):
        if graph is not None:
            given = values(graph)
            half = any(n.meta["val"].dtype in (torch.bfloat16, torch.float16) for n in graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor))
            compare(graph, given, env, **({"rtol": 1e-1, "atol": 1e-1} if half else {"rtol": 1e-4, "atol": 1e-4}))
