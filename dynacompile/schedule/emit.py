"""A unit's nests become one kernel: bodies joined, loads of what was just computed replaced, dead stores dropped, axes merged and ordered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from dynacompile.errors import VerifyError
from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.calls import named
from dynacompile.ir.index import Index, Symbol
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, Nest, Op, Origin
from dynacompile.ir.ranges import Range
from dynacompile.ir.schedule import Kernel, Param
from dynacompile.ops.scalars import NEAREST
from dynacompile.schedule.domain import keeps_order, merge_axes, sorted_by_stride

QUIET = frozenset(
    (
        "full",
        "clone",
        "_to_copy",
        "convert_element_type",
        "scalar_tensor",
        "copy_",
        "arange",
        "iota",
        "full_like",
        "zeros_like",
        "ones_like",
        "expand",
        "empty_like",
    )
)


def join(members: Iterable[Nest], axes: tuple[Axis, ...], stored: Iterable[str], buffers: Mapping[str, Buffer]) -> Nest:
    """One nest that does what `members` (over the same axes, in order) do; only stores to `stored` buffers stay, after all loads.

    What is read of a stored buffer is rounded as it is there: a backward reads it there, and computes of it what the forward did, to the bit. (The greatest of
    some numbers would else be none of these.) What is not stored keeps the bits that it is computed with.
    Raises VerifyError where a member reads of a buffer that does not stay what no other has stored there: its memory is never written.
    """
    members = list(members)
    wanted = set(stored)
    body = Body()
    held: dict[tuple[str, Index], tuple[int, int | None]] = {}
    stores: list[tuple[int, Access]] = []
    dropped: set[str] = set()

    def as_stored(value: int, dtype: torch.dtype) -> int:
        op, nearest = body.ops[value], NEAREST.get(dtype)
        read = buffers[op.attr.buffer].dtype if op.name == "load" else None
        return value if nearest is None or nearest == op.name or read == dtype else body.emit(nearest, (value,), op.dtype)

    def on_load(access: Access, dtype: torch.dtype) -> int | None:
        value, mask = held.get((access.buffer, access.index), (None, None))
        if value is None or mask not in (None, access.mask):
            if access.buffer in dropped:
                raise VerifyError("schedule", f"{access.buffer} is read at {access.index}, and its stores were dropped")
            return None
        if access.buffer in wanted:
            value = as_stored(value, buffers[access.buffer].dtype)
        if access.mask is None:
            return value
        return body.emit("where", (access.mask, value, body.emit("constant", (), dtype, access.other)), dtype)

    def on_store(value: int, access: Access) -> None:
        if not access.summed and not access.added:
            held[access.buffer, access.index] = value, access.mask
        if access.buffer in wanted:
            stores.append((value, access))
        else:
            dropped.add(access.buffer)

    for nest in members:
        body.splice(nest.body, {}, None, on_load, on_store)
    for value, access in stores:
        body.put(value, access)
    origins = tuple(dict.fromkeys(o for nest in members for o in nest.origins))
    return Nest(members[-1].name, axes, without_dead(body.ops), origins)


def lay_out(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """The axis with most unit strides runs innermost among its role; the others of a pointwise nest for the CPU in the order of the first store's memory, so
    that no line of it is met again later; axes are merged."""
    nest = merge_axes(nest)
    stores = nest.stores()
    if stores and not nest.r_axes and buffers[stores[0].buffer].device.type == "cpu":
        nest = merge_axes(replace(nest, axes=sorted_by_stride(nest.axes, stores[0].index)))
    x, r = list(nest.x_axes), list(nest.r_axes)
    moved = False
    for axes in (x, r):
        if len(axes) > 1 and not (axes is r and keeps_order(nest)):
            best = max(axes, key=lambda a: (unit_strides(nest, a, buffers), axes.index(a)))
            if best is not axes[-1]:
                axes.remove(best)
                axes.append(best)
                moved = True
    return merge_axes(replace(nest, axes=(*x, *r))) if moved else nest


def unit_strides(nest: Nest, axis: Axis, buffers: Mapping[str, Buffer]) -> int:
    """Bytes of the buffers that are accessed with step one along the axis, stores counted twice."""
    total = 0
    for op in nest.body:
        if type(op.attr) is Access and op.attr.index.stride(axis.var) in (1, -1):
            total += buffers[op.attr.buffer].bytes * (2 if op.name == "store" else 1)
    return total


class Kernels:
    """The kernels of a schedule: equal ones are kept once, by digest. memory: ranges of the elements of buffers, where they are known."""

    def __init__(self, buffers: Mapping[str, Buffer], memory: Mapping[str, Range] = MappingProxyType({})):
        self.buffers, self.memory = buffers, memory
        self.by_name: dict[str, Kernel] = {}
        self._by_digest: dict[str, str] = {}

    def launch(self, nest: Nest, own: tuple[Symbol, ...] | None = None, scratch: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]]:
        """The name of the kernel for a nest over named buffers, and the buffers in the order of its params. own: see Kernel. scratch: a buffer for its
        own use."""
        names: dict[str, str] = {}
        modes: dict[str, str] = {}
        body: list[Op] = []
        for op in nest.body:
            attr = op.attr
            if type(attr) is Access:
                param = names.setdefault(attr.buffer, f"p{len(names)}")
                mode = "in" if op.name == "load" else "inout" if attr.added else "out"
                modes[param] = mode if modes.get(param, mode) == mode else "inout"
                op = Op(op.name, op.args, op.dtype, attr.at(attr.index, attr.mask, param))
            body.append(op)
        known = self.memory if own is None else {}  # each member of a list has buffers of its own
        params = tuple(Param(p, self.buffers[b].dtype, modes[p], known.get(b) if modes[p] == "in" else None) for b, p in names.items())
        params += tuple(Param("scratch", self.buffers[b].dtype, "scratch") for b in scratch)
        device = self.buffers[nest.stores()[0].buffer].device
        return self.known(Kernel("kernel", replace(nest, name="kernel", body=tuple(body)), params, device, own)), (*names, *scratch)

    def launch_call(self, step: Extern, roots: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
        """The same of the kernel that does what a call with a template does."""
        call, names = named(step, self.buffers, roots.__getitem__)
        written = {call.view(o).base for o in call.step.outputs if o is not None}
        added = {roots[m] for m in step.mutates}
        modes = {b: "inout" if b in added else "out" if p in written else "in" for b, p in names.items()}
        params = tuple(Param(p, self.buffers[b].dtype, modes[b]) for b, p in names.items())
        device = self.buffers[next(iter(names))].device
        return self.known(Kernel("kernel", Nest("kernel", (), (), step.origins), params, device, call=call)), tuple(names)

    def known(self, kernel: Kernel) -> str:
        """The name of a kernel: that of an equal one, where there is one."""
        digest = kernel.digest()
        name = self._by_digest.get(digest)
        if name is None:
            name = self._by_digest[digest] = self._fresh(kernel_name(kernel.nest.origins))
            self.by_name[name] = replace(kernel, name=name, nest=replace(kernel.nest, name=name))
        return name

    def _fresh(self, base: str) -> str:
        name, n = base, 2
        while name in self.by_name:
            name, n = f"{base}_{n}", n + 1
        return name


def kernel_name(origins: Iterable[Origin]) -> str:
    """The ops that a kernel does, in order: add_relu."""
    ops = list(dict.fromkeys(o.op for o in origins))
    loud = [o for o in ops if o not in QUIET] or ops
    chosen = loud if len(loud) <= 5 else [*loud[:3], *loud[-2:]]
    name = re.sub(r"_+", "_", re.sub(r"[^0-9A-Za-z_]", "_", "_".join(o.strip("_") for o in chosen))).strip("_")[:60].rstrip("_")
    return name if name and not name[0].isdigit() else f"k_{name}"
