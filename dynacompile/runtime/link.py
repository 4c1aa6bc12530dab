"""Turns a Module into a native program: buffers and steps by number, kernels by address, extern arguments by schema."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.env import Env
from dynacompile.errors import VerifyError
from dynacompile.ir.index import LONGEST, Extent, Index, Symbol, evaluated, extent, hint
from dynacompile.ir.loops import Extern, Ref, root
from dynacompile.ir.schedule import (
    Allocate,
    BuiltKernel,
    CpuKernel,
    CudaKernel,
    Forms,
    Free,
    Give,
    Kernel,
    Launch,
    Member,
    Module,
    Place,
    ReferenceKernel,
    Reuse,
    Schedule,
    Step,
)
from dynacompile.ir.sizes import Sizes, code, computed, definition_code, symbols_in
from dynacompile.markers import disable
from dynacompile.native import core as native_core
from dynacompile.ops.regions import Handle
from dynacompile.private import of_torch

# As enum Memory of program.h.
INPUT, ARENA, OWNED, EXTERNAL, CONSTANT, VIEW = range(6)

LONG = 1 << 40  # work of an op of which it is not known
PRODUCTS = frozenset((torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default))

Reference = Callable[..., None]  # (kernel, tensors), and the values of the kernel's symbols, where it has some


class Number(int):
    """The place of one of the numbers that each call computes, where a plain int is a number itself."""


class Real(float):
    """The place of a float that each call brings, as a float, for its type tells it from an int's."""


class Numbers:
    """The numbers that each call computes: its symbols, then what is made of them; each distinct one once."""

    def __init__(self, sizes: Sizes):
        self.sizes = sizes
        self.places: dict[Symbol, int] = {s: i for i, s in enumerate(sizes.symbols)}
        self.codes = [definition_code(d, self.places) for d in sizes.derived]
        self.known: dict[Index, Number] = {}

    def extent(self, value: Extent) -> int:
        """The number itself, or the place of it."""
        if not isinstance(value, Index):
            return value
        found = self.known.get(value)
        if found is None:
            if value.constant == 0 and len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1:
                found = Number(self.place(value.terms[0][0][0]))  # type: ignore[arg-type]
            else:
                for symbol in value.symbols():
                    self.place(symbol)
                found = self.add(code(value, self.places))
            self.known[value] = found
        return found

    def place(self, symbol: Symbol) -> int:
        """Where its value is, also of a symbol that the schedule does not list."""
        if symbol not in self.places:
            for operand in symbols_in(symbol.definition):
                self.place(operand)
            self.places[symbol] = self.add(definition_code(symbol, self.places))
        return self.places[symbol]

    def add(self, steps: tuple[int, ...]) -> Number:
        self.codes.append(steps)
        return Number(len(self.sizes.sources) + len(self.codes) - 1)

    def rows(self, schedule: Schedule, slots: Mapping[str, int]) -> tuple:
        """What the native program reads: see read_sizes in program_type.cpp. Last, for it takes what has been asked for by then."""
        alike: dict[tuple, list[int]] = {}  # buffers of one geometry, which each call computes once
        for b in schedule.buffers.values():
            if b.is_symbolic:
                alike.setdefault((len(b.size), b.dtype.itemsize, *b.size, *b.stride, b.offset), []).append(slots[b.name])
        buffers = tuple((tuple(found), tuple(map(self.extent, geometry[2:]))) for geometry, found in alike.items())
        limits: set[Extent] = {a.size for k in schedule.kernels.values() if not k.is_list for a in k.nest.axes}
        if schedule.device.type == "cuda":
            limits |= {reach(schedule, b) for s in schedule.steps if isinstance(s, Launch) for b in s.buffers}
        longest = tuple(self.extent(n) for n in sorted(limits, key=repr) if isinstance(n, Index) and n.hint <= LONGEST)
        return (*self.shared(), buffers, longest)

    def shared(self) -> tuple:
        """The rows of symbols, codes and checks. Last, too."""
        checks = tuple((position, self.extent(wanted)) for position, wanted in self.sizes.checks)
        sources = tuple(
            (s.position, -1 if s.dimension is None else s.dimension, int(s.stride), low(s.symbol), high(s.symbol), s.symbol.name) for s in self.sizes.sources
        )
        return (sources, tuple(self.codes), checks)


def reach(schedule: Schedule, name: str) -> Extent:
    """Elements that a kernel's index runs over in a buffer's memory: GPU kernels count them with 32 bits where the example's fit."""
    owner = schedule.buffers[root(schedule.buffers, name)]
    return extent(owner.storage_elements + owner.offset)


def low(symbol: Symbol) -> int:
    return -(2**63) if symbol.low is None else symbol.low


def high(symbol: Symbol) -> int:
    return 2**63 - 1 if symbol.high is None else symbol.high


@dataclass(frozen=True)
class Told:
    """What is told of a program. number: serial in this process. part: of its graph. rows: of each row of its steps, the place in the schedule's steps."""

    number: int = 0
    part: str = ""
    region: str = ""
    bucket: int = -1
    rows: tuple[int, ...] = ()


@dataclass(frozen=True)
class Laid:
    """What a native program is told of the buffers of a schedule, by their numbers. views: see `slots_by_root`; rows: see `buffer_rows`."""

    device: torch.device
    slots: Mapping[str, int]
    views: Mapping[str, tuple[int, ...]]
    rows: tuple[tuple, ...]


def laid_out(schedule: Schedule) -> Laid:
    """Does not need the kernels, which may still be compiled."""
    device = exact_device(schedule.device)
    slots = {name: i for i, name in enumerate(schedule.buffers)}
    written, launched = written_inputs(schedule), launched_roots(schedule)
    placed = {s.buffer for s in schedule.steps if isinstance(s, Place)}
    return Laid(device, slots, slots_by_root(schedule, slots), tuple(buffer_rows(schedule, slots, device, placed, written, launched)))


def link(module: Module, env: Env | None = None, reference: Reference | None = None, told: Told = Told(), laid: Laid | None = None) -> Any:
    """The native Program of a module: a callable from flat inputs to the tuple of output tensors, below autograd.

    An input whose name in the schedule is None is ignored; an output whose name is None is None. An output that is an input (or a
    constant) is that very tensor; a view of one shares its memory. `.facts`, `.text`, `.schedule` and `.told` tell what it runs.
    reference: runs ReferenceKernels: `reference(kernel, tensors)` with a 1-D tensor per param that aliases the memory of the buffer's
    root from element 0 on, so that an Access's index is an index into it. laid: of the schedule, where it is known by now.
    Raises VerifyError for a schedule that contradicts itself, BuildError for a kernel that does not load.
    """
    schedule = module.schedule
    laid = laid or laid_out(schedule)
    if unbuilt := {s.kernel for s in schedule.steps if isinstance(s, Launch)} - module.kernels.keys():
        raise VerifyError("schedule", f"kernels {sorted(unbuilt)} are launched, and not built")
    device, slots, views = laid.device, laid.slots, laid.views
    kernels, numbers = kernel_rows(module)
    sizes = Numbers(schedule.sizes)
    placed_rows = [(place, row) for place, step in enumerate(schedule.steps) for row in step_rows(module, slots, numbers, sizes, views, step)]
    steps = tuple(row for _, row in placed_rows)
    missing = [name for name, b in schedule.buffers.items() if b.kind == "constant" and b.base is None and name not in schedule.constants]
    if missing:
        raise VerifyError("runtime", f"constants {missing} have no tensor")
    if reference is None and any(isinstance(k, ReferenceKernel) for k in module.kernels.values()):
        raise VerifyError("runtime", "a module with reference kernels needs a reference interpreter")
    constants = tuple((slots[name], tensor) for name, tensor in schedule.constants.items() if name in slots)
    inputs = tuple(-1 if name is None else slots[name] for name in schedule.inputs)
    outputs = tuple(-1 if name is None else slots[name] for name in schedule.outputs)
    if device.type == "cuda":
        torch.cuda.init()
    arenas, rows, work = (schedule.arena, schedule.host_arena), sizes.rows(schedule, slots), work_of(module)
    made = native_core().make_program(schedule, laid.rows, inputs, outputs, constants, kernels, steps, arenas, device, reference, rows, work)
    made.told = replace(told, rows=tuple(place for place, _ in placed_rows))
    return made


def slots_by_root(schedule: Schedule, slots: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Each buffer that owns memory, and then its views; of those whose memory a step frees or hands on."""
    found: dict[str, list[int]] = {}
    for step in schedule.steps:
        for name in step.buffers if isinstance(step, Give) else (step.donor,) if isinstance(step, Reuse) else (step.buffer,) if isinstance(step, Free) else ():
            found[name] = [slots[name]]
    for name, b in schedule.buffers.items() if found else ():
        if b.base is not None and (owner := root(schedule.buffers, name)) in found:
            found[owner].append(slots[name])
    return {name: tuple(of) for name, of in found.items()}


def work_of(module: Module) -> tuple[int, int]:
    """Operations on elements that the CPU does: of launches and products of fixed sizes in all; of other launches for each element. It decides whether
    other threads may run Python meanwhile: beside other ops they always may, since those may wait for anything."""
    fixed = symbolic = 0
    for step in module.schedule.steps:
        if isinstance(step, Extern):
            fixed += product_work(module.schedule, step)
        if not isinstance(step, Launch) or not isinstance(module.kernels[step.kernel], CpuKernel):
            continue
        kernel = module.schedule.kernels[step.kernel]
        nest = kernel.nest
        if kernel.call is not None:
            fixed += LONG
            continue
        if kernel.own is not None:
            values = [dict(zip(kernel.own, row, strict=True)) for row in step.sizes]
            fixed += sum(math.prod(evaluated(axis.size, v) for axis in nest.axes) for v in values) * len(nest.body)
            continue
        points = math.prod(axis.size for axis in nest.axes if not isinstance(axis.size, Index))
        if any(isinstance(axis.size, Index) for axis in nest.axes):
            symbolic += len(nest.body)
        else:
            fixed += points * len(nest.body)
    return fixed, symbolic


def product_work(schedule: Schedule, step: Extern) -> int:
    """Multiplications of a matrix product on the CPU, of fixed sizes; LONG for any other op."""
    if step.op not in PRODUCTS or step.out is None or step.outputs[0] is None or schedule.device.type != "cpu":
        return LONG
    left = schedule.buffers[[a for a in step.args if isinstance(a, Ref)][-2].buffer]
    sizes = (*schedule.buffers[step.outputs[0]].size, left.size[-1])
    fixed = [size for size in sizes if not isinstance(size, Index)]
    return math.prod(fixed) if len(fixed) == len(sizes) else LONG


def exact_device(device: torch.device) -> torch.device:
    """`cuda` without an index is the current device."""
    return torch.device(device.type, torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def written_inputs(schedule: Schedule) -> set[str]:
    """Inputs that some step writes to. Raises VerifyError for a launch that does not match its kernel's params."""
    roots: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, Launch):
            members, params = step.members(), schedule.kernels[step.kernel].params
            if any(len(names) != len(params) for names in members):
                raise VerifyError("schedule", f"a launch of {step.kernel} over {members} does not match its kernel's params")
            roots |= {root(schedule.buffers, name) for names in members for name, param in zip(names, params, strict=True) if param.mode != "in"}
        elif isinstance(step, Extern):
            roots |= {root(schedule.buffers, name) for name in step.mutates}
            roots |= {root(schedule.buffers, name) for name in step.outputs if name and step.out is not None}
    return {name for name in roots if schedule.buffers[name].kind == "input"}


def launched_roots(schedule: Schedule) -> set[str]:
    """Owners of the memory that kernels touch."""
    return {root(schedule.buffers, name) for step in schedule.steps if isinstance(step, Launch) for name in step.buffers}


MEMORY = {"input": INPUT, "temp": OWNED, "extern": EXTERNAL, "constant": CONSTANT}  # of the kinds of buffers that are no views, by default


def buffer_rows(schedule: Schedule, slots: Mapping[str, int], device: torch.device, placed: Set[str], written: Set[str], launched: Set[str]) -> Iterator[tuple]:
    """(name, dtype, device, size, stride, offset, memory, root, whether an input is written, whether kernels touch it) of each buffer, symbolic ones as in the
    example. placed: buffers in the arena."""
    known: dict[tuple, tuple] = {}  # geometries, of which a program with thousands of buffers has few
    for name, buffer in schedule.buffers.items():
        owner = name if buffer.base is None else root(schedule.buffers, name)
        memory = VIEW if buffer.base is not None else ARENA if name in placed and buffer.kind == "temp" else MEMORY[buffer.kind]
        if buffer.offset != 0 and memory in (INPUT, EXTERNAL, CONSTANT):
            raise VerifyError("schedule", f"{name} ({buffer.kind}) has offset {buffer.offset}; offsets count from its own first element")
        key = (buffer.size, buffer.stride, buffer.offset, buffer.device)
        geometry = known.get(key)
        if geometry is None:
            where = device if buffer.device.type == device.type else buffer.device
            geometry = known[key] = where, tuple(map(hint, buffer.size)), tuple(map(hint, buffer.stride)), hint(buffer.offset)
        yield (name, buffer.dtype, *geometry, memory, slots[owner], int(name in written), int(name in launched))


def kernel_rows(module: Module) -> tuple[tuple[tuple, tuple], dict[str, int]]:
    """Rows of native kernels, and their numbers by name: among those of the CPU, which come first, or among those of the GPU. Of a kernel with forms there
    is a row for each: a callable that makes it, but for the first."""
    host: list[tuple] = []
    device: list[tuple] = []
    numbers: dict[str, int] = {}
    for name, kernel in module.kernels.items():
        match kernel:
            case CpuKernel():
                numbers[name] = len(host)
                host.append((kernel.library.address(kernel.symbol),))
            case CudaKernel():
                numbers[name] = len(device)
                if kernel.forms is None:
                    device.append(cuda_row(kernel))
                else:
                    device += form_rows(kernel, kernel.forms)
            case ReferenceKernel():
                continue
        if isinstance(kernel, CudaKernel) != (module.schedule.kernels[name].device.type == "cuda"):
            raise VerifyError("build", f"kernel {name} is a {type(kernel).__name__}, and its buffers are on {module.schedule.kernels[name].device}")
    return (tuple(host), tuple(device)), numbers


def cuda_row(kernel: CudaKernel) -> tuple:
    return (kernel.cubin, kernel.symbol, tuple(map(hint, kernel.grid)), 32 * kernel.warps, kernel.shared, kernel.extra)


def form_rows(kernel: CudaKernel, forms: Forms) -> list[tuple]:
    return [cuda_row(kernel) if form == forms.first else (disable(functools.partial(late_row, forms.make, form)),) for form in range(forms.count)]


def late_row(make: Callable[[int], CudaKernel], form: int) -> tuple:
    return cuda_row(make(form))


def step_rows(
    module: Module, slots: Mapping[str, int], numbers: Mapping[str, int], sizes: Numbers, views: Mapping[str, tuple[int, ...]], step: Step
) -> Iterator[tuple]:
    """One row; of a list that is interpreted, one for each member."""
    if isinstance(step, Launch) and isinstance(module.kernels.get(step.kernel), ReferenceKernel):
        for names, own in zip(step.members(), step.sizes or ((),), strict=True):
            yield reference_row(module, slots, sizes, step.kernel, names, own)
    else:
        yield step_row(module, slots, numbers, sizes, views, step)


def step_row(module: Module, slots: Mapping[str, int], numbers: Mapping[str, int], sizes: Numbers, views: Mapping[str, tuple[int, ...]], step: Step) -> tuple:
    match step:
        case Allocate():
            return ("allocate", slots[step.buffer])
        case Place():
            return place_row(module.schedule, slots, step)
        case Launch():
            return launch_row(module, slots, numbers, sizes, step)
        case Extern():
            return extern_row(step, slots, sizes)
        case Reuse():
            return ("reuse", slots[step.buffer], views[step.donor])
        case Free():
            return ("free", views[step.buffer])
        case Give():
            return ("give", step.outputs, tuple(slot for name in step.buffers for slot in views[name]))


def place_row(schedule: Schedule, slots: Mapping[str, int], step: Place) -> tuple:
    buffer = schedule.buffers[step.buffer]
    end = step.offset + (buffer.storage_elements + buffer.offset) * buffer.dtype.itemsize if buffer.numel else step.offset
    room = schedule.arena if buffer.device.type == schedule.device.type else schedule.host_arena if buffer.device.type == "cpu" else -1
    if step.offset < 0 or end > room or step.offset % buffer.dtype.itemsize:
        raise VerifyError("schedule", f"{step} does not fit the arena of {room} bytes on {buffer.device.type}")
    return ("place", slots[step.buffer], step.offset)


def launch_row(module: Module, slots: Mapping[str, int], numbers: Mapping[str, int], sizes: Numbers, step: Launch) -> tuple:
    schedule = module.schedule
    roots = tuple(slots[root(schedule.buffers, name)] for name in step.buffers)
    kernel, built = schedule.kernels[step.kernel], module.kernels[step.kernel]
    own = tuple(sizes.places[s] for s in kernel.symbols)
    if kernel.own is not None:
        code = "list" if kernel.device.type == "cuda" else "list on the CPU"
        return (code, numbers[step.kernel], roots, own, *list_row(kernel, built, step, exact_device(schedule.device)))
    sized = isinstance(built, CudaKernel) and any(isinstance(n, Index) for n in built.grid)
    grid = tuple(map(sizes.extent, built.grid)) if sized else ()  # type: ignore[union-attr]
    forms = built.forms if isinstance(built, CudaKernel) else None
    chosen = () if forms is None else (sizes.extent(forms.chooses), forms.count)
    return ("launch" if kernel.device.type == "cuda" else "launch on the CPU", numbers[step.kernel], roots, own, grid, chosen)


def list_row(kernel: Kernel, built: BuiltKernel, step: Launch, device: torch.device) -> tuple:
    """Members; their numbers one after the other; of a device the programs of all, and tables in its memory."""
    own = kernel.own or ()
    if any(len(row) != len(own) for row in step.sizes):
        raise VerifyError("schedule", f"a member of {step.kernel} has other numbers than {[s.name for s in own]}")
    flat = tuple(n for row in step.sizes for n in row)
    if not isinstance(built, CudaKernel):
        return len(step.sizes), flat, 0, ()
    blocks, numbers = list_tables(kernel, built.grid[0], step)
    return len(step.sizes), flat, len(blocks), (blocks.to(device), numbers.to(device))


def list_tables(kernel: Kernel, programs: Extent, step: Launch) -> tuple[torch.Tensor, torch.Tensor]:
    """(member, program of that member) for each program of a list on a device, and the members' numbers. programs: how many a member needs."""
    own = kernel.own or ()
    counts = torch.tensor([computed(programs, dict(zip(own, row, strict=True))) for row in step.sizes])
    member = torch.repeat_interleave(torch.arange(len(counts)), counts)
    place = torch.arange(len(member)) - torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    numbers = [n for row in step.sizes for n in row] or [0]
    return torch.stack((member, place), 1).to(torch.int32), torch.tensor(numbers, dtype=torch.int64)


def reference_row(module: Module, slots: Mapping[str, int], sizes: Numbers, name: str, buffers: Sequence[str], own: Sequence[int]) -> tuple:
    schedule = module.schedule
    kernel = schedule.kernels[name]
    roots = tuple(slots[root(schedule.buffers, b)] for b in buffers)
    dtypes = tuple(p.dtype for p in kernel.params)
    elements = tuple(sizes.extent(root_elements(schedule, b, dtype)) for b, dtype in zip(buffers, dtypes, strict=True))
    places = tuple(sizes.places[s] for s in kernel.symbols)
    return ("reference", Member(kernel, tuple(own)) if kernel.is_list else kernel, roots, elements, dtypes, places)


def root_elements(schedule: Schedule, name: str, dtype: torch.dtype) -> Extent:
    """Elements of `dtype` in the memory of a buffer's root."""
    owner = schedule.buffers[root(schedule.buffers, name)]
    return extent((owner.storage_elements + owner.offset) * owner.dtype.itemsize // dtype.itemsize) if owner.numel != 0 else 0


def extern_row(step: Extern, slots: Mapping[str, int], sizes: Numbers) -> tuple:
    """("extern", op name, overload, an argument per schema argument, output slots, whether it writes into them)."""
    op = step.op if step.out is None else step.out
    schema = op._schema
    outputs = tuple(-1 if name is None else slots[name] for name in step.outputs)
    into = iter(outputs if step.out is not None else ())
    positional = iter(step.args)
    args: list[object] = []
    for argument in schema.arguments:
        if step.out is not None and argument.is_out:
            args.append(next(into, None))
        elif argument.name in step.kwargs:
            args.append(by_slot(step.kwargs[argument.name], slots, sizes, takes_tensor(argument)))
        elif argument.kwarg_only:
            args.append(...)
        else:
            value = next(positional, ...)
            args.append(value if value is ... else by_slot(value, slots, sizes, takes_tensor(argument)))
    left = [*positional, *(set(step.kwargs) - {a.name for a in schema.arguments})]
    if left:
        raise VerifyError("lower", f"{step.name}: {op} does not take {left}")
    if step.out is not None and (-1 in outputs or len(outputs) != sum(a.is_out for a in schema.arguments)):
        raise VerifyError("lower", f"{step.name}: {op} writes every output, {step.outputs} lacks one")
    return ("extern", schema.name, schema.overload_name, tuple(args), outputs, step.out is not None)


def takes_tensor(argument: of_torch.Argument) -> bool:
    kind = argument.type
    return isinstance(kind.getElementType() if isinstance(kind, of_torch.OptionalType) else kind, of_torch.TensorType)


def by_slot(value: object, slots: Mapping[str, int], sizes: Numbers, is_tensor: bool = False) -> object:
    """An argument with buffer numbers for Refs, places for symbolic sizes, and tuples for lists.

    is_tensor: a plain number stands for a tensor, and is put into a tuple."""
    match value:
        case bool() | int() | float() | complex() if is_tensor:
            return (value,)
        case Symbol():
            return (Real(sizes.place(value)),) if is_tensor else Real(sizes.place(value))
        case Index():
            return (sizes.extent(value),) if is_tensor else sizes.extent(value)
        case Handle():
            return int(value)
        case Ref():
            return slots[value.buffer]
        case tuple() | list():
            return tuple(by_slot(v, slots, sizes) for v in value)
        case torch.Tensor() | torch.Generator():
            raise VerifyError("lower", f"an extern call holds a {type(value).__name__}; tensors are buffers, generators are the default one")
        case _:
            return value
