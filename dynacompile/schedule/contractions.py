"""What a call of the library computes, as a sum of products over memory, and how the loops of a kernel that reads its results divide into matrices, rows
and columns. What has no such form is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.ir.index import Extent, Index, Var, atom, constant
from dynacompile.ir.loops import Axis, Buffer, Extern, Ref

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten._scaled_mm.default))
HALVES = (torch.bfloat16, torch.float16)
EIGHTHS = frozenset((torch.float8_e4m3fn, torch.float8_e5m2))
PRECISIONS = {"none": "ieee", "ieee": "ieee", "tf32": "tf32"}  # of torch's setting
PLAIN = "the call is not a plain product"
SYMBOLIC = "its sizes differ from call to call"
LEAST = 64  # smallest extent of a product that a kernel of ours does
FACTORS = frozenset(("alpha", "beta"))


class Refused(Exception):
    """Why a product stays a call of its own."""


@dataclass(frozen=True)
class Place:
    """Element (b, m, n) is at start + b * across + m * along_m + n * along_n of the memory of `root`."""

    root: str
    start: int
    across: int
    along_m: int
    along_n: int

    def turned(self) -> Place:
        return replace(self, along_m=self.along_n, along_n=self.along_m)


@dataclass(frozen=True)
class Side:
    """An operand: element (b, i, k) is at start + b * across + i * along + k * deep of the memory of `root`."""

    root: str
    start: int
    across: int
    along: int
    deep: int


@dataclass(frozen=True)
class Product:
    """out[b * jump + m * pitch + n] = alpha * scales * (sum over k of left(b, m, k) * right(b, n, k)) + beta * added. The result's unit stride is along n."""

    batch: int
    m: int
    n: int
    k: int
    left: Side
    right: Side
    out: str
    jump: int
    pitch: int
    added: Place | None
    alpha: float = 1.0
    beta: float = 1.0
    precision: str = "ieee"
    scales: tuple[Place, ...] = ()

    @property
    def extents(self) -> tuple[int, int, int, int]:
        return self.batch, self.m, self.n, self.k


def float32_precision() -> str:
    """How torch multiplies matrices of float32 on GPUs, by its settings."""
    return torch.backends.cuda.matmul.fp32_precision


@dataclass(frozen=True)
class Terms:
    """The arguments of a call by their roles: alpha * (a @ b) * scales + beta * added."""

    a: Buffer
    b: Buffer
    added: Buffer | None
    alpha: float = 1.0
    beta: float = 1.0
    scales: tuple[Buffer, ...] = ()
    fast: bool = False


def product_of(step: Extern, buffers: Mapping[str, Buffer], roots: Mapping[str, str], precision: str | None) -> Product:
    """precision: that of torch's settings for float32; None where nothing may rely on them. Raises Refused for what no kernel of ours does."""
    terms = terms_of(step, buffers)
    a, b, out = terms.a, terms.b, buffers[only(step.outputs)]
    given = [x for x in (a, b, terms.added, *terms.scales) if x is not None]
    if any(x.is_symbolic for x in (*given, out)):
        raise Refused(SYMBOLIC)
    if any(buffers[roots[x.name]].dtype != x.dtype for x in given):
        raise Refused("an operand is a view of memory of another dtype")
    check_dtypes(terms, out)
    if out.dtype == torch.float32 and precision not in PRECISIONS:
        raise Refused("products of float32 round as torch's settings say when it runs, which are not guarded")
    how = ("fast" if terms.fast else "ieee") if a.dtype in EIGHTHS else PRECISIONS.get(precision or "", "ieee")
    (m, k), n = map(number, a.size[-2:]), number(b.size[-1])
    if min(m, n, k) < LEAST:
        raise Refused(f"one of its extents, {m}, {n} and {k}, is below {LEAST}")
    batch = number(a.size[0]) if len(a.size) == 3 else 1
    left, right, written = side_of(a, -2, roots), side_of(b, -1, roots), place_of(out, roots)
    added = place_of(expanded(terms.added, out), roots) if terms.added is not None and terms.beta else None
    scales = tuple(place_of(expanded(scale_of(x), out), roots) for x in terms.scales)
    if written.along_n != 1:
        m, n, left, right, written = n, m, right, left, written.turned()
        added, scales = added and added.turned(), tuple(x.turned() for x in scales)
    if written.along_n != 1 or written.along_m < n or written.start or out.base is not None or (batch > 1 and written.across < written.along_m * m):
        raise Refused("its results do not lie row by row")
    for side in (left, right):
        if 1 not in (side.along, side.deep) or min(side.along, side.deep) < 1:
            raise Refused("an operand has no extent along memory")
    if batch > 1 and not left.across and not right.across:
        raise Refused("it is the same product again and again")
    return Product(batch, m, n, k, left, right, out.name, written.across, written.along_m, added, terms.alpha, terms.beta, how, scales)


def only(outputs: tuple[str | None, ...]) -> str:
    """The result of a call that computes one."""
    if len(outputs) != 1 or outputs[0] is None:
        raise Refused(PLAIN)
    return outputs[0]


def terms_of(step: Extern, buffers: Mapping[str, Buffer]) -> Terms:
    if step.out is None or step.after:
        raise Refused(PLAIN)
    if step.op is aten._scaled_mm.default:
        return scaled_terms(step, buffers)
    alpha, beta = (step.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if not step.kwargs.keys() <= FACTORS or not isinstance(alpha, (int, float)) or not isinstance(beta, (int, float)):
        raise Refused(PLAIN)
    *added, a, b = (buffers[x.buffer] if isinstance(x, Ref) else None for x in step.args)
    if a is None or b is None or None in added:
        raise Refused(PLAIN)
    return Terms(a, b, added[0] if added else None, float(alpha), float(beta))


SCALED = tuple(a.name for a in aten._scaled_mm.default._schema.arguments)


def scaled_terms(step: Extern, buffers: Mapping[str, Buffer]) -> Terms:
    """Of a product of 8-bit numbers, whose results are multiplied by scales."""
    given = dict(zip(SCALED, step.args, strict=False)) | dict(step.kwargs)
    matrices = [buffers[x.buffer] if isinstance(x, Ref) else None for x in (given.get(name) for name in ("self", "mat2", "bias", "scale_a", "scale_b"))]
    a, b, added, *scales = matrices
    if a is None or b is None or None in scales or given.get("scale_result") is not None:
        raise Refused(PLAIN)
    return Terms(a, b, added, scales=tuple(x for x in scales if x is not None), fast=bool(given.get("use_fast_accum")))


def scale_of(scale: Buffer) -> Buffer:
    """One scale for all, for each row, or for each column."""
    if scale.dtype != torch.float32:
        raise Refused("its scales are no numbers of float32, one for all results, a row or a column")
    return replace(scale, size=(1, 1), stride=(1, 1)) if scale.numel == 1 else scale


def check_dtypes(terms: Terms, out: Buffer) -> None:
    dtypes = {terms.a.dtype, terms.b.dtype}
    if terms.scales:
        if not dtypes <= EIGHTHS or out.dtype not in HALVES or (terms.added is not None and terms.added.dtype != out.dtype):
            raise Refused(f"products of {terms.a.dtype} and {terms.b.dtype} are left to the library")
    elif dtypes | ({out.dtype} if terms.added is None else {out.dtype, terms.added.dtype}) != {out.dtype} or out.dtype not in (*HALVES, torch.float32):
        raise Refused(f"products of {out.dtype} are left to the library")


def side_of(matrix: Buffer, along: int, roots: Mapping[str, str]) -> Side:
    """along: which dimension of the matrix is one of the results'."""
    strides = [number(s) for s in matrix.stride]
    across = strides[0] if len(strides) == 3 and matrix.size[0] != 1 else 0
    return Side(roots[matrix.name], number(matrix.offset), across, strides[along], strides[-3 - along])


def place_of(buffer: Buffer, roots: Mapping[str, str]) -> Place:
    strides = [number(s) for s in buffer.stride]
    across = strides[0] if len(strides) == 3 and buffer.size[0] != 1 else 0
    return Place(roots[buffer.name], number(buffer.offset), across, strides[-2], strides[-1])


def expanded(given: Buffer, out: Buffer) -> Buffer:
    """What is added, as large as the results."""
    missing = len(out.size) - len(given.size)
    sizes, strides = (1,) * missing + tuple(given.size), (0,) * missing + tuple(given.stride)
    if missing < 0 or any(n not in (1, wanted) for n, wanted in zip(sizes, out.size, strict=True)):
        raise Refused("what is added to it has another shape")
    return replace(given, size=out.size, stride=tuple(0 if n == 1 else s for n, s in zip(sizes, strides, strict=True)))


def number(value: Extent) -> int:
    if not isinstance(value, int):
        raise Refused(SYMBOLIC)
    return value


@dataclass(frozen=True)
class Loops:
    """The loops of a kernel that reads a product's results, outer to inner, and the loop variables that it had as sums of theirs."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    values: Mapping[Var, Index | int]

    @property
    def axes(self) -> tuple[Axis, ...]:
        return *self.batch, *self.rows, *self.columns


OTHERWISE = "its reader reads a part of its results, or in another order than theirs"


def split_axes(axes: tuple[Axis, ...], index: Index, product: Product) -> Loops:
    """Divides the loops of a nest that reads element `index` of the results. Raises Refused."""
    strides: list[tuple[Any, Axis]] = []
    for axis in axes:
        stride = index.stride(axis.var)
        if type(stride) is not int or stride < 1 or type(axis.size) is not int:
            raise Refused("its reader reads its results in another order than theirs")
        strides.append((stride, axis))
    if index.constant:
        raise Refused("its reader reads a part of its results")
    pieces: dict[Var, list[tuple[int, Axis]]] = {a.var: [] for a in axes}
    levels = [("n", product.n, 1), ("m", product.m, product.pitch), *([("b", product.batch, product.jump)] if product.batch > 1 else [])]
    found: dict[str, list[Axis]] = {"b": [], "m": [], "n": []}
    (letter, size, step), *levels = levels
    done = 1  # of the level's size
    for stride, axis in sorted(strides, key=lambda s: s[0]):
        left, scale = axis.size, 1
        while left > 1:
            if done == size and levels:
                (letter, size, step), *levels = levels
                done = 1
            if stride * scale != step * done or size % done:
                raise Refused(OTHERWISE)
            taken = min(left, size // done)
            if left % taken or size % (done * taken):
                raise Refused("its reader does not read its results row by row")
            fresh = Axis(Var(f"{letter}{len(found[letter])}", taken), "x")
            found[letter].insert(0, fresh)
            pieces[axis.var].append((scale, fresh))
            left, scale, done = left // taken, scale * taken, done * taken
    if levels or done != size:
        raise Refused("its reader reads a part of its results")
    values = {var: sum((atom(a.var) * scale for scale, a in parts), start=constant(0)) for var, parts in pieces.items()}
    return Loops(tuple(found["b"]), tuple(found["m"]), tuple(found["n"]), values)
