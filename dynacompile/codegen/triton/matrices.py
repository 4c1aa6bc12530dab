"""The matrices of a kernel with products, as its text takes blocks of them and stores them: by pointers with masks, or by the bulk copy engine, through
descriptors of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from dynacompile.codegen.triton.indexing import Dim
from dynacompile.codegen.triton.tiles import Tiling
from dynacompile.ir.index import Index
from dynacompile.ir.loops import Access, Axis, Contraction, Nest
from dynacompile.ir.schedule import Kernel

ALIGNED = 16  # bytes: where a descriptor's rows start
FARTHEST = 1 << 40  # bytes, below which strides of descriptors are


@dataclass(frozen=True)
class Operand:
    """A matrix of which product number b takes element (i, k) at start + b * across + i * along + k * deep; i runs over rows ("m") or columns ("n") of the
    results. across: 0 where all products take the same matrix. count: of the products."""

    name: str
    param: str
    dim: str
    start: int
    across: int
    along: int
    deep: int
    count: int
    size: int
    depth: int
    itemsize: int

    @property
    def turned(self) -> bool:
        """Memory is contiguous along rows or columns of the results, not along what is summed over."""
        return self.deep != 1

    @property
    def block(self) -> str:
        return f"{self.dim.upper()}BLOCK"

    @property
    def fits_descriptor(self) -> bool:
        pitch = self.deep if self.turned else self.along
        return min(self.along, self.deep) == 1 and all(step * self.itemsize % ALIGNED == 0 for step in (pitch, self.start, self.across))

    def descriptor(self, pointer: str) -> str:
        base = f"{pointer} + {self.start}" if self.start else pointer
        sizes, strides, blocks = [self.size, self.depth], [self.along, 1], [self.block, "KBLOCK"]
        if self.turned:
            sizes, strides, blocks = [self.depth, self.size], [self.deep, 1], ["KBLOCK", self.block]
        if self.across:
            sizes, strides, blocks = [self.count, *sizes], [self.across, *strides], ["1", *blocks]
        return f"tl.make_tensor_descriptor({base}, {sizes}, {strides}, [{', '.join(blocks)}])"

    def copied(self) -> str:
        """A block by a descriptor, oriented as its dot takes it."""
        place = f"k, {self.dim}_start" if self.turned else f"{self.dim}_start, k"
        across = self.turned if self.dim == "m" else not self.turned
        text = f"{self.name}_desc.load([{place}])"
        if self.across:
            shape = f"KBLOCK, {self.block}" if self.turned else f"{self.block}, KBLOCK"
            text = f"{self.name}_desc.load([b, {place}]).reshape({shape})"
        return text + (".T" if across else "")

    def loaded(self, wide: str, masked: Set[str]) -> tuple[list[str], str, list[str]]:
        """Lines before the loop over k, the block by pointers, and lines at the end of each step. masked: dimensions that blocks do not divide."""
        own, k = ("[:, None]", "[None, :]") if self.dim == "m" else ("[None, :]", "[:, None]")
        start = (f"{self.start} + " if self.start else "") + (f"b{wide} * {self.across} + " if self.across else "")
        before = [
            f"{self.name}_at = {self.dim}_start{wide} + tl.arange(0, {self.block})",
            f"{self.name}_block = {self.name}_ptr + {start}({self.name}_at{own} * {self.along} + tl.arange(0, KBLOCK){k} * {self.deep})",
        ]
        terms = [f"({self.name}_at{own} < {self.size})"] if self.dim in masked else []
        terms += [f"(tl.arange(0, KBLOCK){k} < {self.depth} - k)"] if "k" in masked else []
        mask = f", mask={' & '.join(terms)}, other=0.0" if terms else ""
        return before, f"tl.load({self.name}_block{mask})", [f"{self.name}_block += KBLOCK * {self.deep}"]


@dataclass(frozen=True)
class Pair:
    """Two matrices of like form with which one is multiplied (a gate and its values): blocks of both come by one copy, through a descriptor whose outermost
    stride is what lies between them, and go into one product, of twice as many columns."""

    shared: Operand
    first: Operand
    second: Operand

    def address(self, operand: Operand, pointer: str) -> str:
        return f"{pointer} + {operand.start}" if operand.start else pointer

    def lines(self, pointers: Mapping[str, str]) -> list[str]:
        """Defines pair_desc, whether the second one lies in front (`swapped`), and whether a descriptor can be of both (`fits`)."""
        o = self.first
        return [
            f"first_at = {self.address(o, pointers[o.param])}",
            f"second_at = {self.address(self.second, pointers[self.second.param])}",
            "between = second_at.to(tl.int64) - first_at.to(tl.int64)",
            "swapped = between < 0",
            "between = tl.abs(between)",
            f"fits = (between > 0) & (between % {ALIGNED} == 0) & (between < {FARTHEST})",
            f"between = tl.where(fits, between, {ALIGNED})",
            "first_at = tl.where(swapped, second_at, first_at)",
            f"pair_desc = tl.make_tensor_descriptor(first_at, [2, {o.size}, {o.depth}], [between // {o.itemsize}, {o.along}, 1], [2, NBLOCK, KBLOCK])",
        ]


def pair_of(operands: Sequence[Operand], products: Sequence[tuple[int, int, int]]) -> Pair | None:
    if len(products) != 2 or products[0][1] != products[1][1]:
        return None
    shared, first, second = operands[products[0][1]], operands[products[0][2]], operands[products[1][2]]
    alike = all(getattr(first, name) == getattr(second, name) for name in ("across", "along", "deep", "count", "size", "depth", "itemsize"))
    return Pair(shared, first, second) if alike and not first.turned and first.count == 1 else None


@dataclass(frozen=True)
class Result:
    """A matrix that the kernel stores, which lies row by row: element (b, m, n) at start + b * across + m * pitch + n."""

    param: str
    start: int
    across: int
    pitch: int
    count: int
    rows: int
    columns: int

    def descriptor(self, pointer: str) -> str:
        base = f"{pointer} + {self.start}" if self.start else pointer
        sizes, strides, blocks = [self.rows, self.columns], [self.pitch, 1], "MBLOCK, NBLOCK // PARTS"
        if self.across:
            sizes, strides, blocks = [self.count, *sizes], [self.across, *strides], f"1, {blocks}"
        return f"tl.make_tensor_descriptor({base}, {sizes}, {strides}, [{blocks}])"

    def stored(self, name: str, pointer: str, value: str) -> str:
        value = f"{value}.to({pointer}.dtype.element_ty)"
        if self.across:
            return f"{name}.store([b, m_start, n_start], {value}.reshape(1, MBLOCK, NBLOCK))"
        return f"{name}.store([m_start, n_start], {value})"


def results_of(kernel: Kernel, tiling: Tiling) -> dict[int, Result]:
    """By op: the stores that the bulk copy engine does. It takes values as the tensor cores give them, an order in which other matrices are read slowly, so
    that there are none where the kernel reads any."""
    if any(reads_matrix(a.index, tiling) for a in kernel.nest.loads() if kernel.nest.r_axes[0].var not in a.index.variables()):
        return {}
    params = {p.name: p for p in kernel.params}
    loaded = {a.buffer for a in kernel.nest.loads()}
    product = next(op for op in kernel.nest.body if op.name == "product")
    width = params[kernel.nest.body[product.args[0]].attr.buffer].dtype.itemsize  # wider results than operands would take too much shared memory
    found: dict[int, Result] = {}
    for i, op in enumerate(kernel.nest.body):
        if op.name != "store" or op.attr.buffer in loaded or op.attr.mask is not None:
            continue
        index, itemsize = op.attr.index, params[op.attr.buffer].dtype.itemsize
        batch, rows, columns = (d[0] if d else None for d in (tiling.outer, tiling.dims[:1], tiling.dims[1:]))
        across, pitch, step = (0 if d is None else stride_of(d, index) for d in (batch, rows, columns))
        if across is None or pitch is None or step != 1 or itemsize not in (2, width) or not is_linear(index, (*tiling.outer, *tiling.dims)):
            continue
        if any(n * itemsize % ALIGNED for n in (across, pitch, index.constant)):
            continue
        sizes = (tiling.outer[0].size if tiling.outer else 1, *(d.size for d in tiling.dims))
        found[i] = Result(op.attr.buffer, index.constant, across, pitch, *sizes)
    return found


def reads_matrix(index: Index, tiling: Tiling) -> bool:
    """A load gives a number for each place of a tile."""
    return all(index.variables() & {a.var for a in d.axes} for d in tiling.dims)


def stride_of(dim: Dim, index: Index) -> int | None:
    """The step from each place of a dimension to the next, None where it is not the same for all."""
    found, size = None, 1
    for axis in reversed(dim.axes):
        stride = index.stride(axis.var)
        if not isinstance(stride, int) or stride < 1 or stride != (stride if found is None else found * size):
            return None
        found, size = (stride if found is None else found), size * axis.size
    return found


def is_linear(index: Index, dims: Sequence[Dim]) -> bool:
    """Nothing but loop variables times their strides, and a constant."""
    known = {a.var for d in dims for a in d.axes}
    return index.variables() <= known and all(len(monomial) == 1 and monomial[0] in known for monomial, _ in index.terms)


def operands_of(kernel: Kernel) -> tuple[list[Operand], list[tuple[int, int, int]]]:
    """The distinct operands, and for each product (its op, its operand along rows, its operand along columns)."""
    nest = kernel.nest
    dtypes = {p.name: p.dtype for p in kernel.params}
    deep, axes = nest.r_axes[0], axes_of(nest)
    count = prod(a.size for a in axes["b"])
    found: dict[Access, int] = {}
    operands: list[Operand] = []
    products = []
    for i, op in enumerate(nest.body):
        if op.name != "product":
            continue
        pair = []
        for dim, value in zip("mn", op.args, strict=True):
            access = nest.body[value].attr
            assert isinstance(access, Access)
            if access not in found:
                along, across = (next((access.index.stride(a.var) for a in reversed(axes[of])), 0) for of in (dim, "b"))
                name = f"{'left' if dim == 'm' else 'right'}{len(operands) or ''}"
                size, itemsize = prod(a.size for a in axes[dim]), dtypes[access.buffer].itemsize
                found[access] = len(operands)
                steps = access.index.constant, across, along, access.index.stride(deep.var)
                operands.append(Operand(name, access.buffer, dim, *steps, count, size, deep.size, itemsize))
            pair.append(found[access])
        products.append((i, *pair))
    return operands, products  # type: ignore[return-value]


def axes_of(nest: Nest) -> dict[str, tuple[Axis, ...]]:
    """The axes that number the matrices of a batch ("b"), rows ("m") and columns ("n") of the results."""
    division: Contraction = next(op.attr for op in nest.body if op.name == "product")
    rows = division.batch + division.rows
    return {"b": nest.x_axes[: division.batch], "m": nest.x_axes[division.batch : rows], "n": nest.x_axes[rows:]}
