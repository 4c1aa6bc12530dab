"""Drops steps whose results nothing uses."""

from __future__ import annotations

from dataclasses import replace

from dynacompile.ir.loops import Extern, LoopProgram, Nest, root
from dynacompile.ops.checks import CHECKED, DIVIDING, FILLING
from dynacompile.ops.collectives import is_collective


def prune(program: LoopProgram) -> LoopProgram:
    """The program without dead steps, but for those that raise by values, and without buffers that are no longer named."""
    buffers = program.buffers
    memory = {name: root(buffers, name) for name in buffers}
    live = {memory[o] for o in program.outputs if o is not None}
    live |= {i for i in program.inputs if i is not None}
    kept: list[Nest | Extern] = []
    for step in reversed(program.steps):
        if isinstance(step, Nest):
            if not any(a.buffer in live for a in step.stores()):
                continue
            live.update(a.buffer for a in step.loads())
        else:
            written = {memory[o] for o in step.outputs if o is not None}
            if (
                not step.random
                and not is_collective(step.op)
                and not step.op._schema.is_mutable
                and step.op not in CHECKED
                and step.op not in DIVIDING
                and step.op not in FILLING
                and step.outputs
                and not written & live
            ):
                continue
            live.update(memory[r] for r in step.reads())
        kept.append(step)
    kept.reverse()
    named = {o for o in program.outputs if o is not None} | {i for i in program.inputs if i is not None}
    for step in kept:
        if isinstance(step, Nest):
            named.update(op.attr.buffer for op in step.body if op.name in ("load", "store"))
        else:
            named.update(step.reads(), (o for o in step.outputs if o is not None), step.mutates)
    named |= {memory[n] for n in named}
    return replace(
        program,
        steps=tuple(kept),
        buffers={n: b for n, b in buffers.items() if n in named},
        constants={n: t for n, t in program.constants.items() if n in named},
    )
