"""What the Triton kernels of attention share: matrices, places and tiles, the walk over the other side, blocks of a mask, and scores. The algorithm is told in
`attention.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from dynacompile.codegen.triton.attention_bodies import BodyFunction, Derivative, device_function
from dynacompile.codegen.triton.attention_tiles import Shape, candidates_for, padded
from dynacompile.codegen.triton.emit import HEADER, LIBDEVICE, device_functions, user_line
from dynacompile.codegen.triton.names import entry_of
from dynacompile.ir.calls import Call
from dynacompile.ir.extents import LIMIT, ceil_div, example_reach
from dynacompile.ir.index import Extent, Index, extent, hint
from dynacompile.ir.loops import Buffer
from dynacompile.ir.schedule import Candidate, Kernel
from dynacompile.quoting import comment

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
HALVES = (torch.bfloat16, torch.float16)
PRECISIONS = {"tf32": "_tf32", "ieee": "_tf32x3", "exact": "_ieee"}  # "ieee": as products of three parts, which has the digits of float32 but for a few


@dataclass(frozen=True)
class Matrix:
    """A tensor of [batch, heads, rows] or [batch, heads, rows, columns]. along: "m" or "n", what its rows are."""

    view: Buffer
    pointer: str
    along: str
    column: str = ""

    @property
    def width(self) -> int:
        return int(self.view.size[3])  # type: ignore[arg-type]

    def start(self, head: str) -> str:
        """Where the rows of a head begin."""
        terms = [str(self.view.offset)] if self.view.offset != 0 else []
        terms += [times(place, stride) for place, stride, size in zip(("b", head), self.view.stride, self.view.size) if stride != 0 and size != 1]
        return " + ".join([self.pointer, *terms])

    def rows(self, spread: str) -> str:
        """The places of rows in memory, with 64 bits where they may be that far apart. spread: the subscript that gives them their place in a tile."""
        far = example_reach(Index() + self.view.stride[2] * (hint(self.view.size[2]) + 256)) > LIMIT
        return times(f"{self.along}_at{spread}{'.to(tl.int64)' if far else ''}", self.view.stride[2])

    def columns(self, spread: str) -> str:
        return times(f"{self.column}{spread}", self.view.stride[3])

    def masks(self, spread: str, across: str, cut: bool) -> list[str]:
        """Conditions under which elements exist. cut: tiles reach beyond the rows."""
        found = [f"{self.along}_inside{spread}"] if cut else []
        return found + ([f"({self.column}{across} < {self.width})"] if self.column and padded(self.width) != self.width else [])


def times(place: str, stride: Extent) -> str:
    return place if stride == 1 else f"{place} * {stride}"


def number(value: float) -> str:
    return repr(float(value))


class AttentionText:
    """One kernel. across: what a tile has along its rows, "m" for queries or "n" for keys: "mn" or "nm". far: memory is larger than 32 bits count."""

    across = "mn"
    roles: tuple[str, ...] = ("query", "key", "value")
    outputs: tuple[str, ...] = ()

    def __init__(self, kernel: Kernel, call: Call):
        self.kernel, self.call, self.entry = kernel, call, entry_of(kernel)
        self.pointers = pointer_names(kernel, call, self.roles, self.outputs)
        views = {role: call.argument(role) for role in self.roles}
        views |= {role: call.view(name) for role, name in zip(self.outputs, call.step.outputs) if name is not None}
        self.matrices = {role: self.matrix(role, view) for role, view in views.items()}
        query, key = views["query"], views["key"]
        self.batch, self.heads, self.queries, self.width = query.size
        self.key_heads, self.keys = key.size[1], key.size[2]
        self.dtype = query.dtype
        self.blocks: list[Buffer] = call.argument("blocks")
        self.block_size: tuple[int, int] = tuple(call.argument("block_size"))
        self.candidates = candidates_for(self.shape())
        self.masked = frozenset(d for d in "mn" if self.is_cut(d))
        fast = self.dtype in HALVES
        made: dict[str, Any] = {}
        for role, nest in call.step.bodies.items():
            kind = Derivative if role == "derivative" else BodyFunction
            made[role] = kind(self.entry, role, nest, kernel, self.pointers, self.across, self.masked, fast)
        self.score: BodyFunction | None = made.get("score")
        self.mask: BodyFunction | None = made.get("mask")
        self.derivative: Derivative | None = made.get("derivative")
        self.scale = float(call.argument("scale"))
        self.far = any(example_reach(reach_of(m.view)) > LIMIT for m in self.matrices.values())

    # geometry

    def shape(self) -> Shape:
        """What tiles are chosen by."""
        size = (hint(self.queries), hint(self.keys))
        value = int(self.call.argument("value").size[3])
        return Shape(self.call.template, self.dtype, int(self.width), value, size, self.block_size if self.blocks else None, self.call.argument("precision"))

    def length(self, dim: str) -> Extent:
        return self.queries if dim == "m" else self.keys

    def block(self, dim: str) -> int:
        """Queries or keys of a block of the mask."""
        return self.block_size["mn".index(dim)]

    def is_cut(self, dim: str) -> bool:
        """Whether some tile reaches beyond the end, or beyond its block."""
        steps = [c.blocks[f"{dim.upper()}BLOCK"] for c in self.candidates]
        length = self.length(dim)
        if self.blocks:
            count, block = self.blocks[0].size[2] if dim == self.kept else None, self.block(dim)
            if type(length) is not int or length % block or (count is not None and count != length // block):
                return True
            length = block
        return type(length) is not int or any(length % step for step in steps)

    @property
    def kept(self) -> str:
        """What a program has, and keeps."""
        return self.across[0]

    @property
    def walked(self) -> str:
        return self.across[1]

    def spread(self, dim: str) -> str:
        return "[:, None]" if dim == self.kept else "[None, :]"

    def matrix(self, role: str, view: Buffer) -> Matrix:
        along = "n" if role in ("key", "value", "of_keys", "of_values") else "m"
        column = "" if len(view.size) == 3 else "e" if role in ("value", "grad", "made", "of_values") else "d"
        return Matrix(view, self.pointers[str(view.base)], along, column)

    def grids(self) -> tuple[tuple[Extent, int, int], ...]:
        heads = self.heads if self.kept == "m" else self.key_heads
        return tuple((extent(self.tiles(c) * self.batch * heads), 1, 1) for c in self.candidates)  # type: ignore[misc]

    def tiles(self, candidate: Candidate) -> Any:
        """Programs of one head."""
        step = candidate.blocks[f"{self.kept.upper()}BLOCK"]
        if not self.blocks:
            return ceil_div(self.length(self.kept), step)
        return self.blocks[0].size[2] * ceil_div(self.block(self.kept), step)

    # text

    def module(self) -> str:
        bodies = [f for f in (self.score, self.mask, self.derivative) if f is not None]
        texts = [f.text() for f in bodies]
        if self.derivative is not None and self.derivative.sums():
            texts.append(self.derivative.finish())
        texts += [self.walk(), self.kernel_text()]
        code = "\n\n\n".join(texts)
        functions = device_functions(code)
        told = "".join(f"# {comment(line)}\n" for line in dict.fromkeys(user_line(self.kernel.nest)))
        imports = HEADER + (LIBDEVICE if "libdevice." in code + functions else "")
        return f"{imports}{functions}\n\n{told}{code}\n"

    @property
    def passed(self) -> list[str]:
        """What the walk is given beside what it keeps: the functions' pointers, and the symbols."""
        bodies = [f for f in (self.score, self.mask, self.derivative) if f is not None]
        return [*dict.fromkeys(p for f in bodies for p in f.pointers), *(s.name for s in self.kernel.symbols)]

    def product(self, a: str, b: str, total: str) -> str:
        precision = self.call.argument("precision")
        suffix = "" if self.dtype in HALVES else PRECISIONS[precision]
        return f"add_product{suffix}({a}, {b}, {total})"

    def rounded(self, text: str) -> str:
        """A factor of a product, as the other one."""
        return f"{text}.to({'tl.bfloat16' if self.dtype == torch.bfloat16 else 'tl.float16'})" if self.dtype in HALVES else text

    @property
    def tile(self) -> str:
        return f"[{self.across[0].upper()}BLOCK, {self.across[1].upper()}BLOCK]"

    def head_lines(self) -> list[str]:
        """The program's batch, head and rows."""
        dim, step = self.kept, f"{self.kept.upper()}BLOCK"
        heads = self.heads if dim == "m" else self.key_heads
        wide = ".to(tl.int64)" if self.far else ""
        lines = ["pid = tl.program_id(0)"]
        if self.blocks:
            each = f"tl.cdiv({self.block(dim)}, {step})"
            lines.append(f"tiles = {self.blocks[0].size[2]} * {each}")
        else:
            lines.append(f"tiles = tl.cdiv({self.length(dim)}, {step})")
        lines += ["tile = tiles - 1 - pid % tiles", f"h = (pid // tiles % {heads}){wide}", f"b = (pid // tiles // {heads}){wide}"]
        if self.blocks:
            lines += [f"row = tile // {each}", f"start = row * {self.block(dim)} + tile % {each} * {step}"]
            end = f"tl.minimum((row + 1) * {self.block(dim)}, {self.length(dim)})"
        else:
            lines.append(f"start = tile * {step}")
            end = str(self.length(dim))
        narrow = ".to(tl.int32)" if self.far else ""
        lines.append(f"{dim}_at = start{narrow} + tl.arange(0, {step})")
        if dim in self.masked:
            lines.append(f"{dim}_inside = {dim}_at < {end}")
        return lines

    def tile_lines(self, dim: str) -> list[str]:
        """The places along a dimension, as functions of points take them."""
        lines = [f"{dim} = {dim}_at{self.spread(dim)}"]
        return [*lines, f"{dim}mask = {dim}_inside{self.spread(dim)}"] if dim in self.masked else lines

    def column_lines(self) -> list[str]:
        """Places along heads, as rows and as columns of tiles, for those matrices that have them so."""
        value = int(self.call.argument("value").size[3])
        return [f"d = tl.arange(0, {padded(int(self.width))})", f"e = tl.arange(0, {padded(value)})"]

    def loaded(self, role: str, at: str, turned: bool = False) -> str:
        """A block of a matrix; turned: with its rows along the second dimension of a tile."""
        matrix = self.matrices[role]
        cut = matrix.along in self.masked
        if not matrix.column:
            own = self.spread(matrix.along)
            return f"tl.load({at} + {matrix.rows(own)}{masked(matrix.masks(own, '', cut))})"
        own, other = ("[None, :]", "[:, None]") if turned else ("[:, None]", "[None, :]")
        return f"tl.load({at} + {matrix.rows(own)} + {matrix.columns(other)}{masked(matrix.masks(own, other, cut))})"

    def stored(self, role: str, value: str, head: str = "h") -> list[str]:
        """Stores a tile that the program has."""
        if role not in self.matrices:
            return []
        matrix = self.matrices[role]
        own, other = ("[:, None]", "[None, :]") if matrix.column else ("", "")
        place = f"{matrix.start(head)} + {matrix.rows(own)}" + (f" + {matrix.columns(other)}" if matrix.column else "")
        return [f"tl.store({place}, {value}{masked(matrix.masks(own, other, matrix.along in self.masked), False)})"]

    def step_lines(self) -> list[str]:
        """The places of a step of the walk."""
        dim, step = self.walked, f"{self.walked.upper()}BLOCK"
        lines = []
        if self.blocks:
            each = f"tl.cdiv({self.block(dim)}, {step})"
            lines += [
                f"block = tl.load(blocks_at + {times(f'i // {each}', self.blocks[1].stride[3])}).to(tl.int32)",
                f"{dim}_at = block * {self.block(dim)} + i % {each} * {step} + tl.arange(0, {step})",
            ]
            end = f"tl.minimum((block + 1) * {self.block(dim)}, {self.length(dim)})"
        else:
            lines.append(f"{dim}_at = i * {step} + tl.arange(0, {step})")
            end = str(self.length(dim))
        if dim in self.masked:
            lines += ["if TAIL:", f"    {dim}_inside = {dim}_at < {end}", "else:", f"    {dim}_inside = tl.full([{step}], True, tl.int1)"]
        return [*lines, *self.tile_lines(dim)]

    def walks(self, keeps: Sequence[str], given: Sequence[str], head: str) -> list[str]:
        """Calls of the walk, one after the other, which change what is kept. head: whose blocks they are."""
        names = ", ".join(keeps)
        step = f"{self.walked.upper()}BLOCK"

        def call(*rest: str) -> str:
            return f"{names} = {self.entry}_walk({', '.join([*keeps, *given, *rest, 'MBLOCK', 'NBLOCK'])})"

        if not self.blocks:
            length, hides = self.length(self.walked), str(self.mask is not None)
            whole = f"{length} // {step}" if self.walked in self.masked else f"tl.cdiv({length}, {step})"
            lines = [call("0", whole, hides, "False")]
            return lines + ([call(whole, f"tl.cdiv({length}, {step})", hides, "True")] if self.walked in self.masked else [])
        lines = []
        tail = str(self.walked in self.masked)
        for k in range(0, len(self.blocks), 2):
            count, indices = (Matrix(v, self.pointers[str(v.base)], self.kept) for v in self.blocks[k : k + 2])
            lines += [
                f"count = tl.load({count.start(head)} + {times('row', count.view.stride[2])}).to(tl.int32) * tl.cdiv({self.block(self.walked)}, {step})",
                f"blocks_at = {indices.start(head)} + {times('row', indices.view.stride[2])}",
                call("blocks_at", "count", "True" if k == 0 else "False", tail),
            ]
        return lines

    @property
    def kept_places(self) -> list[str]:
        return [f"{self.kept}_at", *([f"{self.kept}_inside"] if self.kept in self.masked else [])]

    @property
    def walk_end(self) -> list[str]:
        """The last parameters of the walk."""
        own = ["blocks_at", "count"] if self.blocks else ["first", "last"]
        return [*own, *(f"{name}: tl.constexpr" for name in ("HIDES", "TAIL", "MBLOCK", "NBLOCK"))]

    def loop(self) -> str:
        return "for i in tl.range(0, count):" if self.blocks else "for i in tl.range(first, last):"

    @property
    def counts_all(self) -> bool:
        """Whether it has to be known of every score if it counts, also where nothing hides any."""
        return self.derivative is not None and bool(self.derivative.additions)

    def counted(self, line: str, defined: bool = False) -> list[str]:
        """A line over `visible`, which tells the scores that count, where some may not. defined: by an earlier such line."""
        ends = [f"{self.walked}mask"] if self.walked in self.masked else []
        hides = [] if self.mask is None else [f"visible = {' & '.join([self.mask.call(), *ends])}"]
        ends_only = [f"visible = tl.broadcast_to({ends[0]}, {self.tile})"] if ends else []
        if self.counts_all:
            ends += [f"{self.kept}mask"] if self.kept in self.masked else []
            first = [f"visible = {' & '.join([f'tl.full({self.tile}, True, tl.int1)', *ends])}"]
            first += ["if HIDES:", f"    visible = visible & {self.mask.call()}"] if self.mask is not None else []
            return [*([] if defined else first), line]
        lines: list[str] = []
        for case, made in (("HIDES", hides), ("TAIL", ends_only)):
            if made:
                lines += [f"{'elif' if lines else 'if'} {case}:", *(f"    {text}" for text in [*([] if defined else made), line])]
        return lines

    def score_lines(self, product: str) -> tuple[list[str], float]:
        """Lines that leave scores in `score`, and what they are multiplied by to be powers of two. `raw`: before the function of scores, where a derivative
        needs them."""
        if self.score is None:
            if self.scale > 0:
                return [f"score = {product}"], self.scale * LOG2E
            return [f"score = {product} * {number(self.scale)}"], LOG2E
        lines = [f"score = {product} * {number(self.scale)}"]
        if self.derivative is not None:
            lines.append("raw = score")
        return [*lines, f"score = {self.score.call()}"], LOG2E

    def walk(self) -> str:
        raise NotImplementedError

    def kernel_text(self) -> str:
        raise NotImplementedError

    def kernel_function(self, lines: Sequence[str]) -> str:
        pointers = [self.pointers[p.name] for p in self.kernel.params]
        return device_function(self.entry, [*pointers, *(s.name for s in self.kernel.symbols), "MBLOCK: tl.constexpr", "NBLOCK: tl.constexpr"], lines)


def masked(masks: Sequence[str], load: bool = True) -> str:
    return f", mask={' & '.join(masks)}{', other=0.0' if load else ''}" if masks else ""


def reach_of(view: Buffer) -> Index:
    """How far its last element lies from its root's first."""
    found = Index() + view.offset
    for n, stride in zip(view.size, view.stride, strict=True):
        found = found + (Index() + n - 1) * stride
    return found


def pointer_names(kernel: Kernel, call: Call, roles: Sequence[str], outputs: Sequence[str]) -> dict[str, str]:
    """What the kernel's params are called: by what they are, where they are one thing."""
    found: dict[str, list[str]] = {p.name: [] for p in kernel.params}
    for role in roles:
        found[str(call.argument(role).base)].append(role)
    for role, name in zip(outputs, call.step.outputs):
        if name is not None:
            found[str(call.view(name).base)].append(role)
    blocks = call.argument("blocks")
    for role, view in zip(("counts", "indices", "full_counts", "full_indices"), blocks):
        found[str(view.base)].append(role)
    return {p: f"{own[0] if len(own) == 1 else p}_ptr" for p, own in found.items()}


def minus_infinity() -> str:
    return f'float("{-inf}")'
