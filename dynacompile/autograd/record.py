"""Writes down, as an fx graph, the ATen ops that run under it; values are fake tensors."""

from __future__ import annotations

import functools
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ir.captured import Site
from dynacompile.ir.fakes import answers_devices, fake_of
from dynacompile.ir.shapes import as_static, same_size
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.ir.zero_one import within
from dynacompile.ops.passed_numbers import StandIns
from dynacompile.ops.regions import REGION, Handle
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, FakeTensorMode, TorchDispatchMode

ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift.default})
VIEWS_TO_SAME_SIZE = frozenset({torch.ops.aten.view.default, of_torch.aten_unsafe_view, torch.ops.aten.expand.default})
LAZY = {of_torch.aten_conj: of_torch.aten_conj_physical, of_torch.aten_neg_view: torch.ops.aten.neg.default}
"""Views that differ from what they view by a mark alone, and the ops that compute them: inside of other ops, where nothing is written through them."""
TO_COPY = of_torch.aten_to_copy
PERMUTE = torch.ops.aten.permute.default
LIFT_FRESH = torch.ops.aten.lift_fresh.default
DEVICE = torch.ops.prim.device.default
FUNCTIONALIZE = of_torch.DispatchKeySet(of_torch.functionalize_key)


def sums_as_wide_as(args: Sequence[Any], out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """torch 2.11 says that the logarithms of sums are float32, where they are float64 of float64 tensors."""
    result, sums = out
    return out if args[0].dtype != torch.float64 or sums.dtype == torch.float64 else (result, torch.empty_like(sums, dtype=torch.float64))


CORRECTIONS: dict[Any, Callable] = {of_torch.aten_flash_attention_for_cpu.default: sums_as_wide_as}
"""Of operators whose fake results are not what the real ones are, in a version of torch that is supported."""


def suits(value: torch.Tensor, format: torch.memory_format) -> bool:
    rank = {torch.channels_last: 4, torch.channels_last_3d: 5}.get(format, value.dim())
    return value.dim() == rank and value.is_contiguous(memory_format=format)


def dense_order(value: torch.Tensor) -> list[int] | None:
    """The order in which the dimensions of a tensor without gaps lie in memory; None where there are some, or where sizes are symbolic."""
    strides = value.stride()
    if any(type(n) is not int for n in (*value.shape, *strides)):
        return None
    order = sorted(range(value.dim()), key=lambda d: (-strides[d], -value.shape[d], d))
    step = 1
    for d in reversed(order):
        if value.shape[d] != 1 and strides[d] != step:
            return None
        step *= value.shape[d]
    return order


@answers_devices
class Recorder(TorchDispatchMode):
    """While it is on the stack, every ATen op on fake tensors becomes a node of `graph`, decomposed by `table` first.

    A rule of the table may return NotImplemented: the op is then recorded as it is. Its inputs are fake tensors that this recorder
    made or was given through `placeholder`; a real tensor becomes a constant of the graph.
    """

    def __init__(self, fake_mode: FakeTensorMode, table: Mapping[of_torch.OpOverload, Callable]) -> None:
        super().__init__()
        self.fake_mode = fake_mode
        self.table = table
        self.graph = torch.fx.Graph()
        self._make = self.graph.create_node if fake_mode.shape_env is None else functools.partial(add_node, self.graph)
        self.wrappers: list[torch.Tensor] = []  # values that wrap others
        self.constants: dict[str, torch.Tensor] = {}
        self.writes: dict[int, torch.fx.Node] = {}  # memory that the captured graph writes to, and its last node that does
        self.site: Site | None = None
        self._nodes: dict[int, torch.fx.Node] = {}  # by id of the fake value, which the node's meta keeps alive
        self._sequence: list[int] = []  # autograd sequence number at which each site began
        self._sites: list[Site | None] = []
        self._handles: dict[int, Handle] = {}
        self.stand_ins = StandIns()
        self.made_by: dict[torch.fx.Node, torch.autograd.graph.Node] = {}  # of the backward's nodes

    def entered(self) -> AbstractContextManager[Any]:
        """With all that belongs to it on the stack."""
        return self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.handle(func, types, args, kwargs or {})

    def handle(self, func, types, args, kwargs):
        if func is DEVICE:
            return args[0].fake_device
        if func in ALIASES:
            return args[0]
        if func in LAZY:
            func = LAZY[func]
            if not isinstance(args[0], torch.Tensor):
                return torch.scalar_tensor(complex(args[0]).conjugate(), dtype=torch.complex128)
        rule = self.table.get(func)
        if rule is not None:
            with self, within(self.fake_mode.shape_env, func, args):
                out = rule(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if func is LIFT_FRESH:
            return self.constant(args[0])
        if func is TO_COPY and not isinstance(args[0], torch.Tensor):  # torch.func turns numbers into tensors by it
            return self.constant(torch.tensor(args[0], dtype=kwargs.get("dtype"), device=kwargs.get("device")))
        if func in VIEWS_TO_SAME_SIZE and isinstance(args[0], FakeTensor) and same_size(args[1], args[0].shape):
            return args[0]
        return self.record(func, types, args, kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own wrapper around every dispatch is for its compiler, not for ours."""
        return False

    def begin(self, site: Site | None) -> None:
        """Ops recorded from now on come from `site`; so do the backward ops of autograd nodes that are made from now on."""
        self.site = site
        self._sequence.append(of_torch.get_sequence_nr())
        self._sites.append(site)

    def begin_backward(self) -> None:
        """Sites now follow the autograd node that runs."""
        self.site = None

    def placeholder(self, name: str, value: object) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        if isinstance(value, FakeTensor):
            self._nodes[id(value)] = node
        return node

    def fake(self, func, *args, **kwargs) -> FakeTensor:
        """The fake result of an op that is not recorded, nor functionalized."""
        with of_torch.ExcludeDispatchKeyGuard(FUNCTIONALIZE):
            value = self.fake_mode.dispatch(func, (), args, kwargs)
        assert isinstance(value, FakeTensor)
        return value

    def keep(self, handle: Handle) -> None:
        """Nodes will hold the handle itself: the dispatcher passes its number on."""
        self._handles[int(handle)] = handle

    def node_of(self, value: torch.Tensor) -> torch.fx.Node:
        """The node whose value is the fake tensor `value`."""
        return self._nodes[id(value)]

    def copy_of(self, node: torch.fx.Node, strides: Sequence[int] | None = None) -> torch.fx.Node:
        """A new node with the value of `node` in memory of its own, of the same strides or of those given."""
        value = node.meta["val"]
        kwargs: dict[str, Any] = {}
        if strides is None:
            value = self.fake(torch.ops.aten.clone.default, value)
        else:
            value = self.fake(torch.ops.aten.empty_strided.default, list(value.shape), list(strides), dtype=value.dtype, device=value.device)
            formats = [f for f in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d) if suits(value, f)]
            order = None if formats else dense_order(value)
            if order is not None:
                return self.permuted_copy_of(node, order)
            kwargs = {"memory_format": formats[0]} if formats else {}
        copy = self.graph.create_node("call_function", torch.ops.aten.clone.default, (node,), kwargs)
        copy.meta = {**node.meta, "val": value}
        self._nodes[id(value)] = copy
        return copy

    def permuted_copy_of(self, node: torch.fx.Node, order: Sequence[int]) -> torch.fx.Node:
        """A copy whose dimensions lie in memory in this order."""
        back = [order.index(d) for d in range(len(order))]
        steps: tuple[tuple[Any, tuple, dict[str, Any]], ...] = (
            (PERMUTE, (order,), {}),
            (torch.ops.aten.clone.default, (), {"memory_format": torch.contiguous_format}),
            (PERMUTE, (back,), {}),
        )
        for op, args, kwargs in steps:
            value = self.fake(op, node.meta["val"], *args, **kwargs)
            node, before = self.graph.create_node("call_function", op, (node, *args), kwargs), node
            node.meta = {**before.meta, "val": value}
            self._nodes[id(value)] = node
        return node

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake value for a real tensor that the program holds: a fill where it has one element, else an attribute of the graph."""
        if isinstance(tensor, FakeTensor):
            return tensor
        if tensor.numel() == 1 and not tensor.is_complex() and not tensor.requires_grad:
            kwargs = {"dtype": tensor.dtype, "device": tensor.device}
            return self.record(torch.ops.aten.full.default, (), (list(tensor.shape), tensor.item()), kwargs)
        for name, known in self.constants.items():
            if known is tensor:
                return next(n.meta["val"] for n in self._nodes.values() if n.op == "get_attr" and n.target == name)
        name = f"_constant{len(self.constants)}"
        fake = fake_of(self.fake_mode, tensor.detach())
        self.constants[name] = tensor.detach()
        node = self.graph.create_node("get_attr", name)
        self._finish(node, fake)
        self._nodes[id(fake)] = node
        return fake

    def record(self, func, types, args, kwargs):
        """Runs `func` on fakes and adds its node; gives the fake result."""
        if func._schema.is_mutable:
            reason = f"{func} writes to its arguments and has no functional form"
            raise Unsupported("mutating-op", reason, "register a functional variant of the operator", str(self.site or ""))
        fake_args, node_args = self._map(args)
        fake_kwargs, node_kwargs = {}, {}
        for key, value in kwargs.items():
            fake_kwargs[key], node_kwargs[key] = self._map(value)
        out = self.fake_mode.dispatch(func, types, fake_args, fake_kwargs)
        if func in CORRECTIONS:
            out = CORRECTIONS[func](fake_args, out)
        if func is REGION:
            node_args = (self._handles[args[0]], node_args[1])
        if isinstance(out, FakeTensor):
            if out.layout is not torch.strided:  # also one that a dense gradient of the same input is added to: kernels read dense memory
                hint = "set sparse=False, or leave the layer outside of the compiled function"
                raise Unsupported("sparse-gradient", "a gradient is sparse", hint, str(self.site or ""))
            node = self._make("call_function", func, node_args, node_kwargs)
            self._finish(node, out)
            self._nodes.setdefault(id(out), node)
            return out
        if isinstance(out, (tuple, list)) and any(isinstance(o, torch.Tensor) for o in out):
            node = self._make("call_function", func, node_args, node_kwargs)
            self._finish(node, tuple(out))
            for i, value in enumerate(out):
                if isinstance(value, FakeTensor):
                    item = self.graph.create_node("call_function", operator.getitem, (node, i))
                    self._finish(item, value)
                    self._nodes[id(value)] = item
        elif not func._schema.returns:
            self._finish(self._make("call_function", func, node_args, node_kwargs), None)
        return out

    def _finish(self, node: torch.fx.Node, value: object) -> None:
        node.meta["val"] = value
        site = self.site
        if site is None:
            running = of_torch.current_autograd_node()
            if running is not None:
                self.made_by[node] = running
                site = self._site_of(running)
        if site is not None:
            node.meta["site"] = site

    def _site_of(self, running: torch.autograd.graph.Node) -> Site | None:
        i = bisect_right(self._sequence, running._sequence_nr()) - 1
        return self._sites[i] if 0 <= i else None

    def _map(self, value):
        """(value with fakes, value with nodes) of one argument."""
        if isinstance(value, FakeTensor):
            return value, self._nodes[id(value)]
        if isinstance(value, (list, tuple)):
            if not any(isinstance(v, (torch.Tensor, list, tuple)) for v in value):
                value = value if self.fake_mode.shape_env is None else [as_static(v) for v in value]
                kind = tuple if type(value) is tuple else list
                return value, kind(map(self.stand_ins.meaning, value))
            pairs = [self._map(v) for v in value]
            kind = tuple if isinstance(value, tuple) else list
            return kind(p[0] for p in pairs), kind(p[1] for p in pairs)
        if isinstance(value, torch.Tensor):
            fake = self.constant(value)
            return fake, self._nodes[id(fake)]
        value = as_static(value)
        return value, self.stand_ins.meaning(value)
