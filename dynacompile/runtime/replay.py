"""Differentiates the backward of a compiled graph: the graph runs again, under autograd and operation by operation, so that its gradients have a history.

A compiled backward gives gradients without one. Where autograd asks for more (`create_graph=True`), what it would have recorded is made then: the graph
is replayed on the inputs of the call, which the autograd node keeps as eager's nodes do, with the random numbers that the call drew. Autograd records the
replay and its gradients, which can be differentiated to any order. A backward over a batch of tangents (`is_grads_batched=True`) runs the compiled
backward, or the replay, once for each of them.

Where a result of the call was written since that the compiled backward reads, and that eager's autograd does not keep, the compiled forward runs again
on what is kept, and gives what the backward reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx

from dynacompile.ir.expressions import given as real
from dynacompile.ir.graphs import Fresh, Made, RuntimeContract, Settled, Stage, Target, ViewOfOutput, output_args
from dynacompile.ir.symbolic_graphs import executable, write_code
from dynacompile.markers import disable
from dynacompile.native import core as native_core
from dynacompile.ops.backward_steps import TensorHook
from dynacompile.ops.regions import FORMS, with_regions
from dynacompile.ops.wrappers import has_wrappers
from dynacompile.private import of_torch

AUTOCAST_DEVICES = ("cpu", "cuda")
Grads = tuple[torch.Tensor | None, ...]
Kept = tuple[tuple[Any, ...], tuple[int, ...], tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], tuple[torch.Tensor, ...]]
is_wrapped = of_torch.is_functorch_wrapped_tensor  # type: ignore[attr-defined]


def keeping_primals(
    differentiable: Any, forward: Callable, graph: torch.fx.GraphModule, fakes: Sequence[object], contract: RuntimeContract, stage: int | None = None
) -> Any:
    """The callable, whose autograd nodes keep what a replay needs. Called under the modes that the graph was compiled under. forward: the compiled one."""
    part = whole(contract) if stage is None else contract.stages[stage]
    if part.again is None or not part.tangents:
        return differentiable
    replay = Replay(forward, graph, fakes, contract, part)
    has_numbers = any(not isinstance(fake, torch.Tensor) for fake in fakes)
    first = len(part.saved_inputs)
    copies = tuple((first + place, replay.edges.index(Target("input", i))) for i, place in part.again.copies.items() if Target("input", i) in replay.edges)
    leaves = tuple(t.index for t in replay.edges if t.kind == "input")
    native_core().set_again(differentiable, replay, replay.kept, replay.measured, leaves, copies, replay.below, has_numbers, part.again.draws)
    return differentiable


def whole(contract: RuntimeContract) -> Stage:
    """A backward that is not cut, as the only stage."""
    edges = tuple(Target("input", i) for i in contract.grads)
    return Stage(
        contract.saved_inputs, contract.saved_positions, contract.tangents, edges, sources=contract.sources, marks=contract.marks, again=contract.again
    )


class Replay:
    """How a compiled graph runs again for one stage of its backward. edges: where gradients go. below: the user outputs among these, from which the replay
    goes on. kept: the inputs that a call keeps beside those that backward reads; measured: the tensors that no gradient depends on, for which zeros
    stand in."""

    def __init__(self, forward: Callable, graph: torch.fx.GraphModule, fakes: Sequence[object], contract: RuntimeContract, part: Stage):
        assert part.again is not None
        self.forward = forward
        self.graph, self.fakes, self.contract, self.part, self.again = graph, tuple(fakes), contract, part, part.again
        self.edges = (*part.edges, *part.further)
        self.below = tuple(dict.fromkeys(t.index for t in self.edges if t.kind == "output"))
        known = {*part.saved_inputs, *self.again.copies, *self.again.lost}
        self.kept = tuple(i for i in self.again.needed if i not in known)
        tensors = [i for i, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
        self.measured = tuple(i for i in tensors if i not in self.again.needed and i not in part.saved_inputs and i not in self.again.copies)
        first: dict[int, int] = {}
        self.same = tuple(first.setdefault(id(fake), i) if isinstance(fake, torch.Tensor) else i for i, fake in enumerate(fakes))
        self.casts = tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES)
        self.places = tuple(map(self.place, part.tangents))
        self._run: Callable[..., Sequence[Any]] | None = None

    def place(self, position: int) -> tuple[str, int] | None:
        """Where a run shows the forward output at `position`: a user output, one that is a view of it, or an input that is written."""
        rows = list(enumerate(self.contract.outputs))
        fresh = [i for i, o in rows if isinstance(o, Fresh) and o.position == position and o.differentiable]
        written = [m.input for m in self.contract.mutations if m.position == position]
        views = [(i, o) for i, o in rows if isinstance(o, ViewOfOutput) and o.position == position and is_differentiable(o)]
        alone = [i for i, o in views if o.alone]
        for kind, found in (("output", fresh + alone), ("input", written), ("view", [i for i, _ in views])):
            if found:
                return kind, found[0]
        return None

    def refusal(self) -> str:
        """Why the backward can't be differentiated again; empty where it can."""
        if has_wrappers(self.graph):
            return "its inputs, outputs or values between are tensors that wrap others, as DTensors do"
        if self.again.lost:
            return self.lost()
        if self.again.draws_backward:
            return "its backward draws random numbers"
        if any(t.kind == "written" for t in self.edges) or (self.below and self.again.written_targets):
            return "the graph writes in place to an output that another one is computed from"
        return ""

    def lost(self) -> str:
        return f"the graph writes to its inputs {', '.join(map(str, self.again.lost))}, whose values before that were not kept"

    @property
    def run(self) -> Callable[..., Sequence[Any]]:
        if self._run is None:
            graph = self.with_regions
            if self.below:
                needed = {place[1] for place in self.places if place is not None}
                graph = going_on_from(graph, self.below, None if self.again.draws or self.again.writes else needed, self.again.settled)
            graph = executable(graph)
            write_code(graph)
            self._run = disable(graph.forward)
        return self._run

    @property
    def with_regions(self) -> torch.fx.GraphModule:
        return with_regions(self.graph) if any(node.target in FORMS for node in self.graph.graph.nodes) else self.graph

    def differentiate(self, wanted: tuple[bool, ...], tangents: Grads, saved: tuple[torch.Tensor, ...], kept: Kept) -> Grads | str:
        """The gradients of the edges that are wanted, recorded by autograd. tangents: None for those that have not come. A text says why not."""
        if reason := self.refusal():
            return reason
        arrived = [(i, t) for i, t in enumerate(tangents) if t is not None]
        if any(i >= len(self.places) for i, _ in arrived):  # a hidden gradient, which only a compiled backward gives
            return "the graph writes in place to what an output is computed from"
        if any(self.places[i] is None for i, _ in arrived):
            return "an output shares memory with what the graph does not return"
        indices = [i for i, _ in arrived]
        found = sampled(lambda *given: self.once(wanted, dict(zip(indices, given, strict=True)), saved, kept), [t for _, t in arrived])
        return tuple(found)

    def recompute(self, saved: tuple[torch.Tensor, ...], kept: Kept) -> tuple[torch.Tensor, ...] | str:
        """What the compiled backward reads of the compiled forward's results, from a further run of it. A text says why there is none."""
        if self.again.lost:
            return self.lost()
        given = self.inputs(self.primals(saved, kept))
        with self.generators(kept[3]), torch.no_grad(), of_torch.DisableAutocast():
            results = self.forward(*given)
        return tuple(results[position] for position in self.part.saved_positions)

    def once(self, wanted: Sequence[bool], tangents: dict[int, torch.Tensor], saved: Sequence[torch.Tensor], kept: Kept) -> Grads:
        primals = self.primals(saved, kept)
        with torch.enable_grad():
            below = {j: value.view_as(value) for j, value in zip(self.below, kept[0][len(self.kept) :], strict=True)}
            with as_called(primals, self.fakes):
                leaves, views = self.aliases(primals)
                ends = tuple(t for t in (*leaves, *views.values(), *below.values()) if isinstance(t, torch.Tensor) and t.grad_fn is not None)
                native_core().stand_above_node(ends)
                inputs = self.inputs(leaves)
                with self.modes(kept[3]):
                    outputs = self.run(*inputs, *below.values())
                bases = {i: self.base(i, inputs, outputs) for i in tangents}
                results = {i: next((view for j, view in views.items() if leaves[j] is base), base) for i, base in bases.items()}
                recorded = tuple(r for r in results.values() if r.grad_fn is not None)
                native_core().lead_to_ends(recorded, tuple((leaves[i], view) for i, view in views.items()), ends)
            pairs = [(results[i], tangent) for i, tangent in tangents.items()]
            ways = {i: views.get(self.same[i], leaf) for i, leaf in enumerate(leaves)}
            targets = [below.get(t.index) if t.kind == "output" else ways[t.index] if t.kind == "input" else None for t in self.edges]
            asked = {i: end for i, (end, w) in enumerate(zip(targets, wanted, strict=True)) if w and end is not None and end.requires_grad}
            pairs = [(base, tangent) for base, tangent in pairs if base.requires_grad]
            if not pairs or not asked:
                return (None,) * len(wanted)
            with of_torch.DisableAutocast():
                given = [tangent for _, tangent in pairs]
                made = torch.autograd.grad([base for base, _ in pairs], list(asked.values()), given, create_graph=True, allow_unused=True)
            shown = tuple((result, i) for i, result in results.items() if result.grad_fn is not None and all(result.grad_fn is not e.grad_fn for e in ends))
            recorded = tuple(g for g in made if g is not None and g.grad_fn is not None)
            native_core().lead_to_node(recorded, shown, (*ends, *(t for t in given if t.grad_fn is not None)))
        found = dict(zip(asked, made, strict=True))
        return tuple(found.get(i) for i in range(len(self.edges)))

    def inputs(self, leaves: Sequence[Any]) -> list[Any]:
        """What the graph is called with: it may write to copies."""
        written = {i: leaves[i].clone() for i in self.again.written}
        return [written.get(i, leaf) for i, leaf in zip(self.same, leaves, strict=True)]

    def base(self, tangent: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> torch.Tensor:
        place = self.places[tangent]
        assert place is not None
        kind, index = place
        value = inputs[index] if kind == "input" else outputs[index]
        return value._base if kind == "view" and value._is_view() else value

    def primals(self, saved: Sequence[torch.Tensor], kept: Kept) -> list[Any]:
        """The inputs of the call as they were, with their history; zeros for those whose values no gradient depends on."""
        values, numbers, shapes, _ = kept
        found: list[Any] = [None] * len(self.fakes)
        count = len(self.part.saved_inputs)
        for i, value in zip(self.part.saved_inputs, saved[:count], strict=True):
            found[i] = value
        for i, value in zip(self.kept, values, strict=False):
            found[i] = value if isinstance(value, torch.Tensor) else self.leaf(i, value)
        for i, (size, stride) in zip(self.measured, shapes, strict=True):
            fake: Any = self.fakes[i]
            found[i] = torch.empty_strided(size, stride, dtype=fake.dtype, device=fake.device).zero_().requires_grad_(fake.requires_grad)
        for i, place in self.again.copies.items():
            found[i] = saved[count + place]
        for i, fake in enumerate(self.fakes):
            if not isinstance(fake, torch.Tensor):
                found[i] = fake if not numbers or isinstance(fake, (int, float)) else real(numbers[i]) if isinstance(fake, torch.SymFloat) else numbers[i]
        return [found[j] for j in self.same]

    def leaf(self, index: int, version: int) -> torch.Tensor:
        """The leaf that the node accumulates into, unless it was written since the call."""
        leaf: torch.Tensor = native_core().node_behind(self.edges.index(Target("input", index))).variable
        if leaf._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{leaf.type()} {list(leaf.shape)}] is at version {leaf._version}; expected version {version} instead"
            )
        return leaf

    def aliases(self, primals: Sequence[Any]) -> tuple[list[Any], dict[int, torch.Tensor]]:
        """Tensors at which the gradients of the replay end, although they have a history. What is one tensor in a call is one alias.

        Autograd keeps leaves themselves: what differentiates a gradient, and what differentiates that, asks each time whether they require gradients then.
        So they are given themselves, and gradients end at views of those that require them, the second result."""
        found: dict[int, Any] = {}
        views: dict[int, torch.Tensor] = {}
        for i in dict.fromkeys(self.same):
            primal = primals[i]
            if not isinstance(primal, torch.Tensor):
                found[i] = primal
            elif not is_kept_itself(primal):
                found[i] = primal.view_as(primal)
            else:
                found[i] = primal
                if primal.requires_grad:
                    views[i] = primal.view_as(primal)
        return [found[i] for i in self.same], views

    @contextmanager
    def modes(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        """Autocast as the call had it, and the generators as the call found them."""
        with ExitStack() as stack:
            for device, enabled, dtype in self.casts:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled=enabled, cache_enabled=False))
            stack.enter_context(self.generators(states))
            stack.enter_context(torch.set_grad_enabled(True))
            yield

    @contextmanager
    def generators(self, states: Sequence[torch.Tensor]) -> Iterator[None]:
        known = dict(zip(self.again.draws, states, strict=True))
        with ExitStack() as stack:
            for device in self.again.random:
                stack.enter_context(drawing_from(torch.device(device), known.get(device)))
            yield

    def batch(self, backward: Callable[..., Any], tangents: Grads, symbols: tuple, saved: tuple[torch.Tensor, ...], like: tuple[torch.Tensor, ...]) -> Grads:
        """The gradients of a batch of tangents, by the compiled backward. like: tensors of the geometry that each tangent has to have."""

        def once(*given: torch.Tensor) -> Grads:
            plain = [fitted(t, shape) for t, shape in zip(given, like, strict=True)]
            with torch.no_grad(), of_torch.DisableAutocast():
                return tuple(backward(*symbols, *(s.detach() for s in saved), *plain, *flags))

        arrived = [shape.zero_() if t is None else t for t, shape in zip(tangents, like, strict=True)]
        here = [t is not None for t in tangents]
        flags = [torch.full((), any(here[i] for i in flag), device=like[flag[0]].device) for flag in self.part.marks.flags]
        sources = self.part.sources or (tuple(range(len(here))),) * len(self.part.edges)
        made = sampled(once, arrived)
        found = [grad if not s or any(here[i] for i in s) else None for grad, s in zip(made, sources, strict=True)]
        return (*found, *(None for _ in self.part.further))


def is_kept_itself(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and not tensor.is_inference()


@contextmanager
def as_called(primals: Sequence[Any], fakes: Sequence[object]) -> Iterator[None]:
    """Leaves that were frozen or unfrozen since the call require gradients as they did in it."""
    changed = {
        id(p): (p, fake.requires_grad)
        for p, fake in zip(primals, fakes, strict=True)
        if isinstance(p, torch.Tensor) and isinstance(fake, torch.Tensor) and is_kept_itself(p) and p.requires_grad != fake.requires_grad
    }
    try:
        for primal, then in changed.values():
            primal.requires_grad_(then)
        yield
    finally:
        for primal, then in changed.values():
            primal.requires_grad_(not then)


def fitted(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor as plain memory with the strides of `like`, of which some may be 0: the elements along those dimensions are equal, or it is an error."""
    if tensor.stride() == like.stride() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    source, target = tensor, made
    for dim, (size, stride) in enumerate(zip(like.shape, like.stride(), strict=True)):
        if stride == 0 and size > 1:
            source, target = source.narrow(dim, 0, 1), target.narrow(dim, 0, 1)
    target.copy_(source)
    if target.numel() != made.numel() and not torch.allclose(made, tensor, rtol=0, atol=0, equal_nan=True):
        sizes, strides = list(tensor.shape), list(like.stride())
        raise RuntimeError(f"a gradient of sizes {sizes} whose elements differ can't have strides {strides}, which a compiled backward takes")
    return made


def is_differentiable(view: ViewOfOutput) -> bool:
    """Whether gradients flow through the view to what it is a view of."""
    return view.lineage.made in (Made.GRAD, Made.PART, Made.CUSTOM) and not view.lineage.detached


def going_on_from(module: torch.fx.GraphModule, outputs: Sequence[int], needed: Collection[int] | None, settled: Mapping[int, Settled]) -> torch.fx.GraphModule:
    """The graph with further inputs, in the place of some of its outputs wherever it uses these, or, where it writes one in place, after the last write.
    needed: the outputs that are to be computed, None for all."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    copied = graph.graph_copy(module.graph, copies)
    end = graph.output(copied)
    returned, nodes = output_args(module), list(module.graph.nodes)
    first = next(n for n in graph.nodes if n.op != "placeholder")
    for j in outputs:
        with graph.inserting_before(first):
            given = graph.placeholder(f"output_{j}")
        given.meta = dict(returned[j].meta)
        known = settled.get(j)
        earlier = {copies[n] for n in nodes[: known.last + 1] if n in copies} if known else set()
        for same in [copies[nodes[place]] for place in known.nodes] if known else [copies[returned[j]]]:
            for user in list(same.users):
                if isinstance(user.target, TensorHook) and user.args[0] is same:  # the stage below has it
                    graph.erase_node(user)
            same.replace_all_uses_with(given, delete_user_cb=lambda user: user is not end and user not in earlier)  # noqa: B023
    if needed is not None:
        end.args = (tuple(o if j in needed else None for j, o in enumerate(end.args[0])),)  # type: ignore[arg-type,union-attr]
        for node in reversed(list(graph.nodes)):
            if not node.users and node.op in ("call_function", "call_method", "get_attr") and isinstance(node.meta.get("val"), (torch.Tensor, tuple, list)):
                graph.erase_node(node)
    return of_torch.LazyGraphModule(module, graph)


class Sampled(torch.autograd.Function):
    """A function of plain tensors, called for each sample of a batch. It has a rule for batches alone."""

    @staticmethod
    def forward(run: Callable[..., Grads], *tensors: torch.Tensor) -> Grads:
        return run(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple, run: Callable[..., Grads], *tensors: torch.Tensor) -> tuple:
        columns = by_sample(run, tensors, in_dims[1:], info.batch_size)
        return tuple(columns), tuple(None if c is None else 0 for c in columns)


def sampled(run: Callable[..., Grads], tensors: Sequence[torch.Tensor]) -> Grads:
    """`run`, which takes plain tensors, of tensors that may be batches under torch.func.vmap or under torch.autograd's own."""
    if any(map(is_wrapped, tensors)):
        return Sampled.apply(run, *tensors)
    parts = [native_core().unbatched(t) for t in tensors]
    levels = [part[2] for part in parts if part is not None]
    if not levels:
        return run(*tensors)
    inner = [part if part is not None and part[2] == max(levels) else (t, None, 0) for part, t in zip(parts, tensors, strict=True)]
    size = next(t.shape[dim] for t, dim, _ in inner if dim is not None)
    columns = by_sample(run, [t for t, _, _ in inner], [dim for _, dim, _ in inner], size)
    return tuple(None if c is None else of_torch.add_batch_dim(c, 0, max(levels)) for c in columns)  # type: ignore[attr-defined]


def by_sample(run: Callable[..., Grads], tensors: Sequence[torch.Tensor], dims: Sequence[int | None], size: int) -> list[torch.Tensor | None]:
    """`run` of each sample; its results as batches, along their first dimension."""
    if size == 0:
        shown = sampled(run, [t if d is None else t.new_zeros([s for i, s in enumerate(t.shape) if i != d]) for t, d in zip(tensors, dims, strict=True)])
        return [None if g is None else g.new_zeros((0, *g.shape)) for g in shown]
    rows = [sampled(run, [t if d is None else t.select(d, n) for t, d in zip(tensors, dims, strict=True)]) for n in range(size)]
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


@contextmanager
def drawing_from(device: torch.device, state: torch.Tensor | None) -> Iterator[None]:
    """The default generator of the device goes on from `state` (None: from where it is); then again from where it was."""
    generator = torch.default_generator if device.type == "cpu" else torch.cuda.default_generators[device.index or 0]
    before = generator.get_state()
    if state is not None:
        generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(before)
