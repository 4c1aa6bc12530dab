"""Stage 6: nests are fused where that saves memory traffic, ordered, and given memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from dynacompile.env import Env
from dynacompile.events import FusionDecided
from dynacompile.ir.alike import ProgramParts
from dynacompile.ir.index import Symbol
from dynacompile.ir.loops import Buffer, Extern, LoopProgram, Nest, root
from dynacompile.ir.products import Choose
from dynacompile.ir.ranges import WHOLE, Range, written
from dynacompile.ir.schedule import Kernel, Launch, Schedule, Step
from dynacompile.ir.sizes import sizes_of, symbols_in
from dynacompile.schedule.columns import fold_columns
from dynacompile.schedule.domain import normalize
from dynacompile.schedule.draws import with_whole_blocks
from dynacompile.schedule.emit import Kernels, join, lay_out
from dynacompile.schedule.fuse import fuse
from dynacompile.schedule.giving import give_early
from dynacompile.schedule.inline import inline
from dynacompile.schedule.layout import pad_matrices
from dynacompile.schedule.lists import Group, gather
from dynacompile.schedule.memory import CPU, NOTHING, GivenUp, Run, buffers_of, plan, unfused_peak
from dynacompile.schedule.mirror import facing_forward
from dynacompile.schedule.order import order
from dynacompile.schedule.parts import Copies, Names, joined, named_apart
from dynacompile.schedule.product_model import expected, is_known
from dynacompile.schedule.products import fuse_products
from dynacompile.schedule.simplify import simplified, without_one_hot_sums
from dynacompile.schedule.starved import split_reductions
from dynacompile.schedule.units import Unit, Units, make_units

__all__ = ["expected", "is_known", "schedule", "schedule_parts"]

SPANS = 8  # of a backward whose gradients leave it as they are final


def schedule(program: LoopProgram, env: Env, saved: range | None = None, choose: Choose = expected, early: Collection[int] = ()) -> Schedule:
    """Fused kernels in execution order with planned memory. With `config.fuse` off, one kernel per nest. Deterministic.

    saved: of a backward, the inputs that are results of our forward. Its caller lets go of all inputs that the program frees. choose: whether a product of
    matrices is one kernel with the kernel that reads its results; else what the model of the device expects. early: outputs that leave as they are final."""
    given = given_up(program, saved)
    made = emit(fused(prepared(program, env), env), env, given_up=given, choose=choose, spans=SPANS if early else 1)
    if early:
        made = give_early(made, early, env.config.gradient_bytes)
    return verified(replace(made, unfused_peak=unfused_peak(program, given.ours)), env)


def given_up(program: LoopProgram, saved: range | None) -> GivenUp:
    if saved is None:
        return NOTHING
    names = [None if name is None else root(program.buffers, name) for name in program.inputs]
    twice = {name for name, n in Counter(names).items() if n > 1}
    ours = frozenset(name for i, name in enumerate(names) if i in saved and name is not None) - twice
    return GivenUp(frozenset(name for name in names if name is not None) - twice, ours)


def schedule_parts(parts: ProgramParts, env: Env) -> Schedule:
    """The same of a program that falls apart into like parts: each is fused once, and its copies run beside it."""
    programs = named_apart([prepared(program, env) for program in parts.programs], parts)
    units, copies = joined([fused(program, env) for program in programs], parts)
    return verified(emit(units, env, copies), env)


def verified(result: Schedule, env: Env) -> Schedule:
    if env.config.verify:
        result.verify()
    return result


def prepared(program: LoopProgram, env: Env) -> LoopProgram:
    """The program with what fusing starts from. New buffers have names of their own within it."""
    if env.config.fuse:
        program = pad_matrices(inline(program))
    program = replace(program, steps=tuple(normalize(facing_forward(without_one_hot_sums(s))) if isinstance(s, Nest) else s for s in program.steps))
    if env.config.fuse:
        program = split_reductions(program)
    return program


def fused(program: LoopProgram, env: Env) -> Units:
    """The kernels and calls of a prepared program."""
    units = make_units(program)
    if env.config.fuse:
        fuse(units)
        fold_columns(units)
    return units


def emit(units: Units, env: Env, copies: Copies | None = None, given_up: GivenUp = NOTHING, choose: Choose | None = None, spans: int = 1) -> Schedule:
    """Kernels, launches and memory of units that are fused. copies: of a program that is made of parts, their other occurrences. spans: see `gather`."""
    memory: dict[str, Range] = {}
    nests = kernel_nests(units, memory, env)
    scratch: tuple[str, ...] = ()
    if env.config.fuse and choose is not None:
        units, scratch = fuse_products(units, nests, env, choose)
    program = units.program
    kernels = Kernels(program.buffers, memory)
    groups: dict[int, Group] = {}
    if env.config.fuse:
        groups, apart = gather(units, nests, spans)
        for members, reason in apart:
            env.emit(listed(env, "", members, False, reason))
    copies = copies or Copies.none(program)
    runs: list[Run] = []
    for unit in order(units, env.config.flight_bytes):
        if unit.extern is not None and unit.extern.template is not None:
            name, given = kernels.launch_call(unit.extern, units.roots)
            for names in copies.names[unit.part]:
                _, reads, writes = call_of(unit.extern, units.roots, names)
                runs.append((Launch(name, names.all(given)), reads, writes))
        elif unit.extern is not None:
            runs += [call_of(unit.extern, units.roots, names) for names in copies.names[unit.part]]
        elif unit.id in groups:
            runs.append(launch_of_list(groups[unit.id], nests, kernels, env, copies))
        elif nests[unit.id].stores():
            own = scratch if nests[unit.id].is_product else ()
            name, given = kernels.launch(nests[unit.id], scratch=own)
            if len(unit.members) > 1:
                env.emit(decision(env, name, unit, given, program.buffers))
            reads, writes = buffers_of(nests[unit.id])
            touched = reads, (*writes, *own)
            for names in copies.names[unit.part]:
                runs.append((Launch(name, names.all(given)), names.all(touched[0]), names.all(touched[1])))
    device = main_device(program)
    buffers = copies.buffers(program, names_used(program.buffers, runs, copies))
    kept = frozenset(root(buffers, o) for o in copies.outputs if o is not None)
    steps, arenas = plan(runs, buffers, kernels.by_name, kept, device, given_up)
    host = 0 if device == CPU else arenas[CPU]
    sizes = program.sizes and sizes_of(symbols_used(buffers, kernels.by_name, steps), program.sizes.sources, program.sizes.checks)
    arena, constants = arenas[device], program.constants
    return Schedule(copies.inputs, copies.outputs, buffers, kernels.by_name, tuple(steps), arena, device, constants, sizes, given_up.ours, host_arena=host)


def names_used(buffers: Mapping[str, Buffer], runs: Sequence[Run], copies: Copies) -> set[str]:
    """The buffers that inputs, outputs and steps name, and those that these are views of."""
    found: set[str] = {n for n in (*copies.inputs, *copies.outputs) if n is not None}
    for step, reads, writes in runs:
        found.update(reads, writes, step.buffers if isinstance(step, Launch) else (o for o in (*step.reads(), *step.outputs) if o is not None))
    for name in list(found):
        while (above := buffers.get(name)) is not None and above.base is not None:
            name = above.base
            found.add(name)
    return found


def kernel_nests(units: Units, memory: dict[str, Range], env: Env) -> dict[int, Nest]:
    """What the kernel of each unit does that is no call. memory: gets the ranges of what kernels hand to others in buffers that nothing else writes, where
    places are among it."""
    buffers = units.program.buffers
    found: dict[int, Nest] = {}
    whole = any(b.kind == "temp" and b.dtype in WHOLE for b in buffers.values())
    places = whole and any(reads_at_elements(nest) for unit in units.by_id.values() for _, nest in unit.members)
    for unit in order(units, env.config.flight_bytes) if places else units.by_id.values():
        if unit.extern is None:
            stored = [w for w in unit.writes if w in units.kept or units.readers.get(w, set()) - {unit.id}]
            nest = unit.members[0][1] if len(unit.members) == 1 else join([n for _, n in unit.members], unit.axes, stored, units.program.buffers)
            found[unit.id] = with_whole_blocks(lay_out(simplified(nest, buffers, memory), buffers), buffers) if nest.stores() else nest
            if places:
                made = written(found[unit.id], memory)
                memory |= {b: r for b, r in made.items() if buffers[b].kind == "temp" and units.writers.get(b) == {unit.id}}
    return found


def reads_at_elements(nest: Nest) -> bool:
    """Whether it reads or writes at places that are values of its own."""
    return any(v.name[0] == "%" for a in (*nest.loads(), *nest.stores()) for v in a.index.variables())


def call_of(step: Extern, roots: Mapping[str, str], names: Names) -> Run:
    reads = tuple(dict.fromkeys(roots[r] for r in step.reads()))
    writes = tuple(dict.fromkeys([*(roots[o] for o in step.outputs if o is not None), *(roots[m] for m in step.mutates)]))
    return step.with_names(names.__getitem__) if names.suffix or names.inputs else step, names.all(reads), names.all(writes)


def launch_of_list(group: Group, nests: Mapping[int, Nest], kernels: Kernels, env: Env, copies: Copies) -> Run:
    """One launch for all members."""
    name, _ = kernels.launch(group.nest, group.own)
    for unit, given in zip(group.units, group.buffers, strict=True):
        if len(unit.members) > 1:
            env.emit(decision(env, name, unit, given, kernels.buffers))
    count = sum(unit.copies for unit in group.units)
    env.emit(listed(env, name, group.units, True, f"{count} like kernels over different tensors are one kernel over a list of them"))
    buffers: list[str] = []
    sizes: list[tuple[int, ...]] = []
    reads, writes = {}, {}  # type: dict[str, None], dict[str, None]
    for unit, given, own in zip(group.units, group.buffers, group.sizes, strict=True):
        touched = buffers_of(nests[unit.id])
        for names in copies.names[unit.part]:
            buffers += names.all(given)
            sizes.append(own)
            reads.update(dict.fromkeys(names.all(touched[0])))
            writes.update(dict.fromkeys(names.all(touched[1])))
    return Launch(name, tuple(buffers), tuple(sizes)), tuple(reads), tuple(writes)


def symbols_used(buffers: Mapping[str, Buffer], kernels: Mapping[str, Kernel], steps: Sequence[Step]) -> set[Symbol]:
    """The symbols that memory, kernels and calls need."""
    found = {s for b in buffers.values() for s in symbols_in((b.size, b.stride, b.offset))}
    for kernel in kernels.values():
        found.update(kernel.symbols)
    for step in steps:
        if isinstance(step, Extern):
            found |= step.symbols()
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
