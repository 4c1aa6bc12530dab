"""The hand-off of lowering: a program of loop nests over named buffers.

A nest's body is straight-line SSA, executed once for each point of its iteration space. The same body type serves the unfused nest
(one op of the graph) and the fused kernel (many), so that fusing is concatenating bodies and replacing loads by values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dynacompile.errors import VerifyError
from dynacompile.ir.captured import Site
from dynacompile.ir.frozen import record
from dynacompile.ir.index import Extent, Index, Symbol, Var, extent, hint
from dynacompile.ir.sizes import Sizes, symbols_in
from dynacompile.ops.scalars import PLACES, REDUCTIONS, SCALARS, SCANS
from dynacompile.private import of_torch


@record
class Buffer:
    """Memory with a geometry; sizes, strides and offset in elements, which may be symbolic. kind:

    "input": given by the caller; "temp": ours; "extern": allocated by an extern op; "constant": a tensor held by the program.
    A view is a buffer whose `base` names another; it has no memory of its own.
    once: its elements are computed by one kernel, and read from memory by all others (see `ops.picked`).
    """

    name: str
    dtype: torch.dtype
    device: torch.device
    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    kind: str
    offset: Extent = 0
    base: str | None = None
    once: bool = False

    def named(self, name: str, base: str | None) -> Buffer:
        """A buffer of the same geometry; as `replace`, which takes several times as long."""
        return Buffer(name, self.dtype, self.device, self.size, self.stride, self.kind, self.offset, base, self.once)

    @property
    def numel(self) -> Any:
        """An extent."""
        count: Any = 1
        for n in self.size:
            count = count * n
        return count if type(count) is int else extent(count)

    @property
    def storage_elements(self) -> Any:
        """Elements from the first to the last one that this geometry touches: an extent, in a call without elements not 0."""
        if self.numel == 0:
            return 0
        last: Any = 1
        for n, s in zip(self.size, self.stride, strict=True):
            last = last + (n - 1) * s
        return last if type(last) is int else extent(last)

    @property
    def bytes(self) -> int:
        """In the example."""
        count = self.numel
        return (count if type(count) is int else hint(count)) * self.dtype.itemsize

    @property
    def is_symbolic(self) -> bool:
        return Index in map(type, self.size) or Index in map(type, self.stride) or type(self.offset) is Index


@dataclass(frozen=True, slots=True)
class Access:
    """Attribute of a load or store: element `index` of `buffer`'s storage (its offset included). mask: SSA id of a bool; where it is
    false a load gives `other` and touches no memory, and a store does nothing. summed: a store of the sum over all points that name the
    same element, which are those that differ in the innermost x axes alone (see Nest.folded). added: a store that adds to what memory holds, for each
    point: points that differ in x axes name different elements, those that differ in r axes alone may name the same, and add to it in their order."""

    buffer: str
    index: Index
    mask: int | None = None
    other: float | int | bool = 0
    summed: bool = False
    added: bool = False

    def at(self, index: Index, mask: int | None, buffer: str | None = None) -> Access:
        """The same access of another element."""
        return Access(buffer or self.buffer, index, mask, self.other, self.summed, self.added)


@dataclass(frozen=True, slots=True)
class Contraction:
    """Attribute of a product of matrices. batch, rows, columns: how many x axes of the nest, from the outermost on, number the matrices, then their rows, then
    their columns. precision: how numbers of 32 bits are multiplied, "ieee" or "tf32"; narrower ones are multiplied exactly. Of 8-bit numbers: "fast" where
    sums as the tensor cores keep them are enough."""

    batch: int
    rows: int
    columns: int
    precision: str = "ieee"


@dataclass(frozen=True, slots=True)
class Scan:
    """Attribute of a scan. kind: of ops.scalars.SCANS. reverse: it runs from the last point to the first."""

    kind: str
    reverse: bool = False

    def __repr__(self) -> str:
        return f"{self.kind}{' from the end' if self.reverse else ''}"


@dataclass(frozen=True, slots=True)
class Op:
    """One SSA value; its id is its position in the body. name is one of

    a row of ops.scalars.SCALARS; "load" (attr: Access); "store" (args: the value, attr: Access, no result); "constant" (attr: number);
    "index" (attr: Index; dtype int64 or int32); "given" (attr: a real Symbol; float64); "require" (args: the value and a bool, on GPUs alone): the
    value, where the device asserts that the bool is true; "reduce" (args: the value, attr: a kind of
    ops.scalars.REDUCTIONS): over all r axes,
    argmax and argmin give the first winning position in the flattened r axes, as int64, NaN winning; "scan" (args: the value, attr: Scan): what the points
    up to and including this one give, in the order of the flattened r axes; argmax and argmin give the latest winning position, NaN winning, and max and min
    the value there; a second arg is a bool that tells where the scan starts anew; "product" (args: two loads of one dtype, attr:
    Contraction; float32): the sum over all r axes of one times the other, of which one varies along rows, the other along columns.
    An Index may use `Var("%7")`: the integer value of op 7 (an indirect access).
    """

    name: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attr: Any = None


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable. role "x": an iteration that makes outputs of its own; "r": reduced over."""

    var: Var
    role: str

    @property
    def size(self) -> Any:
        """An extent."""
        assert self.var.size is not None
        return self.var.size


@dataclass(frozen=True)
class Origin:
    """The graph node that a nest or kernel comes from: op name and the user's line."""

    op: str
    site: Site | None = None


@dataclass(frozen=True)
class Nest:
    """Loops with a body: pointwise where no axis has role "r", else a reduction or a scan. Axes: x axes first, then r axes, outer to inner.

    An op is at level "x" when it depends on no r axis, else at level "r", as every scan is; a reduce takes level r to level x; a store at level x
    happens once per x point, but one that adds happens at every point. In a fused kernel, an x-level op may use the results of reduces,
    and r-level ops may use x-level ones: that makes several passes over the r axes.
    """

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Op, ...]
    origins: tuple[Origin, ...] = ()

    @property
    def x_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.role == "x")

    @property
    def r_axes(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.axes if a.role == "r")

    @property
    def folded(self) -> tuple[Axis, ...]:
        """The x axes that summed stores add up over: sums over r per row and over blocks of rows per column come out of one pass."""
        indices = [a.index.variables() for a in self.stores() if a.summed]
        return tuple(a for a in self.x_axes if a.var not in indices[0]) if indices else ()

    @property
    def is_reduction(self) -> bool:
        return any(op.name == "reduce" for op in self.body)

    def scans(self) -> tuple[Scan, ...]:
        return tuple(op.attr for op in self.body if op.name == "scan")  # type: ignore[misc]

    @property
    def scans_both_ways(self) -> bool:
        """Whether some scans run from the first point on, and others from the last."""
        return len({s.reverse for s in self.scans()}) > 1

    @property
    def adds(self) -> bool:
        """Whether it has stores that add: the order of its r axes means something."""
        return any(a.added for a in self.stores())

    @property
    def is_product(self) -> bool:
        """A product of matrices (or several), and what is computed of its elements."""
        return any(op.name == "product" for op in self.body)

    def loads(self) -> tuple[Access, ...]:
        return tuple(op.attr for op in self.body if op.name == "load")  # type: ignore[misc]

    def stores(self) -> tuple[Access, ...]:
        return tuple(op.attr for op in self.body if op.name == "store")  # type: ignore[misc]

    def symbols(self) -> tuple[Symbol, ...]:
        """The symbols that its loops and values are made with, by name."""
        found = set(symbols_in([a.size for a in self.axes]))
        for op in self.body:
            index = op.attr.index if type(op.attr) is Access else op.attr
            if type(index) is Index:
                found |= index.symbols()
                found.update(symbols_in([v.size for v in index.variables() if v.name[0] == "%"]))  # what kernels check positions against
            elif type(index) is Symbol:
                found.add(index)
        return tuple(sorted(found, key=lambda s: s.name))

    def text(self) -> str:
        axes = ", ".join(f"{a.var.name}:{a.role}<{a.size}" for a in self.axes)
        return "\n".join([f"{self.name} [{axes}]  # {', '.join(o.op for o in self.origins)}", *(f"  %{i} = {op_text(op)}" for i, op in enumerate(self.body))])


def op_text(op: Op) -> str:
    dtype = str(op.dtype).removeprefix("torch.")
    args = ", ".join(f"%{a}" for a in op.args)
    match op.attr:
        case Access() as a:
            mask = f" if %{a.mask} else {a.other}" if a.mask is not None else ""
            return f"{op.name}{' sum' if a.summed else ' add' if a.added else ''} {a.buffer}[{a.index!r}] {args}{mask} : {dtype}"
        case None:
            return f"{op.name} {args} : {dtype}"
        case _:
            return f"{op.name} {op.attr!r} {args} : {dtype}"


@dataclass(frozen=True)
class Ref:
    """Stands for a buffer in the arguments of an extern call."""

    buffer: str


SCORE, GRADIENT, RESULT = POINT_BUFFERS = ("<score>", "<gradient>", "<result>")
"""What bodies of templates read and write of their point: a score, the gradient of its result, and the result."""


@dataclass(frozen=True)
class Extern:
    """A call of an ATen (or custom) op on whole tensors.

    args, kwargs: nested tuples/dicts with Ref for tensors. outputs: buffer names, None where an output is not used or no tensor.
    out: the overload's out= variant writes into `outputs`, which are then of kind "temp" (planned by us); else the op allocates.
    mutates: input buffers that the op writes to. random: it consumes random numbers, or talks to other processes, so its order
    among such ops is kept.
    after: buffers that it does not read, and that are made before it runs.
    template: the name of a kernel of ours that does the same and writes into `outputs`, which are then of kind "temp"; the schedule launches that. The op says
    what it computes, and interpreters call it.
    bodies: of a template that computes with functions of the caller's, these by their role, as nests over the points that the kernel walks. They read and write
    buffers that own memory, and, under the names POINT_BUFFERS, what the kernel has at a point.
    """

    name: str
    op: of_torch.OpOverload
    args: tuple
    kwargs: Mapping[str, object]
    outputs: tuple[str | None, ...]
    out: of_torch.OpOverload | None = None
    mutates: tuple[str, ...] = ()
    random: bool = False
    origins: tuple[Origin, ...] = ()
    after: tuple[str, ...] = ()
    template: str | None = None
    bodies: Mapping[str, Nest] = field(default_factory=dict)

    def reads(self) -> tuple[str, ...]:
        return tuple(refs(self.args)) + tuple(refs(tuple(self.kwargs.values()))) + self.after

    def symbols(self) -> set[Symbol]:
        """The symbols in its arguments and bodies."""
        return set(symbols_in((self.args, dict(self.kwargs)))).union(*(nest.symbols() for nest in self.bodies.values()))

    def text(self) -> str:
        template = f" by {self.template}" if self.template else ""
        line = f"{', '.join(o or '_' for o in self.outputs)} = {self.op}({self.args}, {dict(self.kwargs)}){template}"
        return "\n".join([line, *(f"  {role}: {nest.text()}" for role, nest in self.bodies.items())])

    def with_names(self, name: Callable[[str], str], owner: Callable[[str], str] | None = None) -> Extern:
        """The call of other buffers. owner: the new name of a buffer that owns memory, where that is not `name` of it."""

        def new(value: Any) -> Any:
            if isinstance(value, Ref):
                return Ref(name(value.buffer))
            if isinstance(value, (tuple, list)):
                return type(value)(map(new, value))
            return {k: new(v) for k, v in value.items()} if isinstance(value, dict) else value

        def renamed(nest: Nest) -> Nest:
            body = [op if type(op.attr) is not Access or op.attr.buffer in POINT_BUFFERS else moved(op) for op in nest.body]
            return replace(nest, body=tuple(body))

        def moved(op: Op) -> Op:
            return replace(op, attr=op.attr.at(op.attr.index, op.attr.mask, (owner or name)(op.attr.buffer)))

        # Arguments come first, since `name` may number what it is asked for.
        args, kwargs = new(self.args), {k: new(v) for k, v in self.kwargs.items()}
        outputs = tuple(None if o is None else name(o) for o in self.outputs)
        bodies = {role: renamed(nest) for role, nest in self.bodies.items()}
        mutates, after = (tuple(map(name, names)) for names in (self.mutates, self.after))
        return replace(self, args=args, kwargs=kwargs, outputs=outputs, mutates=mutates, after=after, bodies=bodies)


def refs(args: object) -> list[str]:
    """Buffers named anywhere in nested arguments, in order."""
    if isinstance(args, Ref):
        return [args.buffer]
    if isinstance(args, (tuple, list)):
        return [name for a in args for name in refs(a)]
    if isinstance(args, dict):
        return [name for a in args.values() for name in refs(a)]
    return []


@dataclass(frozen=True)
class LoopProgram:
    """Nests and extern calls in program order (a valid execution order).

    buffers: every buffer by name, views too. inputs: names in call order (None: an input that is no tensor, or unused).
    outputs: names, or None for a None output.
    A nest that stores to an input mutates it.
    sizes: the symbols that its sizes are made of, and where the inputs show them.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    buffers: Mapping[str, Buffer]
    steps: tuple[Nest | Extern, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    sizes: Sizes = Sizes()

    def verify(self) -> None:
        written = {name for name, b in self.buffers.items() if b.kind in ("input", "constant")}
        for step in self.steps:
            if isinstance(step, Nest):
                verify_body("lower", step)
                reads, writes = [a.buffer for a in step.loads()], [a.buffer for a in step.stores()]
            else:
                reads, writes = list(step.reads()), [o for o in step.outputs if o] + list(step.mutates)
            for name in reads:
                if root(self.buffers, name) not in written and self.buffers[name].numel:
                    raise VerifyError("lower", f"{step.name} reads {name} before anything wrote it")
            written |= {root(self.buffers, name) for name in writes}

    def facts(self) -> dict[str, int]:
        """Counts for tests and reports."""
        nests = sum(isinstance(s, Nest) for s in self.steps)
        return {"nests": nests, "externs": len(self.steps) - nests, "buffers": len(self.buffers)}

    def text(self) -> str:
        lines = [f"program {self.inputs} -> {self.outputs}"]
        if self.sizes:
            lines.append(f"  {self.sizes.text()}")
        lines += [
            f"  {b.name}: {str(b.dtype).removeprefix('torch.')}{list(b.size)} stride {list(b.stride)} {b.kind}" + (f" of {b.base}+{b.offset}" if b.base else "")
            for b in self.buffers.values()
        ]
        return "\n".join(lines + [step.text() for step in self.steps])

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def root(buffers: Mapping[str, Buffer], name: str) -> str:
    """The buffer that owns the memory of `name`."""
    while (base := buffers[name].base) is not None:
        name = base
    return name


def verify_body(stage: str, nest: Nest) -> None:
    """SSA order, arity, known names, one dtype per operand list, indices over known variables."""
    known = {a.var for a in nest.axes}
    folded = nest.folded
    if folded and nest.x_axes[-len(folded) :] != folded:
        raise VerifyError(stage, f"{nest.name} sums over {[a.var.name for a in folded]}, which are not its innermost x axes")
    for i, op in enumerate(nest.body):
        where = f"{nest.name} %{i} ({op.name})"
        if any(not 0 <= a < i for a in op.args):
            raise VerifyError(stage, f"{where} uses a later value")
        index = op.attr.index if isinstance(op.attr, Access) else op.attr if op.name == "index" else None
        if isinstance(op.attr, Access) and op.attr.summed:
            missing = [a for a in nest.axes if a.var not in op.attr.index.variables()]
            if op.name != "store" or not op.dtype.is_floating_point or tuple(missing) != folded:
                raise VerifyError(stage, f"{where} sums over {[a.var.name for a in missing]}")
        if isinstance(op.attr, Access) and op.attr.added:
            verify_added(stage, where, nest, op)
        if isinstance(index, Index):
            for v in index.variables():
                if v.name.startswith("%"):
                    if int(v.name[1:]) >= i:
                        raise VerifyError(stage, f"{where} indexes by a later value")
                elif v not in known:
                    raise VerifyError(stage, f"{where} uses {v.name}, which is no axis")
        if op.name in SCALARS:
            row = SCALARS[op.name]
            if len(op.args) != row.operands:
                raise VerifyError(stage, f"{where} takes {row.operands} operands, not {len(op.args)}")
            operands = op.args[1:] if op.name == "where" else op.args
            dtypes = {nest.body[a].dtype for a in operands}
            if len(dtypes) > 1:
                raise VerifyError(stage, f"{where} mixes {dtypes}")
            if row.result == "same" and op.dtype not in dtypes:
                raise VerifyError(stage, f"{where} is {op.dtype}, its operands {dtypes}")
        elif op.name == "reduce":
            if op.attr not in REDUCTIONS or not nest.r_axes:
                raise VerifyError(stage, f"{where}: unknown reduction {op.attr!r}, or no axis to reduce")
        elif op.name == "scan":
            verify_scan(stage, where, nest, op)
        elif op.name == "product":
            if len(op.args) != 2 or op.dtype != torch.float32 or not nest.r_axes or any(nest.body[a].name != "load" for a in op.args):
                raise VerifyError(stage, f"{where}: the operands of a product are two loads, its result is float32, and it sums over an axis")
            if not isinstance(op.attr, Contraction) or op.attr.batch + op.attr.rows + op.attr.columns != len(nest.x_axes):
                raise VerifyError(stage, f"{where}: {op.attr!r} is no division of the nest's axes")
        elif op.name == "given":
            if not isinstance(op.attr, Symbol) or not op.attr.real or op.dtype != torch.float64:
                raise VerifyError(stage, f"{where}: {op.attr!r} is no float of a call")
        elif op.name == "require":
            if len(op.args) != 2 or nest.body[op.args[0]].dtype != op.dtype or nest.body[op.args[1]].dtype != torch.bool:
                raise VerifyError(stage, f"{where} takes a value and a bool")
        elif op.name not in ("load", "store", "constant", "index"):
            raise VerifyError(stage, f"{where}: unknown op")


def verify_scan(stage: str, where: str, nest: Nest, op: Op) -> None:
    """A scan is of numbers, and positions are int64."""
    if not isinstance(op.attr, Scan) or op.attr.kind not in SCANS or not nest.r_axes:
        raise VerifyError(stage, f"{where}: unknown scan {op.attr!r}, or no axis to run along")
    value = nest.body[op.args[0]].dtype if op.args else torch.bool
    if value == torch.bool or op.dtype != (torch.int64 if op.attr.kind in PLACES else value):
        raise VerifyError(stage, f"{where} makes {op.dtype} of {value}")
    if len(op.args) > 2 or any(nest.body[a].dtype != torch.bool for a in op.args[1:]):
        raise VerifyError(stage, f"{where}: what tells where a scan starts anew is one bool")


def verify_added(stage: str, where: str, nest: Nest, op: Op) -> None:
    """Points that differ in an x axis add to different elements, and nothing else is read of what changes."""
    buffer, index = op.attr.buffer, op.attr.index
    if op.name != "store" or op.attr.summed or op.dtype == torch.bool:
        raise VerifyError(stage, f"{where} does not add {op.dtype}")
    missing = [a.var.name for a in nest.x_axes if a.var not in index.variables()]
    if missing:
        raise VerifyError(stage, f"{where} adds to the same element for all of {missing}, which are x axes")
    if any(a.buffer == buffer for a in nest.loads()) or sum(a.buffer == buffer for a in nest.stores()) > 1:
        raise VerifyError(stage, f"{where} adds to {buffer}, which the nest accesses elsewhere")


def levels(nest: Nest) -> tuple[str, ...]:
    """Level of each op of the body: "x" or "r"."""
    reduced = {a.var for a in nest.r_axes}
    out: list[str] = []
    deepest = "r" if reduced else "x"
    for op in nest.body:
        if op.name in ("reduce", "product"):
            out.append("x")
            continue
        if op.name == "scan":
            out.append("r")
            continue
        deep = any(out[a] == "r" for a in op.args)
        index = op.attr.index if isinstance(op.attr, Access) else op.attr if isinstance(op.attr, Index) else None
        if index is not None:
            for v in index.variables():
                deep = deep or (v in reduced) or (v.name.startswith("%") and out[int(v.name[1:])] == "r")
        if isinstance(op.attr, Access) and op.attr.mask is not None:
            deep = deep or out[op.attr.mask] == "r"
        added = isinstance(op.attr, Access) and op.attr.added
        out.append(deepest if added else "r" if deep else "x")
    return tuple(out)
