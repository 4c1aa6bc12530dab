"""Where buffers live: outputs get tensors of their own, what an extern allocates is freed after its last use, all other temps share one arena."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from dynacompile.ir.loops import Buffer, Extern, Nest
from dynacompile.ir.schedule import Allocate, Free, Kernel, Launch, Place, Step

ALIGNMENT = {"cpu": 64, "cuda": 512}
CPU = torch.device("cpu")
Run = tuple[Launch | Extern, tuple[str, ...], tuple[str, ...]]
"""A step, the buffers that it reads, and those that it writes, by owners of memory."""


@dataclass
class Arena:
    """A first-come plan of one block of memory: free ranges are kept sorted, the best fitting is taken, neighbours are joined."""

    alignment: int
    size: int = 0
    free: list[tuple[int, int]] = field(default_factory=list)  # (offset, bytes), by offset

    def rounded(self, count: int) -> int:
        return -(-count // self.alignment) * self.alignment

    def take(self, count: int) -> int:
        count = self.rounded(count)
        if count == 0:
            return 0
        fits = [(n, o) for o, n in self.free if n >= count]
        if fits:
            n, offset = min(fits)
            place = self.free.index((offset, n))
            self.free[place : place + 1] = [(offset + count, n - count)] if n > count else []
            return offset
        if self.free and sum(self.free[-1]) == self.size:
            offset, _ = self.free.pop()
        else:
            offset = self.size
        self.size = offset + count
        return offset

    def give(self, offset: int, count: int) -> None:
        count = self.rounded(count)
        if count == 0:
            return
        place = 0
        while place < len(self.free) and self.free[place][0] < offset:
            place += 1
        self.free.insert(place, (offset, count))
        if place + 1 < len(self.free) and offset + count == self.free[place + 1][0]:
            self.free[place : place + 2] = [(offset, count + self.free[place + 1][1])]
        if place > 0 and sum(self.free[place - 1]) == offset:
            o, n = self.free[place - 1]
            self.free[place - 1 : place + 1] = [(o, n + self.free[place][1])]


def plan(
    runs: Sequence[Run],
    buffers: Mapping[str, Buffer],
    kernels: Mapping[str, Kernel],
    outputs: frozenset[str],
    device: torch.device,
) -> tuple[list[Step], dict[torch.device, int]]:
    """The steps with memory between them, and the bytes of each device's arena: of `device`, and of the CPU.

    runs: in execution order. A temp that no arena can hold (on another device, or lent to an op whose result shares it, or as large as the call says) is
    allocated like an output.
    """
    last: dict[str, int] = {}
    for i, (_, reads, writes) in enumerate(runs):
        for name in (*reads, *writes):
            last[name] = i
    lent = lent_buffers(runs)
    arenas = {place: Arena(ALIGNMENT.get(place.type, 64)) for place in (CPU, device)}
    placed: dict[str, int] = {}
    known: set[str] = set()
    steps: list[Step] = []
    for i, (step, reads, writes) in enumerate(runs):
        places = {name: k for k, name in enumerate(step.buffers)} if isinstance(step, Launch) else {}
        shared = {name for name, n in Counter(step.buffers).items() if n > 1} if isinstance(step, Launch) and step.sizes else frozenset()
        for name in (*writes, *reads):  # what is read before any write has no elements
            buffer = buffers[name]
            if name in known or buffer.kind != "temp":
                continue
            known.add(name)
            if name in outputs or name in lent or buffer.device not in arenas or buffer.is_symbolic:
                steps.append(Allocate(name))
                continue
            donor = in_place_donor(name, step, reads, places, shared, i, last, placed, buffers, kernels)
            placed[name] = placed.pop(donor) if donor is not None else arenas[buffer.device].take(memory_bytes(buffer))
            steps.append(Place(name, placed[name]))
        steps.append(step)
        for name in dict.fromkeys((*reads, *writes)):
            if last[name] != i:
                continue
            if name in placed:
                arenas[buffers[name].device].give(placed.pop(name), memory_bytes(buffers[name]))
            elif name not in outputs and (
                buffers[name].kind == "extern"
                or (buffers[name].kind == "temp" and name in known and (name in lent or buffers[name].device not in arenas or buffers[name].is_symbolic))
            ):
                steps.append(Free(name))
    steps += [Allocate(name) for name in sorted(outputs) if buffers[name].kind == "temp" and name not in known]
    return steps, {place: arena.size for place, arena in arenas.items()}


def memory_bytes(buffer: Buffer) -> int:
    return buffer.storage_elements * buffer.dtype.itemsize


def lent_buffers(runs: Sequence[Run]) -> set[str]:
    """Buffers that an op's result may share memory with."""
    found: set[str] = set()
    for step, reads, _ in runs:
        if isinstance(step, Extern) and step.out is None and any(r.alias_info is not None and not r.alias_info.is_write for r in step.op._schema.returns):
            found.update(reads)
    return found


def in_place_donor(
    name: str,
    step: Launch | Extern,
    reads: Sequence[str],
    places: Mapping[str, int],
    shared: Set[str],
    now: int,
    last: Mapping[str, int],
    placed: Mapping[str, int],
    buffers: Mapping[str, Buffer],
    kernels: Mapping[str, Kernel],
) -> str | None:
    """A temp that dies here and whose memory the output can take: each point reads only the element that it writes, and before it writes.

    places: where the step's params have a buffer. shared: what several members of a list have."""
    if not isinstance(step, Launch):
        return None
    kernel = kernels[step.kernel]
    wanted = buffers[name]
    place = places[name]
    stored = {a.index for a in kernel.nest.stores() if a.buffer == kernel.params[place % len(kernel.params)].name and a.mask is None and not a.summed}
    first_store = next(i for i, op in enumerate(kernel.nest.body) if op.name == "store")
    if len(stored) != 1 or any(op.name == "load" for op in kernel.nest.body[first_store:]):
        return None
    start = place // len(kernel.params) * len(kernel.params)
    own = step.buffers[start : start + len(kernel.params)]  # of a list, one member's
    for donor in own if step.sizes else reads:
        have = buffers[donor]
        if (
            last[donor] != now
            or donor not in placed
            or have.device != wanted.device
            or have.dtype.itemsize != wanted.dtype.itemsize
            or memory_bytes(have) != memory_bytes(wanted)
            or donor == name
            or donor in shared
        ):
            continue
        param = kernel.params[own.index(donor)].name
        loads = [a for a in kernel.nest.loads() if a.buffer == param]
        if loads and {a.index for a in loads} == stored and param not in {a.buffer for a in kernel.nest.stores()}:
            return donor
    return None


def buffers_of(nest: Nest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(read, written) buffers of a nest."""
    return tuple(dict.fromkeys(a.buffer for a in nest.loads())), tuple(dict.fromkeys(a.buffer for a in nest.stores()))
