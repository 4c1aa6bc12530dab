"""Stage 6: nests are fused where that saves memory traffic, ordered, and given memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dynacompile.env import Env
from dynacompile.events import FusionDecided
from dynacompile.ir.index import Symbol
from dynacompile.ir.loops import Buffer, Extern, LoopProgram, Nest
from dynacompile.ir.schedule import Kernel, Launch, Schedule, Step
from dynacompile.ir.sizes import sizes_of, symbols_in
from dynacompile.schedule.columns import fold_columns
from dynacompile.schedule.domain import normalize
from dynacompile.schedule.emit import Kernels, join, lay_out
from dynacompile.schedule.fuse import fuse
from dynacompile.schedule.inline import inline
from dynacompile.schedule.layout import pad_matrices
from dynacompile.schedule.memory import buffers_of, plan
from dynacompile.schedule.order import order
from dynacompile.schedule.simplify import without_double_rounding, without_one_hot_sums, without_settled_choices
from dynacompile.schedule.starved import split_reductions
from dynacompile.schedule.units import Unit, Units, make_units

__all__ = ["schedule"]


def schedule(program: LoopProgram, env: Env) -> Schedule:
    """Fused kernels in execution order with planned memory. With `config.fuse` off, one kernel per nest. Deterministic."""
    if env.config.fuse:
        program = pad_matrices(inline(program))
    program = replace(program, steps=tuple(normalize(without_one_hot_sums(s)) if isinstance(s, Nest) else s for s in program.steps))
    if env.config.fuse:
        program = split_reductions(program)
    units = make_units(program)
    if env.config.fuse:
        fuse(units)
        fold_columns(units)
    result = emit(units, order(units), env)
    if env.config.verify:
        result.verify()
    return result


def emit(units: Units, ordered: list[Unit], env: Env) -> Schedule:
    """Kernels, launches and memory for units in order."""
    program = units.program
    buffers, roots = program.buffers, units.roots
    kernels = Kernels(buffers)
    runs: list[tuple[Launch | Extern, tuple[str, ...], tuple[str, ...]]] = []
    for unit in ordered:
        if unit.extern is not None:
            step = unit.extern
            reads = tuple(dict.fromkeys(roots[r] for r in step.reads()))
            writes = tuple(dict.fromkeys([*(roots[o] for o in step.outputs if o is not None), *(roots[m] for m in step.mutates)]))
            runs.append((step, reads, writes))
            continue
        stored = [w for w in unit.writes if w in units.kept or units.readers.get(w, set()) - {unit.id}]
        nest = unit.members[0][1] if len(unit.members) == 1 else join([n for _, n in unit.members], unit.axes, stored)
        if not nest.stores():
            continue
        nest = lay_out(without_double_rounding(without_settled_choices(nest), buffers), buffers)
        name, given = kernels.launch(nest)
        if len(unit.members) > 1:
            env.emit(decision(env, name, unit, given, buffers))
        runs.append((Launch(name, given), *buffers_of(nest)))
    device = main_device(program)
    outputs = frozenset(roots[o] for o in program.outputs if o is not None)
    steps, arena = plan(runs, buffers, kernels.by_name, outputs, device)
    sizes = program.sizes and sizes_of(symbols_used(buffers, kernels.by_name, steps), program.sizes.sources, program.sizes.checks)
    return Schedule(program.inputs, program.outputs, buffers, kernels.by_name, tuple(steps), arena, device, program.constants, sizes)


def symbols_used(buffers: Mapping[str, Buffer], kernels: Mapping[str, Kernel], steps: Sequence[Step]) -> set[Symbol]:
    """The symbols that memory, kernels and calls need."""
    found = {s for b in buffers.values() for s in symbols_in((b.size, b.stride, b.offset))}
    for kernel in kernels.values():
        found.update(kernel.symbols)
    for step in steps:
        if isinstance(step, Extern):
            found.update(symbols_in((step.args, dict(step.kwargs))))
    return found


def decision(env: Env, kernel: str, unit: Unit, given: Sequence[str], buffers: Mapping[str, Buffer]) -> FusionDecided:
    """What joining the unit's nests saved: bytes that they would move each by itself, less the kernel's."""
    apart = sum(buffers[b].bytes for _, nest in unit.members for b in {a.buffer for a in (*nest.loads(), *nest.stores())})
    members = tuple(nest.name for _, nest in unit.members)
    saved = apart - sum(buffers[b].bytes for b in given)
    return FusionDecided(region=env.region, bucket=env.bucket, kernel=kernel, members=members, bytes_saved=saved, fused=True)


def main_device(program: LoopProgram) -> torch.device:
    """The first accelerator that a buffer is on, else the CPU."""
    devices = dict.fromkeys(b.device for b in program.buffers.values())
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
