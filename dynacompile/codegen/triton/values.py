"""The values of a kernel's body as Triton text: names, shapes, scalar ops, loads, stores, reductions."""

from __future__ import annotations

import torch

import dynacompile.codegen.triton.reductions as reductions
import dynacompile.codegen.triton.scalars as scalars
from dynacompile.codegen.triton.edges import at_edges
from dynacompile.codegen.triton.indexing import Dim, Indexer
from dynacompile.codegen.triton.names import RESERVED, entry_of
from dynacompile.codegen.triton.parts import Parts
from dynacompile.codegen.triton.scans import joined_scans, scan
from dynacompile.codegen.triton.tiles import Tiling, op_phases
from dynacompile.errors import Unsupported
from dynacompile.ir.divisions import recombined
from dynacompile.ir.index import Extent, Index, Var
from dynacompile.ir.loops import Access, Nest, Op, levels
from dynacompile.ir.ranges import Range, fits, narrow, products, ranges
from dynacompile.ir.schedule import Kernel
from dynacompile.quoting import identifier


class Values:
    """Emits one op at a time.

    A value's name says the op and its place in the body. A tile's values have shape [XBLOCK], [YBLOCK, XBLOCK] (transposes) or
    [XBLOCK, RBLOCK] (reductions), with 1 for dimensions over which they do not vary, and () for those that vary over none.
    """

    def __init__(self, kernel: Kernel, tiling: Tiling):
        self.kernel, self.nest, self.tiling = kernel, kernel.nest, tiling
        self.level = levels(self.nest)
        self.online = reductions.online_pairs(self.nest) if tiling.looped else {}
        self.phase = op_phases(self.nest, self.online)
        self.joined = joined_scans(self.nest)
        self.dims = {d.name: d for d in tiling.dims}
        self.entry = entry_of(kernel)
        self.taken = set(RESERVED) | {self.entry}
        self.taken |= {a.var.name for a in self.nest.axes} | {s.name for s in self.nest.symbols()}
        self.pointers = {p.name: self.fresh(f"{identifier(p.name)}_ptr") for p in kernel.params}
        self.dtypes = {p.name: p.dtype for p in kernel.params}
        self.names: dict[int, str] = {}
        self.part_names: dict[tuple[int, str], str] = {}
        self.shapes: dict[int, frozenset[str]] = {}
        self.constants: dict[tuple[str, torch.dtype], str] = {}
        self.indirect: dict[int, tuple[str, frozenset[str]]] = {}
        self.parts = Parts(tiling.parts)
        self.indexer = Indexer((*tiling.outer, *tiling.dims), self.indirect, lane=lane_of(kernel, tiling), narrow=self.narrow_places)
        kept = tuple(a for a in self.nest.x_axes if a not in self.nest.folded)
        self.blocks = Indexer((Dim("pid", kept), *(d for d in tiling.dims if d.name == "r")), {}, self.indexer.definitions)  # of summed stores
        self.evict = ""
        self.unfenced = False
        self.fast = rounds_to_16_bits(self.nest, self.dtypes)
        self.at_edges = at_edges(self.nest)
        self.memory = {p.name: p.range for p in kernel.params if p.range is not None}
        self.narrow = narrow(self.nest.body, self.memory)
        """Of int64, computed in 32 bits. Who uses such a value elsewhere widens it."""
        self.known = ranges(self.nest.body, self.memory) if self.narrow else []

    # names

    def fresh(self, wanted: str) -> str:
        axes = {a.var.name for a in self.nest.axes}
        name, n = wanted, 1
        while name in self.taken or axes.issuperset(name.split("_")):  # runs of axes are named by their ends
            name, n = f"{wanted}_{n}", n + 1
        self.taken.add(name)
        return name

    def name(self, i: int) -> str:
        """The variable that holds the value of op i; the same one in every pass that computes it."""
        if i not in self.names:
            op = self.nest.body[i]
            own = op.attr if op.name == "reduce" else f"running_{op.attr.kind}" if op.name == "scan" else op.name
            self.names[i] = self.fresh(identifier(op.attr.buffer) if isinstance(op.attr, Access) else f"{own}_{i}")
        return self.names[i]

    def fresh_part(self, i: int, part: str) -> str:
        """The variable that holds a part of a scan's elements; the same one in every pass."""
        if (i, part) not in self.part_names:
            self.part_names[i, part] = self.fresh(f"{self.name(i)}_{part}")
        return self.part_names[i, part]

    def shape(self, dims: frozenset[str]) -> str:
        return "[" + ", ".join(d.block if d.name in dims else "1" for d in self.tiling.dims) + "]"

    def op(self, i: int, op: Op) -> list[str]:
        match op.name:
            case "constant":
                self.shapes[i] = frozenset()
                return []
            case "given":
                self.shapes[i] = frozenset()
                return [f"{self.name(i)} = tl.full((), {op.attr.name}, tl.float64)"]  # type: ignore[union-attr]
            case "load":
                return self.load(i, op)
            case "store":
                return self.store(i, op)
            case "index":
                return self.index(i, op)
            case "reduce":
                return self.reduce([(i, op)])
            case "scan":
                return scan(self, i, op)
            case "require":
                return self.require(i, op)
            case _:
                return self.scalar(i, op)

    def scalar(self, i: int, op: Op) -> list[str]:
        self.shapes[i] = frozenset().union(*(self.shapes[a] for a in op.args))
        dtype = self.nest.body[op.args[-1]].dtype
        if i in self.narrow or self.reads_narrow(op):
            text = self.narrow_scalar(i, op, dtype)
        elif op.name == "cast":
            text = scalars.cast(self.argument(op.args[0]), dtype, op.dtype)
        else:
            if op.name == "truediv" and self.divides_row(i, op):
                return self.divide_row(i, op)
            if op.name == "uniform" and (element := self.drawn_by_fours(op)):
                return [f"{self.name(i)} = uniform_by_fours({self.argument(op.args[0])}, {element}, {self.argument(op.args[2])})"]
            template, infix = scalars.row(op.name, dtype, self.fast and not (op.name == "truediv" and i in self.at_edges))
            literals = infix and any(self.nest.body[a].name != "constant" for a in op.args)
            text = template.format(*(self.argument(a, literals) for a in op.args), bits=scalars.BITS.get(dtype, 0))
        return [f"{self.name(i)} = {text}", *self.note_indirect(i)]

    def drawn_by_fours(self, op: Op) -> str:
        """The numbers of elements, by fours, where each four neighbours in the tile, from its first on, draw the four words of one block; else empty."""
        seed, sequence, block, place = op.args
        fours, rest = (self.nest.body[a].attr for a in (sequence, place))
        if self.shapes[seed] or self.shapes[block] or not isinstance(fours, Index) or not isinstance(rest, Index) or rest.bounds() != (0, 3):
            return ""
        element, inner = recombined(fours * 4 + rest), self.tiling.dims[-1]
        terms = self.indexer.terms(element)
        along = [t[:2] for t in terms if inner.name in t.dims]
        apart = [element.constant, *(t.coefficient for t in terms if inner.name not in t.dims)]
        whole = all(c.blocks[inner.block] % 4 == 0 for c in self.tiling.candidates) and all(type(c) is int and c % 4 == 0 for c in apart)
        return self.indexer.text(element)[0] if whole and along == [(1, inner.name)] else ""

    def require(self, i: int, op: Op) -> list[str]:
        """A value that the device asserts to be as it has to be, where a point lies in the nest."""
        value, condition = op.args
        self.shapes[i] = self.shapes[value]
        bounds = [f"{d.name}mask" for d in self.tiling.dims if d.name in self.shapes[condition] and d.name in self.tiling.masked]
        otherwise = f" | (({' & '.join(bounds)}) == 0)" if bounds else ""
        return [f"require({self.argument(condition)}{otherwise})", f"{self.name(i)} = {self.argument(value)}", *self.note_indirect(i)]

    def reads_narrow(self, op: Op) -> bool:
        """Whether an op gives the same of numbers in 32 bits."""
        return op.name in ("cast", "lt", "le", "eq", "ne") and bool(op.args) and all(a in self.narrow for a in op.args)

    def narrow_scalar(self, i: int, op: Op, dtype: torch.dtype) -> str:
        """An op on numbers of 32 bits, or with such a result."""
        dtype = torch.int32 if dtype == torch.int64 else dtype
        args = [self.name(a) if a in self.narrow and self.nest.body[a].name != "constant" else self.narrow_argument(a) for a in op.args]
        if op.name == "cast":
            return scalars.cast(args[0], dtype, torch.int32 if i in self.narrow else op.dtype)
        return scalars.row(op.name, dtype, self.fast)[0].format(*args, bits=32)

    def narrow_argument(self, i: int) -> str:
        op = self.nest.body[i]
        if op.name == "constant" and i in self.narrow:
            return self.constant(scalars.literal(op.attr, torch.int32), torch.int32)  # type: ignore[arg-type]
        return self.argument(i)

    def exponential(self, dtype: torch.dtype) -> str:
        return scalars.row("exp", dtype, self.fast)[0]

    def tile(self, i: int, text: str) -> str:
        """Value i as a block of the tile's shape."""
        if self.shapes[i] >= {d.name for d in self.tiling.dims}:
            return text
        return f"tl.broadcast_to({text}, {self.whole_shape()})"

    def whole_shape(self) -> str:
        """Of the tile."""
        return self.shape(frozenset(d.name for d in self.tiling.dims))

    def divides_row(self, i: int, op: Op) -> bool:
        """True where every point of a row is divided by the row's own number, and nothing depends on the last bit."""
        divisor = op.args[1]
        return i not in self.at_edges and op.dtype == torch.float32 and self.level[i] == "r" and self.level[divisor] == "x" and bool(self.shapes[divisor])

    def divide_row(self, i: int, op: Op) -> list[str]:
        value, divisor = (self.argument(a) for a in op.args)
        inverse, scale = self.fresh(f"{divisor}_inverse"), self.fresh(f"{divisor}_scale")
        return [f"{inverse}, {scale} = split_reciprocal({divisor})", f"{self.name(i)} = {value} * {inverse} * {scale}", *self.note_indirect(i)]

    def note_indirect(self, i: int) -> list[str]:
        """Keeps the text by which an access uses op i as an index."""
        name = self.name(i)
        wide = self.nest.body[i].dtype == torch.int64 and i not in self.narrow
        self.indirect[i] = (name if wide else f"{name}.to(tl.int64)", self.shapes[i])
        return []

    def narrow_places(self, index: Index) -> dict[int, str]:
        """The names of an index's places, where the index and each part of its sum fit in 32 bits."""
        places = {int(v.name[1:]) for v in index.variables() if v.name[0] == "%"}
        if not places or not places <= self.narrow or self.tiling.wide:
            return {}
        low = high = 0
        for monomial, coefficient in index.terms:
            part: Range = (1, 1)
            for factor in monomial:
                bounds = self.known[int(factor.name[1:])] if type(factor) is Var and factor.name[0] == "%" else factor.bounds()
                if type(coefficient) is not int or bounds is None or bounds[0] is None or bounds[1] is None:
                    return {}
                part = products(part, bounds)  # type: ignore[arg-type]
            part = products(part, (coefficient, coefficient))
            low, high = low + min(part[0], 0), high + max(part[1], 0)
        fits_all = fits((low, high)) and fits((low + min(index.constant, 0), high + max(index.constant, 0)))
        return {i: self.name(i) for i in places} if fits_all else {}

    def argument(self, i: int, literal: bool = False) -> str:
        """Op i as an operand: its variable, or for a constant a literal or a typed scalar."""
        op = self.nest.body[i]
        if op.name != "constant":
            return f"{self.name(i)}.to(tl.int64)" if i in self.narrow else self.name(i)
        text = scalars.literal(op.attr, op.dtype)  # type: ignore[arg-type]
        if literal:
            return f"({text})" if text.startswith("-") else text
        return self.constant(text, op.dtype)

    def constant(self, text: str, dtype: torch.dtype) -> str:
        if (text, dtype) not in self.constants:
            self.constants[text, dtype] = self.fresh(f"c{len(self.constants)}")
        return self.constants[text, dtype]

    def index(self, i: int, op: Op) -> list[str]:
        text, self.shapes[i] = self.indexer.text(op.attr)  # type: ignore[arg-type]
        dtype = scalars.value(torch.int32 if i in self.narrow else op.dtype)
        text = f"({text}).to({dtype})" if self.shapes[i] or op.attr.symbols() else f"tl.full((), {text}, {dtype})"  # type: ignore[union-attr]
        return [f"{self.name(i)} = {text}", *self.note_indirect(i)]

    # memory

    def mask(self, dims: frozenset[str], access: Access) -> list[str]:
        """Terms of the mask of an access that varies over `dims`."""
        bounds = [f"{d.name}mask" for d in self.tiling.dims if d.name in dims and d.name in self.tiling.masked]
        return bounds + ([self.argument(access.mask)] if access.mask is not None else [])

    def inside(self, access: Access) -> list[str]:
        """The conditions under which the positions that are tensor elements lie in their dimensions."""
        found = []
        known = ranges(self.nest.body, self.memory) if any(v.name[0] == "%" for v in access.index.variables()) else []
        for v in access.index.variables():
            if v.name[0] == "%" and v.size is not None and not lies_in(known[int(v.name[1:])], v.size):
                position, _ = self.indirect[int(v.name[1:])]
                found.append(f"({position} >= 0) & ({position} < {v.size})")
        return found

    def load(self, i: int, op: Op) -> list[str]:
        access: Access = op.attr  # type: ignore[assignment]
        common, lane, dims = self.indexer.address(access.index)
        pointer = self.address(access.buffer, common, lane)
        if access.mask is not None and not self.shapes[access.mask] <= dims:
            dims = dims | self.shapes[access.mask]
            pointer = f"tl.broadcast_to({pointer}, {self.shape(dims)})" if self.shapes[access.mask] else pointer
        self.shapes[i] = dims
        self.unfenced |= "r" not in dims
        memory = self.dtypes[access.buffer]
        terms = self.mask(dims, access)
        arguments = f", mask={' & '.join(terms)}" if terms else ""
        otherwise = f" | (({' & '.join(terms)}) == 0)" if terms else ""
        checks = [f"require({inside}{otherwise})" for inside in self.inside(access)]
        exact = access.mask is None or is_exact(access.other, memory)
        if access.mask is not None:
            arguments += f", other={scalars.literal(access.other if exact else 0, memory)}"
        value = f"tl.load({pointer}{arguments}{self.evict if 'r' in dims else ''})"
        if memory in (torch.bfloat16, torch.float16):
            value += ".to(tl.float32)"
        lines = [*checks, f"{self.name(i)} = {value}"]
        if not exact:
            other = self.constant(scalars.literal(access.other, op.dtype), op.dtype)
            lines.append(f"{self.name(i)} = tl.where({self.argument(access.mask)}, {self.name(i)}, {other})")  # type: ignore[arg-type]
        return lines + self.note_indirect(i)

    def store(self, i: int, op: Op) -> list[str]:
        access: Access = op.attr  # type: ignore[assignment]
        self.shapes[i] = frozenset()
        if access.summed:
            return self.add(op, access)
        common, lane, dims = self.indexer.address(access.index)
        tile = frozenset(d.name for d in self.tiling.dims if d.name != "r" or self.level[i] == "r")
        missing = [d for d in self.tiling.dims if d.name in tile - dims]
        if access.added:
            return self.atomic(op, access, common, lane, tile)
        if any(d.size != 1 for d in missing):
            raise Unsupported("triton-store", f"{self.kernel.name} stores one element of {access.buffer} from several points")
        for d in missing:  # size 1: the variable is 0 and gives the pointer the tile's shape
            common = d.name if common == "0" else f"{common} + {d.name}"
        terms = self.mask(tile, access)
        lines = []
        if "r" in self.dims and "r" not in tile and self.unfenced:  # several threads hold each row's values, and one stores
            self.unfenced = False
            lines.append("tl.debug_barrier()  # until every thread has read what a store may overwrite")
        mask = f", mask={' & '.join(terms)}" if terms else ""
        value = self.argument(op.args[0])
        return [*lines, f"tl.store({self.address(access.buffer, common, lane)}, {value}{mask})"]

    def atomic(self, op: Op, access: Access, common: str, lane: str, tile: frozenset[str]) -> list[str]:
        """Lines that add a tile's values to memory, where several may add to one element."""
        terms = self.mask(tile, access)
        otherwise = f" | (({' & '.join(terms)}) == 0)" if terms else ""
        pointer = f"tl.broadcast_to({self.address(access.buffer, common, lane)}, {self.shape(tile)})"
        value = f"tl.broadcast_to({self.argument(op.args[0])}, {self.shape(tile)})"
        mask = f", mask={' & '.join(terms)}" if terms else ""
        checks = [f"require({inside}{otherwise})" for inside in self.inside(access)]
        return [*checks, f'tl.atomic_add({pointer}, {value}{mask}, sem="relaxed")']

    def address(self, buffer: str, *parts: str) -> str:
        shown = [p if p.isidentifier() else f"({p})" for p in parts if p]
        return " + ".join([self.pointers[buffer], *(shown if len(shown) == 1 else (p for p in shown if p != "(0)"))])

    # reductions

    def operand(self, i: int, op: Op) -> tuple[str, torch.dtype]:
        """The value under reduction i in its own dtype and the tile's full shape."""
        source = self.nest.body[op.args[0]]
        text, dtype = self.argument(op.args[0]), source.dtype
        if op.attr in ("any", "all"):
            target = torch.bool
        elif op.attr in ("argmax", "argmin"):
            target = torch.int32 if dtype == torch.bool else dtype
        else:
            target = op.dtype
        text = scalars.cast(text, dtype, target)
        single = {d.name for d in self.tiling.dims if d.size == 1}
        if not self.shapes[op.args[0]] or self.shapes[op.args[0]] | single != frozenset(self.dims):
            text = f"tl.broadcast_to({text}, {self.shape(frozenset(self.dims))})"
        if "r" in self.tiling.masked:
            text = f"tl.where(rmask, {text}, {reductions.identity(str(op.attr), target)})"
        return text, target

    def varied(self, i: int, op: Op) -> list[str]:
        """Lines of an op, for every part of the row where it varies along it."""
        lines = self.op(i, op)
        if "r" in self.shapes[i] and i in self.names:
            self.parts.add(self.names[i])
        self.parts.add(*self.indexer.definitions.get("r", {}))
        return self.parts.lines(lines)

    def reduce(self, group: list[tuple[int, Op]]) -> list[str]:
        """Reductions of values that are all there; sums go together, which saves synchronisations."""
        lines: list[str] = []
        sums: dict[torch.dtype, list[tuple[int, str]]] = {}
        for i, op in group:
            self.shapes[i] = frozenset(("x",))
            kind = str(op.attr)
            text, dtype = self.operand(i, op)
            whole = self.parts.text(text, 0)
            for p in range(1, self.parts.count):
                whole = reductions.step(kind, whole, self.parts.text(text, p), dtype)
            if not whole.isidentifier():
                part = self.fresh(f"{self.name(i)}_part")
                lines.append(f"{part} = {whole}")
                whole = part
            if kind in ("argmax", "argmin"):
                lines += self.finish_arg(i, op, whole, self.position())
            elif kind == "sum" and dtype.is_floating_point:
                sums.setdefault(dtype, []).append((i, whole))
            else:
                lines.append(f"{self.name(i)} = {reductions.finish(kind, whole, dtype)}")
        for dtype, found in sums.items():
            for k in range(0, len(found), reductions.TOGETHER):
                names, texts = [self.name(i) for i, _ in found[k : k + reductions.TOGETHER]], [t for _, t in found[k : k + reductions.TOGETHER]]
                lines += reductions.finish_sums(names, texts, dtype)
        for i, _ in group:
            self.note_indirect(i)
        return lines

    def position(self) -> str:
        """The flattened r index of each point of the tile, past every index where masked."""
        text = f"tl.broadcast_to(r, {self.shape(frozenset(self.dims))})"
        return f"tl.where(rmask, {text}, {2**31 - 1})" if "r" in self.tiling.masked else text

    def finish_arg(self, i: int, op: Op, value: str, position: str) -> list[str]:
        name = self.name(i)
        best = self.fresh(f"{name}_best")
        return [
            f"{best}, {name} = tl.reduce(({value}, {position}), 1, arg_{str(op.attr)[3:]})",
            f"{name} = {name}[:, None].to({scalars.value(op.dtype)})",
        ]

    def total(self, i: int, op: Op) -> tuple[list[str], list[str], list[str]]:
        """Lines before the loop over a program's rows, in it, and after it, of a store of sums per column."""
        access: Access = op.attr  # type: ignore[assignment]
        self.shapes[i] = frozenset()
        total, kind = self.fresh(f"{identifier(access.buffer)}_total"), scalars.value(op.dtype)
        text = self.summand(op, access)
        before = [f"{total} = tl.zeros({self.shape(frozenset(self.dims))}, {kind})"]
        place, _ = self.blocks.text(access.index)
        mask = ", mask=rmask" if "r" in self.tiling.masked else ""
        self.parts.add(total, *self.indexer.definitions.get("r", {}))
        after = [f"tl.store({self.address(access.buffer, place)}, tl.sum({total}, 0)[None, :]{mask})"]
        return self.parts.lines(before), self.parts.lines([f"{total} += {text}"]), self.parts.lines(after)

    def summand(self, op: Op, access: Access) -> str:
        text = self.argument(op.args[0])
        return text if access.mask is None else f"tl.where({self.argument(access.mask)}, {text}, 0.0)"

    def add(self, op: Op, access: Access) -> list[str]:
        """Lines, within the loop over a program's rows, that add to the sums per column that are in memory."""
        name, (place, _) = self.fresh(f"{identifier(access.buffer)}_sum"), self.blocks.text(access.index)
        pointer = self.address(access.buffer, place)
        mask = " & rmask" if "r" in self.tiling.masked else ""
        text = f"tl.broadcast_to({self.summand(op, access)}, {self.shape(frozenset(self.dims))})"
        return [
            f"{name} = tl.sum({text}, 0)[None, :] + tl.load({pointer}, mask=(row > 0){mask}, other=0.0)",
            f"tl.store({pointer}, {name}{', mask=rmask' if mask else ''})",
        ]

    def accumulate(self, i: int, op: Op) -> tuple[list[str], list[str], list[str]]:
        """Lines before the loop, in it, and after it."""
        self.shapes[i] = frozenset(("x",))
        if i in self.online.values():  # made with its maximum
            return [], [], self.note_indirect(i)
        kind = str(op.attr)
        text, dtype = self.operand(i, op)
        tile = self.shape(frozenset(self.dims))
        if i in self.online:
            part = self.fresh(f"{self.name(i)}_part")
            before, inside, after = reductions.online(self.name(i), self.name(self.online[i]), part, tile, dtype, self.exponential(dtype))
            return before, [f"{part} = {text}", *inside], after + self.note_indirect(i)
        partial = self.fresh(f"{self.name(i)}_partial")
        before = [f"{partial} = tl.full({tile}, {reductions.identity(kind, dtype)}, {scalars.value(dtype)})"]
        if kind in ("argmax", "argmin"):
            places = self.fresh(f"{self.name(i)}_at")
            width = "tl.int64" if self.tiling.wide else "tl.int32"
            before.append(f"{places} = tl.full({tile}, {2**31 - 1}, {width})")
            inside = [f"{partial}, {places} = arg_{kind[3:]}({partial}, {places}, {text}, {self.position()})"]
            after = self.finish_arg(i, op, partial, places)
        else:
            inside = [f"{partial} = {reductions.step(kind, partial, text, dtype)}"]
            after = [f"{self.name(i)} = {reductions.finish(kind, partial, dtype)}"]
        return before, inside, after + self.note_indirect(i)


def lies_in(known: Range | None, size: Extent) -> bool:
    """Whether numbers of a range are places in a dimension, whatever its size in a call."""
    least = size if isinstance(size, int) else size.bounds()[0]
    return known is not None and least is not None and known[0] >= 0 and known[1] < least


def lane_of(kernel: Kernel, tiling: Tiling) -> tuple[str, str] | None:
    """Where a block along the innermost of two dimensions starts, and the places in it. With sizes that are constants, the compiler that follows finds
    what addresses have in common, and better."""
    inner = tiling.dims[-1].name
    if len(tiling.dims) == 1 or not kernel.symbols:
        return None
    return ("", "r") if inner == "r" and not tiling.looped else ("start" if inner == "r" else f"{inner}_start", f"{inner}_base")


def rounds_to_16_bits(nest: Nest, dtypes: dict[str, torch.dtype]) -> bool:
    """True where what the kernel stores for each of its points has 16 bits, or, if it only reduces, what it loads has."""
    level = levels(nest)
    full = "r" if nest.r_axes and not nest.is_product else "x"

    def floats(name: str) -> list[torch.dtype]:
        accesses = [op.attr for i, op in enumerate(nest.body) if op.name == name and level[i] == full]
        return [d for a in accesses if isinstance(a, Access) and (d := dtypes[a.buffer]).is_floating_point]

    found = floats("store") or ([] if any(op.name == "store" and level[i] == full for i, op in enumerate(nest.body)) else floats("load"))
    return bool(found) and all(d.itemsize == 2 for d in found)


def is_exact(number: float | int | bool, dtype: torch.dtype) -> bool:
    """True where `number` survives the dtype of the memory."""
    real = float(number)
    return real != real or torch.tensor(number, dtype=torch.float64).to(dtype).to(torch.float64).item() == real
