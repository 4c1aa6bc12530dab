"""Column sums join row reductions over the same elements: a program walks a block of rows, makes each row's results, and adds up the columns.

The backward of a norm sums the same products per row (for its input) and per column (for its weight and bias); in one kernel they are
read once. A kernel of partial column sums, made by `split_reductions`, becomes summed stores over the row kernel's points: one partial
sum for each block of rows, reduced by the kernel that there was before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Atom, Index, Var, atom, hint
from dynacompile.ir.loops import Access, Axis, Buffer, Nest
from dynacompile.schedule.domain import align, digits_of, linear, remap, runs_along
from dynacompile.schedule.fuse import MAX_BUFFERS, MAX_OPS
from dynacompile.schedule.split import position_of_reduce
from dynacompile.schedule.units import Unit, Units, has_path, replace_pair

WIDEST = 4096  # elements of a row, which has to stay in registers beside the sums
WIDEST_OF_SUMS = 16384  # the same of rows that are summed alone, in one pass
MOST_OF_SUMS = 3  # tensors of such rows and sums of their columns
BLOCKS = 512  # of rows, wanted: each is a program
LEAST_BLOCKS = 256  # wanted of rows that are wider than WIDEST, whose partial sums are many
LEAST_ROWS = 8  # in a block


@dataclass(frozen=True)
class Sums:
    """A unit of partial column sums. chunk: the axes that number the blocks; summed: those within a block. partials: the buffers stored."""

    unit: Unit
    chunk: tuple[Axis, ...]
    summed: tuple[Axis, ...]
    partials: tuple[str, ...]


def fold_columns(units: Units) -> None:
    """Joins units in place, where nothing else needs to run between the two."""
    for unit in list(units.by_id.values()):
        sums = column_sums(units, unit)
        if sums is None:
            continue
        divided = finer(units, sums)
        for rows in row_kernels(units, sums) if math.prod(a.size for a in divided.chunk) >= LEAST_BLOCKS else ():
            joined = join(units, rows, divided)
            if joined is not None:
                replace_pair(units, rows, unit, joined)
                refine(units, sums, divided)
                break


def column_sums(units: Units, unit: Unit) -> Sums | None:
    """The unit as partial sums, where all that it does are those and elementwise stores."""
    if unit.extern is not None or units.buffer(next(iter(unit.writes))).device.type != "cuda" or not any(a.role == "r" for a in unit.axes):
        return None
    if not all(isinstance(a.size, int) for a in unit.axes if a.role == "r"):
        return None
    partials: dict[str, Access] = {}
    reduced = {a.var for a in unit.axes if a.role == "r"}
    for _, nest in unit.members:
        reduces = [op for op in nest.body if op.name == "reduce"]
        if nest.scans():
            return None
        (store,) = nest.stores() if len(nest.stores()) == 1 else (None,)
        if store is None or store.summed or store.added:
            return None
        if not reduces:
            if not reduced <= store.index.variables():
                return None
            continue
        end = nest.body[-1]
        if len(reduces) > 1 or reduces[0].attr != "sum" or end.name != "store" or nest.body[end.args[0]] is not reduces[0] or store.mask is not None:
            return None
        if not end.dtype.is_floating_point or store.buffer in units.kept:
            return None
        partials[store.buffer] = store
    if not partials or any(len(units.buffer(n).size) != 2 for n in partials):
        return None
    columns = {units.buffer(n).size[-1] for n in partials}
    chunks = {tuple(a for a in unit.axes if a.role == "x" and (s := p.index.stride(a.var)) is not None and s >= max(columns)) for p in partials.values()}
    if len(columns) != 1 or len(chunks) != 1:
        return None
    (chunk,) = chunks
    return Sums(unit, chunk, tuple(a for a in unit.axes if a.role == "r"), tuple(partials)) if chunk else None


def row_kernels(units: Units, sums: Sums) -> list[Unit]:
    """Row reductions that share memory with the sums, those that share most first."""
    unit = sums.unit
    near: set[int] = set()
    for name in unit.reads:
        near |= units.readers.get(name, set()) | units.writers.get(name, set())
    near.discard(unit.id)
    found = []
    for other in (units.by_id[i] for i in sorted(near) if i in units.by_id):
        if other.extern is None and is_row_kernel(units, other, sums):
            shared = sum(units.buffer(n).bytes for n in unit.reads & (other.reads | other.writes))
            found.append((-shared, other.first, other))
    return [other for _, _, other in sorted(found, key=lambda f: f[:2])]


def is_row_kernel(units: Units, unit: Unit, sums: Sums) -> bool:
    inner = [a for a in unit.axes if a.role == "r"]
    if not inner or not 32 <= hint(math.prod(a.size for a in inner)) <= (WIDEST_OF_SUMS if only_sums(unit, sums) else WIDEST):
        return False
    along = runs_along((a.index for _, n in unit.members for a in n.loads()), unit.axes, inner[-1].var)
    if any(n.scans() for _, n in unit.members):
        return False
    return along and any(op.name == "reduce" for _, n in unit.members for op in n.body)


def only_sums(unit: Unit, sums: Sums) -> bool:
    """Whether the row kernel does nothing but reduce what it reads once, so that a row needs registers for what is read and for the sums of columns."""
    reduced = {a.var for a in unit.axes if a.role == "r"}
    read = {a.buffer for u in (unit, sums.unit) for _, n in u.members for a in n.loads() if len(a.index.variables()) > 1}
    passes = any(n.is_reduction and a.buffer in unit.writes for _, n in unit.members for a in n.loads())
    stores = any(not reduced.isdisjoint(a.index.variables()) for _, n in unit.members for a in n.stores())
    return not passes and not stores and len(read) + len(sums.partials) <= MOST_OF_SUMS


def finer(units: Units, sums: Sums) -> Sums:
    """The same sums over more blocks, where there are too few and their one reader can follow."""
    outer = sums.summed[0]
    blocks, rows = math.prod(a.size for a in sums.chunk), math.prod(a.size for a in sums.summed)
    factors = [k for k in range(1, outer.size + 1) if outer.size % k == 0 and rows // k >= LEAST_ROWS]
    wanted = BLOCKS if hint(units.buffer(sums.partials[0]).size[1]) <= WIDEST else LEAST_BLOCKS
    factor = next((k for k in factors if blocks * k >= wanted), max(factors, default=1))
    if factor == 1 or not all(can_follow(units, sums, i) for n in sums.partials for i in units.readers[n]):
        return sums
    blocks_of = {a.var for a in sums.chunk}

    def numbers_blocks(monomial: tuple[Atom, ...]) -> bool:
        return any(not blocks_of.isdisjoint(a.variables()) for a in monomial)

    j, rest = Axis(Var("j0", factor), "x"), Axis(Var("y0", outer.size // factor), "r")
    axes = (*sums.chunk, j, *(a for a in sums.unit.axes if a.role == "x" and a not in sums.chunk), rest, *sums.summed[1:])
    split: dict[Var, Index | int] = {outer.var: atom(j.var) * rest.size + atom(rest.var)}
    members = []
    for position, nest in sums.unit.members:
        if nest.is_reduction:
            (store,) = nest.stores()
            columns = units.buffer(store.buffer).size[1]
            index = Index([(m, c * factor if numbers_blocks(m) else c) for m, c in store.index.terms], store.index.constant) + atom(j.var) * columns
            end = nest.body[-1]
            nest = replace(nest, body=(*nest.body[:-1], replace(end, attr=replace(store, index=index))))
        members.append((position, remap(nest, split, axes)))
    unit = replace(sums.unit, members=members, axes=axes)
    return Sums(unit, (*sums.chunk, j), (rest, *sums.summed[1:]), sums.partials)


def can_follow(units: Units, sums: Sums, reader: int) -> bool:
    """The reader only sums these partial results over one axis that numbers the blocks."""
    unit = units.by_id[reader]
    inner = [a for a in unit.axes if a.role == "r"]
    if unit.extern is not None or len(inner) != 1 or inner[0].size != math.prod(a.size for a in sums.chunk):
        return False
    for _, nest in unit.members:
        for access in nest.loads():
            stride = access.index.stride(inner[0].var)
            if stride != 0 and (access.buffer not in sums.partials or stride != units.buffer(access.buffer).size[1]):
                return False
        if any(op.name == "index" or (op.name == "reduce" and op.attr != "sum") for op in nest.body):
            return False
        if any(inner[0].var in a.index.variables() for a in nest.stores()):
            return False
    return True


def refine(units: Units, sums: Sums, divided: Sums) -> None:
    """Buffers and readers of the partial results take the new number of blocks."""
    if divided is sums:
        return
    blocks = math.prod(a.size for a in divided.chunk)
    buffers = dict(units.program.buffers)
    for name in sums.partials:
        old = buffers[name]
        buffers[name] = Buffer(name, old.dtype, old.device, (blocks, old.size[1]), old.stride, old.kind)
    units.program = replace(units.program, buffers=buffers)
    for reader in {i for n in sums.partials for i in units.readers[n]}:
        unit = units.by_id[reader]
        (inner,) = (a for a in unit.axes if a.role == "r")
        longer = Axis(Var(inner.var.name, blocks), "r")
        unit.axes = tuple(longer if a == inner else a for a in unit.axes)
        unit.members = [(p, remap(n, {inner.var: atom(longer.var)}, unit.axes)) for p, n in unit.members]


def join(units: Units, rows: Unit, sums: Sums) -> Unit | None:
    """One unit for both, or None where their points don't correspond or another unit has to run between."""
    unit = sums.unit
    padded = in_blocks(rows, sums)
    if padded is None:
        return None
    rows = padded
    if rows.writes & unit.writes or unit.writes & rows.reads or has_path(units, rows, unit) or has_path(units, unit, rows):
        return None
    if sum(len(n.body) for u in (rows, unit) for _, n in u.members) > MAX_OPS or len(rows.reads | rows.writes | unit.reads | unit.writes) > MAX_BUFFERS:
        return None
    shared = sorted(unit.reads & (rows.writes | rows.reads), key=lambda n: (n not in rows.writes, -units.buffer(n).bytes, n))
    for name in shared:
        outer, inner = only_index(rows, name), only_index(unit, name)
        if outer is None or inner is None or outer.constant != inner.constant:
            continue
        guests = tuple(replace(a, role="x") for a in unit.axes)
        left, right = digits_of(outer, rows.axes), digits_of(inner, guests)
        found = align(rows.axes, left, right) if left is not None and right is not None else None
        if found is None:
            continue
        folded = moved(sums.summed, found.guest, found.axes)
        before = {moved(n.folded, found.host, found.axes) for _, n in rows.members if n.folded}
        axes = (*(a for a in found.axes if a.role == "x" and a not in folded), *folded, *(a for a in found.axes if a.role == "r"))
        if any(a.role == "r" for a in folded) or not before <= {folded} or not hands_over(rows, unit, found.host, found.guest):
            continue
        members = [(p, remap(n, found.host, axes)) for p, n in rows.members]
        members += [(p, remap(as_sums(n), found.guest, axes)) for p, n in unit.members]
        members.sort(key=lambda m: m[0])
        new = max(units.by_id) + 1
        first, last, reads = min(rows.first, unit.first), max(rows.last, unit.last), rows.reads | (unit.reads - rows.writes)
        return Unit(new, first, last, None, members, axes, reads, rows.writes | unit.writes)
    return None


def in_blocks(rows: Unit, sums: Sums) -> Unit | None:
    """The row kernel over the blocks of the sums, where those have more rows than there are, of which the last ones then are no points of it."""
    outer = [a for a in rows.axes if a.role == "x"]
    if math.prod(a.size for a in outer) == math.prod(a.size for a in (*sums.chunk, *sums.summed)):
        return rows
    if len(outer) != 1 or any(n.folded for _, n in rows.members):
        return None
    (old,) = outer
    blocks = tuple(Axis(Var(f"b{i}", a.size), "x") for i, a in enumerate((*sums.chunk, *sums.summed)))
    axes = (*blocks, *(a for a in rows.axes if a.role == "r"))
    members = [(p, guarded(n, old, linear(blocks), axes)) for p, n in rows.members]
    return replace(rows, members=members, axes=axes)


def guarded(nest: Nest, old: Axis, place: Index, axes: tuple[Axis, ...]) -> Nest:
    """The nest with `place` for the variable of an axis, and nothing done where that is beyond it."""
    body = Body()
    limit = body.emit("constant" if isinstance(old.size, int) else "index", (), torch.int64, old.size)
    guard = body.emit("lt", (body.emit("index", (), torch.int64, place), limit), torch.bool)

    def on_load(access: Access, dtype: torch.dtype) -> int | None:
        inside = not place.variables().isdisjoint(access.index.variables()) or any(v.name[0] == "%" for v in access.index.variables())
        return None if inside or access.mask != guard else body.emit("load", (), dtype, replace(access, mask=None))

    body.splice(nest.body, {old.var: place}, guard, on_load)
    return replace(nest, axes=axes, body=without_dead(body.ops))


def moved(axes: tuple[Axis, ...], values: Mapping[Var, Index | int], space: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The axes of `space` that `axes` became."""
    found: set[Var] = set()
    for axis in axes:
        value = values.get(axis.var, atom(axis.var))
        found |= value.variables() if isinstance(value, Index) else set()
    return tuple(a for a in space if a.var in found)


def only_index(unit: Unit, name: str) -> Index | None:
    """Where the unit touches a buffer, when that is one place per point."""
    found = {a.index for _, n in unit.members for a in (*n.loads(), *n.stores()) if a.buffer == name}
    return next(iter(found)) if len(found) == 1 else None


def hands_over(rows: Unit, unit: Unit, host: Mapping[Var, Index | int], guest: Mapping[Var, Index | int]) -> bool:
    """What the unit takes from the row kernel is at the same point in both, and, where that has a bound, within the same one."""
    for name in rows.writes & unit.reads:
        written = {(a.index.subs(host), bound(n, a, host)) for _, n in rows.members for a in n.stores() if a.buffer == name}
        taken = {(a.index.subs(guest), bound(n, a, guest)) for _, n in unit.members for a in n.loads() if a.buffer == name}
        if len(written) != 1:
            return False
        ((place, limit),) = written
        if {p for p, _ in taken} != {place} or (limit is not None and {b for _, b in taken} != {limit}):
            return False
    return True


def bound(nest: Nest, access: Access, values: Mapping[Var, Index | int]) -> tuple[Index, object] | int | None:
    """(position, limit) where an access is masked by position < limit; the mask's id where it is another; None without."""
    if access.mask is None:
        return None
    below = nest.body[access.mask]
    place, limit = (nest.body[a] for a in below.args) if below.name == "lt" else (below, below)
    known = place.name == "index" and limit.name in ("index", "constant")
    return (place.attr.subs(values), limit.attr) if known else access.mask  # type: ignore[union-attr]


def as_sums(nest: Nest) -> Nest:
    """A nest of a partial sum as one that stores every element's value, summed; others as they are."""
    if not nest.is_reduction:
        return nest
    at = position_of_reduce(nest)
    (store,) = nest.stores()
    body = Body()
    ids = body.splice(nest.body[:at], {})
    body.store(ids[nest.body[at].args[0]], store.buffer, store.index, summed=True)
    return replace(nest, body=without_dead(body.ops))
