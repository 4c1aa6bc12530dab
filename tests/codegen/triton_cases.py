"""Kernels for the Triton tests: a small builder of nests, an oracle in torch, and one case per kind of kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import torch

from dynacompile.codegen.triton.emit import Emitter
from dynacompile.codegen.triton.indexing import Dim
from dynacompile.codegen.triton.tiles import Tiling
from dynacompile.ir.captured import Site
from dynacompile.ir.index import Index, Var, constant, strided, var
from dynacompile.ir.loops import Access, Axis, Nest, Op, Origin, Scan, verify_body
from dynacompile.ir.schedule import Candidate, Kernel, KernelSource, Param
from dynacompile.ops.scalars import SCALARS, compute_dtype


@dataclass
class Build:
    """Builds one kernel: axes by size, then ops; ids are positions."""

    name: str
    x: tuple[int, ...]
    r: tuple[int, ...] = ()
    params: dict[str, Param] = field(default_factory=dict)
    body: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ix = tuple(var(f"x{i}", n) for i, n in enumerate(self.x))
        self.ir = tuple(var(f"r{i}", n) for i, n in enumerate(self.r))

    def at(self, *strides: int, offset: int = 0) -> Index:
        """An index with one stride per axis, x axes first."""
        return strided((*self.ix, *self.ir), strides, offset)

    def add(self, op: Op) -> int:
        self.body.append(op)
        return len(self.body) - 1

    def load(self, name: str, dtype: torch.dtype, index: Index, mask: int | None = None, other: float | int | bool = 0) -> int:
        self.params.setdefault(name, Param(name, dtype, "in"))
        return self.add(Op("load", (), compute_dtype(dtype), Access(name, index, mask, other)))

    def store(self, name: str, dtype: torch.dtype, index: Index, value: int, mask: int | None = None, summed: bool = False, added: bool = False) -> None:
        mode = "inout" if name in self.params or added else "out"
        self.params[name] = Param(name, dtype, mode)
        self.add(Op("store", (value,), self.body[value].dtype, Access(name, index, mask, summed=summed, added=added)))

    def const(self, number: float | int | bool, dtype: torch.dtype = torch.float32) -> int:
        return self.add(Op("constant", (), dtype, number))

    def index(self, index: Index, dtype: torch.dtype = torch.int64) -> int:
        return self.add(Op("index", (), dtype, index))

    def reduce(self, kind: str, value: int, dtype: torch.dtype | None = None) -> int:
        return self.add(Op("reduce", (value,), dtype or self.body[value].dtype, kind))

    def scan(self, kind: str, value: int, reverse: bool = False, starts: int | None = None) -> int:
        args = (value,) if starts is None else (value, starts)
        return self.add(Op("scan", args, torch.int64 if kind.startswith("arg") else self.body[value].dtype, Scan(kind, reverse)))

    def cast(self, value: int, dtype: torch.dtype) -> int:
        return self.add(Op("cast", (value,), dtype))

    def uniform(self, *args: int) -> int:
        return self.add(Op("uniform", args, torch.float32))

    def __getattr__(self, name: str) -> Callable[..., int]:
        row = SCALARS.get(name.rstrip("_"))
        if row is None:
            raise AttributeError(name)
        return lambda *args: self.add(Op(name.rstrip("_"), args, torch.bool if row.result == "bool" else self.body[args[-1]].dtype))

    def kernel(self) -> Kernel:
        both = (("x", self.ix), ("r", self.ir))
        axes = tuple(Axis(v.terms[0][0][0] if v.terms else Var(f"{role}{i}", 1), role) for role, vs in both for i, v in enumerate(vs))
        origin = Origin(self.name, Site("/users/model.py", 7, "forward"))
        nest = Nest(self.name, axes, tuple(self.body), (origin,))
        verify_body("test", nest)
        return Kernel(self.name, nest, tuple(self.params.values()), torch.device("cuda", 0))


def oracle(kernel: Kernel, tensors: dict[str, torch.Tensor]) -> None:
    """Runs `kernel` on whole storages (1-D) in torch, one op at a time over the whole space, stores in place."""
    nest = kernel.nest
    sizes = [a.size for a in nest.axes]
    device = next(iter(tensors.values())).device
    grid = {a.var: torch.arange(a.size, device=device).view([-1 if i == j else 1 for j in range(len(sizes))]) for i, a in enumerate(nest.axes)}
    reduced = [i for i, a in enumerate(nest.axes) if a.role == "r"]
    values: list[torch.Tensor | None] = []
    pending = []

    def where(index: Index) -> torch.Tensor:
        known = dict(grid) | {v: values[int(v.name[1:])].long() for v in index.variables() if v.name.startswith("%")}
        result = index.evaluate(known)
        return result if isinstance(result, torch.Tensor) else torch.full([1] * len(sizes), int(result), device=device)

    for op in nest.body:
        access = op.attr
        if op.name == "load":
            index = where(access.index)
            mask = values[access.mask] if access.mask is not None else torch.tensor(True, device=device)
            index, mask = torch.broadcast_tensors(index, mask)
            loaded = tensors[access.buffer][torch.where(mask, index, 0)].to(op.dtype)
            values.append(torch.where(mask, loaded, torch.tensor(access.other, dtype=op.dtype, device=device)))
        elif op.name == "store":
            index = where(access.index)
            mask = values[access.mask] if access.mask is not None else torch.tensor(True, device=device)
            space = torch.empty(sizes if access.summed else [], device="meta").expand(sizes if access.summed else [])
            shape = torch.broadcast_shapes(index.shape, mask.shape, values[op.args[0]].shape, space.shape)
            pending.append((access, *(t.expand(shape) for t in (index, mask, values[op.args[0]]))))
            values.append(None)
        elif op.name == "constant":
            values.append(torch.tensor(op.attr, dtype=op.dtype, device=device))
        elif op.name == "index":
            values.append(where(op.attr).to(op.dtype))
        elif op.name == "cast":
            values.append(values[op.args[0]].to(op.dtype))
        elif op.name == "reduce":
            full = list(torch.broadcast_shapes(values[op.args[0]].shape, [sizes[i] if i in reduced else 1 for i in range(len(sizes))]))
            values.append(reduce(op, values[op.args[0]].expand(full), reduced))
        elif op.name == "scan":
            full = list(torch.broadcast_shapes(*(values[a].shape for a in op.args), [sizes[i] if i in reduced else 1 for i in range(len(sizes))]))
            values.append(scan(op, [values[a].expand(full) for a in op.args], reduced))
        else:
            values.append(SCALARS[op.name].run(*(values[a] for a in op.args)))
    for access, index, mask, value in pending:
        memory = tensors[access.buffer]
        if access.summed:
            touched = index.reshape(-1).unique()
            memory[touched] = torch.zeros_like(memory).index_add_(0, index[mask], value[mask])[touched]
        else:
            memory[index[mask]] = value[mask].to(memory.dtype)


def reduce(op: Op, value: torch.Tensor, axes: list[int]) -> torch.Tensor:
    kept = [i for i in range(value.dim()) if i not in axes]
    flat = value.permute(*kept, *axes).reshape([value.shape[i] for i in kept] + [prod(value.shape[i] for i in axes)])
    match op.attr:
        case "sum" | "prod":
            result = getattr(flat, op.attr)(-1, dtype=op.dtype)
        case "any" | "all":
            result = getattr(flat != 0, op.attr)(-1)
        case "argmax" | "argmin":
            if flat.dtype == torch.bool:
                flat = flat.int()
            best = (flat.amax if op.attr == "argmax" else flat.amin)(-1, keepdim=True)
            wins = flat.isnan() | ((flat == best) & ~best.isnan())
            result = wins.int().argmax(-1)
        case _:
            result = (flat.amax if op.attr == "max" else flat.amin)(-1)
    shape = [1] * value.dim()
    for i, n in zip(kept, result.shape, strict=True):
        shape[i] = n
    return result.reshape(shape).to(op.dtype)


def scan(op: Op, args: list[torch.Tensor], axes: list[int]) -> torch.Tensor:
    """Point by point along the flattened axes, floats in float64."""
    kept = [i for i in range(args[0].dim()) if i not in axes]
    flat = [a.permute(*axes, *kept).reshape([prod(a.shape[i] for i in axes)] + [a.shape[i] for i in kept]) for a in args]
    values = flat[0].double() if op.dtype.is_floating_point else flat[0]
    kind, places = op.attr.kind.removeprefix("arg"), op.attr.kind.startswith("arg")
    results: list[torch.Tensor] = []
    state, at = values[0], torch.zeros_like(values[0], dtype=torch.int64)
    for step, place in enumerate(reversed(range(len(values))) if op.attr.reverse else range(len(values))):
        value, here = values[place], torch.full_like(at, place)
        starts = flat[1][place] if len(flat) > 1 else torch.tensor(False)
        if step == 0:
            state, at = value, here
        elif kind in ("max", "min"):
            later = ((value >= state) if kind == "max" else (value <= state)) | (value != value)
            state, at = torch.where(later, value, state), torch.where(later, here, at)
        else:
            joined = {"sum": torch.add, "prod": torch.mul, "logaddexp": torch.logaddexp}[kind](state, value)
            state = torch.where(starts, value, joined)
        results.append(at if places else state)
    found = torch.stack(results[::-1] if op.attr.reverse else results).to(op.dtype)
    order = [*axes, *kept]
    return found.reshape([args[0].shape[i] for i in order]).permute([order.index(i) for i in range(len(order))])


F32, F64, BF16, F16, I64, I32, I8, U8, BOOL = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)  # fmt: skip


def chain(n: int = 1000, dtype: torch.dtype = F32) -> Kernel:
    b = Build("mul_add_sigmoid_gelu", (n,))
    v = b.load("x", dtype, b.at(1))
    s = b.sigmoid(b.add_(b.mul(v, b.const(1.5)), b.const(-0.25)))
    w = b.tanh(b.sub(s, b.neg(v)))
    g = b.mul(w, b.add_(b.const(1.0), b.erf(b.mul(w, b.const(0.7071067811865476)))))
    b.store("out", dtype, b.at(1), b.truediv(g, b.add_(b.abs(v), b.const(1.0))))
    return b.kernel()


def named_as_called(n: int = 100) -> Kernel:
    """A kernel that is named as a device function that it calls."""
    b = Build("remainder", (n,))
    b.store("out", F32, b.at(1), b.mod(b.load("x", F32, b.at(1)), b.load("y", F32, b.at(1))))
    return b.kernel()


def edges(n: int = 64, dtype: torch.dtype = F32) -> Kernel:
    """Numbers of a row by the greatest one, rounded down and compared with 1: the product with 1 / 41 of 41 is less than that."""
    b = Build("amax_div_floor", (300,), (n,))
    whole = b.floor(b.mul(b.abs(b.load("x", dtype, b.at(n, 1))), b.const(99.0)))
    share = b.truediv(whole, b.reduce("max", whole))
    b.store("greatest", dtype, b.at(n, 1), b.where(b.eq(share, b.const(1.0)), b.const(2.0), b.floor(b.mul(share, b.const(3.0)))))
    return b.kernel()


def signed_zero(n: int = 100) -> Kernel:
    """A constant -0.0, whose sign a quotient shows."""
    b = Build("minus_zero", (n,))
    v = b.load("x", F32, b.at(1))
    b.store("quotient", F32, b.at(1), b.truediv(v, b.const(-0.0)))
    b.store("zero", F32, b.at(1), b.mul(b.const(-0.0), b.abs(v)))
    return b.kernel()


def broadcast(rows: int = 12, columns: int = 40) -> Kernel:
    b = Build("add_bias", (rows, columns))
    b.store("out", BF16, b.at(columns, 1), b.max(b.add_(b.load("x", BF16, b.at(columns, 1)), b.load("bias", F32, b.at(0, 1))), b.const(0.0)))
    return b.kernel()


def transpose(rows: int = 72, columns: int = 136, batch: int = 2) -> Kernel:
    b = Build("transpose_add", (batch, rows, columns))
    v = b.load("a", F32, b.at(rows * columns, 1, rows))
    b.store("out", F32, b.at(rows * columns, columns, 1), b.add_(v, b.load("b", F32, b.at(rows * columns, columns, 1))))
    return b.kernel()


def integers(n: int = 300) -> Kernel:
    b = Build("integers", (n,))
    a, d = b.load("a", I64, b.at(1)), b.load("d", I64, b.at(1))
    p, q = b.load("p", I32, b.at(1)), b.load("s", I32, b.at(1))
    b.store("floor", I64, b.at(1), b.floordiv(a, d))
    b.store("rest", I64, b.at(1), b.mod(a, d))
    b.store("crest", I64, b.at(1), b.fmod(a, d))
    b.store("bits", I32, b.at(1), b.xor(b.or_(b.and_(p, q), b.not_(p)), b.shl(p, b.and_(q, b.const(7, I32)))))
    b.store("right", I32, b.at(1), b.shr(p, b.and_(q, b.const(31, I32))))
    b.store("small", I8, b.at(1), b.cast(p, I8))
    b.store("byte", U8, b.at(1), b.add_(b.cast(p, U8), b.const(200, U8)))
    b.store("flag", BOOL, b.at(1), b.and_(b.lt(a, d), b.not_(b.cast(p, BOOL))))
    b.store("where", I64, b.at(1), b.where(b.le(b.const(3, I64), a), b.abs(a), b.min(a, b.neg(d))))
    return b.kernel()


def random(n: int = 300) -> Kernel:
    """Of sequences and positions that are computed, and of some that memory holds."""
    b = Build("random", (n,))
    seed, given = b.load("seed", I64, constant(0)), b.load("sequence", I64, b.at(1))
    block = b.add_(b.mul(b.const(2**33 + 4, I64), given), b.index(b.at(1) // 7))
    b.store("computed", F32, b.at(1), b.uniform(seed, b.index(b.at(1) % 7), b.index(b.at(1) // 28), b.index(b.at(1) // 7 % 4)))
    b.store("loaded", F32, b.at(1), b.uniform(b.const(-5, I64), b.mul(given, b.const(2**35 + 1, I64)), block, b.and_(given, b.const(3, I64))))
    return b.kernel()


def floats(n: int = 257, dtype: torch.dtype = F32) -> Kernel:
    b = Build("floats", (n,))
    a, d = b.load("a", dtype, b.at(1)), b.load("d", dtype, b.at(1))
    for name in ("exp", "exp2", "expm1", "sin", "cos", "floor", "ceil", "trunc", "round", "isnan"):
        b.store(f"out_{name}", BOOL if name == "isnan" else dtype, b.at(1), getattr(b, name)(a))
    positive = b.abs(d)
    for name in ("log", "log2", "log1p", "sqrt", "rsqrt"):
        b.store(f"out_{name}", dtype, b.at(1), getattr(b, name)(positive))
    for name in ("floordiv", "mod", "fmod", "atan2", "min", "max", "eq", "ne", "lt", "le"):
        b.store(f"out_{name}", BOOL if name in ("eq", "ne", "lt", "le") else dtype, b.at(1), getattr(b, name)(a, d))
    b.store("out_pow", dtype, b.at(1), b.pow(positive, b.max(a, b.const(-2.0, dtype))))
    b.store("out_int", I32, b.at(1), b.cast(b.mul(b.min(a, b.const(5.0, dtype)), b.const(0.0, dtype)), I32))
    b.store("out_true", dtype, b.at(1), b.cast(b.cast(a, BOOL), dtype))
    return b.kernel()


def rounded(n: int = 257) -> Kernel:
    """Explicit conversions to narrow floats whose results are read further on."""
    b = Build("rounded", (n,))
    a = b.load("a", F32, b.at(1))
    b.store("near_bf16", F32, b.at(1), b.nearest_bf16(a))
    b.store("near_f16", F32, b.at(1), b.nearest_f16(b.mul(a, b.const(40000.0, F32))))
    return b.kernel()


def gather(n: int = 50, width: int = 24) -> Kernel:
    b = Build("embedding", (n, width))
    i = b.load("ids", I64, b.at(1, 0))
    i = b.where(b.lt(i, b.const(0, I64)), b.add_(i, b.const(9, I64)), i)
    row = Index((((Var(f"%{i}", 9),), width),))
    b.store("out", F16, b.at(width, 1), b.load("table", F16, row + b.ix[1]))
    return b.kernel()


def padded(rows: int = 20, columns: int = 30) -> Kernel:
    """A constant pad by a masked load, its mask over fewer axes than its tile, and a masked store."""
    b = Build("pad", (rows, columns))
    i, j = b.index(b.ix[0]), b.index(b.ix[1])
    inside = b.and_(b.le(b.const(2, I64), i), b.lt(j, b.const(25, I64)))
    v = b.load("x", BF16, b.at(25, 1, offset=-50), mask=inside, other=0.1)
    w = b.load("scale", F32, constant(3), mask=b.lt(i, j), other=-1.0)
    b.store("out", F32, b.at(columns, 1), b.add_(v, w), mask=b.ne(i, b.const(5, I64)))
    return b.kernel()


def divided(n: int = 96) -> Kernel:
    """Axes that the accesses take apart and walk in different runs."""
    b = Build("unfold", (4, 3, n // 12))
    i = b.at(n // 4, n // 12, 1)
    v = b.load("x", F32, (i // 6) * 7 + i % 6)
    b.store("out", F32, b.at(n // 12, n // 3, 1), b.add_(v, b.cast(b.index(i), F32)))
    return b.kernel()


def softmax(rows: int = 5, columns: int = 37, dtype: torch.dtype = F32) -> Kernel:
    b = Build("softmax", (rows,), (columns,))
    v = b.load("x", dtype, b.at(columns, 1))
    e = b.exp(b.sub(v, b.reduce("max", v)))
    b.store("out", dtype, b.at(columns, 1), b.truediv(e, b.reduce("sum", e)))
    return b.kernel()


def padded_softmax(rows: int, columns: int, padding: int) -> Kernel:
    """Softmax of rows whose last elements do not count."""
    b = Build("padded_softmax", (rows,), (columns,))
    inside = b.lt(b.index(b.at(0, 1)), b.const(columns - padding, torch.int64))
    v = b.where(inside, b.load("x", BF16, b.at(columns, 1)), b.const(float("-inf")))
    e = b.exp(b.sub(v, b.reduce("max", v)))
    b.store("out", BF16, b.at(columns, 1), b.truediv(e, b.reduce("sum", e)))
    return b.kernel()


def logsumexp(rows: int, columns: int) -> Kernel:
    """Maximum and sum of exponentials, of rows that some tests fill with infinities."""
    b = Build("logsumexp", (rows,), (columns,))
    v = b.load("x", F32, b.at(columns, 1))
    top = b.reduce("max", v)
    total = b.reduce("sum", b.exp(b.sub(v, top)))
    b.store("top", F32, b.at(1, 0), top)
    b.store("total", F32, b.at(1, 0), total)
    return b.kernel()


def layer_norm(rows: int = 6, columns: int = 64, dtype: torch.dtype = BF16) -> Kernel:
    b = Build("add_layer_norm", (rows,), (columns,))
    h = b.add_(b.load("x", dtype, b.at(columns, 1)), b.load("res", dtype, b.at(columns, 1)))
    b.store("res", dtype, b.at(columns, 1), h)
    mean = b.truediv(b.reduce("sum", h), b.const(float(columns)))
    c = b.sub(h, mean)
    scale = b.rsqrt(b.add_(b.truediv(b.reduce("sum", b.mul(c, c)), b.const(float(columns))), b.const(1e-5)))
    b.store("mean", F32, b.at(1, 0), mean)
    b.store("rstd", F32, b.at(1, 0), scale)
    w, s = b.load("weight", F32, b.at(0, 1)), b.load("bias", F32, b.at(0, 1))
    b.store("out", dtype, b.at(columns, 1), b.add_(b.mul(b.mul(c, scale), w), s))
    return b.kernel()


def norm_backward(blocks: tuple[int, ...] = (6,), rows: int = 4, columns: int = 48, dtype: torch.dtype = F32) -> Kernel:
    """Sums per row and, over blocks of rows, per column."""
    b = Build("norm_backward", (*blocks, rows), (columns,))
    outer = [columns * rows * prod(blocks[i + 1 :]) for i in range(len(blocks))]
    full, row = b.at(*outer, columns, 1), b.at(*(o // columns for o in outer), 1, 0)
    block = b.at(*(o // rows for o in outer), 0, 1)
    g, v = b.load("g", dtype, full), b.load("x", dtype, full)
    normal = b.mul(v, b.load("rstd", F32, row))
    scaled = b.mul(g, b.load("weight", F32, b.at(*(0 for _ in blocks), 0, 1)))
    mean, dot = b.reduce("sum", scaled), b.reduce("sum", b.mul(scaled, normal))
    b.store("out", dtype, full, b.sub(b.sub(scaled, b.truediv(mean, b.const(float(columns)))), b.mul(normal, b.truediv(dot, b.const(float(columns))))))
    b.store("mean", F32, row, mean)
    b.store("weight_part", F32, block, b.mul(g, normal), summed=True)
    b.store("bias_part", F32, block, g, mask=b.lt(b.const(0.0), v), summed=True)
    b.store("rows_part", F32, block, b.load("rstd", F32, row), summed=True)
    return b.kernel()


def sums_of_both(blocks: int = 3, rows: int = 4, columns: int = 8192, dtype: torch.dtype = BF16) -> Kernel:
    """Sums of long rows and, over blocks of rows, of columns."""
    b = Build("sums_of_both", (blocks, rows), (columns,))
    v = b.load("x", dtype, b.at(columns * rows, columns, 1))
    b.store("row", F32, b.at(rows, 1, 0), b.reduce("sum", v))
    b.store("column_part", F32, b.at(columns, 0, 1), v, summed=True)
    return b.kernel()


def parts(rows: int = 5, dtype: torch.dtype = F32) -> Kernel:
    """Rows of three tiles, taken apart in two axes by one access; all reductions that have no order."""
    b = Build("row_parts", (rows,), (6, 64))
    v = b.load("x", dtype, b.at(384, 64, 1))
    w = b.add_(v, b.load("w", F32, b.at(0, 1, 6)))
    for kind in ("sum", "max", "min"):
        b.store(f"out_{kind}", F32, b.at(1, 0, 0), b.reduce(kind, w))
    b.store("any", BOOL, b.at(1, 0, 0), b.reduce("any", b.lt(w, b.const(-3.0))))
    b.store("count", I64, b.at(1, 0, 0), b.reduce("sum", b.cast(b.lt(w, b.const(0.0)), I64)))
    b.store("out", dtype, b.at(384, 64, 1), b.truediv(b.sub(w, b.reduce("max", w)), b.load("d", F32, b.at(1, 0, 0))))
    table = Index((((Var(f"%{b.index(b.ir[0])}", 6),), 1),))
    b.store("picked", F32, b.at(384, 64, 1), b.load("table", F32, table))
    return b.kernel()


def columns_sum(rows: int = 70, columns: int = 48) -> Kernel:
    """x contiguous, with an in-place running statistic at level x."""
    b = Build("batch_stats", (columns,), (rows,))
    v = b.load("x", F32, b.at(1, columns))
    mean = b.truediv(b.reduce("sum", v), b.const(float(rows)))
    running = b.load("running", F32, b.at(1, 0))
    b.store("running", F32, b.at(1, 0), b.add_(b.mul(running, b.const(0.9)), b.mul(mean, b.const(0.1))))
    b.store("out", F32, b.at(1, columns), b.sub(v, mean))
    return b.kernel()


def many(rows: int = 4, columns: int = 19, dtype: torch.dtype = F32) -> Kernel:
    """Every reduction over two r axes."""
    b = Build("every_reduction", (rows,), (3, columns))
    v = b.load("x", dtype, b.at(3 * columns, columns, 1))
    for kind in ("sum", "prod", "max", "min", "argmax", "argmin"):
        b.store(f"out_{kind}", I64 if kind[:3] == "arg" else dtype, b.at(1, 0, 0), b.reduce(kind, v, I64 if kind[:3] == "arg" else None))
    flag = b.lt(v, b.const(-2, dtype))
    for kind in ("any", "all"):
        b.store(f"out_{kind}", BOOL, b.at(1, 0, 0), b.reduce(kind, flag))
    b.store("count", I64, b.at(1, 0, 0), b.reduce("sum", b.cast(flag, I64)))
    b.store("first", I64, b.at(1, 0, 0), b.reduce("argmax", flag, I64))
    return b.kernel()


def whole(n: int = 200) -> Kernel:
    """No x axis; a value that does not vary over r is reduced too."""
    b = Build("mean", (), (n,))
    b.store("out", F32, b.at(0), b.truediv(b.reduce("sum", b.load("x", F16, b.at(1))), b.const(float(n))))
    b.store("n", F32, b.at(0), b.reduce("sum", b.load("one", F32, constant(0))))
    return b.kernel()


def scalar() -> Kernel:
    b = Build("step", ())
    b.store("step", F32, constant(0), b.add_(b.load("step", F32, constant(0)), b.const(1.0)))
    return b.kernel()


CASES: dict[str, Callable[[], Kernel]] = {
    "chain": chain,
    "chain_bf16_even": lambda: chain(1024, BF16),
    "chain_f64": lambda: doubles(),
    "signed_zero": signed_zero,
    "broadcast": broadcast,
    "transpose": transpose,
    "integers": integers,
    "random": random,
    "floats": floats,
    "rounded": rounded,
    "floats_f64": lambda: floats(65, F64),
    "gather": gather,
    "padded": padded,
    "divided": divided,
    "softmax": softmax,
    "softmax_even": lambda: softmax(4, 32, F16),
    "softmax_looped": lambda: softmax(2, 20000),
    "softmax_bf16": lambda: softmax(3, 40, BF16),
    "layer_norm": layer_norm,
    "layer_norm_looped": lambda: layer_norm(2, 17000),
    "layer_norm_parts": lambda: layer_norm(7, 768),
    "softmax_parts": lambda: softmax(3, 640, BF16),
    "parts": parts,
    "named_as_called": named_as_called,
    "edges": edges,
    "chain_peeled": lambda: chain(66001, BF16),
    "lines_peeled": lambda: broadcast(17, 4097),
    "softmax_peeled": lambda: softmax(2, 40001, BF16),
    "softmax_peeled_even": lambda: softmax(2, 40008, BF16),
    "softmax_padded": lambda: padded_softmax(2, 40008, 47),
    "softmax_padded_widely": lambda: padded_softmax(2, 40008, 5000),
    "layer_norm_peeled": lambda: layer_norm(2, 40003),
    "norm_backward": norm_backward,
    "sums_of_both": sums_of_both,
    "norm_backward_parts": lambda: norm_backward((2, 3), 6, 384, BF16),
    "columns_sum": columns_sum,
    "columns_looped": lambda: columns_sum(1300, 24),
    "many": many,
    "many_int": lambda: many(3, 11, I32),
    "many_looped": lambda: many(1, 700),
    "whole": whole,
    "whole_looped": lambda: whole(5000),
    "scalar": scalar,
}


def doubles() -> Kernel:
    b = Build("doubles", (100,))
    v = b.load("x", F64, b.at(1))
    b.store("out", F64, b.at(1), b.truediv(b.sqrt(b.abs(v)), b.add_(b.exp(v), b.const(0.1, F64))))
    return b.kernel()


def walked(kernel: Kernel, rows: int, step: int, warps: int = 4) -> KernelSource:
    """`kernel` with a loop over r whatever its size, in tiles of rows x step."""
    dims = (Dim("x", kernel.nest.x_axes), Dim("r", kernel.nest.r_axes))
    masked = frozenset(d.name for d, n in zip(dims, (rows, step), strict=True) if d.size % n)
    tiling = Tiling(dims, True, (Candidate({"XBLOCK": rows, "RBLOCK": step}, warps),), ((-(-dims[0].size // rows), 1, 1),), masked, False)
    emitter = Emitter(kernel, tiling)
    return KernelSource(kernel, "triton", emitter.module(), emitter.entry, tiling.candidates, tiling.grids)


WALKED: dict[str, Callable[[], KernelSource]] = {
    "walked_logsumexp": lambda: walked(logsumexp(12, 100), 4, 16),
    "walked_softmax": lambda: walked(softmax(5, 61, BF16), 2, 32),
    "walked_layer_norm": lambda: walked(layer_norm(4, 96), 4, 32),
    "walked_many": lambda: walked(many(3, 17), 1, 16, 1),
}


def storages(kernel: Kernel, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Inputs for `kernel`: one 1-D tensor per param, as long as its accesses reach, with ties, zeros, infinities and NaN in floats."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for p in kernel.params:
        reach = [a.index for a in (*kernel.nest.loads(), *kernel.nest.stores()) if a.buffer == p.name]
        tops = [i.bounds()[1] for i in reach]
        length = 1 + max(9 * kernel.nest.axes[-1].size - 1 if t is None else t for t in tops)  # ids reach to 8
        if p.dtype == BOOL:
            data = torch.rand(length, generator=generator) < 0.5
        elif p.dtype.is_floating_point:
            data = (torch.randn(length, generator=generator) * 2).to(p.dtype)
            if kernel.name == "logsumexp" and p.name == "x":
                rows = data.view(12, -1)
                rows[0] = rows[1, :-1] = rows[5, ::2] = float("-inf")
                rows[2, 7] = rows[3, 7:9] = float("inf")
                rows[4, -5] = float("nan")
                rows[6] = torch.finfo(torch.float32).min
                rows[7] = torch.linspace(-3e38, 3e38, rows.shape[1])
                rows[8] *= 100.0
            if kernel.name in ("floats", "every_reduction") or kernel.name.endswith("_special"):
                special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2.5, 3.5, -2.5, 1.0, 1.0], dtype=p.dtype)
                spots = torch.randint(0, length, (max(3, length // 40),), generator=generator)
                data[spots] = special[torch.randint(0, len(special), spots.shape, generator=generator)]
        else:
            low, high = (-9, 9) if kernel.name == "embedding" else (-100, 100) if p.dtype != U8 else (0, 255)
            data = torch.randint(low, high, (length,), generator=generator, dtype=p.dtype)
            if p.name == "d":
                data[data == 0] = 7
        tensors[p.name] = data.to(device)
    return tensors


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal up to what reordering a sum and one rounding to the memory's dtype may cost."""
    for name, want in expected.items():
        have = got[name]
        if not want.dtype.is_floating_point:
            assert torch.equal(have, want), name
            continue
        rtol, atol = {BF16: (1.6e-2, 1e-5), F16: (2e-3, 1e-5), F32: (2e-5, 2e-5), F64: (1e-12, 1e-12)}[want.dtype]
        if want.dtype in (F32, F64):  # a sum may cancel, of terms as large as others' results
            atol += 2 * torch.finfo(want.dtype).eps * float(want.nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0
        torch.testing.assert_close(have, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
