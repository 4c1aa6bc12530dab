"""Operations of a graph that have a part in its backward pass, and what they are told while the graph is differentiated ahead of time.

A backward that was compiled gets zeros where eager's autograd brings nothing. What is more than a formula in the gradients, such as a hook, has to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.errors import Unsupported
from dynacompile.ops.regions import REGION, Handle, Tensors, Work, handle

Pass = Callable[[], "tuple[tuple[bool, ...], tuple[bool, ...]] | None"]
"""The backward pass that runs: which tangents have come, and which gradients are asked for. None: not known, all of them."""


@dataclass(frozen=True)
class Tracing:
    """One differentiation of a graph. keep: has a handle live until it ends. now: see above. note: is told of a gradient that has to come wherever
    the backward runs. careful: there was one of which this is not so; all are to ask."""

    keep: Callable[[Handle], None]
    now: Pass
    note: Callable[[torch.Tensor], None]
    careful: bool


class Step:
    """An operation of a graph: takes and gives tensors, and None for what is none. Called, it does what eager does."""

    __module__ = __name__
    __name__: str

    def traced(self, args: tuple, tracing: Tracing) -> Any:
        """The operation on tensors of a graph that is differentiated."""
        raise NotImplementedError


class Arrivals(Work):
    """Work of the backward pass. reached: for each operand, the tangents that it comes from; leads: the gradients that it is a part of; both as the bits
    of a number. The graph knows them once it is finished."""

    def __init__(self, now: Pass):
        self.now = now
        self.reached: tuple[int, ...] = ()
        self.leads = 0

    def is_wanted(self) -> bool:
        """Whether a gradient is asked for that this is a part of."""
        now = self.now()
        return now is None or not self.leads or meets(self.leads, now[1])

    def came(self, count: int) -> list[bool]:
        """For each of the last operands, whether a tangent has come that it comes from."""
        now = self.now()
        if now is None or len(self.reached) < count:
            return [True] * count
        return [not bits or meets(bits, now[0]) for bits in self.reached[-count:]]


def meets(bits: int, flags: Sequence[bool]) -> bool:
    return any(here for i, here in enumerate(flags) if bits >> i & 1)


class HasCome(Arrivals):
    """Whether a gradient has come, as a tensor of one truth value."""

    def compute(self, operands: Tensors) -> Tensors:  # type: ignore[override]
        return [torch.full((), self.came(1)[0], device=operands[0].device)]

    def show(self, operands: Tensors) -> Tensors:  # type: ignore[override]
        return [torch.empty((), dtype=torch.bool, device=operands[0].device)]


class TensorHook(Step):
    """`tensor.register_hook`, of a hook that is a graph. run: the hook, over a gradient and what else it reads."""

    __name__ = __qualname__ = "register_hook"

    def __init__(self, run: Callable[[torch.Tensor, tuple], torch.Tensor | None]):
        self.run = run

    def __call__(self, tensor: torch.Tensor, *rest: torch.Tensor) -> None:
        tensor.register_hook(lambda grad: self.run(grad, rest))

    def traced(self, args: tuple, tracing: Tracing) -> None:
        tensor, *rest = args
        _ = tensor.grad_fn  # autograd may refuse to tell, and does it again where it is asked again

        def hook(grad: torch.Tensor | None) -> torch.Tensor | None:
            if grad is None:
                raise Unsupported("hooks", "a tensor's hook is called where no gradient comes", "register it outside of the compiled function")
            tracing.note(grad)
            made = self.run(grad, tuple(rest))
            if made is None or not tracing.careful:
                return made
            work = handle(HasCome(tracing.now))
            tracing.keep(work)
            (here,) = REGION(work, [grad])
            return torch.where(here, made, grad)

        tensor.register_hook(hook)


def note_places(nodes: Sequence[torch.fx.Node], reached: Callable[[torch.fx.Node], int], grads: Sequence[torch.fx.Node]) -> None:
    """Tells the work in a finished graph between which tangents and gradients it stands. reached: the tangents of a node, as the bits of a number."""
    found = [node for node in nodes if node.target is REGION and isinstance(node.args[0], Handle) and isinstance(node.args[0].work, Arrivals)]
    if not found:
        return
    leads = dict.fromkeys(nodes, 0)
    for i, grad in enumerate(grads):
        leads[grad] |= 1 << i
    for node in reversed(nodes):
        for operand in node.all_input_nodes:
            leads[operand] |= leads[node]
    for node in found:
        node.args[0].work.reached = tuple(reached(operand) for operand in node.args[1])  # type: ignore[union-attr,arg-type]
        node.args[0].work.leads = leads[node]  # type: ignore[union-attr]
