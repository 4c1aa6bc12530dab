"""Torch-level graphs written by hand, where a test's recording can't make them."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def fakes_of(*tensors):
    mode = FakeTensorMode(static_shapes=True)
    return [mode.from_tensor(t, static_shapes=True) if isinstance(t, torch.Tensor) else t for t in tensors]


def chain(inputs, *steps):
    """A GraphModule of `inputs` placeholders; a step is (target, args) where an int in args stands for that earlier value."""
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"x{i}") for i in range(inputs)]
    for target, *args in steps:
        resolved = tuple(values[a.index] if isinstance(a, V) else a for a in args)
        values.append(graph.call_method(target, resolved) if isinstance(target, str) else graph.call_function(target, resolved))
    graph.output((values[-1],))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


class V:
    """The value at `index`: an input or the result of an earlier step."""

    def __init__(self, index):
        self.index = index
