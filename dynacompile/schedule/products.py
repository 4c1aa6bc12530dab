"""Products of matrices with what is computed of their results: one kernel, where the model of the device, or a measurement, says that it is faster.

A product is a call of a library until here, after all other fusing. Its results may be read by one kernel, element by element, each at the place
where the product has it (`fused_nest` says when that holds); then both can be one nest, whose body has an op "product", and whose other ops are what
the kernel was. Results that others read are stored as well. A kernel that reads two products of the same matrix (a gate and its values) may take in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.env import Env
from dynacompile.events import ProductDecided
from dynacompile.ir.body import Body
from dynacompile.ir.index import Extent, Index, Var, atom, constant
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, Nest, Ref, root
from dynacompile.ir.products import Choose, Decision, Joint
from dynacompile.ir.schedule import SCRATCH
from dynacompile.ops.scalars import NEAREST, compute_dtype
from dynacompile.schedule.units import Unit, Units, has_path, replace_pair

aten = torch.ops.aten
PRODUCTS = frozenset((aten.mm.default, aten.addmm.default))
DONE = {
    aten.mm.dtype: "the library stores its results as float32",
    aten._addmm_activation.default: "the library applies the activation as it stores the results",
}
HALVES = (torch.bfloat16, torch.float16)
SYMBOLIC = "its sizes differ from call to call"
LEAST = 64  # smallest extent of a product that a kernel of ours does


class Refused(Exception):
    """Why a product stays a call of its own."""


@dataclass(frozen=True)
class Side:
    """An operand: element (i, k) is at start + i * along + k * deep of the memory of `root`."""

    root: str
    start: int
    along: int
    deep: int


@dataclass(frozen=True)
class Product:
    """out[m * pitch + n] = sum over k of left(m, k) * right(n, k), plus bias. The result's unit stride is along n."""

    m: int
    n: int
    k: int
    left: Side
    right: Side
    out: str
    pitch: int
    bias: tuple[str, int, int, int] | None  # root, start, strides along m and n


def fuse_products(units: Units, nests: dict[int, Nest], env: Env, choose: Choose) -> tuple[Units, tuple[str, ...]]:
    """Joins products with the kernels that read their results, in place, where `choose` says so. An event tells of each. The units, and the buffer for
    descriptors of tensors that kernels with products have, where there are such."""
    products = [u for u in units.by_id.values() if u.extern is not None and u.extern.op in PRODUCTS and is_on_gpu(units, u)]
    for unit in units.by_id.values():
        if unit.extern is not None and unit.extern.op in DONE and is_on_gpu(units, unit):
            told(env, unit.extern, (), Decision(False, DONE[unit.extern.op]))
    waiting = {u.id: [i for i in sorted(units.readers.get(only(u.writes), ())) if i in nests] for u in products}
    for first in list(dict.fromkeys(i for readers in waiting.values() for i in readers)):
        reader, found = units.by_id[first], [u for u in products if first in waiting[u.id] and u.id in units.by_id]
        several = joints(units, nests, found, reader, env)
        for chosen in [several, *([u] for u in several)] if len(several) > 1 else [several]:
            chosen = [u for u in chosen if u.id in units.by_id]
            if chosen:
                reader = decide(units, nests, chosen, reader, env, choose)
    if not any(nest.is_product for nest in nests.values()):
        return units, ()
    name = "descriptors"
    while name in units.program.buffers:
        name += "_"
    scratch = Buffer(name, torch.uint8, device_of(units, nests), (SCRATCH,), (1,), "temp")
    return replace(units, program=replace(units.program, buffers={**units.program.buffers, name: scratch})), (name,)


def joints(units: Units, nests: Mapping[int, Nest], products: Sequence[Unit], reader: Unit, env: Env) -> list[Unit]:
    """Those of the products that can be one kernel with their reader, together. An event tells of the others, each of whose readers is tried."""
    found: list[Unit] = []
    for unit in products:
        try:
            join_products(units, nests[reader.id], [*found, unit], reader, env.config.precise)
        except Refused as refused:
            tell(env, unit, reader, Decision(False, str(refused)))
        else:
            found.append(unit)
    return found


def decide(units: Units, nests: dict[int, Nest], products: Sequence[Unit], reader: Unit, env: Env, choose: Choose) -> Unit:
    """The reader, with the products where `choose` says so."""
    joint, steps = join_products(units, nests[reader.id], products, reader, env.config.precise)
    decision = choose(joint)
    for unit, nest in zip(products, steps, strict=True):
        tell(env, unit, reader, decision)
        if decision.fused:
            merged = contract(units, unit, reader, nest)
            del nests[reader.id]
            nests[merged.id] = nest
            reader = merged
    return reader


def only(names: set[str]) -> str:
    return next(iter(names))


def is_on_gpu(units: Units, unit: Unit) -> bool:
    return all(units.buffer(name).device.type == "cuda" for name in unit.writes)


def device_of(units: Units, nests: Mapping[int, Nest]) -> torch.device:
    return next(units.buffer(n.stores()[0].buffer).device for n in nests.values() if n.is_product)


def tell(env: Env, unit: Unit, reader: Unit, decision: Decision) -> None:
    assert unit.extern is not None
    told(env, unit.extern, tuple(nest.name for _, nest in reader.members), decision)


def told(env: Env, call: Extern, members: tuple[str, ...], decision: Decision) -> None:
    site = next((str(o.site) for o in call.origins if o.site is not None), "")
    env.emit(ProductDecided(region=env.region, bucket=env.bucket, product=call.name, members=members, site=site, **decision.facts()))


def join_products(units: Units, nest: Nest, products: Sequence[Unit], reader: Unit, precise: bool) -> tuple[Joint, list[Nest]]:
    """What they would be as one, and what takes its place else; and the nest with the first of them, with the second, and so on. Raises Refused."""
    steps: list[Nest] = []
    calls: list[Extern] = []
    found: list[Product] = []
    for unit in products:
        assert unit.extern is not None
        product = product_of(unit.extern, units.program.buffers, units.roots)
        if unit.part != reader.part or unit.copies != reader.copies:
            raise Refused("its reader belongs to another part of the program")
        if reader.writes & (unit.reads | unit.writes):
            raise Refused("its reader writes to memory that the product reads")
        if has_path(units, unit, reader):
            raise Refused("its reader waits for another kernel that reads its results")
        if found and (product.m, product.n, product.k) != (found[0].m, found[0].n, found[0].k):
            raise Refused("its reader takes in a product of other extents")
        kept = product.out in units.kept or bool(units.readers[product.out] - {unit.id, reader.id})
        steps.append(fused_nest(steps[-1] if steps else nest, product, units.program.buffers, kept, precise))
        calls.append(unit.extern)
        found.append(product)
    return Joint(steps[-1], tuple(calls), nest, units.program.buffers, found[0].m, found[0].n, found[0].k), steps


def product_of(step: Extern, buffers: Mapping[str, Buffer], roots: Mapping[str, str]) -> Product:
    """Raises Refused for what no kernel of ours does."""
    if step.out is None or step.kwargs or step.after or step.outputs[0] is None or not all(isinstance(a, Ref) for a in step.args):
        raise Refused("the call is not a plain product")
    names = [a.buffer for a in step.args if isinstance(a, Ref)]
    a, b, out = buffers[names[-2]], buffers[names[-1]], buffers[step.outputs[0]]
    if any(buffers[n].is_symbolic for n in (*names, step.outputs[0])):
        raise Refused(SYMBOLIC)
    if {a.dtype, b.dtype, out.dtype} != {out.dtype} or out.dtype not in HALVES:
        raise Refused(f"products of {out.dtype} are left to the library, which rounds as torch's settings say")
    if any(buffers[roots[n]].dtype != out.dtype for n in names):
        raise Refused("an operand is a view of memory of another dtype")
    m, k, n = number(a.size[0]), number(a.size[1]), number(b.size[1])
    if min(m, n, k) < LEAST:
        raise Refused(f"one of its extents, {m}, {n} and {k}, is below {LEAST}")
    left, right = side_of(a, 0, roots), side_of(b, 1, roots)
    bias = None
    if len(names) == 3:
        given = buffers[names[0]]
        if given.size not in ((n,), (m, n)) or given.dtype != out.dtype:
            raise Refused("what is added to it has another shape or dtype")
        bias = (roots[given.name], number(given.offset), number(given.stride[0]) if len(given.size) == 2 else 0, number(given.stride[-1]))
    rows, columns = map(number, out.stride)
    if columns != 1:
        m, n, left, right, rows, columns = n, m, right, left, columns, rows
        bias = bias and (bias[0], bias[1], bias[3], bias[2])
    if columns != 1 or rows < n or out.offset or out.base is not None:
        raise Refused("its results do not lie row by row")
    for side in (left, right):
        if 1 not in (side.along, side.deep) or min(side.along, side.deep) < 1:
            raise Refused("an operand has no extent along memory")
    return Product(m, n, k, left, right, out.name, rows, bias)


def side_of(matrix: Buffer, along: int, roots: Mapping[str, str]) -> Side:
    """along: which dimension of the matrix is one of the results'."""
    return Side(roots[matrix.name], number(matrix.offset), number(matrix.stride[along]), number(matrix.stride[1 - along]))


def number(value: Extent) -> int:
    if not isinstance(value, int):
        raise Refused(SYMBOLIC)
    return value


def fused_nest(nest: Nest, product: Product, buffers: Mapping[str, Buffer], kept: bool, precise: bool) -> Nest:
    """The reader's nest with the product in the place of its loads. kept: the results are stored, too. Raises Refused."""
    if nest.is_reduction or nest.folded:
        raise Refused("its reader sums over its results")
    loads = [a for a in nest.loads() if root(buffers, a.buffer) == product.out]
    if not loads or len({a.index for a in loads}) != 1 or any(a.mask is not None for a in loads):
        raise Refused("its reader reads several of its results, or not all, for one point")
    values, rows, columns = split_axes(nest.x_axes, loads[0].index, product)
    deep = nest.r_axes or (Axis(Var("k0", product.k), "r"),)
    if deep[0].size != product.k:
        raise Refused("its reader takes in a product of another length")
    body = Body()
    at_m, at_n, at_k = position(rows), position(columns), atom(deep[0].var)
    dtype = compute_dtype(buffers[product.out].dtype)
    sides = [load_side(body, side, place, at_k, dtype) for side, place in ((product.left, at_m), (product.right, at_n))]
    if nest.is_product:
        shared = {a.buffer for a in nest.loads()} & {product.left.root, product.right.root}
        if not shared or any(op.name == "store" and op.attr.buffer in shared for op in nest.body):
            raise Refused("its reader takes in a product of other matrices")
    value = body.emit("product", tuple(sides), torch.float32)
    if product.bias is not None:
        name, start, along_m, along_n = product.bias
        value = body.emit("add", (value, body.emit("load", (), dtype, Access(name, at_m * along_m + at_n * along_n + start))), dtype)
    result = value
    nearest = NEAREST.get(buffers[product.out].dtype)
    if precise and nearest is not None:
        result = body.emit(nearest, (value,), dtype)
    body.splice(nest.body, values, on_load=lambda access, _: result if root(buffers, access.buffer) == product.out else None)
    if kept:
        body.store(value, product.out, at_m * product.pitch + at_n)
    made = Nest(nest.name, (*rows, *columns, *deep), tuple(body.ops), nest.origins)
    if made.symbols():
        raise Refused("its reader takes numbers that each call brings")
    if nest.is_product:
        check_shared(made)
    return made


def check_shared(nest: Nest) -> None:
    """Products of one nest have one operand in common."""
    pairs = [op.args for op in nest.body if op.name == "product"]
    if len({a for a, _ in pairs}) > 1 and len({b for _, b in pairs}) > 1:
        raise Refused("its reader takes in a product of other matrices")


def load_side(body: Body, side: Side, place: Index, at_k: Index, dtype: torch.dtype) -> int:
    return body.emit("load", (), dtype, Access(side.root, place * side.along + at_k * side.deep + side.start))


def position(axes: tuple[Axis, ...]) -> Index:
    """The row-major position over axes."""
    found, step = constant(0), 1
    for axis in reversed(axes):
        found, step = found + atom(axis.var) * step, step * axis.size
    return found


def split_axes(axes: tuple[Axis, ...], index: Index, product: Product) -> tuple[dict[Var, Index | int], tuple[Axis, ...], tuple[Axis, ...]]:
    """The loop variables of a nest that reads element `index` of the results, as sums of new ones, those of rows and those of columns. Raises Refused."""
    strides: list[tuple[Any, Axis]] = []
    for axis in axes:
        stride = index.stride(axis.var)
        if type(stride) is not int or stride < 1 or type(axis.size) is not int:
            raise Refused("its reader reads its results in another order than theirs")
        strides.append((stride, axis))
    if index.constant:
        raise Refused("its reader reads a part of its results")
    pieces: dict[Var, list[tuple[int, Axis]]] = {a.var: [] for a in axes}
    rows: list[Axis] = []
    columns: list[Axis] = []
    expected, inner = 1, True
    for stride, axis in sorted(strides, key=lambda s: s[0]):
        left, scale = axis.size, 1
        while left > 1:
            if inner and expected == product.n:
                inner, expected = False, product.pitch
            if stride * scale != expected:
                raise Refused("its reader reads a part of its results, or in another order than theirs")
            room = product.n // expected if inner else left
            size = min(left, room)
            if left % size or (inner and product.n % (expected * size)):
                raise Refused("its reader does not read its results row by row")
            found = columns if inner else rows
            fresh = Axis(Var(f"{'n' if inner else 'm'}{len(found)}", size), "x")
            found.insert(0, fresh)
            pieces[axis.var].append((scale, fresh))
            left, scale, expected = left // size, scale * size, expected * size
    if inner or expected != product.pitch * product.m:
        raise Refused("its reader reads a part of its results")
    values: dict[Var, Index | int] = {}
    for var, parts in pieces.items():
        values[var] = sum((atom(a.var) * scale for scale, a in parts), start=constant(0))
    return values, tuple(rows), tuple(columns)


def contract(units: Units, unit: Unit, reader: Unit, nest: Nest) -> Unit:
    """One unit in the place of both."""
    reads, writes = {a.buffer for a in nest.loads()}, {a.buffer for a in nest.stores()}
    place = min(unit.first, reader.first), max(unit.last, reader.last)
    merged = Unit(max(units.by_id) + 1, *place, None, reader.members, nest.axes, reads, writes, part=reader.part, copies=reader.copies)
    gone = (unit.writes | reader.writes) - writes
    replace_pair(units, unit, reader, merged)
    for name in gone:
        units.writers[name] -= {unit.id, reader.id}
    return merged
