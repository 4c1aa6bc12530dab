"""Products of matrices with what is computed of their results: one kernel, where the model of the device, or a measurement, says that it is faster.

A product is a call of a library until here, after all other fusing. Its results may be read by one kernel, element by element, each at the place
where the product has it (`fused_nest` says when that holds); then both can be one nest, whose body has an op "product", and whose other ops are what
the kernel was. Results that others read are stored as well. A kernel that reads two products of the same matrix (a gate and its values) may take in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dynacompile.env import Env
from dynacompile.events import ProductDecided
from dynacompile.ir.body import Body
from dynacompile.ir.index import Index, Var, atom, constant
from dynacompile.ir.loops import Access, Axis, Buffer, Contraction, Extern, Nest, root
from dynacompile.ir.products import Choose, Decision, Joint
from dynacompile.ir.schedule import SCRATCH
from dynacompile.ops.scalars import NEAREST, compute_dtype
from dynacompile.schedule.contractions import PRODUCTS, Loops, Place, Product, Refused, Side, float32_precision, product_of, split_axes
from dynacompile.schedule.units import Unit, Units, has_path, replace_pair

aten = torch.ops.aten
DONE = {
    aten.mm.dtype: "the library stores its results as float32",
    aten._addmm_activation.default: "the library applies the activation as it stores the results",
}


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
            join_products(units, nests[reader.id], [*found, unit], reader, env)
        except Refused as refused:
            tell(env, unit, reader, Decision(False, str(refused)))
        else:
            found.append(unit)
    return found


def decide(units: Units, nests: dict[int, Nest], products: Sequence[Unit], reader: Unit, env: Env, choose: Choose) -> Unit:
    """The reader, with the products where `choose` says so."""
    joint, steps = join_products(units, nests[reader.id], products, reader, env)
    decision = choose(joint)
    if decision.fused and env.rely is not None and any(a.dtype == torch.float32 for a in results(joint)):
        env.rely("torch.backends.cuda.matmul.fp32_precision", float32_precision, float32_precision())
    for unit, nest in zip(products, steps, strict=True):
        tell(env, unit, reader, decision)
        if decision.fused:
            merged = contract(units, unit, reader, nest)
            del nests[reader.id]
            nests[merged.id] = nest
            reader = merged
    return reader


def results(joint: Joint) -> list[Buffer]:
    return [joint.buffers[call.outputs[0]] for call in joint.calls if call.outputs[0] is not None]


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


def join_products(units: Units, nest: Nest, products: Sequence[Unit], reader: Unit, env: Env) -> tuple[Joint, list[Nest]]:
    """What they would be as one, and what takes its place else; and the nest with the first of them, with the second, and so on. Raises Refused."""
    steps: list[Nest] = []
    calls: list[Extern] = []
    found: list[Product] = []
    precision = None if env.rely is None else float32_precision()
    if precision == "tf32" and env.config.precise:
        precision = None  # the tensor cores cut off numbers of float32 that the library rounds
    for unit in products:
        assert unit.extern is not None
        product = product_of(unit.extern, units.program.buffers, units.roots, precision)
        if unit.part != reader.part or unit.copies != reader.copies:
            raise Refused("its reader belongs to another part of the program")
        if reader.writes & (unit.reads | unit.writes):
            raise Refused("its reader writes to memory that the product reads")
        if has_path(units, unit, reader):
            raise Refused("its reader waits for another kernel that reads its results")
        if found and product.extents != found[0].extents:
            raise Refused("its reader takes in a product of other extents")
        kept = product.out in units.kept or bool(units.readers[product.out] - {unit.id, reader.id})
        steps.append(fused_nest(steps[-1] if steps else nest, product, units.program.buffers, kept, env.config.precise))
        calls.append(unit.extern)
        found.append(product)
    return Joint(steps[-1], tuple(calls), nest, units.program.buffers, found[0].m, found[0].n, found[0].k, found[0].batch), steps


def fused_nest(nest: Nest, product: Product, buffers: Mapping[str, Buffer], kept: bool, precise: bool) -> Nest:
    """The reader's nest with the product in the place of its loads. kept: the results are stored, too. Raises Refused."""
    if nest.is_reduction or nest.folded or nest.scans():
        raise Refused("its reader sums over its results")
    loads = [a for a in nest.loads() if root(buffers, a.buffer) == product.out]
    if not loads or len({a.index for a in loads}) != 1 or any(a.mask is not None for a in loads):
        raise Refused("its reader reads several of its results, or not all, for one point")
    loops = split_axes(nest.x_axes, loads[0].index, product)
    deep = nest.r_axes or (Axis(Var("k0", product.k), "r"),)
    if deep[0].size != product.k:
        raise Refused("its reader takes in a product of another length")
    body = Body()
    at = position(loops.batch), position(loops.rows), position(loops.columns)
    dtype = compute_dtype(buffers[product.out].dtype)
    value = sum_of_products(body, product, at, atom(deep[0].var), dtype, loops)
    if nest.is_product:
        shared = {a.buffer for a in nest.loads()} & {product.left.root, product.right.root}
        if not shared or any(op.name == "store" and op.attr.buffer in shared for op in nest.body):
            raise Refused("its reader takes in a product of other matrices")
    result = value
    nearest = NEAREST.get(buffers[product.out].dtype)
    if precise and nearest is not None:
        result = body.emit(nearest, (value,), dtype)
    body.splice(nest.body, loops.values, on_load=lambda access, _: result if root(buffers, access.buffer) == product.out else None)
    if kept:
        body.store(value, product.out, at[0] * product.jump + at[1] * product.pitch + at[2])
    made = Nest(nest.name, (*loops.axes, *deep), tuple(body.ops), nest.origins)
    if made.symbols():
        raise Refused("its reader takes numbers that each call brings")
    if nest.is_product:
        check_shared(made)
    return made


def sum_of_products(body: Body, product: Product, at: tuple[Index, Index, Index], at_k: Index, dtype: torch.dtype, loops: Loops) -> int:
    """The value of one result, with what is added to it."""
    sides = [load_side(body, side, at[0], place, at_k, dtype) for side, place in ((product.left, at[1]), (product.right, at[2]))]
    division = Contraction(len(loops.batch), len(loops.rows), len(loops.columns), product.precision)
    value = body.emit("product", tuple(sides), torch.float32, division)
    if product.alpha != 1:
        value = body.emit("mul", (value, body.emit("constant", (), dtype, product.alpha)), dtype)
    for scale in product.scales:
        value = body.emit("mul", (value, load_place(body, scale, at)), dtype)
    if product.added is not None:
        added = load_place(body, product.added, at)
        if product.beta != 1:
            added = body.emit("mul", (added, body.emit("constant", (), dtype, product.beta)), dtype)
        value = body.emit("add", (value, added), dtype)
    return value


def load_place(body: Body, place: Place, at: tuple[Index, Index, Index]) -> int:
    index = at[0] * place.across + at[1] * place.along_m + at[2] * place.along_n + place.start
    return body.emit("load", (), torch.float32, Access(place.root, index))


def check_shared(nest: Nest) -> None:
    """Products of one nest divide its loops alike, and have one operand in common."""
    products = [op for op in nest.body if op.name == "product"]
    if len({op.attr for op in products}) > 1 or (len({op.args[0] for op in products}) > 1 and len({op.args[1] for op in products}) > 1):
        raise Refused("its reader takes in a product of other matrices")


def load_side(body: Body, side: Side, at_b: Index, place: Index, at_k: Index, dtype: torch.dtype) -> int:
    return body.emit("load", (), dtype, Access(side.root, at_b * side.across + place * side.along + at_k * side.deep + side.start))


def position(axes: tuple[Axis, ...]) -> Index:
    """The row-major position over axes."""
    found, step = constant(0), 1
    for axis in reversed(axes):
        found, step = found + atom(axis.var) * step, step * axis.size
    return found


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
