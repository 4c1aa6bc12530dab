"""Whole programs and schedules, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dynacompile.codegen.reference.nest import run_kernel, run_nest
from dynacompile.ir.index import Extent, Index, Symbol, evaluated
from dynacompile.ir.loops import Buffer, Extern, LoopProgram, Nest, Ref, root
from dynacompile.ir.schedule import Allocate, Free, Give, Launch, Member, Place, Reuse, Schedule
from dynacompile.ir.sizes import values_of


class Memory:
    """Tensors of the buffers that own memory; views and flat storages are made from them. sizes: the symbols' values in this run."""

    def __init__(self, buffers: Mapping[str, Buffer], constants: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]):
        self.buffers, self.sizes = buffers, sizes
        self.tensors: dict[str, torch.Tensor] = dict(constants)

    def number(self, extent: Extent) -> int:
        return evaluated(extent, self.sizes)

    def geometry(self, b: Buffer) -> tuple[list[int], list[int]]:
        return [self.number(n) for n in b.size], [self.number(s) for s in b.stride]

    def bind(self, names: Sequence[str | None], inputs: Sequence[object]) -> None:
        for name, value in zip(names, inputs, strict=True):
            if name is not None:
                self.tensors[name] = value  # type: ignore[assignment]

    def allocate(self, name: str) -> None:
        b = self.buffers[name]
        flat = torch.full((max(self.number(b.storage_elements), 0),), poison(b.dtype), dtype=b.dtype, device=b.device)
        self.tensors[name] = flat.as_strided(*self.geometry(b))

    def flat(self, name: str) -> torch.Tensor:
        """One-dimensional, from the first element of the memory to its end."""
        owner = root(self.buffers, name)
        if owner not in self.tensors:
            self.allocate(owner)
        tensor = self.tensors[owner]
        length = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return tensor.as_strided((length,), (1,))

    def tensor(self, name: str) -> torch.Tensor:
        b = self.buffers[name]
        owner = root(self.buffers, name)
        if owner not in self.tensors:
            self.allocate(owner)
        whole = self.tensors[owner]
        if b.base is None:
            return whole
        return whole.as_strided(*self.geometry(b), whole.storage_offset() + self.number(b.offset))

    def fill(self, arg: object) -> object:
        """An extern's argument with tensors for Refs."""
        if isinstance(arg, Ref):
            return self.tensor(arg.buffer)
        if isinstance(arg, (tuple, list)):
            return [self.fill(a) for a in arg]
        return self.number(arg) if isinstance(arg, Index) else arg

    def call(self, step: Extern) -> None:
        args, kwargs = [self.fill(a) for a in step.args], {k: self.fill(v) for k, v in step.kwargs.items()}
        if step.out is not None:
            step.out(*args, **kwargs, out=self.tensor(step.outputs[0]))  # type: ignore[arg-type]
            return
        results = step.op(*args, **kwargs)
        for name, value in zip(step.outputs, results if isinstance(results, (tuple, list)) else (results,)):
            if name is not None and step.template is not None:
                self.tensor(name).copy_(value)
            elif name is not None:
                self.tensors[name] = value


def poison(dtype: torch.dtype) -> float:
    """What fresh memory holds, so that a read before the write shows."""
    return float("nan") if dtype.is_floating_point or dtype.is_complex else 113 if dtype != torch.bool else True


def run_program(program: LoopProgram, inputs: Sequence[object]) -> list[torch.Tensor | None]:
    """The outputs of a loop program; inputs that it mutates are written to."""
    memory = Memory(program.buffers, program.constants, values_of(program.sizes, inputs))
    memory.bind(program.inputs, inputs)
    with torch.no_grad():
        for step in program.steps:
            if isinstance(step, Nest):
                run_nest(step, {a.buffer: memory.flat(a.buffer) for a in (*step.loads(), *step.stores())}, memory.sizes)
            else:
                memory.call(step)
        return [None if o is None else memory.tensor(o) for o in program.outputs]


def run_schedule(schedule: Schedule, inputs: Sequence[object]) -> list[torch.Tensor | None]:
    """The outputs of a schedule, its temps placed in one arena as planned; inputs that it mutates are written to."""
    memory = Memory(schedule.buffers, schedule.constants, values_of(schedule.sizes, inputs))
    memory.bind(schedule.inputs, inputs)
    arenas = {torch.device("cpu"): torch.full((schedule.host_arena,), 0x7F, dtype=torch.uint8)}
    arenas[schedule.device] = torch.full((schedule.arena,), 0x7F, dtype=torch.uint8, device=schedule.device)
    with torch.no_grad():
        for step in schedule.steps:
            match step:
                case Allocate(name):
                    memory.allocate(name)
                case Reuse(name, donor):
                    memory.allocate(name)
                    if donor not in schedule.inputs:  # the caller's inputs stay as they are
                        b, taken = schedule.buffers[name], memory.tensors[donor].untyped_storage()
                        if taken.nbytes() >= memory.number(b.storage_elements) * b.dtype.itemsize:
                            memory.tensors[name] = torch.empty(0, dtype=b.dtype, device=b.device).set_(taken, 0, *memory.geometry(b)[:2])
                case Place(name, offset):
                    b = schedule.buffers[name]
                    part = arenas[b.device][offset : offset + memory.number(b.storage_elements) * b.dtype.itemsize].view(b.dtype)
                    memory.tensors[name] = part.as_strided(*memory.geometry(b))
                case Launch(kernel):
                    chosen = schedule.kernels[kernel]
                    for names, own in zip(step.members(), step.sizes or ((),), strict=True):
                        tensors = [memory.flat(n).view(p.dtype) for n, p in zip(names, chosen.params, strict=True)]
                        run_kernel(Member(chosen, own) if chosen.is_list else chosen, tensors, [memory.sizes[s] for s in chosen.symbols])
                case Free(name):
                    memory.tensors.pop(name, None)
                case Give():
                    pass
                case Extern():
                    memory.call(step)
        return [None if o is None else memory.tensor(o) for o in schedule.outputs]
