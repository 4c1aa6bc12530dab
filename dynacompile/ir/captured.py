"""The hand-off of capture: one frame as a torch-level graph, the facts it relied on, and what runs around the graph."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

import torch
import torch.fx

from dynacompile.errors import VerifyError
from dynacompile.ir.frozen import record
from dynacompile.ir.looks import made
from dynacompile.ir.rounds import is_again, unroll
from dynacompile.ops.wrappers import Enter, Leave
from dynacompile.quoting import printable

if TYPE_CHECKING:
    from dynacompile.ir.source import Source


@dataclass(frozen=True)
class Site:
    """A place in the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return printable(f"{self.file}:{self.line} in {self.function}")

    # the names that torch's messages about symbolic sizes ask for
    filename = property(lambda self: self.file)
    lineno = property(lambda self: self.line)
    name = property(lambda self: self.function)


@record
class Guard:
    """One fact about the value at `source` that an entry relies on.

    kind: a row of `dynacompile.guards.kinds`. expected: that kind's payload (a constant, a type, a tensor's metadata).
    site: the user line whose capture read the fact.
    """

    kind: str
    source: Source | None
    expected: object = None
    site: Site | None = None


@dataclass(frozen=True)
class TensorFacts:
    """Payload of a TENSOR_MATCH guard. sizes/strides: None marks a dimension that may vary. wraps: it wraps others, which have guards of their own."""

    type: type
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...] | None
    wraps: bool = False


@record
class GraphInput:
    """A placeholder of the graph: where its value comes from at run time, and its fake value (FakeTensor, int, float), or `Later` one.

    is_asked: a tensor whose class overrides torch's functions; the graph is given a plain alias. wrapper: of a tensor that another one wraps, that one: the
    graph's callable is given it, and takes it apart. is_pending: the result of a collective that may be under way.
    """

    name: str
    source: Source
    given: object
    is_asked: bool = False
    wrapper: Source | None = None
    is_pending: bool = False

    def given_as(self, given: object) -> GraphInput:
        """The same placeholder with another value; as `replace`, which takes several times as long."""
        return GraphInput(self.name, self.source, given, self.is_asked, self.wrapper, self.is_pending)

    @property
    def root(self) -> Source:
        """What the graph's callable is given."""
        return self.source if self.wrapper is None else self.wrapper

    @property
    def fake(self) -> object:
        return made(self.given)


@dataclass(frozen=True)
class Break:
    """A graph break, as reported: `code` is a row of `dynacompile.capture.breaks`."""

    code: str
    reason: str
    hint: str
    stack: tuple[Site, ...]  # outermost frame first


PENDING = -2  # in the place of a wrapper: the result of a collective that may be under way, which the graph's callable waits for


MOST_RESTARTS = 2


@dataclass
class Restarts:
    """Of a frame whose graph may raise what a clause of the program takes, or find that a branch goes where the graph does not: then all that the graph has
    changed is as it was before, and the call runs as Python from its start. After `MOST_RESTARTS` such calls the entry serves no more, and the next one ends
    its graph before such an operation or branch.

    written: the positions of the inputs that the graph writes. draws: whether it draws random numbers. operations: those that may raise, and branches.
    required: the positions of the outputs that have to be true.
    """

    written: tuple[int, ...]
    draws: bool
    operations: tuple[str, ...]
    required: tuple[int, ...] = ()
    count: int = 0

    def serves(self) -> bool:
        return self.count < MOST_RESTARTS


@dataclass(frozen=True)
class Repeats:
    """Of a frame whose graph may raise by the values of its operands: then what it has changed is as it was before, and the call is made again as Python.

    draws: whether the graph draws random numbers, from the default generator of CPUs. written: the positions of the inputs that it writes.
    """

    draws: bool
    written: tuple[int, ...] = ()


@dataclass(frozen=True)
class Wrappers:
    """Tensors that wrap others among what the graph's callable is given and gives. inputs: for each graph input that lies inside of a wrapper, the index in
    `enters` of the step that makes it, or PENDING, and the attribute; None for others. enters: the steps that make wrappers in the graph. outputs: for each
    output that is a wrapper, the step that takes it apart in the graph; None for others."""

    inputs: tuple[tuple[int, str] | None, ...]
    enters: tuple[Enter, ...]
    outputs: tuple[Leave | None, ...]


def no_guards() -> tuple[Guard, ...]:
    """The conditions on sizes of an entry without symbols."""
    return ()


class GraphSlot:
    """Stands in `Captured.code.co_consts` for the callable that a backend makes of the graph."""

    def __repr__(self) -> str:
        return "<graph>"


GRAPH = GraphSlot()


@dataclass(frozen=True)
class Captured:
    """One captured frame.

    compact: torch-level GraphModule, placeholders in the order of `inputs`, output a flat tuple; None when the frame
        needs no graph (a break before the first op, or pure Python). Rounds of loops may be single nodes in it (`ir.rounds`), and fakes of placeholders
        be missing; `graph` is the same without either.
    roots: the sources that `code` pushes, in this order, when it calls the constant GRAPH; the callable bound to it gathers
        every graph input from these roots and returns the graph's outputs as a tuple.
    guards: all that must hold for `code` to be right.
    code: the residual code, same parameters and free variables as the original code.
    break_: why the graph ended before the frame did.
    resumes: code objects of resume functions that `code` calls; the hook meets their frames like any other.
    whole: the frame ended inside the graph: no user Python runs after it (a leaf entry).
    settings: those of torch that `code` changes before it calls the graph, as in ir.determinism.
    shape_guards: gives the guards on symbolic sizes; to be called when the graph is compiled, since compiling may rely on more of them.
    with_gradients: the graph is to be called, and compiled, with gradients turned on.
    regather: the program has asked for gathers to be made again in the backward, as the option of that name does.
    wrappers: None where no input or output is one.
    restarts: None where no operation of the graph may raise what a clause takes.
    repeats: None where the graph does not raise, or changes much before; or where there are restarts.
    in_modes: the frame began with torch-function modes on, which are to be off while the graph runs: its operations say where they make tensors.
    """

    name: str
    compact: torch.fx.GraphModule | None
    inputs: tuple[GraphInput, ...]
    roots: tuple[Source, ...]
    guards: tuple[Guard, ...]
    code: CodeType
    site: Site
    break_: Break | None = None
    resumes: tuple[CodeType, ...] = ()
    whole: bool = True
    shape_guards: Callable[[], tuple[Guard, ...]] = no_guards
    settings: Mapping[str, bool] = field(default_factory=dict)
    facts: dict[str, int] = field(default_factory=dict)
    wrappers: Wrappers | None = None
    with_gradients: bool = False
    regather: bool = False
    in_modes: bool = False
    restarts: Restarts | None = None
    repeats: Repeats | None = None

    @property
    def graph(self) -> torch.fx.GraphModule | None:
        """The graph of operations alone; from then on `compact` is that, too."""
        if self.compact is not None:
            unroll(self.compact)
        return self.compact

    @property
    def ops(self) -> int:
        if self.compact is None:
            return 0
        return sum(len(n.target.nodes) if is_again(n) else 1 for n in self.compact.graph.nodes if n.op.startswith("call"))

    def bind(self, call: Callable) -> CodeType:
        """The residual code with `call` in the place of the graph."""
        return self.code.replace(co_consts=tuple(call if c is GRAPH else c for c in self.code.co_consts))

    def verify(self) -> None:
        if (self.compact is None) != (not any(c is GRAPH for c in self.code.co_consts)):
            raise VerifyError("capture", "the residual code and the graph disagree on whether there is a graph")
        if self.compact is not None:
            self.compact.graph.lint()
            names = [n.name for n in self.compact.graph.nodes if n.op == "placeholder"]
            if names != [i.name for i in self.inputs]:
                raise VerifyError("capture", f"placeholders {names} are not the inputs {[i.name for i in self.inputs]}")
        reachable = set(self.roots)
        for graph_input in self.inputs:
            for root in graph_input.source.roots():
                if root not in reachable and type(root).__name__ != "Constant":
                    raise VerifyError("capture", f"input {graph_input.name} comes from {root.text()}, which is not passed to the graph")

    def text(self) -> str:
        lines = [f"captured {self.name}  # {self.site}"]
        lines += [f"  input {i.name}: {i.source.text()}" for i in self.inputs]
        if self.compact is not None:
            lines += ["  " + line for line in self.compact.code.strip().splitlines()]
        lines += [f"  guard {g.kind} {g.source.text() if g.source else ''} {g.expected!r}" for g in self.guards]
        if self.break_:
            lines.append(f"  break [{self.break_.code}] {self.break_.reason}")
        return "\n".join(lines)

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]
