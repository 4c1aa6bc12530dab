"""Control flow over tensors at run time: what torch.cond, while_loop, scan and map do with their graphs, as one operation with one result list.

A region runs its graphs by Python. Its gradient runs it again, and autograd through that run, as the recomputation that torch's own forms do.
In ATen graphs a region is the operator `dynacompile::region`, whose first argument is a number that stands for what to run.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.fx
from torch.autograd.function import once_differentiable

from dynacompile.markers import disable
from dynacompile.private import of_torch

Tensors = Sequence[torch.Tensor]
Run = Callable[..., Tensors]
DEVICES = ("cpu", "cuda")


def as_cond(predicate: torch.Tensor, if_true: Run, if_false: Run, operands: Tensors) -> tuple[Run, Tensors]:
    if_true, if_false = executable(if_true), executable(if_false)

    def run(predicate: torch.Tensor, *operands: torch.Tensor) -> Tensors:
        return (if_true if predicate else if_false)(*operands)

    return run, (predicate, *operands)


def as_while(condition: Run, body: Run, carried: Tensors, around: Tensors) -> tuple[Run, Tensors]:
    condition, body, count = executable(condition), executable(body), len(carried)

    def run(*operands: torch.Tensor) -> Tensors:
        state, around = operands[:count], operands[count:]
        while condition(*state, *around)[0]:
            state = tuple(body(*state, *around))
        return state

    return run, (*carried, *around)


def as_scan(combine: Run, init: Tensors, rows: Tensors, around: Tensors) -> tuple[Run, Tensors]:
    combine, first, last = executable(combine), len(init), len(init) + len(rows)

    def run(*operands: torch.Tensor) -> Tensors:
        carry, rows, around = operands[:first], operands[first:last], operands[last:]
        made = []
        for i in range(rows[0].shape[0]):
            results = combine(*carry, *(row[i] for row in rows), *around)
            carry = tuple(results[:first])
            made.append(results[first:])
        return (*carry, *(torch.stack(column) for column in zip(*made)))

    return run, (*init, *rows, *around)


def as_map(function: Run, rows: Tensors, around: Tensors) -> tuple[Run, Tensors]:
    function, count = executable(function), len(rows)

    def run(*operands: torch.Tensor) -> Tensors:
        rows, around = operands[:count], operands[count:]
        made = [function(*(row[i] for row in rows), *around) for i in range(rows[0].shape[0])]
        return tuple(torch.stack(column) for column in zip(*made))

    return run, (*rows, *around)


FORMS: dict[Any, Callable[..., tuple[Run, Tensors]]] = {
    of_torch.cond_op: as_cond,
    of_torch.while_loop_op: as_while,
    of_torch.scan_op: as_scan,
    of_torch.map_impl: as_map,
}
"""Torch's operator -> its arguments as (a function of tensors alone, these tensors)."""


def executable(graph: Any) -> Run:
    """A graph as a function in which operators over graphs are regions, too."""
    if not isinstance(graph, torch.fx.GraphModule):
        return graph
    if any(node.target in FORMS for node in graph.graph.nodes):
        graph = with_regions(graph)
    return disable(graph.forward)


def with_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with our regions in the place of torch's operators."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.target in FORMS:
            node.target = CALLS[node.target]
    return torch.fx.GraphModule(module, graph)


class Region:
    """run: differentiable by autograd. Runs under the autocast of where it was made."""

    def __init__(self, run: Run):
        self.run = disable(run)
        self.casts = [(device, torch.get_autocast_dtype(device)) for device in DEVICES if torch.is_autocast_enabled(device)]

    @contextmanager
    def modes(self, grad: bool) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(within_autograd())
            for device, dtype in self.casts:
                stack.enter_context(torch.autocast(device, dtype, cache_enabled=False))
            stack.enter_context(torch.set_grad_enabled(grad))
            yield

    def forward(self, operands: Tensors) -> tuple[torch.Tensor, ...]:
        """The results, none of which shares memory with an operand."""
        with self.modes(False):
            results = [r.detach() for r in self.run(*(o.detach() for o in operands))]
            given = {storage(o) for o in operands}
            return tuple(r.clone() if storage(r) in given else r for r in results)

    def gradients(self, operands: Tensors, tangents: Tensors, wanted: Sequence[bool]) -> list[torch.Tensor]:
        """Of the wanted operands. tangents: of the results that are differentiable."""
        with self.modes(True):
            inputs = [o.detach().requires_grad_(w) for o, w in zip(operands, wanted)]
            results = [r for r in self.run(*inputs) if is_differentiable(r)]
        pairs = [(r, t) for r, t in zip(results, tangents) if r.requires_grad]
        asked = [i for i, w in zip(inputs, wanted) if w]
        found: Sequence[torch.Tensor | None] = [None] * len(asked)
        if pairs:
            found = torch.autograd.grad([r for r, _ in pairs], asked, [t for _, t in pairs], allow_unused=True)
        with torch.no_grad():
            return [alike(grad, i) for grad, i in zip(found, asked)]


AUTOGRAD_KEYS = tuple(getattr(of_torch.DispatchKey, n) for n in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"))


def within_autograd() -> of_torch.ForceDispatchKeyGuard:
    """Operations are seen by autograd, also where an operator's own kernel calls them."""
    excluded = of_torch.dispatch_tls_local_exclude_set()
    for key in AUTOGRAD_KEYS:
        excluded = excluded.remove(key)
    return of_torch.ForceDispatchKeyGuard(of_torch.dispatch_tls_local_include_set(), excluded)


def alike(grad: torch.Tensor | None, operand: torch.Tensor) -> torch.Tensor:
    """A gradient with the strides that `empty_like` gives; zeros for None."""
    if grad is None:
        return torch.zeros_like(operand)
    made = torch.empty_like(operand)
    return made.copy_(grad)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def is_differentiable(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class Differentiated(torch.autograd.Function):
    """A region under autograd: every result of floating point has a history, as those of torch's operators have."""

    @staticmethod
    def forward(ctx: Any, compute: Callable, gradients: Callable, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.gradients = gradients
        ctx.save_for_backward(*operands)
        results = tuple(compute(operands))
        ctx.places = [i for i, r in enumerate(results) if is_differentiable(r)]
        ctx.mark_non_differentiable(*(r for r in results if not is_differentiable(r)))
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor) -> tuple:
        wanted = ctx.needs_input_grad[2:]
        found = iter(ctx.gradients(ctx.saved_tensors, [tangents[i] for i in ctx.places], wanted))
        return None, None, *(next(found) if w else None for w in wanted)


def apply(compute: Callable[[Tensors], Tensors], gradients: Callable[..., Tensors], operands: Tensors) -> tuple[torch.Tensor, ...]:
    """compute(operands), differentiable where an operand asks for it."""
    if torch.is_grad_enabled() and any(o.requires_grad for o in operands):
        return Differentiated.apply(compute, gradients, *operands)
    return tuple(compute(operands))


def results_like(examples: Tensors, operands: Tensors) -> tuple[torch.Tensor, ...]:
    """What a region over `operands` gives, as far as fakes can show it."""
    return apply(lambda _: blank(examples), no_gradients, operands)


def blank(examples: Tensors) -> list[torch.Tensor]:
    return [torch.empty_strided(e.size(), e.stride(), dtype=e.dtype, device=e.device) for e in examples]


def no_gradients(*_: object) -> list[torch.Tensor]:
    raise AssertionError("fakes are not differentiated")


def call_now(form: Callable[..., tuple[Run, Tensors]]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """An operator over graphs as a call of its region on real tensors."""

    def call(*args: Any) -> tuple[torch.Tensor, ...]:
        run, operands = form(*args)
        region = Region(run)
        return apply(region.forward, region.gradients, operands)

    call.__name__ = call.__qualname__ = form.__name__.removeprefix("as_") + "_region"
    return call


CALLS = {operator: call_now(form) for operator, form in FORMS.items()}

# In ATen graphs

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("region(int handle, Tensor[] operands) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,))  # so its place among random ops is kept
REGION = torch.ops.dynacompile.region.default


class Work:
    """What a call of the operator runs. compute: operands -> results; show: the same on fakes."""

    def __init__(self, compute: Callable[[Tensors], Tensors], show: Callable[[Tensors], Tensors]):
        self.compute, self.show = compute, show


class Handle(int):
    """The number that stands for some work. Graphs and programs hold it as an argument, and by it the work."""

    work: Work


WORKS: weakref.WeakValueDictionary[int, Work] = weakref.WeakValueDictionary()
NUMBERS = itertools.count()


def handle(work: Work) -> Handle:
    made = Handle(next(NUMBERS))
    made.work = WORKS[int(made)] = work
    return made


def run_region(number: int, operands: Tensors) -> list[torch.Tensor]:
    return list(WORKS[number].compute(operands))


def show_region(number: int, operands: Tensors) -> list[torch.Tensor]:
    return list(WORKS[number].show(operands))


LIBRARY.impl("region", run_region, "CompositeExplicitAutograd")
torch.library.register_fake("dynacompile::region", show_region, lib=LIBRARY)


def traced(operator: Any, args: tuple, examples: Tensors, keep: Callable[[Handle], None]) -> tuple[torch.Tensor, ...]:
    """An operator over graphs on tensors that are being traced. examples: its results in capture. keep: has a handle live until the trace ends."""
    run, operands = FORMS[operator](*args)
    region = Region(run)
    forward = handle(Work(region.forward, lambda _: blank(examples)))
    keep(forward)

    def compute(operands: Tensors) -> Tensors:
        return REGION(forward, list(operands))

    def gradients(operands: Tensors, tangents: Tensors, wanted: Sequence[bool]) -> Tensors:
        count = len(operands)
        back = handle(
            Work(
                lambda given: region.gradients(given[:count], given[count:], wanted),
                lambda given: [torch.empty_like(o) for o, w in zip(given, wanted) if w],
            )
        )
        keep(back)
        return REGION(back, [*operands, *tangents])

    return apply(compute, gradients, operands)
