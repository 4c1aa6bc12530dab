"""What lowering one graph holds: the buffers made so far, the steps, and which buffer each graph node became."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.ir.body import Body
from dynacompile.ir.index import Extent, Index, Var, atom, constant, strided
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, Nest, Origin
from dynacompile.ir.symbols import extent
from dynacompile.lower.values import Expander, Value
from dynacompile.ops.pointwise import NotCovered
from dynacompile.ops.product_costs import Choice
from dynacompile.ops.scalars import NEAREST, compute_dtype
from dynacompile.private import of_torch

EIGHTHS = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
DTYPES = frozenset((torch.bool, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16, torch.float32, torch.float64, torch.bfloat16, torch.float16))
CPU = torch.device("cpu")


class Lowering:
    """State of one call of `lower`. values: what each node became: a buffer's name, a number, None, or a list of those. device: where the
    program's kernels run. products: of matrices on the CPU, and whether they are loops. unfused_attention: calls whose functions have no form in kernels.
    draws: random operations on GPUs, and why they are calls of ATen; empty where they are loops.
    checked: of places that lie in their dimensions by a check before, the step that checks them.
    precise: each result is rounded to its dtype, as eager rounds what it writes to memory, also where a later op reads it from a register.
    rounded: the results of which that holds anyway."""

    def __init__(self, taken: Iterable[str] = (), device: torch.device = CPU, precise: bool = False) -> None:
        self._taken = set(taken)
        self.device = device
        self.precise = precise
        self.rounded: frozenset[str] = frozenset()
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Nest | Extern] = []
        self.values: dict[torch.fx.Node, object] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.products: list[tuple[torch.fx.Node, Choice]] = []
        self.unfused_attention: list[torch.fx.Node] = []
        self.draws: list[tuple[torch.fx.Node, str]] = []
        self.checked: dict[tuple, tuple[int, Extern]] = {}
        self._axes: dict[tuple[Extent, ...], tuple[tuple[Axis, ...], tuple[Index, ...]]] = {}
        self._strided: dict[tuple, Index] = {}

    # buffers

    def fresh(self, name: str) -> str:
        """A name that no node and no buffer has."""
        while name in self._taken or name in self.buffers:
            name += "_"
        return name

    def parts(self, node: torch.fx.Node, count: int) -> list[str]:
        """Names for the results of a node with several."""
        return [self.fresh(f"{node.name}_{i}") for i in range(count)]

    def add(self, name: str, val: torch.Tensor, kind: str = "temp") -> Buffer:
        """A buffer with memory of its own, geometry of the fake `val`, from its first element on."""
        size, stride = geometry(val)
        buffer = Buffer(name, val.dtype, val.device, size, stride, kind)
        self.buffers[name] = buffer
        return buffer

    def add_temp(self, name: str, dtype: torch.dtype, device: torch.device, size: Sequence[Extent]) -> Buffer:
        """A contiguous temp that no graph node stands for."""
        stride: list[Extent] = []
        step: Extent = 1
        for n in reversed(size):
            stride.append(step)
            step = step * (max(n, 1) if isinstance(n, int) else n)
        buffer = Buffer(name, dtype, device, tuple(size), tuple(reversed(stride)), "temp")
        self.buffers[name] = buffer
        return buffer

    def add_view(self, name: str, of: Buffer, size: tuple[Extent, ...], stride: tuple[Extent, ...], offset: Extent) -> Buffer:
        """A geometry over the memory of `of`; offset counts from its root's first element."""
        view = Buffer(name, of.dtype, of.device, size, stride, of.kind, offset, of.base or of.name)
        self.buffers[name] = view
        return view

    def buffer_of(self, node: object) -> Buffer:
        """The buffer that a tensor argument became."""
        name = self.values[node] if isinstance(node, torch.fx.Node) else None
        if not isinstance(name, str):
            raise NotCovered
        return self.buffers[name]

    # nests

    def axes(self, size: tuple[Extent, ...], prefix: str = "x") -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
        """Axes over a shape (none for dimensions of size 1), and the index of each dimension."""
        found = self._axes.get(size) if prefix == "x" else None
        if found is None:
            variables = [None if n == 1 else Var(f"{prefix}{d}", n) for d, n in enumerate(size)]
            found = tuple(Axis(v, prefix) for v in variables if v is not None), tuple(constant(0) if v is None else atom(v) for v in variables)
            if prefix == "x":
                self._axes[size] = found
        return found

    def broadcast(self, buffer: Buffer, size: tuple[Extent, ...]) -> Index:
        """Where a point of an iteration over `size` reads `buffer`, expanded to it."""
        key = (buffer.size, buffer.stride, buffer.offset, size)
        found = self._strided.get(key)
        if found is None:
            indices = self.axes(size)[1][len(size) - len(buffer.size) :]
            found = strided(indices, [0 if n == 1 else s for n, s in zip(buffer.size, buffer.stride, strict=True)], buffer.offset)
            self._strided[key] = found
        return found

    def expander(self, dtype: torch.dtype, body: Body | None = None) -> Expander:
        """Emits into a new body whose result is stored as `dtype`."""
        return Expander(body or Body(), compute_dtype(dtype), dtype)

    def load(self, o: Expander, buffer: Buffer, index: Index, mask: Value | None = None, other: float = 0) -> Value:
        """buffer's element at `index` of its root's memory, in its compute dtype."""
        dtype = compute_dtype(buffer.dtype)
        baked = self.constants.get(buffer.name)
        if baked is not None and baked.dim() == 0 and baked.device.type == "cpu" and mask is None:
            return o.constant(baked.item(), dtype)
        access = access_of(buffer, index, mask, other)
        return Value(o, o.body.emit("load", (), dtype, access), dtype)

    def finish(self, o: Expander, value: Value, buffer: Buffer, axes: Sequence[Axis], indices: Sequence[Index], node: torch.fx.Node) -> None:
        """Stores `value` (cast) into `buffer` at `indices` and appends the nest; nothing where there are no points."""
        if buffer.numel == 0:
            return
        value = self.as_stored(o, value, buffer)
        o.body.store(value.id, buffer.base or buffer.name, strided(indices, buffer.stride, buffer.offset))
        self.steps.append(Nest(buffer.name, tuple(axes), tuple(o.body.ops), (origin(node),)))

    def finish_pointwise(self, o: Expander, value: Value, buffer: Buffer, node: torch.fx.Node) -> None:
        """`finish` for a nest over the buffer's own shape."""
        if buffer.numel == 0:
            return
        value = self.as_stored(o, value, buffer)
        o.body.store(value.id, buffer.base or buffer.name, self.broadcast(buffer, buffer.size))
        self.steps.append(Nest(buffer.name, self.axes(buffer.size)[0], tuple(o.body.ops), (origin(node),)))

    def as_stored(self, o: Expander, value: Value, buffer: Buffer) -> Value:
        """The value as ops that read it from `buffer` see it."""
        value = o.cast(value, compute_dtype(buffer.dtype))
        nearest = NEAREST.get(buffer.dtype)
        if nearest is None or not (self.precise or buffer.name in self.rounded):
            return value
        made = o.body.ops[value.id]
        moved = made.name == nearest or (isinstance(made.attr, Access) and self.buffers[made.attr.buffer].dtype == buffer.dtype)
        return value if moved else getattr(o, nearest)(value)


def access_of(buffer: Buffer, index: Index, mask: Value | None, other: float) -> Access:
    return Access(buffer.base or buffer.name, index, None if mask is None else mask.id, other)


def arguments(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, defaults filled in, symbolic ints as extents."""
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = {a.name: a.default_value for a in schema}
    given.update(zip((a.name for a in schema), node.args))
    given.update(node.kwargs)
    return {name: plain(value) for name, value in given.items()}


def plain(arg: Any) -> Any:
    """An argument with extents for symbolic ints, also for nodes that stand for such."""
    if isinstance(arg, (tuple, list)):
        return type(arg)(map(plain, arg)) if type(arg) in (tuple, list) else [plain(a) for a in arg]
    if isinstance(arg, torch.fx.Node):
        val = arg.meta.get("val")
        return extent(val) if isinstance(val, torch.SymInt) else val if isinstance(val, torch.SymFloat) else arg
    return extent(arg) if isinstance(arg, torch.SymInt) else arg


def origin(node: torch.fx.Node) -> Origin:
    target = node.target
    name = target._schema.name.partition("::")[2] if isinstance(target, of_torch.OpOverload) else str(target)
    return Origin(name, node.meta.get("site"))


def geometry(val: torch.Tensor) -> tuple[tuple[Extent, ...], tuple[Extent, ...]]:
    """Sizes and strides of a fake."""
    return tuple([extent(n) for n in val.size()]), tuple([extent(n) for n in val.stride()])
