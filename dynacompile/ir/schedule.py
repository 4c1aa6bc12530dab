"""The hand-offs after lowering: Schedule (fused kernels, order, memory), Sources (their text), Module (built kernels)."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from dynacompile.errors import VerifyError
from dynacompile.ir.calls import Call
from dynacompile.ir.frozen import record
from dynacompile.ir.index import Extent, Symbol, hint
from dynacompile.ir.loops import Buffer, Extern, Nest, verify_body
from dynacompile.ir.sizes import Sizes
from dynacompile.libraries import Library

SCRATCH = 1 << 18  # bytes that a kernel with products has for its descriptors of tensors
MULTIPLE = 16  # of elements: rows of so many start where vectors do


@dataclass(frozen=True)
class Param:
    """A pointer parameter of a kernel. In a kernel's body, Access.buffer is a Param's name."""

    name: str
    dtype: torch.dtype
    mode: str  # "in" | "out" | "inout" | "scratch": memory of SCRATCH bytes whose contents mean nothing before and after; the last of the params
    range: tuple[int, int] | None = None  # between which its elements lie, where the program itself has made them


@dataclass(frozen=True)
class Kernel:
    """A fused nest, free of its buffers' names: equal kernels are one kernel, launched many times.

    nest: axes merged where all accesses allow, innermost x (or r) axis the one with most unit strides; its buffers are the params.
    own: of a kernel over a list, the symbols whose values each member has for itself; a launch then runs the nest for every member of a
    list, in no particular order, each over buffers of its own. None: it runs over one set of buffers.
    call: of a template, what it does; its nest has no axes and no body then.
    """

    name: str
    nest: Nest
    params: tuple[Param, ...]
    device: torch.device
    own: tuple[Symbol, ...] | None = None
    call: Call | None = None

    @property
    def is_list(self) -> bool:
        return self.own is not None

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """What it takes of a call, behind its pointers, as 64-bit integers."""
        if self.call is not None:
            return tuple(sorted(self.call.symbols(), key=lambda s: s.name))
        return tuple(s for s in self.nest.symbols() if s not in (self.own or ()))

    def text(self) -> str:
        params = ", ".join(f"{p.mode} {p.name}: {str(p.dtype).removeprefix('torch.')}{p.range or ''}" for p in self.params)
        each = "" if self.own is None else f" of each member, with its {', '.join(s.name for s in self.own) or 'buffers'}"
        call = "" if self.call is None else f"\n{self.call.text()}"
        return f"kernel {self.name}({params}){each}\n{self.nest.text()}{call}"

    def digest(self) -> str:
        """Equal for kernels that do the same, whatever their names and user lines. Of a list's own symbols, which each list has anew, the bounds count."""
        body = "\n".join(line for line in self.nest.text().splitlines()[1:]) if self.call is None else self.call.text()
        axes = ",".join(f"{a.var.name}{a.role}{a.size}" for a in self.nest.axes)
        params = ",".join(f"{p.name}:{p.dtype}:{p.mode}{p.range or ''}" for p in self.params)
        own = "" if self.own is None else f"|list of {','.join(f'{s.name} in {s.low}..{s.high}' for s in self.own)}"
        return hashlib.sha256(f"{self.device.type}|{axes}|{params}{own}|{body}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Member:
    """What is interpreted for one member of a list: the kernel, and the member's values of its own symbols."""

    kernel: Kernel
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Allocate:
    """Memory for a buffer that leaves the program (an output), that is large, or whose size is symbolic: its own tensor."""

    buffer: str


@record
class Place:
    """A buffer that does not leave the program lives in the arena, `offset` bytes in (a multiple of 64 on CPU, 512 on CUDA)."""

    buffer: str
    offset: int


@dataclass(frozen=True)
class Launch:
    """Run `kernel` with `buffers` for its params, in order.

    A param's pointer is the address of element 0 of its buffer's root (the buffer that `base` leads to): an input's own first element,
    whatever its storage_offset in this call. Buffers without a base have offset 0; a view's offset counts from its root's element 0, in
    elements of the view's dtype, and the kernel's indices include it. On CUDA every pointer is 16-byte aligned (an input that is not is
    cloned, and written back where mutated); on CPU inputs are only element-aligned, all other memory is 64-byte aligned.
    A kernel on CUDA may read buffers of the CPU that have one element, by their value at the launch.

    sizes: of a kernel over a list, for each member the values of the kernel's own symbols; `buffers` are those of the first member, then those of
    the second, and so on. No member touches memory that another one writes.
    """

    kernel: str
    buffers: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...] = ()

    def members(self) -> tuple[tuple[str, ...], ...]:
        """The buffers of each member; of a launch without a list, of the one that it is."""
        count = len(self.buffers) // max(len(self.sizes), 1)
        return tuple(self.buffers[i * count : (i + 1) * count] for i in range(len(self.sizes) or 1))


@dataclass(frozen=True)
class Reuse:
    """Memory for a buffer that would be allocated, taken from `donor`, which nothing reads but the next step, and that step at the very places that it then
    writes. Where somebody else holds the donor's memory when the call comes there, or it is none of the allocator's, the buffer is allocated."""

    buffer: str
    donor: str


@dataclass(frozen=True)
class Free:
    """Drop what nothing needs any more: memory that was allocated, an extern's result, or an input that the caller gives up."""

    buffer: str


@dataclass(frozen=True)
class Give:
    """The outputs at these positions are final: no later step touches their memory, that of `buffers`. Who runs the program in parts gets them here."""

    outputs: tuple[int, ...]
    buffers: tuple[str, ...]


Step = Allocate | Place | Reuse | Launch | Extern | Free | Give


@dataclass(frozen=True)
class Schedule:
    """The program, in order. Views (buffers with a base) need no step: they are made where an extern or an output needs a tensor.

    aliases of memory: two Place steps may share bytes when their lives don't meet. arena: bytes. given_up: inputs that nobody holds beside the caller, which
    lets go of each when the program frees it. unfused_peak: bytes at their peak where each operation of the graph runs by itself, as in eager. host_arena: of
    a schedule for a GPU, bytes of the arena of its temps on the CPU, which its kernels on the CPU make.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    buffers: Mapping[str, Buffer]
    kernels: Mapping[str, Kernel]
    steps: tuple[Step, ...]
    arena: int
    device: torch.device
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    sizes: Sizes = Sizes()
    given_up: frozenset[str] = frozenset()
    unfused_peak: int = 0
    host_arena: int = 0

    def verify(self) -> None:
        for kernel in self.kernels.values():
            verify_body("schedule", kernel.nest)
        for step in self.steps:
            if isinstance(step, Launch) and step.sizes:
                own = self.kernels[step.kernel].own or ()
                if any(not is_within(n, *s.bounds()) for row in step.sizes for s, n in zip(own, row, strict=True)):
                    raise VerifyError("schedule", f"{step} has members of other sizes than its kernel is for: {[(s.name, s.bounds()) for s in own]}")

    def text(self) -> str:
        host = f", {self.host_arena} on the CPU" if self.host_arena else ""
        lines = [f"schedule on {self.device}: {self.inputs} -> {self.outputs}, arena {self.arena} bytes{host}"]
        if self.sizes:
            lines.append(self.sizes.text())
        lines += [k.text() for k in self.kernels.values()]
        return "\n".join(lines + [s.text() if isinstance(s, Extern) else repr(s) for s in self.steps])

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def gives(self) -> tuple[tuple[int, ...], ...]:
        """The outputs that are final at each stop."""
        return tuple(step.outputs for step in self.steps if isinstance(step, Give))

    def facts(self) -> dict[str, int]:
        """Counts for tests and reports: kernels launched, distinct kernels, extern calls, bytes that kernels move."""
        return dict(self._facts)

    @functools.cached_property
    def _facts(self) -> dict[str, int]:
        """They are asked for as the schedule is made and as it is linked."""
        return {
            "launches": sum(isinstance(s, Launch) for s in self.steps),
            "kernels": len(self.kernels),
            "externs": sum(isinstance(s, Extern) for s in self.steps),
            "bytes": sum(self.moved.values()),
            "arena": self.arena,
            "peak": max(self.live_bytes()),
            "unfused_peak": self.unfused_peak,
        }

    @functools.cached_property
    def moved(self) -> dict[str, int]:
        """Bytes that the launches of each kernel move, each buffer of a launch once."""
        moved: dict[str, int] = {}
        bytes: dict[tuple, int] = {}  # by size and dtype, of which a program with thousands of buffers has few
        for step in self.steps:
            if isinstance(step, Launch):
                total = 0
                for name in dict.fromkeys(step.buffers):
                    buffer = self.buffers[name]
                    key = buffer.size, buffer.dtype
                    found = bytes.get(key)
                    if found is None:
                        found = bytes[key] = buffer.bytes
                    total += found
                moved[step.kernel] = moved.get(step.kernel, 0) + total
        return moved

    def kernels_told(self) -> list[tuple[str, int, int, tuple[str, ...], tuple[str, ...]]]:
        """Of each kernel its name, launches, the bytes that they move, the names of its operations, and the user's lines, as they first occur."""
        launches = Counter(step.kernel for step in self.steps if isinstance(step, Launch))
        moved = self.moved
        rows = []
        for name, count in launches.items():
            origins = self.kernels[name].nest.origins
            sites = dict.fromkeys(str(o.site) for o in origins if o.site is not None)
            rows.append((name, count, moved[name], tuple(dict.fromkeys(o.op for o in origins)), tuple(sites)))
        return rows

    def calls_told(self) -> list[tuple[str, int]]:
        """The operations that are called, each with its number of calls."""
        return list(Counter(str(step.op) for step in self.steps if isinstance(step, Extern)).items())

    def call_sites(self) -> list[tuple[str, tuple[str, ...]]]:
        """Of each operation that is called the user's lines, as they first occur."""
        sites: dict[str, dict[str, None]] = {}
        for step in self.steps:
            if isinstance(step, Extern):
                sites.setdefault(str(step.op), {}).update(dict.fromkeys(str(o.site) for o in step.origins if o.site is not None))
        return [(op, tuple(found)) for op, found in sites.items() if found]

    def live_bytes(self) -> list[int]:
        """Bytes that are alive at the begin and during each step, in the example: the arena, what is allocated, and the inputs that are given up. A view
        that an op returns has none of its own; what a library allocates while an op runs is not known."""
        held = {name: memory_bytes(self.buffers[name]) for name in self.given_up}
        now = self.arena + sum(held.values())
        live = [now]

        def hold(name: str | None) -> int:
            if name is None or name in held:
                return 0
            held[name] = memory_bytes(self.buffers[name])
            return held[name]

        for step in self.steps:
            match step:
                case Allocate(name):
                    now += hold(name)
                case Reuse(name, donor):
                    now += hold(name) - held.pop(donor)
                case Extern() if step.out is None and not any(r.alias_info is not None for r in step.op._schema.returns):
                    now += sum(map(hold, step.outputs))
                case Free(name):
                    now -= held.pop(name, 0)
            live.append(now)
        return live


def memory_extent(buffer: Buffer) -> Extent:
    """Bytes from the first element on. Of rows with small gaps between them the last one's gap is of it: such memory is allocated by whole rows."""
    elements = buffer.storage_elements
    if not buffer.is_symbolic and len(buffer.size) > 1 and buffer.numel < buffer.size[0] * buffer.stride[0] < buffer.numel * 9 // 8:
        elements = max(elements, buffer.size[0] * buffer.stride[0])
    return elements * buffer.dtype.itemsize


def memory_bytes(buffer: Buffer) -> int:
    """The same, in the example."""
    return hint(memory_extent(buffer))


@dataclass(frozen=True)
class Candidate:
    """One way to build a kernel. Triton: block sizes by constexpr name, warps per program, pipeline stages. C++: the sizes chosen, by name."""

    blocks: Mapping[str, int]
    warps: int = 0
    stages: int = 1


@dataclass(frozen=True)
class KernelSource:
    """Text of one kernel. language: "cpp" (entry `void entry(void* const* params)`: pointers, then the symbols' values in their place),
    "triton" (a module with one @triton.jit function `entry` over the params' pointers, the symbols, then constexprs), or "reference" (run by
    interpreting `kernel`).

    candidates: best guess first. Triton: grid: x programs = ceil(points / product of x blocks), given per candidate by `grids`.
    wide: whether Triton's symbols are 64-bit integers, else 32-bit ones.
    row: of a text with a constexpr SHORT, which takes rows in one block where it is true: the elements of a row.
    exact: Triton joins no product with a sum to one instruction.
    C++, under max-autotune: `variants` has a text per candidate, with the same entry; the first is `text`.
    """

    kernel: Kernel
    language: str
    text: str
    entry: str
    candidates: tuple[Candidate, ...] = ()
    grids: tuple[tuple[Extent, Extent, Extent], ...] = ()
    variants: tuple[str, ...] = ()
    wide: bool = True
    row: Extent | None = None
    exact: bool = False


@dataclass(frozen=True)
class Sources:
    """A schedule with the text of each of its kernels."""

    schedule: Schedule
    kernels: Mapping[str, KernelSource]

    def text(self) -> str:
        return "\n\n".join(k.text for k in self.kernels.values())

    def digest(self) -> str:
        return hashlib.sha256((self.schedule.text() + self.text()).encode()).hexdigest()[:16]


def is_within(n: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= n) and (high is None or n <= high)


@dataclass(frozen=True)
class CpuKernel:
    """A built C++ kernel: symbol of a shared library."""

    library: Library
    symbol: str


@dataclass(frozen=True)
class Forms:
    """A kernel with symbols comes in `count` forms, each for calls whose sizes have some properties: build/forms.py. chooses: the number of the form that
    a call needs. first: the form of the kernel that holds this. make: gives another one, built when first asked for."""

    chooses: Extent
    count: int
    first: int
    make: Callable[[int], CudaKernel] = field(compare=False)


@dataclass(frozen=True)
class CudaKernel:
    """A built Triton kernel: cubin image, function name, launch geometry. extra: number of null pointers that Triton appends (global and profile
    scratch). symbols: what it takes behind its pointers. forms: where there are other forms of it."""

    cubin: bytes
    symbol: str
    grid: tuple[Extent, Extent, Extent]
    warps: int
    shared: int
    extra: int
    symbols: tuple[Symbol, ...] = ()
    forms: Forms | None = None


@dataclass(frozen=True)
class ReferenceKernel:
    """Interpreted with torch, one op at a time: the oracle."""

    kernel: Kernel


BuiltKernel = CpuKernel | CudaKernel | ReferenceKernel


@dataclass(frozen=True)
class Module:
    """A schedule whose kernels are built: all that the runtime needs."""

    schedule: Schedule
    kernels: Mapping[str, BuiltKernel]
