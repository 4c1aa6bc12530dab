"""A fused nest as a Triton module: tile indices, then the body in SSA order, or one loop over r per pass.

A value's name says the op and its place in the body. A tile's values have shape [XBLOCK], [YBLOCK, XBLOCK] (transposes) or
[XBLOCK, RBLOCK] (reductions), with 1 for dimensions over which they do not vary, and () for those that vary over none.
"""

from __future__ import annotations

import keyword
import linecache
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from dynacompile.codegen.triton import reductions, scalars
from dynacompile.codegen.triton.indexing import Indexer
from dynacompile.codegen.triton.tiles import Tiling, choose_tiling, op_phases
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.index import Index
from dynacompile.ir.loops import Access, Nest, Op, levels
from dynacompile.ir.schedule import Kernel, KernelSource

RESERVED = {"tl", "triton", "libdevice", "range", "float", "x", "y", "r", "pid", "start", *scalars.DEVICE_FUNCTIONS, *keyword.kwlist}
HEADER = "import triton\nimport triton.language as tl\n"
LIBDEVICE = "from triton.language.extra import libdevice\n"


def emit_kernel(kernel: Kernel, env: Env) -> KernelSource:
    """Triton source of `kernel`, with candidates and their grids. The function takes the params' storage pointers (16-byte aligned),
    then the blocks as constexprs. Raises Unsupported for a dtype or op that Triton has no form of."""
    if any(a.size == 0 for a in kernel.nest.axes):
        raise Unsupported("triton-empty", f"{kernel.name} has no points: the scheduler drops empty nests")
    for param in kernel.params:
        scalars.pointer(param.dtype)
    tiling = choose_tiling(kernel)
    emitter = Emitter(kernel, tiling)
    text = emitter.module()
    return KernelSource(kernel=kernel, language="triton", text=text, entry=emitter.entry, candidates=tiling.candidates, grids=tiling.grids)


def user_line(nest: Nest) -> Iterator[str]:
    """The user's lines that the kernel computes, in order, for its comment."""
    for origin in nest.origins:
        if origin.site is not None:
            code = linecache.getline(origin.site.file, origin.site.line).strip()
            yield f"{Path(origin.site.file).name}:{origin.site.line}" + (f"  {code}" if code else "")


class Emitter:
    """The text of one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling):
        self.kernel, self.nest, self.tiling = kernel, kernel.nest, tiling
        self.level = levels(self.nest)
        self.online = reductions.online_pairs(self.nest) if tiling.looped else {}
        self.phase = op_phases(self.nest, self.online)
        self.dims = {d.name: d for d in tiling.dims}
        self.entry = identifier(kernel.name)
        self.taken = set(RESERVED) | {self.entry}
        self.taken |= {a.var.name for a in self.nest.axes}
        self.pointers = {p.name: self.fresh(f"{identifier(p.name)}_ptr") for p in kernel.params}
        self.dtypes = {p.name: p.dtype for p in kernel.params}
        self.names: dict[int, str] = {}
        self.shapes: dict[int, frozenset[str]] = {}
        self.constants: dict[tuple[str, torch.dtype], str] = {}
        self.indirect: dict[int, tuple[str, frozenset[str]]] = {}
        self.indexer = Indexer(tiling.dims, self.indirect)
        self.evict = ""
        self.unfenced = False
        self.fast = rounds_to_16_bits(self.nest, self.dtypes)

    # names

    def fresh(self, wanted: str) -> str:
        name, n = wanted, 1
        while name in self.taken:
            name, n = f"{wanted}_{n}", n + 1
        self.taken.add(name)
        return name

    def name(self, i: int) -> str:
        """The variable that holds the value of op i; the same one in every pass that computes it."""
        if i not in self.names:
            op = self.nest.body[i]
            self.names[i] = self.fresh(identifier(op.attr.buffer) if isinstance(op.attr, Access) else f"{op.attr if op.name == 'reduce' else op.name}_{i}")
        return self.names[i]

    # the module

    def module(self) -> str:
        body = self.looped() if self.tiling.looped else self.straight()
        lines = [*self.head(), *(f"{name} = tl.full((), {text}, {scalars.value(dtype)})" for (text, dtype), name in self.constants.items()), *body]
        code = "\n".join(f"    {line}" for line in lines)
        functions = device_functions(code)
        blocks = [f"{d.block}: tl.constexpr" for d in self.tiling.dims]
        comment = "".join(f"# {line}\n" for line in dict.fromkeys(user_line(self.nest)))
        imports = HEADER + (LIBDEVICE if "libdevice." in code + functions else "")
        return f"{imports}{functions}\n\n{comment}@triton.jit\ndef {self.entry}({', '.join([*self.pointers.values(), *blocks])}):\n{code}\n"

    def head(self) -> list[str]:
        """Tile indices, masks, and the axes that they are taken apart into."""
        lines = []
        wide = ".to(tl.int64)" if self.tiling.wide else ""
        parallel = [d for d in self.tiling.dims if d.name != "r"]
        origin = {d.name: f"tl.program_id(0){wide}" for d in parallel}
        if len(parallel) == 2:
            lines.append(f"pid = tl.program_id(0){wide}")
            columns = f"tl.cdiv({parallel[1].size}, {parallel[1].block})"
            origin = {parallel[0].name: f"(pid // {columns})", parallel[1].name: f"(pid % {columns})"}
        for d in parallel:
            lines.append(f"{d.name} = {origin[d.name]} * {d.block} + tl.arange(0, {d.block}){self.spread(d.name)}")
            lines += self.mask_line(d.name)
        if "r" in self.dims:
            lines.append(f"{'r_base' if self.tiling.looped else 'r'} = tl.arange(0, RBLOCK){self.spread('r')}{wide}")
            if not self.tiling.looped:
                lines += self.mask_line("r")
        return lines + self.axis_lines([d.name for d in self.tiling.dims if d.name != "r" or not self.tiling.looped])

    def mask_line(self, dim: str) -> list[str]:
        return [f"{dim}mask = {dim} < {self.dims[dim].size}"] if dim in self.tiling.masked else []

    def axis_lines(self, dims: Iterable[str]) -> list[str]:
        return [f"{name} = {text}" for d in dims for name, text in sorted(self.indexer.definitions.pop(d, {}).items())]

    def spread(self, dim: str) -> str:
        """The subscript that gives a linear range its place in the tile."""
        if len(self.tiling.dims) == 1:
            return ""
        return "[:, None]" if dim == self.tiling.dims[0].name else "[None, :]"

    def shape(self, dims: frozenset[str]) -> str:
        return "[" + ", ".join(d.block if d.name in dims else "1" for d in self.tiling.dims) + "]"

    # the body

    def straight(self) -> list[str]:
        """Every value once, in registers."""
        return [line for i, op in enumerate(self.nest.body) for line in self.op(i, op)]

    def looped(self) -> list[str]:
        """One loop over r per pass; what a pass needs at level r it computes anew."""
        passes = max((self.sink_pass(i) for i in range(len(self.nest.body)) if self.is_sink(i)), default=0) + 1
        body = self.nest.body
        late = {p.name for p in self.kernel.params if p.mode == "inout"}
        lines: list[str] = []
        after: list[int] = []
        for k in range(passes + 1):
            for i, op in enumerate(body):
                if self.level[i] == "x" and self.phase[i] == k and op.name != "reduce":
                    if op.name == "store" and op.attr.buffer in late:
                        after.append(i)
                    else:
                        lines += self.op(i, op)
            if k < passes:
                lines += self.one_pass(k, last=k == passes - 1, several=passes > 1)
        return lines + [line for i in after for line in self.op(i, body[i])]

    def is_sink(self, i: int) -> bool:
        return self.nest.body[i].name == "reduce" or (self.nest.body[i].name == "store" and self.level[i] == "r")

    def sink_pass(self, i: int) -> int:
        """The pass that a reduce or an r-level store belongs to. A store waits for the last pass, since a value that a later pass
        computes anew may read the same memory."""
        if self.nest.body[i].name == "reduce":
            return self.phase[i] - 1
        return max(self.phase[j] - (op.name == "reduce") for j, op in enumerate(self.nest.body) if self.is_sink(j))

    def one_pass(self, k: int, last: bool, several: bool) -> list[str]:
        body = self.nest.body
        sinks = [i for i in range(len(body)) if self.is_sink(i) and self.sink_pass(i) == k]
        needed = self.closure(sinks)
        before, inside, after = [], [], []
        self.evict = (', eviction_policy="evict_first"' if last else ', eviction_policy="evict_last"') if several else ""
        for i, op in enumerate(body):
            if i not in needed:
                continue
            if op.name == "reduce":
                start, step, end = self.accumulate(i, op)
                before, inside, after = before + start, inside + step, after + end
            else:
                inside += self.op(i, op)
        self.evict = ""
        loop = ["r = start + r_base", *self.mask_line("r"), *self.axis_lines(["r"]), *inside]
        return [*before, f"for start in range(0, {self.dims['r'].size}, RBLOCK):", *(f"    {line}" for line in loop), *after]

    def closure(self, sinks: list[int]) -> set[int]:
        """Level-r ops that the sinks need, themselves included."""
        needed: set[int] = set()
        stack = list(sinks)
        while stack:
            i = stack.pop()
            if i in needed:
                continue
            needed.add(i)
            if i not in self.online.values():
                stack += [j for j in operands(self.nest.body[i]) if self.level[j] == "r"]
        return needed

    def op(self, i: int, op: Op) -> list[str]:
        match op.name:
            case "constant":
                self.shapes[i] = frozenset()
                return []
            case "load":
                return self.load(i, op)
            case "store":
                return self.store(i, op)
            case "index":
                return self.index(i, op)
            case "reduce":
                return self.reduce(i, op)
            case _:
                return self.scalar(i, op)

    def scalar(self, i: int, op: Op) -> list[str]:
        self.shapes[i] = frozenset().union(*(self.shapes[a] for a in op.args))
        dtype = self.nest.body[op.args[-1]].dtype
        if op.name == "cast":
            text = scalars.cast(self.argument(op.args[0]), dtype, op.dtype)
        else:
            if op.name == "truediv" and self.divides_row(i, op):
                return self.divide_row(i, op)
            template, infix = scalars.row(op.name, dtype, self.fast)
            literals = infix and any(self.nest.body[a].name != "constant" for a in op.args)
            text = template.format(*(self.argument(a, literals) for a in op.args), bits=scalars.BITS.get(dtype, 0))
        return [f"{self.name(i)} = {text}", *self.note_indirect(i)]

    def exponential(self, dtype: torch.dtype) -> str:
        return scalars.row("exp", dtype, self.fast)[0]

    def divides_row(self, i: int, op: Op) -> bool:
        """True where every point of a row is divided by the row's own number."""
        divisor = op.args[1]
        return op.dtype == torch.float32 and self.level[i] == "r" and self.level[divisor] == "x" and bool(self.shapes[divisor])

    def divide_row(self, i: int, op: Op) -> list[str]:
        value, divisor = (self.argument(a) for a in op.args)
        inverse, scale = self.fresh(f"{divisor}_inverse"), self.fresh(f"{divisor}_scale")
        return [f"{inverse}, {scale} = split_reciprocal({divisor})", f"{self.name(i)} = {value} * {inverse} * {scale}", *self.note_indirect(i)]

    def note_indirect(self, i: int) -> list[str]:
        """Keeps the text by which an access uses op i as an index."""
        name = self.name(i)
        self.indirect[i] = (name if self.nest.body[i].dtype == torch.int64 else f"{name}.to(tl.int64)", self.shapes[i])
        return []

    def argument(self, i: int, literal: bool = False) -> str:
        """Op i as an operand: its variable, or for a constant a literal or a typed scalar."""
        op = self.nest.body[i]
        if op.name != "constant":
            return self.name(i)
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
        dtype = scalars.value(op.dtype)
        text = f"({text}).to({dtype})" if self.shapes[i] else f"tl.full((), {text}, {dtype})"
        return [f"{self.name(i)} = {text}", *self.note_indirect(i)]

    # memory

    def mask(self, dims: frozenset[str], access: Access) -> list[str]:
        """Terms of the mask of an access that varies over `dims`."""
        bounds = [f"{d.name}mask" for d in self.tiling.dims if d.name in dims and d.name in self.tiling.masked]
        return bounds + ([self.argument(access.mask)] if access.mask is not None else [])

    def load(self, i: int, op: Op) -> list[str]:
        access: Access = op.attr  # type: ignore[assignment]
        text, dims = self.indexer.text(access.index)
        pointer = self.address(access.buffer, text)
        if access.mask is not None and not self.shapes[access.mask] <= dims:
            dims = dims | self.shapes[access.mask]
            pointer = f"tl.broadcast_to({pointer}, {self.shape(dims)})" if self.shapes[access.mask] else pointer
        self.shapes[i] = dims
        self.unfenced |= "r" not in dims
        memory = self.dtypes[access.buffer]
        terms = self.mask(dims, access)
        arguments = f", mask={' & '.join(terms)}" if terms else ""
        exact = access.mask is None or is_exact(access.other, memory)
        if access.mask is not None:
            arguments += f", other={scalars.literal(access.other if exact else 0, memory)}"
        value = f"tl.load({pointer}{arguments}{self.evict if 'r' in dims else ''})"
        if memory in (torch.bfloat16, torch.float16):
            value += ".to(tl.float32)"
        lines = [f"{self.name(i)} = {value}"]
        if not exact:
            other = self.constant(scalars.literal(access.other, op.dtype), op.dtype)
            lines.append(f"{self.name(i)} = tl.where({self.argument(access.mask)}, {self.name(i)}, {other})")  # type: ignore[arg-type]
        return lines + self.note_indirect(i)

    def store(self, i: int, op: Op) -> list[str]:
        access: Access = op.attr  # type: ignore[assignment]
        self.shapes[i] = frozenset()
        text, dims = self.indexer.text(access.index)
        tile = frozenset(d.name for d in self.tiling.dims if d.name != "r" or self.level[i] == "r")
        missing = [d for d in self.tiling.dims if d.name in tile - dims]
        if any(d.size != 1 for d in missing):
            raise Unsupported("triton-store", f"{self.kernel.name} stores one element of {access.buffer} from several points")
        for d in missing:  # size 1: the variable is 0 and gives the pointer the tile's shape
            text = d.name if text == "0" else f"{text} + {d.name}"
        terms = self.mask(tile, access)
        lines = []
        if "r" in self.dims and "r" not in tile and self.unfenced:  # several threads hold each row's values, and one stores
            self.unfenced = False
            lines.append("tl.debug_barrier()  # until every thread has read what a store may overwrite")
        mask = f", mask={' & '.join(terms)}" if terms else ""
        value = self.argument(op.args[0])
        return [*lines, f"tl.store({self.address(access.buffer, text)}, {value}{mask})"]

    def address(self, buffer: str, index: str) -> str:
        return f"{self.pointers[buffer]} + {index if index.isidentifier() else f'({index})'}"

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

    def reduce(self, i: int, op: Op) -> list[str]:
        self.shapes[i] = frozenset(("x",))
        text, dtype = self.operand(i, op)
        lines = []
        if not text.isidentifier():
            part = self.fresh(f"{self.name(i)}_part")
            lines.append(f"{part} = {text}")
            text = part
        if op.attr in ("argmax", "argmin"):
            lines += self.finish_arg(i, op, text, self.position())
        else:
            lines.append(f"{self.name(i)} = {reductions.finish(str(op.attr), text, dtype)}")
        return lines + self.note_indirect(i)

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

    def accumulate(self, i: int, op: Op) -> tuple[list[str], list[str], list[str]]:
        """Lines before the loop, in it, and after it."""
        self.shapes[i] = frozenset(("x",))
        if i in self.online.values():  # made with its maximum
            return [], [], self.note_indirect(i)
        kind = str(op.attr)
        text, dtype = self.operand(i, op)
        if i in self.online:
            part = self.fresh(f"{self.name(i)}_part")
            before, inside, after = reductions.online(self.name(i), self.name(self.online[i]), part, self.shape(frozenset(self.dims)), dtype, self.exponential(dtype))
            return before, [f"{part} = {text}", *inside], after + self.note_indirect(i)
        partial = self.fresh(f"{self.name(i)}_partial")
        tile = self.shape(frozenset(self.dims))
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


def device_functions(code: str) -> str:
    """The device functions that `code` calls, and those that they call, each before its callers."""
    needed: set[str] = set()
    texts = [code]
    while texts:
        text = texts.pop()
        for name, definition in scalars.DEVICE_FUNCTIONS.items():
            if name not in needed and re.search(rf"\b{name}\(|, {name}\)", text):
                needed.add(name)
                texts.append(definition)
    return "".join("\n" + definition for name, definition in scalars.DEVICE_FUNCTIONS.items() if name in needed)


def rounds_to_16_bits(nest: Nest, dtypes: dict[str, torch.dtype]) -> bool:
    """True where what the kernel stores for each of its points has 16 bits, or, if it only reduces, what it loads has."""
    level = levels(nest)
    full = "r" if nest.r_axes else "x"

    def floats(name: str) -> list[torch.dtype]:
        return [d for i, op in enumerate(nest.body) if op.name == name and level[i] == full and (d := dtypes[op.attr.buffer]).is_floating_point]  # type: ignore[union-attr]

    found = floats("store") or ([] if any(op.name == "store" and level[i] == full for i, op in enumerate(nest.body)) else floats("load"))
    return bool(found) and all(d.itemsize == 2 for d in found)


def operands(op: Op) -> Iterator[int]:
    """SSA ids that an op uses: arguments, mask, indirect indices."""
    yield from op.args
    index = op.attr.index if isinstance(op.attr, Access) else op.attr if isinstance(op.attr, Index) else None
    if index is not None:
        yield from (int(v.name[1:]) for v in index.variables() if v.name.startswith("%"))
    if isinstance(op.attr, Access) and op.attr.mask is not None:
        yield op.attr.mask


def is_exact(number: float | int | bool, dtype: torch.dtype) -> bool:
    """True where `number` survives the dtype of the memory."""
    real = float(number)
    return real != real or torch.tensor(number, dtype=torch.float64).to(dtype).to(torch.float64).item() == real


def identifier(text: str) -> str:
    """`text` as a Python name."""
    name = re.sub(r"\W", "_", text)
    return f"_{name}" if not name or name[0].isdigit() else name
