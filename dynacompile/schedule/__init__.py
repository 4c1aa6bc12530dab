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
from dynacompile.schedule.lists import Group, gather
from dynacompile.schedule.memory import Run, buffers_of, plan
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
    result = emit(units, env)
    if env.config.verify:
        result.verify()
    return result


def emit(units: Units, env: Env) -> Schedule:
    """Kernels, launches and memory of units that are fused."""
    program = units.program
    buffers = program.buffers
    kernels = Kernels(buffers)
    nests = kernel_nests(units)
    groups: dict[int, Group] = {}
    if env.config.fuse:
        groups, apart = gather(units, nests)
        for members, reason in apart:
            env.emit(listed(env, "", members, False, reason))
    runs: list[Run] = []
    for unit in order(units):
        if unit.extern is not None:
            runs.append(call_of(unit.extern, units.roots))
        elif unit.id in groups:
            runs.append(launch_of_list(groups[unit.id], nests, kernels, env))
        elif nests[unit.id].stores():
            name, given = kernels.launch(nests[unit.id])
            if len(unit.members) > 1:
                env.emit(decision(env, name, unit, given, buffers))
            runs.append((Launch(name, given), *buffers_of(nests[unit.id])))
    device = main_device(program)
    outputs = frozenset(units.roots[o] for o in program.outputs if o is not None)
    steps, arena = plan(runs, buffers, kernels.by_name, outputs, device)
    sizes = program.sizes and sizes_of(symbols_used(buffers, kernels.by_name, steps), program.sizes.sources, program.sizes.checks)
    return Schedule(program.inputs, program.outputs, buffers, kernels.by_name, tuple(steps), arena, device, program.constants, sizes)


def kernel_nests(units: Units) -> dict[int, Nest]:
    """What the kernel of each unit does that is no call."""
    buffers = units.program.buffers
    found: dict[int, Nest] = {}
    for unit in units.by_id.values():
        if unit.extern is None:
            stored = [w for w in unit.writes if w in units.kept or units.readers.get(w, set()) - {unit.id}]
            nest = unit.members[0][1] if len(unit.members) == 1 else join([n for _, n in unit.members], unit.axes, stored)
            found[unit.id] = lay_out(without_double_rounding(without_settled_choices(nest), buffers), buffers) if nest.stores() else nest
    return found


def call_of(step: Extern, roots: Mapping[str, str]) -> Run:
    reads = tuple(dict.fromkeys(roots[r] for r in step.reads()))
    writes = tuple(dict.fromkeys([*(roots[o] for o in step.outputs if o is not None), *(roots[m] for m in step.mutates)]))
    return step, reads, writes


def launch_of_list(group: Group, nests: Mapping[int, Nest], kernels: Kernels, env: Env) -> Run:
    """One launch for all members."""
    name, _ = kernels.launch(group.nest, group.own)
    for unit, given in zip(group.units, group.buffers, strict=True):
        if len(unit.members) > 1:
            env.emit(decision(env, name, unit, given, kernels.buffers))
    env.emit(listed(env, name, group.units, True, f"{len(group.units)} like kernels over different tensors are one kernel over a list of them"))
    touched = [buffers_of(nests[u.id]) for u in group.units]
    reads, writes = (tuple(dict.fromkeys(b for both in touched for b in both[k])) for k in (0, 1))
    return Launch(name, tuple(b for given in group.buffers for b in given), group.sizes), reads, writes


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


def listed(env: Env, kernel: str, units: Sequence[Unit], fused: bool, reason: str) -> FusionDecided:
    """Whether like units became one nest over a list."""
    members = tuple(unit.members[-1][1].name for unit in units)
    return FusionDecided(region=env.region, bucket=env.bucket, kernel=kernel, members=members, bytes_saved=0, fused=fused, reason=reason)


def main_device(program: LoopProgram) -> torch.device:
    """The first accelerator that a buffer is on, else the CPU."""
    devices = dict.fromkeys(b.device for b in program.buffers.values())
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
