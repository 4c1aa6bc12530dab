"""Rows that matmuls like: where a row's bytes are no multiple of 16, tensor cores run several times slower, so rows are laid out with a gap.

Only buffers of our own between nests and matmuls are laid out anew; where a matmul's result leaves the program, it is made in such a buffer and copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch

from dynacompile.ir.body import Body
from dynacompile.ir.index import Index, Var, atom, strided
from dynacompile.ir.loops import Access, Axis, Buffer, Extern, LoopProgram, Nest, Op, Ref, root
from dynacompile.ops.scalars import compute_dtype

aten = torch.ops.aten
MATMULS = frozenset((aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default))
VECTOR = 16  # bytes that a matmul wants rows to be multiples of
LINE = 128  # bytes that padded rows are multiples of
WORTH = 1 << 30  # multiply-adds from which a copied result pays


def pad_rows(program: LoopProgram) -> LoopProgram:
    """The program with the rows of eligible temps padded. CPU matmuls don't mind: only accelerators' buffers are touched."""
    if not any(isinstance(s, Extern) and s.op in MATMULS and unaligned(program, s) for s in program.steps):
        return program
    program = results_in_temps(program)
    buffers = dict(program.buffers)
    steps = list(program.steps)
    for name in [n for n, b in buffers.items() if b.base is None and eligible(program, b)]:
        rows = replaced_strides(buffers, name)
        moved = None if rows is None else [step if isinstance(step, Extern) else with_rows(step, name, buffers[name].size[-1], rows[name].stride[-2]) for step in steps]
        if rows is not None and moved is not None and None not in moved:
            buffers.update(rows)
            steps = moved  # type: ignore[assignment]
    return replace(program, buffers=buffers, steps=tuple(steps))


def unaligned(program: LoopProgram, step: Extern) -> bool:
    return any(is_ragged(program.buffers[root(program.buffers, n)]) for n in (*step.reads(), *(o for o in step.outputs if o)))


def is_ragged(buffer: Buffer) -> bool:
    """Row-major on an accelerator, in rows that are no multiples of VECTOR bytes."""
    if buffer.device.type == "cpu" or len(buffer.size) < 2 or buffer.numel == 0 or not buffer.dtype.is_floating_point:
        return False
    row = buffer.size[-1]
    return row * buffer.dtype.itemsize % VECTOR != 0 and row * buffer.dtype.itemsize >= LINE and buffer.stride == tuple(prod(buffer.size[i + 1:]) for i in range(len(buffer.size)))


def eligible(program: LoopProgram, buffer: Buffer) -> bool:
    """A ragged temp that only nests and matmuls touch, at least one of these."""
    if buffer.kind != "temp" or not is_ragged(buffer) or any(o is not None and root(program.buffers, o) == buffer.name for o in program.outputs):
        return False
    found = False
    for step in program.steps:
        if isinstance(step, Extern) and any(root(program.buffers, n) == buffer.name for n in (*step.reads(), *step.mutates, *(o for o in step.outputs if o))):
            if step.op not in MATMULS or step.mutates:
                return False
            found = True
    return found


def replaced_strides(buffers: Mapping[str, Buffer], name: str) -> dict[str, Buffer] | None:
    """The buffer and its views with padded rows; None where a view's elements don't keep to rows."""
    whole = buffers[name]
    row = whole.size[-1]
    unit = LINE // whole.dtype.itemsize
    wide = -(-row // unit) * unit
    out = {name: replace(whole, stride=tuple(s if s % row else s // row * wide for s in whole.stride[:-1]) + (1,))}
    for view in buffers.values():
        if view.base != name:
            continue
        within = view.offset % row + sum((n - 1) * s for n, s in zip(view.size, view.stride, strict=True) if s % row and n > 1)
        if within >= row:
            return None
        stride = tuple(s // row * wide if s % row == 0 else s for s in view.stride)
        out[view.name] = replace(view, stride=stride, offset=view.offset // row * wide + view.offset % row)
    return out


def with_rows(nest: Nest, name: str, row: int, wide: int) -> Nest | None:
    """The nest with its accesses of `name` moved to rows of `wide` elements; None where an access does not keep to rows."""
    body = []
    for op in nest.body:
        if type(op.attr) is Access and op.attr.buffer == name:
            index = padded(op.attr.index, row, wide)
            if index is None:
                return None
            op = Op(op.name, op.args, op.dtype, replace(op.attr, index=index))
        body.append(op)
    return replace(nest, body=tuple(body))


def padded(index: Index, row: int, wide: int) -> Index | None:
    """row * r + c becomes wide * r + c, where 0 <= c < row is known."""
    outer = Index([(m, c // row) for m, c in index.terms if c % row == 0], index.constant // row)
    inner = Index([t for t in index.terms if t[1] % row], index.constant % row)
    low, high = inner.bounds()
    return None if low is None or high is None or low < 0 or high >= row else outer * wide + inner


def results_in_temps(program: LoopProgram) -> LoopProgram:
    """Ragged results of large matmuls that leave the program are made in temps, which all other steps use, and copied."""
    buffers = dict(program.buffers)
    leaving = {root(buffers, o) for o in program.outputs if o is not None}
    steps: list[Nest | Extern] = []
    renamed: dict[str, str] = {}
    for step in program.steps:
        step = with_names(step, renamed)
        target = step.outputs[0] if isinstance(step, Extern) and step.op in MATMULS and step.out is not None else None
        if target in leaving and is_ragged(buffers[target]) and multiply_adds(buffers, step) >= WORTH:  # type: ignore[arg-type,index]
            assert isinstance(step, Extern) and target is not None
            names = {n: fresh(buffers, n) for n, b in list(buffers.items()) if n == target or b.base == target}
            for old, new in names.items():
                buffers[new] = replace(buffers[old], name=new, base=None if old == target else names[target])
            renamed.update(names)
            steps.append(replace(step, outputs=(names[target],)))
            steps.append(copy_nest(buffers[names[target]], buffers[target], step))
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps), buffers=buffers) if renamed else program


def fresh(buffers: Mapping[str, Buffer], name: str) -> str:
    name += "_rows"
    while name in buffers:
        name += "_"
    return name


def multiply_adds(buffers: Mapping[str, Buffer], step: Extern) -> int:
    return buffers[step.outputs[0]].numel * buffers[step.reads()[-1]].size[-2]  # type: ignore[index]


def with_names(step: Nest | Extern, names: Mapping[str, str]) -> Nest | Extern:
    """The step reading and writing buffers under their new names."""
    if not names:
        return step
    if isinstance(step, Extern):
        return replace(step, args=swapped(step.args, names), kwargs=swapped(dict(step.kwargs), names), mutates=tuple(names.get(m, m) for m in step.mutates))
    body = [Op(op.name, op.args, op.dtype, replace(op.attr, buffer=names.get(op.attr.buffer, op.attr.buffer))) if type(op.attr) is Access else op for op in step.body]
    return replace(step, body=tuple(body))


def swapped(arg: object, names: Mapping[str, str]) -> object:
    if isinstance(arg, Ref):
        return Ref(names.get(arg.buffer, arg.buffer))
    if isinstance(arg, tuple):
        return tuple(swapped(a, names) for a in arg)
    if isinstance(arg, dict):
        return {k: swapped(v, names) for k, v in arg.items()}
    return arg


def copy_nest(source: Buffer, target: Buffer, step: Extern) -> Nest:
    axes = [Axis(Var(f"x{d}", n), "x") for d, n in enumerate(target.size) if n > 1]
    indices = [atom(a.var) for a in axes]
    dims = [d for d, n in enumerate(target.size) if n > 1]
    body = Body()
    value = body.emit("load", (), compute_dtype(source.dtype), Access(source.name, strided(indices, [source.stride[d] for d in dims])))
    body.store(value, target.name, strided(indices, [target.stride[d] for d in dims]))
    return Nest(target.name, tuple(axes), tuple(body.ops), step.origins)
