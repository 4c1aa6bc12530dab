"""The hand-offs of autograd: joint graph, and forward/backward graphs with the contract that the runtime keeps."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.fx

from dynacompile.errors import VerifyError
from dynacompile.ir.index import Extent
from dynacompile.ir.sizes import Sizes

REAL = -1  # of a symbol, in a dimension's place


@dataclass(frozen=True)
class View:
    """Geometry of a view: sizes, strides and offset in elements. The offset counts from the first element of the input or forward output
    that it is a view of (an input's own storage_offset may differ between calls)."""

    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    offset: Extent


class Made(enum.IntEnum):
    """How autograd knows a view: what flows through it, and who may write to it later, differ."""

    GRAD = 0  # under grad mode: gradients flow to what it is a view of
    PART = 1  # the same, as one of several results of one operation: autograd lets nobody write to it
    NO_GRAD = 2  # under no_grad: a leaf that requires gradients where its base does, and that nobody may write to under grad mode
    DETACHED = 3  # no view to autograd, though it shares memory
    CUSTOM = 4  # under grad mode, by a custom function: autograd lets nobody write to it


@dataclass(frozen=True)
class Lineage:
    """detached: a view of a detached tensor, and not of the input or output itself. counted: where that, or made, is detached: whether writes change
    the version of the input or output, as they do not through `.data`. leaf: it is a leaf that was told to require gradients. through: the user output,
    itself a view, that autograd comes by on its way to the input or output."""

    made: Made = Made.GRAD
    detached: bool = False
    counted: bool = True
    leaf: bool = False
    through: int | None = None


@dataclass(frozen=True)
class Fresh:
    """A user output that is the forward graph's output at `position`; `differentiable` ones get the autograd node."""

    position: int
    differentiable: bool


@dataclass(frozen=True)
class InputItself:
    """A user output that is the input tensor at `input`, the same object (after its mutation, if it is mutated)."""

    input: int


@dataclass(frozen=True)
class ViewOfInput:
    """A user output that is a view of an input: made again at run time, under autograd, from the live input."""

    input: int
    view: View
    lineage: Lineage = Lineage()


@dataclass(frozen=True)
class ViewOfOutput:
    """A user output that shares storage with other outputs: a view of the forward graph's output at `position`. alone: that is this output itself, which
    shares with no other and is a view in eager for autograd alone."""

    position: int
    view: View
    lineage: Lineage = Lineage()
    alone: bool = False


@dataclass(frozen=True)
class Constant:
    """A user output that is no tensor: None, an int, a float, ..."""

    value: object


Output = Fresh | InputItself | ViewOfInput | ViewOfOutput | Constant


@dataclass(frozen=True)
class Mutation:
    """Input `input` takes the value of the forward output at `position`, by an epilogue `input.copy_(value)` under autograd.

    Inputs that need no gradient are mutated in the graph instead (a trailing `aten.copy_`), and are not listed here.
    """

    input: int
    position: int


Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Some of eager's autograd nodes: the tangents that they are reached from, and the gradients that they lead to, by their indices in the contract."""


@dataclass(frozen=True)
class Watch:
    """A tensor that eager's autograd would keep: the input at `index`, or the forward output there, or a view of it. Writes to it after the call are an
    error of a backward pass that eager's node has a part in.

    parts: the nodes that keep it. as_itself: whether one keeps the input itself, with what becomes of its metadata, and not views of it alone.
    refusing: of the nodes, those that refuse an input which has lost its history: torch's own that keep the input itself; a custom function takes it."""

    is_input: bool
    index: int
    parts: tuple[Part, ...]
    as_itself: bool = True
    refusing: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Marks:
    """What the runtime does so that autograd finds eager's state.

    inference: forward outputs that the user gets as inference tensors. watches: see there.
    flags: sets of tangents; backward is told of each, after all else, by a tensor of one truth value, whether one of them has come.
    input_writes, output_writes: inputs and forward outputs, and how often the graph writes them in place: their versions say so.
    parts: the nodes that keep something: a backward pass frees it, and there is no second one through the same node. None: everything is one such node.
    needs: for each saved tensor, what of the backward reads it. It is freed when no backward pass can come to that any more.
    keeps: for each saved tensor, the nodes of eager's that keep it: where one of them runs, a write after the call is an error.
    aliased: saved inputs, by their place among what is saved, that no node of eager's keeps as themselves: their metadata may change after the call.
    makers: for each tangent, the node of eager's that made the output, with the tangents of its results: where it does not run, the output retains no gradient.
        Without tangents: it runs where the node of the graph does. Empty: so do all.
    views: the outputs that are views in eager, of what nobody sees, and here are none, each with the inputs whose gradients come by it. A write of the caller
        gives such a view's whole another node, which a backward pass frees, whatever it keeps.
    """

    inference: tuple[int, ...] = ()
    watches: tuple[Watch, ...] = ()
    flags: tuple[tuple[int, ...], ...] = ()
    input_writes: tuple[tuple[int, int], ...] = ()
    output_writes: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] | None = None
    needs: tuple[tuple[Part, ...], ...] = ()
    keeps: tuple[tuple[Part, ...], ...] = ()
    aliased: tuple[int, ...] = ()
    makers: tuple[Part, ...] = ()
    views: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Target:
    """Where a gradient goes. kind: "input", as the call got it; "output", to what made the user output; "written", to what wrote the input; "hidden", to
    the stage `index`, as its hidden gradient number `slot`."""

    kind: Literal["input", "output", "written", "hidden"]
    index: int
    slot: int = 0


@dataclass(frozen=True)
class Hidden:
    """A gradient that one stage of the backward gives to another, and that belongs to no output."""

    size: tuple[Extent, ...]
    stride: tuple[Extent, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Stage:
    """The part of the backward between outputs and those that they are computed from; it has an autograd node of its own.

    saved_inputs, saved_positions, tangents, symbols: as in the RuntimeContract; after the tangents come the hidden gradients. edges: where the gradients
        go that the stage's graph gives; further: what gets some through hidden gradients, to which edges lead, too. sources: for each of edges.
    marks: the watches, flags and parts of its node.
    """

    saved_inputs: tuple[int, ...]
    saved_positions: tuple[int, ...]
    tangents: tuple[int, ...]
    edges: tuple[Target, ...]
    further: tuple[Target, ...] = ()
    sources: tuple[tuple[int, ...], ...] = ()
    symbols: tuple[tuple[int, int | None], ...] = ()
    hidden: tuple[Hidden, ...] = ()
    marks: Marks = Marks()
    again: Again | None = None


@dataclass(frozen=True)
class Settled:
    """An output that the graph writes in place, whose value is what it stays after the last write. By their places among the nodes of the graph, nodes:
    what stands for it; last: what writes its memory last."""

    nodes: tuple[int, ...]
    last: int


@dataclass(frozen=True)
class Again:
    """What differentiating the backward once more takes.

    needed: tensor inputs whose values some gradient depends on. written: inputs that the graph writes to; of those among `needed`, copies says which
        of the saved positions has the value from before, by index, and lost names those that have none. draws: devices whose random numbers reach a
        gradient; random: all that the graph draws on. draws_backward: the backward draws random numbers itself. writes: the graph has in-place operations;
        settled: of outputs that others are computed from, those that it writes to; written_targets: it reads the memory of one by another tensor afterwards.
    """

    needed: tuple[int, ...]
    written: frozenset[int] = frozenset()
    copies: Mapping[int, int] = field(default_factory=dict)
    lost: tuple[int, ...] = ()
    draws: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    draws_backward: bool = False
    writes: bool = False
    written_targets: bool = False
    settled: Mapping[int, Settled] = field(default_factory=dict)


@dataclass(frozen=True)
class PastInputs:
    """An output that requires gradients which come to no input of the graph.

    error: what autograd raises on the way back from it; None: nothing, unless one of these inputs or outputs of the graph, which are kept for the way
    back, was written since.
    """

    error: str | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RuntimeContract:
    """What the runtime does around the two graphs.

    inputs: number of flat graph inputs. outputs: how each user output is made. mutations: epilogues.
    saved_inputs: indices of inputs that backward needs; saved_positions: forward outputs that it needs. Backward's inputs are
        saved inputs, saved outputs, then one tangent per entry of `tangents` (positions of forward outputs, ascending).
    grads: for each output of the backward graph, the input that it is the gradient of.
    sources: for each of grads, the entries of `tangents` that it comes from, by index: where autograd brings none of these, there is no
        gradient, and not zeros. Empty: not known, all of them.
    symbols: numbers that backward takes before all else: (forward input, dimension) for a size, (forward input, None) for an int,
        (forward input, REAL) for a float.
    sizes: of the symbols in views. marks: see there.
    again: how the backward is differentiated, None where it can't be.
    stages: where outputs are computed from others, the backward in parts, those of the lowest outputs first; what is saved is theirs.
    """

    inputs: int
    outputs: tuple[Output, ...]
    mutations: tuple[Mutation, ...] = ()
    mutated_in_graph: tuple[int, ...] = ()
    saved_inputs: tuple[int, ...] = ()
    saved_positions: tuple[int, ...] = ()
    tangents: tuple[int, ...] = ()
    grads: tuple[int, ...] = ()
    sources: tuple[tuple[int, ...], ...] = ()
    symbols: tuple[tuple[int, int | None], ...] = ()
    sizes: Sizes = Sizes()
    marks: Marks = Marks()
    again: Again | None = None
    stages: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class ForwardBackward:
    """Functional ATen graphs, decomposed. backward is None for inference.

    forward: placeholders are the flat inputs; the output is a flat tuple of tensors. Placeholders' and nodes' fake values are in
        `node.meta["val"]`, the user's line in `node.meta["site"]` where known.
    backward: placeholders as in `RuntimeContract`; the output is a flat tuple of tensors or None.
    stages: of the contract's stages, in the place of backward.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule | None
    contract: RuntimeContract
    facts: dict[str, int] = field(default_factory=dict)
    stages: tuple[torch.fx.GraphModule, ...] = ()

    def verify(self) -> None:
        outputs = output_args(self.forward)
        used = [o.position for o in self.contract.outputs if isinstance(o, (Fresh, ViewOfOutput))]
        used += [m.position for m in self.contract.mutations] + list(self.contract.saved_positions) + list(self.contract.tangents)
        if any(p >= len(outputs) for p in used):
            raise VerifyError("autograd", f"a position of {sorted(set(used))} is beyond the {len(outputs)} forward outputs")
        if self.backward is not None:
            told = self.contract
            expected = len(told.symbols) + len(told.saved_inputs) + len(told.saved_positions) + len(told.tangents) + len(told.marks.flags)
            got = sum(n.op == "placeholder" for n in self.backward.graph.nodes)
            if got != expected:
                raise VerifyError("autograd", f"backward takes {got} inputs, the contract gives {expected}")
            if len(output_args(self.backward)) != len(self.contract.grads):
                raise VerifyError("autograd", "backward's outputs and the contract's grads differ in number")

    def text(self) -> str:
        parts = ["forward:", self.forward.code.strip()]
        if self.backward is not None:
            parts += ["backward:", self.backward.code.strip()]
        for i, graph in enumerate(self.stages):
            parts += [f"backward, stage {i}:", graph.code.strip()]
        return "\n".join([*parts, f"contract: {self.contract}"])

    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def output_args(module: torch.fx.GraphModule) -> tuple:
    """The flat arguments of a graph's output node."""
    node = next(iter(reversed(module.graph.nodes)))
    args = node.args[0]
    return tuple(args) if isinstance(args, (tuple, list)) else (args,)
