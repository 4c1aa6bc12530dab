"""Size 1 in an entry for many sizes: which operations need no guard on it.

torch asks of every size whether it is 1, for it broadcasts, strides and takes tensors for contiguous by that. Within the operations listed here the
answer for larger sizes is right for 1 too: where a size is broadcast against another, torch goes on to check that they are equal, which is a guard,
and a stride along one element addresses nothing. Of all others, and wherever else a size is asked for (a branch of the program, a reshape that
copies or not), size 1 has an entry of its own. So has size 0, always: reductions of nothing are errors, or values that no loop makes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from dynacompile.ir.memory_order import general_answer, goes_by_order
from dynacompile.private import of_torch

aten, prims = torch.ops.aten, torch.ops.prims
COMPOSITE = "CompositeImplicitAutograd"
MANY = 2
ALIKE = frozenset(
    {
        aten.sum, aten.mean, aten.amax, aten.amin, aten.any, aten.all, aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten._softmax, aten._log_softmax,
        aten._softmax_backward_data, aten._log_softmax_backward_data, aten.native_layer_norm, aten.native_layer_norm_backward, aten.cat, aten.stack,
        aten.embedding, aten.embedding_dense_backward, aten.clone, aten._to_copy, aten.empty_like, aten.zeros_like, aten.ones_like, aten.full_like,
        aten.new_zeros, aten.new_ones, aten.new_empty, aten.new_full, aten.new_empty_strided, aten.zeros, aten.ones, aten.full, aten.empty,
        aten.empty_strided, aten.arange, aten.unsqueeze, aten.t, aten.transpose, aten.permute, aten.detach, aten.alias, aten.view, aten._unsafe_view,
        aten.expand, aten.where, aten._safe_softmax, aten.mse_loss, aten.mse_loss_backward, aten.empty_permuted, prims.broadcast_in_dim, prims.where,
    }
)  # fmt: skip
ASKING = frozenset(
    {
        aten.slice, aten.select, aten.split, aten.split_with_sizes, aten.unbind, aten.slice_backward, aten.select_backward, aten.nll_loss_forward,
        aten.nll_loss_backward, aten.gather, aten.squeeze, prims.squeeze, aten.as_strided, torch.ops.prim.device,
    }
)  # fmt: skip
"""These ask what they need to know, and that is a guard. So do operations that are made of others."""


@dataclass
class Lenience:
    """find_env: the ShapeEnv, which holds this. symbols: sizes that may be 1 in an entry made for another size, which is the value. free: which questions
    need no guard: none, all, or (outside of operations, while autograd adds up gradients) those that torch has an answer to without a value. by_order: the
    operation that runs gives the same whether its operands are contiguous or not. coincidences: symbols that are fixed by the answer to a question that torch
    goes on from either way: the program works for other sizes, too."""

    find_env: Callable[[], Any]
    symbols: dict[Any, int] = field(default_factory=dict)
    free: Literal["none", "answered", "all"] = "none"
    by_order: bool = False
    coincidences: set[Any] = field(default_factory=set)

    @contextmanager
    def within(self, operation: Any, arguments: Any = ()) -> Iterator[None]:
        """While `operation` runs on fakes, and all that it is made of."""
        before, by_order = self.free, self.by_order
        self.by_order = goes_by_order(operation, arguments)
        if self.symbols and before != "all":
            self.free = "all" if is_alike(operation) else "none"
            if self.free == "none" and not is_asking(operation):
                self.keep_apart(sizes_in(arguments))
        try:
            yield
        finally:
            self.free, self.by_order = before, by_order

    @contextmanager
    def answered_questions(self) -> Iterator[None]:
        """While autograd runs, which reduces a gradient whose size differs from its input's, and asks for 1 first; and while a captured graph runs again, of
        which capture has asked what it has to."""
        before, self.free = self.free, "answered"
        try:
            yield
        finally:
            self.free = before

    def keep_apart(self, sizes: Iterator[torch.SymInt]) -> None:
        """Guards that the symbols of these sizes are not 1."""
        for symbol in sorted({s for n in sizes for s in n.node.expr.free_symbols} & self.symbols.keys(), key=str):
            bool(self.find_env().create_symintnode(symbol, hint=self.symbols[symbol]) != 1)

    def decided(self, condition: Any, is_answered: bool) -> bool | None:
        """The answer to a question about sizes that needs no guard; None where it is to be asked."""
        found = getattr(condition, "free_symbols", ())
        if (
            self.free == "none"
            or (self.free == "answered" and not is_answered)
            or not found
            or not found <= self.symbols.keys()
            or not (condition.is_Relational or condition.is_Boolean)
        ):
            return None
        answer = self.find_env()._maybe_evaluate_static(condition, size_oblivious=True)
        return bool(answer) if answer in (True, False) else None

    def general(self, condition: Any, answer: bool) -> bool | None:
        """The answer to a question about strides that holds whatever they are; None where one is known, or to be asked."""
        chosen = general_answer(condition, answer)
        return None if chosen is None or self.find_env()._maybe_evaluate_static(condition) in (True, False) else chosen


def is_alike(operation: Any) -> bool:
    return getattr(operation, "overloadpacket", None) in ALIKE or torch.Tag.pointwise in getattr(operation, "tags", ())


def is_asking(operation: Any) -> bool:
    if not isinstance(operation, of_torch.OpOverload):
        return False
    known = operation.overloadpacket in ASKING or operation.namespace == "dynacompile"
    return known or of_torch.dispatch_has_kernel_for_dispatch_key(operation.name(), COMPOSITE)


def sizes_in(arguments: Any) -> Iterator[torch.SymInt]:
    if isinstance(arguments, torch.SymInt):
        yield arguments
    elif isinstance(arguments, torch.Tensor):
        yield from sizes_in(tuple(arguments.shape))
    elif isinstance(arguments, (list, tuple)):
        for a in arguments:
            yield from sizes_in(a)


def answered_questions(env: Any) -> AbstractContextManager:
    small = getattr(env, "small", None)
    return nullcontext() if small is None else small.answered_questions()


def within(env: Any, operation: Any, arguments: Any) -> AbstractContextManager:
    """For an operation that is done by others. env: None where sizes are static."""
    small = getattr(env, "small", None)
    return nullcontext() if small is None else small.within(operation, arguments)


def lenient(env: Any) -> Lenience:
    """Has the ShapeEnv ask it first."""
    this, ask = weakref.ref(env), type(env).evaluate_sym_node
    made = Lenience(this)

    def evaluate(node: Any, size_oblivious: bool = False, fallback_value: bool | None = None) -> Any:
        known = made.decided(node.expr, fallback_value is not None)
        if known is None and made.by_order and fallback_value is not None:
            known = made.general(node.expr, fallback_value)
        if known is not None:
            return known
        env: Any = this()
        found: dict[Any, Any] = env.replacements
        before = len(found)
        answer = ask(env, node, size_oblivious, fallback_value)
        if fallback_value is not None and len(found) > before:
            made.coincidences.update(symbol for symbol in list(found)[before:] if found[symbol].is_Integer)
        return answer

    env.evaluate_sym_node = evaluate
    return made


def may_be_one(env: Any, symbol: Any, value: int) -> None:
    """value: the size of the call that is captured."""
    env.small.symbols[symbol] = value
    env.size_like.add(symbol)
