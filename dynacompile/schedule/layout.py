"""Matrices as tensor cores like them: where a matmul of 16-bit numbers has an odd extent along memory, it runs several times slower, so it is
done on matrices with zeros appended. A matrix of our own, between nests and matmuls, is made that way at once; others are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch

from dynacompile.ir.body import Body
from dynacompile.ir.index import Extent, Index, Var, atom
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, LoopProgram, Nest, Op, Ref, refs, root
from dynacompile.ops.scalars import compute_dtype

aten = torch.ops.aten
MATMULS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))
HALVES = (torch.bfloat16, torch.float16)
EVEN = 8  # elements that an extent along memory should be a multiple of
UNIT = 64  # elements that a padded one is a multiple of
LEAST = 128  # smallest extent of a matmul that is looked at
WORTH = 1 << 30  # multiply-adds from which it pays


@dataclass(frozen=True)
class Matrix:
    """What a matmul sees of an operand: all of a root's memory as rows x cols, or its transpose. pitch: elements from row to row."""

    root: str
    rows: Any
    cols: Any
    turned: bool
    pitch: Any


@dataclass(frozen=True)
class Job:
    """A matmul (m, k) x (k, n) = (m, n) to be done with `odd` extents padded. operands: a, b and the result; bias: of n elements."""

    step: Extern
    operands: tuple[Matrix, Matrix, Matrix]
    bias: str | None
    odd: frozenset[str]


EXTENTS = (("m", "k"), ("k", "n"), ("m", "n"))


@dataclass
class Plan:
    """Padding of one root: which of its extents grow, whether what is added must be zero, and whether it is made so at once."""

    matrix: Matrix
    rows: bool = False
    cols: bool = False
    zeros: bool = False
    name: str = ""
    own: bool = False
    extra: list[Nest] = field(default_factory=list)

    @property
    def height(self) -> int:
        return up(self.matrix.rows) if self.rows else self.matrix.rows

    @property
    def width(self) -> int:
        return up(self.matrix.cols) if self.cols else self.matrix.cols


def up(n: Any) -> int:
    return -(-n // UNIT) * UNIT


def pad_matrices(program: LoopProgram) -> LoopProgram:
    """The program with its slow matmuls on padded matrices. CPUs don't mind odd extents: theirs stay."""
    jobs = {i: job for i, s in enumerate(program.steps) if isinstance(s, Extern) and (job := job_of(program, s)) is not None}
    if not jobs:
        return program
    plans: dict[str, Plan] = {}
    for job in jobs.values():
        for position, (matrix, extents) in enumerate(zip(job.operands, EXTENTS, strict=True)):
            plan = plans.setdefault(matrix.root, Plan(matrix))
            row, col = reversed(extents) if matrix.turned else extents
            plan.rows |= row in job.odd
            plan.cols |= col in job.odd
            plan.zeros |= "k" in job.odd and position < 2
    return Padding(program, {n: p for n, p in plans.items() if p.rows or p.cols}, jobs).run()


def job_of(program: LoopProgram, step: Extern) -> Job | None:
    """The padded form of a matmul, or None where it is small, even, or not of whole matrices."""
    if step.op not in (aten.mm.default, aten.addmm.default) or step.out is None or step.outputs[0] is None or step.kwargs:
        return None
    buffers = program.buffers
    names = refs(step.args)
    result = buffers[step.outputs[0]]
    if result.device.type == "cpu" or result.dtype not in HALVES or any(buffers[n].dtype != result.dtype for n in names):
        return None
    bias = names[0] if step.op is aten.addmm.default else None
    (m, n), k = result.size, buffers[names[-1]].size[0]
    if not all(isinstance(e, int) for e in (m, n, k)) or min(m, n, k) < LEAST or m * n * k < WORTH or (bias is not None and buffers[bias].size != (n,)):
        return None
    operands = [matrix_of(buffers, name) for name in (*names[-2:], step.outputs[0])]
    if None in operands:
        return None
    odd = frozenset(extents[0 if x.turned else 1] for x, extents in zip(operands, EXTENTS, strict=True) if x is not None and x.cols % EVEN)
    return Job(step, tuple(operands), bias, odd) if odd else None  # type: ignore[arg-type]


def matrix_of(buffers: Mapping[str, Buffer], name: str) -> Matrix | None:
    buffer, whole = buffers[name], buffers[root(buffers, name)]
    if buffer.numel != whole.numel or buffer.offset or not whole.size or whole.stride[-1] != 1:
        return None
    rows, cols = buffer.size
    pitch = whole.stride[0] if len(whole.size) == 2 else whole.size[-1]
    if whole.stride[:-1] != tuple(pitch * prod(whole.size[i + 1 : -1]) for i in range(len(whole.size) - 1)):
        return None
    if buffer.stride == (pitch, 1) and whole.size[-1] == cols:
        return Matrix(whole.name, rows, cols, False, pitch)
    return Matrix(whole.name, cols, rows, True, pitch) if buffer.stride == (1, pitch) and whole.size[-1] == rows else None


class Padding:
    """One rewriting of a program."""

    def __init__(self, program: LoopProgram, plans: dict[str, Plan], jobs: dict[int, Job]):
        self.program, self.plans, self.jobs = program, plans, jobs
        self.buffers: dict[str, Buffer] = dict(program.buffers)
        self.written: dict[str, list[int]] = {}
        self.touched: dict[str, list[int]] = {}
        for i, step in enumerate(program.steps):
            reads, writes = reads_and_writes(program, step)
            for name in writes:
                self.written.setdefault(name, []).append(i)
            for name in reads | writes:
                self.touched.setdefault(name, []).append(i)

    def run(self) -> LoopProgram:
        steps: list[Nest | Extern] = list(self.program.steps)
        for name, plan in self.plans.items():
            moved = self.moved(name, plan, steps)
            plan.own, plan.name = moved is not None, self.fresh(name)
            steps = steps if moved is None else moved
            whole = self.program.buffers[name]
            self.buffers[plan.name] = Buffer(plan.name, whole.dtype, whole.device, (plan.height, plan.width), (plan.width, 1), "temp")
            if moved is not None:
                self.move_views(name, plan)
        out: list[Nest | Extern] = []
        made: set[str] = set()
        copied: set[str] = set()  # results that leave the program: what reads them here reads the padded ones
        for i, step in enumerate(steps):
            job = self.jobs.get(i)
            filled: list[Nest] = []  # after the first write of a root that is made padded, which may then take the memory of what it reads
            for name in sorted(reads_and_writes(self.program, self.program.steps[i])[1]):
                if name in self.plans and self.plans[name].own and name not in made:
                    made.add(name)
                    filled += self.fill(self.plans[name], step)
            if job is not None:
                out += self.padded(job, made)
                result = job.operands[2].root
                if result in self.plans and not self.plans[result].own and len(self.written[result]) == 1:
                    copied.add(result)
            else:
                out.append(self.redirected(step, copied))
            out += filled
        return replace(self.program, steps=tuple(out), buffers=self.buffers)

    def moved(self, name: str, plan: Plan, steps: list[Nest | Extern]) -> list[Nest | Extern] | None:
        """The steps with the root's memory laid out anew; None where it is not only ours, or an access does not keep to rows."""
        program = self.program
        whole = program.buffers[name]
        touched = [program.steps[i] for i in self.touched[name]]
        leaves = plan.width != plan.matrix.pitch and any(o is not None and root(program.buffers, o) == name for o in program.outputs)
        if whole.kind != "temp" or leaves or any(isinstance(s, Extern) and s.op not in MATMULS for s in touched):
            return None
        if plan.zeros and any(isinstance(program.steps[i], Extern) for i in self.written[name]):
            return None  # what a matmul appends may be no zeros
        if any(b.base == name and not keeps_to_rows(b, plan.matrix.pitch) for b in program.buffers.values()):
            return None
        new: list[Nest | Extern] = []
        target = self.fresh(name)
        for i, step in enumerate(steps):
            if isinstance(step, Nest) and i in self.touched[name]:
                rewritten = with_rows(step, name, target, plan.matrix.pitch, plan.width)
                if rewritten is None:
                    return None
                step = rewritten
            new.append(step)
        return new

    def redirected(self, step: Nest | Extern, copied: set[str]) -> Nest | Extern:
        """A nest that reads padded results instead of their copies, so that making the copy joins it."""
        if isinstance(step, Nest):
            for name in sorted(copied & {a.buffer for a in step.loads()}):
                plan = self.plans[name]
                step = with_rows(step, name, plan.name, plan.matrix.pitch, plan.width) or step
        return step

    def move_views(self, name: str, plan: Plan) -> None:
        """The old root and its views become views of the new one."""
        pitch, wide = plan.matrix.pitch, plan.width
        for view in self.program.buffers.values():
            if view.base == name or view.name == name:
                stride = tuple(s // pitch * wide if s % pitch == 0 else s for s in view.stride)
                offset = view.offset // pitch * wide + view.offset % pitch
                self.buffers[view.name] = replace(view, base=plan.name, stride=stride, offset=offset)

    def fresh(self, name: str) -> str:
        name += "_padded"
        while name in self.program.buffers:
            name += "_"
        return name

    def fill(self, plan: Plan, step: Nest | Extern) -> list[Nest]:
        """Zeros beyond the matrix's own extents, where they must be."""
        if not plan.zeros:
            return []
        target = self.buffers[plan.name]
        nests = []
        if plan.width > plan.matrix.cols:
            nests.append(block(target, (plan.matrix.rows, plan.width - plan.matrix.cols), plan.matrix.cols, step, None))
        if plan.height > plan.matrix.rows:
            nests.append(block(target, (plan.height - plan.matrix.rows, plan.width), plan.matrix.rows * plan.width, step, None))
        return nests

    def padded(self, job: Job, made: set[str]) -> list[Nest | Extern]:
        """The matmul on padded operands, what it needs before, and the copy of its result where that is not made in place."""
        before: list[Nest | Extern] = []
        after: list[Nest | Extern] = []
        names: list[str] = []
        for position, (matrix, extents) in enumerate(zip(job.operands, EXTENTS, strict=True)):
            plan = self.plans.get(matrix.root)
            if plan is None:
                names.append((*refs(job.step.args)[-2:], str(job.step.outputs[0]))[position])
                continue
            source, target = self.program.buffers[matrix.root], self.buffers[plan.name]
            shape = (matrix.rows, matrix.cols)
            if position < 2 and not plan.own and (matrix.root not in made or self.changes(matrix.root)):
                made.add(matrix.root)
                before += [*self.fill(plan, job.step), block(target, shape, 0, job.step, source)]
            if position == 2 and not plan.own:
                after.append(block(self.program.buffers[matrix.root], shape, 0, job.step, target))
            size = tuple(up(n) if e in job.odd else n for n, e in zip(reversed(shape) if matrix.turned else shape, extents, strict=True))
            stride = (1, plan.width) if matrix.turned else (plan.width, 1)
            view = f"{job.step.name}_{'abc'[position]}"
            while view in self.buffers:
                view += "_"
            self.buffers[view] = replace(target, name=view, size=size, stride=stride, base=plan.name)
            names.append(view)
        args: list[object] = [Ref(n) for n in names[:2]]
        if job.bias is not None:
            args.insert(0, Ref(self.bias(job, before)))
        return [*before, replace(job.step, args=tuple(args), outputs=(names[2],)), *after]

    def changes(self, name: str) -> bool:
        """Its contents are not the same whenever it is read: a copy can't be shared."""
        return len(self.written.get(name, ())) > (self.program.buffers[name].kind == "temp")

    def bias(self, job: Job, before: list[Nest | Extern]) -> str:
        assert job.bias is not None
        source = self.buffers[job.bias]
        if "n" not in job.odd:
            return job.bias
        name = self.fresh(job.bias)
        while name in self.buffers:
            name += "_"
        (n,) = source.size
        self.buffers[name] = Buffer(name, source.dtype, source.device, (up(n),), (1,), "temp")
        axis = Axis(Var("x0", n), "x")
        at = atom(axis.var)
        before.append(copying(name, (axis,), at, at * source.stride[0] + source.offset, source, job.step))
        return name


def reads_and_writes(program: LoopProgram, step: Nest | Extern) -> tuple[set[str], set[str]]:
    if isinstance(step, Nest):
        return {a.buffer for a in step.loads()}, {a.buffer for a in step.stores()}
    written = (*(o for o in step.outputs if o is not None), *step.mutates)
    return {root(program.buffers, n) for n in step.reads()}, {root(program.buffers, n) for n in written}


def keeps_to_rows(view: Buffer, row: int) -> bool:
    """No element's place within a row runs over the row's end."""
    return view.offset % row + sum((n - 1) * s for n, s in zip(view.size, view.stride, strict=True) if s % row and n > 1) < row


def with_rows(nest: Nest, name: str, target: str, row: int, wide: int) -> Nest | None:
    """The nest with its accesses of `name` moved to `target`, whose rows have `wide` elements; None where an access does not keep to rows."""
    body = []
    for op in nest.body:
        if type(op.attr) is Access and op.attr.buffer == name:
            index = widened(op.attr.index, row, wide)
            if index is None:
                return None
            op = Op(op.name, op.args, op.dtype, replace(op.attr, buffer=target, index=index))
        body.append(op)
    return replace(nest, body=tuple(body))


def widened(index: Index, row: int, wide: int) -> Index | None:
    """row * r + c becomes wide * r + c, where 0 <= c < row is known."""
    outer = Index([(m, c // row) for m, c in index.terms if c % row == 0], index.constant // row)
    inner = Index([t for t in index.terms if t[1] % row], index.constant % row)
    low, high = inner.bounds()
    return None if low is None or high is None or low < 0 or high >= row else outer * wide + inner


def block(target: Buffer, shape: tuple[int, int], offset: int, step: Nest | Extern, source: Buffer | None) -> Nest:
    """Writes a block of the target's rows: zeros, or the elements of `source`, row by row."""
    axes = tuple(Axis(Var(f"x{d}", n), "x") for d, n in enumerate(shape) if n > 1)
    i, j = (atom(Var(f"x{d}", n)) if n > 1 else Index() for d, n in enumerate(shape))
    index = i * row_stride(target) + j + offset
    return copying(target.name, axes, index, None if source is None else i * row_stride(source) + j, source or target, step)


def row_stride(buffer: Buffer) -> Extent:
    return buffer.stride[-2]


def copying(target: str, axes: Iterable[Axis], index: Index, place: Index | None, source: Buffer, step: Nest | Extern) -> Nest:
    body = Body()
    dtype = compute_dtype(source.dtype)
    value = body.emit("constant", (), dtype, 0) if place is None else body.emit("load", (), dtype, Access(source.base or source.name, place))
    body.store(value, target, index)
    return Nest(target, tuple(axes), tuple(body.ops), step.origins)
