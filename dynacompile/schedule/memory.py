"""Where buffers live: outputs and large temps get tensors of their own, small temps share one arena. What is allocated is freed after its last use, or given
to a buffer that is written in its place.

The arena is held from the begin of a call to its end, so what is large does not belong there: while a backward runs, its temps come as what is saved goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, field

import torch

from dynacompile.ir.body import needs
from dynacompile.ir.index import Index, Var
from dynacompile.ir.loops import Buffer, Extern, LoopProgram, Nest, root
from dynacompile.ir.schedule import Allocate, Free, Kernel, Launch, Place, Reuse, Step, memory_bytes, memory_extent

ALIGNMENT = {"cpu": 64, "cuda": 512}
CPU = torch.device("cpu")
LARGE = 1 << 20  # bytes from which a temp is worth an allocation of its own
FREED = {"cpu": 1 << 14}  # bytes from which an input is worth one more step, which takes as long as a hundredth of a kernel that reads these; elsewhere LARGE
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


@dataclass(frozen=True)
class GivenUp:
    """What the caller of a program lets go of when the program frees it. inputs: names of all such inputs; ours: of those that our programs allocated."""

    inputs: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()


NOTHING = GivenUp()


def plan(
    runs: Sequence[Run],
    buffers: Mapping[str, Buffer],
    kernels: Mapping[str, Kernel],
    outputs: frozenset[str],
    device: torch.device,
    given_up: GivenUp = NOTHING,
) -> tuple[list[Step], dict[torch.device, int]]:
    """The steps with memory between them, and the bytes of each device's arena: of `device`, and of the CPU.

    runs: in execution order. A temp that no arena can hold (on another device, or lent to an op whose result shares it, or as large as the call says), or
    that is large, is allocated like an output.
    """
    last: dict[str, int] = {}
    for i, (_, reads, writes) in enumerate(runs):
        for name in (*reads, *writes):
            last[name] = i
    freed = freed_inputs(runs, buffers, outputs, given_up, FREED.get(device.type, LARGE))
    return Planner(buffers, kernels, outputs, device, last, lent_buffers(runs), freed, freed & given_up.ours).run(runs)


class Planner:
    """One plan. placed: offsets of the temps that are in the arena now. held: what is freed by a step of its own after its last use; owned: of these, whose
    memory another buffer may take."""

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        kernels: Mapping[str, Kernel],
        outputs: frozenset[str],
        device: torch.device,
        last: Mapping[str, int],
        lent: Set[str],
        held: Set[str],
        owned: Set[str],
    ):
        self.buffers, self.kernels, self.outputs, self.device, self.last, self.lent = buffers, kernels, outputs, device, last, lent
        self.arenas = {place: Arena(ALIGNMENT.get(place.type, 64)) for place in (CPU, device)}
        self.placed: dict[str, int] = {}
        self.held, self.owned = set(held), set(owned)
        self.known: set[str] = set()
        self.sizes: dict[tuple, int] = {}  # in bytes, by geometry: a program with thousands of temps has few
        self.steps: list[Step] = []

    def run(self, runs: Sequence[Run]) -> tuple[list[Step], dict[torch.device, int]]:
        for i, (step, reads, writes) in enumerate(runs):
            places = {name: k for k, name in enumerate(step.buffers)} if isinstance(step, Launch) else {}
            shared = {name for name, n in Counter(step.buffers).items() if n > 1} if isinstance(step, Launch) and step.sizes else frozenset()
            for name in (*writes, *reads):  # what is read before any write has no elements
                if name in self.known or self.buffers[name].kind != "temp":
                    continue
                self.known.add(name)
                alone = self.is_alone(name)
                donors = self.owned if alone else self.placed
                donor = in_place_donor(name, step, reads, places, shared, i, self.last, donors, self.buffers, self.kernels)
                if alone:
                    self.allocate(name, donor)
                else:
                    self.place(name, donor)
            self.steps.append(step)
            if isinstance(step, Extern) and not lends(step):
                self.owned.update(name for name in writes if self.buffers[name].kind == "extern" and name not in self.outputs)
            for name in dict.fromkeys((*reads, *writes)):
                self.touched(name, i)
        self.steps += [Allocate(name) for name in sorted(self.outputs) if self.buffers[name].kind == "temp" and name not in self.known]
        return self.steps, {place: arena.size for place, arena in self.arenas.items()}

    def is_alone(self, name: str) -> bool:
        """Whether a temp gets a tensor of its own, and is not in the arena."""
        buffer = self.buffers[name]
        return name in self.outputs or name in self.lent or buffer.device not in self.arenas or buffer.is_symbolic or self.bytes(buffer) >= LARGE

    def bytes(self, buffer: Buffer) -> int:
        key = buffer.size, buffer.stride, buffer.dtype
        found = self.sizes.get(key)
        if found is None:
            found = self.sizes[key] = memory_bytes(buffer)
        return found

    def place(self, name: str, donor: str | None) -> None:
        self.placed[name] = self.arenas[self.buffers[name].device].take(self.bytes(self.buffers[name])) if donor is None else self.placed.pop(donor)
        self.steps.append(Place(name, self.placed[name]))

    def allocate(self, name: str, donor: str | None) -> None:
        if donor is not None:
            self.owned.remove(donor)
        self.steps.append(Allocate(name) if donor is None else Reuse(name, donor))
        if name not in self.outputs:
            self.held.add(name)
            if name not in self.lent:
                self.owned.add(name)

    def touched(self, name: str, now: int) -> None:
        """Frees what the step was the last to touch."""
        buffer = self.buffers[name]
        if buffer.kind == "extern" and name not in self.outputs:
            self.held.add(name)
        if self.last[name] != now:
            return
        if name in self.placed:
            self.arenas[buffer.device].give(self.placed.pop(name), self.bytes(buffer))
        elif name in self.held:
            self.held.remove(name)
            self.owned.discard(name)
            self.steps.append(Free(name))


def freed_inputs(runs: Sequence[Run], buffers: Mapping[str, Buffer], outputs: frozenset[str], given_up: GivenUp, least: int) -> set[str]:
    """Inputs of so many bytes, which are worth a step that frees them. One that is written is the caller's."""
    written = {name for _, _, writes in runs for name in writes}
    return {name for name in given_up.inputs - written - outputs if memory_bytes(buffers[name]) >= least}


def unfused_peak(program: LoopProgram, ours: Set[str]) -> int:
    """Bytes at their peak, in the example, where each step runs by itself, and what it makes is dropped after its last use. ours: as in GivenUp."""
    buffers = program.buffers
    runs = [touched_by(program, step) for step in program.steps]
    last = {name: i for i, names in enumerate(runs) for name in names}
    kept = {root(buffers, name) for name in program.outputs if name is not None}
    held = {name: memory_bytes(buffers[name]) for name in ours}
    now = most = sum(held.values())
    for i, names in enumerate(runs):
        for name in names:
            if name not in held and buffers[name].kind in ("temp", "extern"):
                held[name] = memory_bytes(buffers[name])
                now += held[name]
        most = max(most, now)
        for name in names:
            if last[name] == i and name not in kept:
                now -= held.pop(name, 0)
    return most


def touched_by(program: LoopProgram, step: Nest | Extern) -> dict[str, None]:
    """The owners of the memory that a step reads or writes."""
    if isinstance(step, Nest):
        reads, writes = buffers_of(step)
        return dict.fromkeys((*writes, *reads))
    names = (*(o for o in step.outputs if o is not None), *step.mutates, *step.reads())
    return dict.fromkeys(root(program.buffers, name) for name in names)


def lends(step: Extern) -> bool:
    """Whether what it returns may share memory with what it takes."""
    return step.out is None and any(r.alias_info is not None and not r.alias_info.is_write for r in step.op._schema.returns)


def lent_buffers(runs: Sequence[Run]) -> set[str]:
    """Buffers that an op's result may share memory with."""
    found: set[str] = set()
    for step, reads, _ in runs:
        if isinstance(step, Extern) and lends(step):
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
    donors: Container[str],
    buffers: Mapping[str, Buffer],
    kernels: Mapping[str, Kernel],
) -> str | None:
    """One of the donors that dies here and whose memory the output can take: each point reads only the element that it writes, and before it writes.
    On GPUs a row may also read some of its elements at first, where it writes what depends on all of them.

    places: where the step's params have a buffer. shared: what several members of a list have."""
    if not isinstance(step, Launch):
        return None
    kernel = kernels[step.kernel]
    if kernel.call is not None:
        return None
    wanted = buffers[name]
    place = places[name]
    start = place // len(kernel.params) * len(kernel.params)
    own = step.buffers[start : start + len(kernel.params)]  # of a list, one member's
    have = [d for d in (own if step.sizes else reads) if d in donors and last[d] == now and d != name and d not in shared and is_alike(buffers[d], wanted)]
    if not have:
        return None
    param = kernel.params[place % len(kernel.params)].name
    stored = {a.index for a in kernel.nest.stores() if a.buffer == param and a.mask is None and not a.summed and not a.added}
    first_store = next(i for i, op in enumerate(kernel.nest.body) if op.name == "store")
    if len(stored) != 1 or any(op.name == "load" for op in kernel.nest.body[first_store:]):
        return None
    for donor in have:
        param = kernel.params[own.index(donor)].name
        loads = [a for a in kernel.nest.loads() if a.buffer == param]
        others = {a.index for a in loads} - stored
        first = not others or (kernel.device.type == "cuda" and is_read_first(kernel.nest, others, next(iter(stored))))
        if loads and first and {a.index for a in loads} >= stored and param not in {a.buffer for a in kernel.nest.stores()}:
            return donor
    return None


def is_read_first(nest: Nest, read: Set[Index], stored: Index) -> bool:
    """Whether each row reads at `read` only elements of its own, before anything is reduced, and stores at `stored` what depends on results of reductions,
    for which all of the row's threads have to come that far."""
    reduced = {a.var for a in nest.r_axes}
    late: set[int] = set()
    for i, op in enumerate(nest.body):
        if op.name == "reduce" or not late.isdisjoint(needs(op)):
            late.add(i)
    starts = [t for t in stored.terms if reduced.isdisjoint(Index([t]).variables())]
    of_row = Index(starts, stored.constant)
    last = (stored - of_row).bounds()[1]
    apart = min((c for _, c in starts), default=0)
    if not reduced or last is None or not all(len(m) == 1 and type(m[0]) is Var and c >= apart > last and c % apart == 0 for m, c in starts):
        return False
    for i, op in enumerate(nest.body):
        if op.name == "store" and op.attr.index == stored and i not in late:
            return False
        if op.name == "load" and op.attr.index in read:
            place = op.attr.index - of_row
            low, high = place.bounds()
            own = all(v.name[0] == "%" for v in place.variables())
            if i in late or not own or low is None or low < 0 or high is None or high > last:
                return False
    return True


def is_alike(have: Buffer, wanted: Buffer) -> bool:
    """Whether one fits where the other is. A C++ compiler takes it that numbers of different types lie apart: it may store one before it reads the other."""
    if have.device.type == "cpu" and have.dtype != wanted.dtype:
        return False
    return have.dtype.itemsize == wanted.dtype.itemsize and have.device == wanted.device and memory_extent(have) == memory_extent(wanted)


def buffers_of(nest: Nest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(read, written) buffers of a nest."""
    return tuple(dict.fromkeys(a.buffer for a in nest.loads())), tuple(dict.fromkeys(a.buffer for a in nest.stores()))
