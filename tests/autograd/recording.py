"""A small capture for tests: records the torch functions that a Python function calls on fake tensors as a torch-level graph."""

from __future__ import annotations

import contextlib
import sys

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dynacompile.ir.captured import Site


class Recording(TorchFunctionMode):
    """Adds a node per torch function; the current one is found by `current`."""

    stack: list[Recording] = []

    def __init__(self):
        super().__init__()
        self.graph = torch.fx.Graph()
        self.nodes: dict[int, torch.fx.Node] = {}
        self.alive: list[object] = []

    def lookup(self, value):
        if isinstance(value, torch.Tensor) and id(value) in self.nodes:
            return self.nodes[id(value)]
        return value

    def remember(self, value, node):
        self.alive.append(value)
        self.nodes[id(value)] = node

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        out = func(*args, **kwargs)
        if name == "__get__" and isinstance(out, torch.Tensor):
            self.add(getattr, (args[0], func.__self__.__name__), {}, out)
        elif name != "__get__" and (isinstance(out, (torch.Tensor, tuple, list)) or name in ("__setitem__", "_set_grad_enabled", "backward")):
            self.add(func, args, kwargs, out)
        return out

    def add(self, func, args, kwargs, out):
        args, kwargs = pytree.tree_map(self.lookup, (tuple(args), kwargs))
        node = self.graph.create_node("call_function", func, args, kwargs)
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(torch.__path__[0]):
            frame = frame.f_back
        if frame is not None:
            node.meta["site"] = Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        if isinstance(out, torch.Tensor):
            if id(out) not in self.nodes:
                self.remember(out, node)
        elif isinstance(out, (tuple, list)) and not isinstance(out, torch.Size):
            for i, item in enumerate(out):
                if isinstance(item, torch.Tensor):
                    self.remember(item, self.graph.call_function(lambda seq, k: seq[k], (node, i)))


@contextlib.contextmanager
def autocast(device="cpu", dtype=torch.bfloat16):
    """torch.autocast whose enter and exit are nodes, as capture emits them."""
    recording = Recording.stack[-1] if Recording.stack else None
    mode = torch.amp.autocast_mode._enter_autocast(device, dtype, True, None)
    node = recording.graph.call_function(torch.amp.autocast_mode._enter_autocast, (device, dtype, True, None)) if recording else None
    try:
        yield
    finally:
        torch.amp.autocast_mode._exit_autocast(mode)
        if recording:
            recording.graph.call_function(torch.amp.autocast_mode._exit_autocast, (node,))


def record(fn, args):
    """(torch-level graph, fakes, output spec) of fn(*args); args are tensors and numbers."""
    fake_mode = FakeTensorMode(static_shapes=True)
    fakes = [fake_mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in args]
    clones = [fake_mode.from_tensor(a, static_shapes=True) if isinstance(a, torch.Tensor) else a for a in args]
    recording = Recording()
    for i, fake in enumerate(clones):
        node = recording.graph.placeholder(f"arg_{i}")
        if isinstance(fake, torch.Tensor):
            recording.nodes.setdefault(id(fake), node)
    Recording.stack.append(recording)
    grad = torch.is_grad_enabled()
    try:
        with fake_mode, recording:
            out = fn(*clones)
    finally:
        Recording.stack.pop()
        torch.set_grad_enabled(grad)
    flat, spec = pytree.tree_flatten(out)
    recording.graph.output(tuple(recording.lookup(o) for o in flat))
    return torch.fx.GraphModule(torch.nn.Module(), recording.graph), fakes, spec
