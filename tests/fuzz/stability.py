"""Which numbers eager itself is sure of: it runs again with every rounded result moved by a random last bit (Monte Carlo arithmetic, Parker 1997).

Kernels may sum in another order and evaluate formulas another way, which moves results by as much. Where that moves eager's own answer as far as ours
lies from it, the answer is noise: a sum that cancels to nothing, a comparison of two numbers that are equal but for rounding. So is a gradient that
is some roundings of the largest one of the same pass: `log_softmax` does not change with what is added to all its inputs, and its gradient by that is
what is left of terms of the size of the others, in one formula less than in the next. Where a number within a program exceeds what its square may
have in the dtype, an answer that is not finite depends on the formula, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

RUNS = 8
WIDER = 16  # how far beyond the furthest of the runs an answer may lie
ROUNDINGS = 64  # of the largest number in a pass that a smaller one may be off by
aten = torch.ops.aten
EXACT = {
    aten.abs, aten.neg, aten.relu, aten.floor, aten.round, aten.sign, aten.sgn, aten.clamp, aten.maximum, aten.minimum, aten.where, aten.gt, aten.ge,
    aten.lt, aten.le, aten.eq, aten.ne, aten.clone, aten.copy_, aten._to_copy, aten.flip, aten.cat, aten.stack, aten.fill_, aten.full, aten.zeros, aten.ones,
    aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_empty_strided, aten.new_empty, aten.empty_like, aten.empty, aten.lift_fresh,
    aten.scalar_tensor, aten.slice_backward, aten.select_backward, aten.threshold_backward, aten.masked_fill, aten.rand, aten.rand_like, aten.randn,
    aten.bernoulli_, aten.linspace, aten.zero_, aten.index_select, aten.arange, aten.masked_fill_,
}  # fmt: skip
"""Operations whose results have no rounding, or are what the program was given."""
ONCE = {aten.mul, aten.div, aten.sub, aten.reciprocal}
"""Operations that round their result and nothing on the way to it. Sums of several terms are many additions, which may come in another order."""


class LastBits(TorchDispatchMode):
    """Moves the results of rounding operations by up to one unit in the last place, and the operands of those that round within: what cancels
    there is as unsure as its terms. large: whether a number was so large that its square is infinite."""

    def __init__(self, seed: int):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.large = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        views = func.is_view or any(a.alias_info is not None and not a.alias_info.is_write for a in func._schema.arguments)
        if views or func.overloadpacket in EXACT:
            return func(*args, **(kwargs or {}))
        if not func._schema.is_mutable and func.overloadpacket not in ONCE:
            args = tuple(map(self.moved, args))
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            for t in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(t, torch.Tensor) and t.dtype == torch.float64:
                    t.copy_(self.moved(t))
            return result
        return type(result)(map(self.moved, result)) if type(result) in (tuple, list) else self.moved(result)

    def moved(self, result: Any) -> Any:
        if not isinstance(result, torch.Tensor) or result.dtype != torch.float64 or not result.numel() or torch._is_zerotensor(result) or result.is_meta:
            return result  # zero tensors have no memory, which torch reads below a mode; operations on them run on meta tensors, too
        limits = torch.finfo(result.dtype)
        self.large = self.large or bool((~(result.abs() < limits.max**0.5)).any())
        bits = 2 * torch.rand(result.shape, generator=self.generator, dtype=result.dtype) - 1
        return torch.where(result.isfinite(), result + limits.eps * bits * result, result)


def runs(answers: Callable[[], Any], seed: int) -> tuple[list[Any], bool]:
    """What eager answers with moved last bits, and whether some number was as large as LastBits tells."""
    found, large = [], False
    for n in range(RUNS):
        with LastBits(seed * RUNS + n) as mode:
            found.append(answers())
        large = large or mode.large
    return found, large


def is_unsure(expected: Any, got: Any, others: Sequence[Any], large: bool, largest: float = 0.0) -> bool:
    """Whether an answer differs from eager's nowhere by more than eager's own vary. Structures, dtypes, and what has a gradient at all must agree.
    largest: number beside the answer, in the same pass, whose gradients are a tuple."""
    if isinstance(expected, (list, tuple)):
        largest = max((magnitude(t) for t in expected if isinstance(t, torch.Tensor)), default=0.0) if isinstance(expected, tuple) else 0.0
        alike = isinstance(got, (list, tuple)) and all(isinstance(o, (list, tuple)) and len(o) == len(expected) for o in (got, *others))
        return alike and all(is_unsure(e, g, [o[n] for o in others], large, largest) for n, (e, g) in enumerate(zip(expected, got, strict=True)))
    if not isinstance(expected, torch.Tensor) or not isinstance(got, torch.Tensor):
        return type(expected) is type(got) and expected == got
    if any(not isinstance(o, torch.Tensor) or o.shape != expected.shape or o.dtype != expected.dtype for o in (got, *others)):
        return False
    if not expected.is_floating_point():
        return torch.equal(expected, got)
    same = (expected == got) | (expected.isnan() & got.isnan())
    spread = max((apart(other, expected).max() for other in others if other.numel()), default=torch.tensor(0.0))
    distance = torch.where(same, 0, apart(got, expected))
    undecided = large & ~(expected.isfinite() & got.isfinite())
    near = torch.isclose(expected, got, rtol=1e-7, atol=1e-9, equal_nan=True)
    allowed = max(WIDER * float(spread), ROUNDINGS * torch.finfo(expected.dtype).eps * largest)
    return bool((same | near | undecided | (distance <= allowed)).all())


def magnitude(t: torch.Tensor) -> float:
    return float(t.abs().nan_to_num(0, 0).max()) if t.numel() and t.is_floating_point() else 0.0


def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How far two tensors are apart: without end where only one has a number, or they have different infinities."""
    alike = (a == b) | (a.isnan() & b.isnan())
    return torch.where(alike, 0, (a - b).abs().nan_to_num(torch.inf, torch.inf))
