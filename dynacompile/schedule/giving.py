"""Where a backward program stops, so that gradients which are final can leave it while the rest is computed.

Between processes gradients are reduced as they come; a gradient that leaves at the end of the backward can't be reduced beside it. A stop costs a node of
autograd, so gradients leave in groups of some size, as buckets of reductions have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dynacompile.ir.loops import Buffer, Extern, root
from dynacompile.ir.schedule import Free, Give, Launch, Reuse, Schedule, Step, memory_bytes
from dynacompile.schedule.memory import lends

MOST = 8  # stops of a program, about


def give_early(plan: Schedule, early: Collection[int], least: int) -> Schedule:
    """The schedule with stops. early: the outputs that may leave before the end. least: bytes that leave together, at least."""
    final = final_steps(plan, early)
    total = sum(memory_bytes(plan.buffers[name]) for name in final)
    least = max(least, total // MOST)
    end = max((i for i, step in enumerate(plan.steps) if isinstance(step, Launch | Extern)), default=0)
    positions: dict[str, list[int]] = {}
    for position, name in enumerate(plan.outputs):
        if name is not None:
            positions.setdefault(root(plan.buffers, name), []).append(position)
    at: dict[int, list[str]] = {}
    for name, last in final.items():
        at.setdefault(last, []).append(name)
    steps: list[Step] = []
    waiting: list[str] = []
    for i, step in enumerate(plan.steps):
        steps.append(step)
        waiting += at.get(i, ())
        if i < end and waiting and sum(memory_bytes(plan.buffers[name]) for name in waiting) >= least:
            steps.append(Give(tuple(sorted(p for name in waiting for p in positions[name])), tuple(waiting)))
            waiting = []
    return replace(plan, steps=tuple(steps))


def final_steps(plan: Schedule, early: Collection[int]) -> dict[str, int]:
    """The last step that touches the memory of each output that may leave early. Memory that others hold, or that an op's result may share, stays."""
    given = {root(plan.buffers, name) for position, name in enumerate(plan.outputs) if name is not None and position in early}
    given -= {root(plan.buffers, name) for position, name in enumerate(plan.outputs) if name is not None and position not in early}
    given = {name for name in given if plan.buffers[name].kind in ("temp", "extern")}
    last: dict[str, int] = {}
    for i, step in enumerate(plan.steps):
        touched = memory_of(step, plan.buffers)
        last.update(dict.fromkeys(touched, i))
        if isinstance(step, Extern) and lends(step):
            given.difference_update(touched)
    return {name: last[name] for name in sorted(given) if name in last}


def memory_of(step: Step, buffers: Mapping[str, Buffer]) -> set[str]:
    """The owners of the memory that a step has to do with."""
    names: Sequence[str]
    match step:
        case Launch():
            names = step.buffers
        case Extern():
            names = (*(o for o in step.outputs if o is not None), *step.mutates, *step.reads())
        case Reuse():
            names = (step.buffer, step.donor)
        case Free() | Give():
            names = ()
        case _:
            names = (step.buffer,)
    return {root(buffers, name) for name in names}
