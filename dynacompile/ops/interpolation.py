"""Interpolation on GPUs, and its gradients, as pointwise operations over reads at computed places: kernels that fuse with what is around them.

Each result is a sum of a few elements (its taps), one factor a dimension; places and factors are those of ATen's kernels, in the dtype in which these
compute. The gradient of an element is a sum as well: of the results that have it among their taps, which are adjacent, so that nothing is added to memory
and every call gives the same bits. How many these are at most is found out when the rule runs, for sizes that are known. Symbolic sizes, and factors
that make more taps than a kernel reads well, are ATen's calls, as are all on CPUs, whose own kernels are as fast.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dynacompile.ops.rules import Table, add, aten, cast, mul, row, sub, where, wide

INTERPOLATION: Table = {}
MOST_TAPS = 25  # elements that one result is a sum of, in one kernel
MOST_ALONG = 24  # the same along one dimension, where each has a kernel of its own
CUBIC = -0.75  # the parameter of the cubic kernel, as in ATen
Reach = tuple[int, int]
REACH = {"nearest": 1, "nearest-exact": 1, "linear": 2, "cubic": 4}  # taps along a dimension


@dataclass(frozen=True)
class Line:
    """One dimension: `size` elements become `results`. step: elements from a result to the next, rounded to `dtype`, in which places are computed."""

    kind: str
    size: int
    results: int
    aligned: bool
    step: float
    dtype: torch.dtype

    def base(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """For the results at `at`, numbers in `dtype`: the element that taps are counted from, and how far beyond it the result is, in elements."""
        if REACH[self.kind] == 1:
            return self.floor(mul(add(at, 0.5) if self.kind == "nearest-exact" else at, self.step)), None
        place = mul(at, self.step) if self.aligned else sub(mul(add(at, 0.5), self.step), 0.5)
        if self.kind == "linear" and not self.aligned:
            place = aten.clamp_min.default(place, 0)
        below = self.floor(place)
        return below, sub(place, cast(below, self.dtype))

    def place(self, base: torch.Tensor, k: int | torch.Tensor) -> torch.Tensor:
        """The elements that are tap k."""
        return self.within(add(base, sub(k, 1) if isinstance(k, torch.Tensor) else k - 1) if self.kind == "cubic" else add(base, k))

    def factor(self, share: torch.Tensor, k: int | torch.Tensor) -> torch.Tensor:
        """What tap k is multiplied with. A tensor k chooses for each of its elements."""
        rest = add(aten.neg.default(share), 1)
        if self.kind == "linear":
            return choose(k, rest, share)
        return choose(k, outer(add(share, 1)), inner(share), inner(rest), outer(add(rest, 1)))

    def taps(self, at: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Places and factors of the results at `at`, a row for each tap; factors: None for 1."""
        base, share = self.base(at)
        k = aten.view.default(aten.arange.start_step(0, count, 1, dtype=torch.int64, device=at.device), [-1, 1])
        return self.place(base, k), None if share is None else self.factor(share, k)

    def part(self, result: torch.Tensor, element: torch.Tensor) -> torch.Tensor:
        """What an element is multiplied with in a result, for results that there are; 0 where it is no tap of it."""
        base, share = self.base(cast(result, self.dtype))
        if share is None:
            return cast(aten.eq.Tensor(self.place(base, 0), element), self.dtype)
        return functools.reduce(add, (where(aten.eq.Tensor(self.place(base, k), element), self.factor(share, k), 0.0) for k in range(REACH[self.kind])))

    def floor(self, x: torch.Tensor) -> torch.Tensor:
        return cast(aten.floor.default(x), torch.int64)

    def within(self, place: torch.Tensor) -> torch.Tensor:
        return aten.clamp.default(place, 0, self.size - 1)

    def start(self, element: torch.Tensor) -> torch.Tensor:
        """About the first result that has an element among its taps; `reach` counts from it."""
        offset, factor = self.backwards()
        return self.floor(mul(add(cast(element, self.dtype), offset), factor))

    def backwards(self) -> tuple[float, float]:
        """What is added to an element's number, and what that is multiplied with, to get to the first result."""
        before = {"linear": 1.0, "cubic": 2.0}.get(self.kind, 0.0)
        centre = 0.5 if REACH[self.kind] > 1 and not self.aligned else 0.0
        return centre - before, 1 / self.step if self.step else 0.0

    def reach(self) -> Reach:
        """Results that have an element among their taps: the first, counted from `start`, and how many they are at most. Computed by NumPy, as the rule
        runs on tensors without values."""
        number = number_of(self.dtype)
        offset, factor = map(number, self.backwards())
        start = np.floor((np.arange(self.size, dtype=number) + offset) * factor).astype(np.int64)
        first, last = np.full(self.size, self.results), np.full(self.size, -1)
        for elements, counts in self.elements(number):
            at = np.flatnonzero(counts)
            np.minimum.at(first, elements[at], at)
            np.maximum.at(last, elements[at], at)
        used = last >= 0
        before = int((first - start)[used].min())
        return before, int((last - start)[used].max()) - before + 1

    def elements(self, number: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """The places of `taps` for all results, and where their factors are not 0 for certain."""
        at: np.ndarray = np.arange(self.results, dtype=number)
        step = number(self.step)
        every = np.ones(self.results, dtype=bool)
        if REACH[self.kind] == 1:
            places = [(np.floor((at + number(0.5) if self.kind == "nearest-exact" else at) * step), every)]
        else:
            place = at * step if self.aligned else (at + number(0.5)) * step - number(0.5)
            place = np.maximum(place, 0) if self.kind == "linear" else place
            below = np.floor(place)
            shares = [every, place > below] if self.kind == "linear" else [every] * 4
            places = [(below + k - (self.kind == "cubic"), share) for k, share in enumerate(shares)]
        return [(np.clip(p, 0, self.size - 1).astype(np.int64), share) for p, share in places]


def choose(k: int | torch.Tensor, *options: torch.Tensor) -> torch.Tensor:
    if not isinstance(k, torch.Tensor):
        return options[k]
    return functools.reduce(lambda found, i: where(aten.eq.Scalar(k, i), options[i], found), range(len(options) - 1), options[-1])


def inner(x: torch.Tensor) -> torch.Tensor:
    """The cubic kernel where |x| <= 1 (R. Keys, 1981)."""
    return add(mul(mul(sub(mul(x, CUBIC + 2), CUBIC + 3), x), x), 1)


def outer(x: torch.Tensor) -> torch.Tensor:
    """The same where 1 < |x| < 2."""
    return sub(mul(add(mul(sub(mul(x, CUBIC), 5 * CUBIC), x), 8 * CUBIC), x), 4 * CUBIC)


def number_of(dtype: torch.dtype) -> Any:
    """NumPy's type of such numbers: what is made by torch while a rule runs would be recorded as part of the graph."""
    return np.float64 if dtype == torch.float64 else np.float32


def lines_of(kind: str, sizes: Sequence[int], results: Sequence[int], aligned: bool, scales: Sequence[float | None], dtype: torch.dtype) -> list[Line] | None:
    """The dimensions, or None where a size is not known or empty."""
    if not all(type(n) is int and n > 0 for n in (*sizes, *results)):
        return None
    found = []
    for size, count, scale in zip(sizes, results, scales, strict=True):
        if aligned:
            step = (size - 1) / (count - 1) if count > 1 else 0.0
        else:
            step = 1 / scale if scale is not None and scale > 0 else size / count
        found.append(Line(kind, size, count, aligned, float(number_of(dtype)(step)), dtype))
    return found


Taps = tuple[torch.Tensor, torch.Tensor | None]  # places and factors [taps, results] along one dimension


def interpolated(x: torch.Tensor, lines: Sequence[Line]) -> torch.Tensor:
    """[batch, channels, ...] of the lines' sizes, interpolated to their results."""
    taps = [line.taps(numbers(line.results, line.dtype, x), REACH[line.kind]) for line in lines]
    return laid_like(cast(sum_of(wide(x), taps), x.dtype), x)


def gradient(grad: torch.Tensor, lines: Sequence[Line]) -> torch.Tensor | None:
    """What reaches the elements of what the results were made of: at once, or one dimension after the other, each of which is a pass over memory more,
    with fewer terms in all. None where an element is a tap of more results than a kernel reads well."""
    reaches = [line.reach() for line in lines]
    most = max(count for _, count in reaches)
    together = math.prod(count for _, count in reaches) <= MOST_TAPS
    if not together and (len(lines) == 1 or most > MOST_ALONG):
        return None
    found = wide(grad)
    for choice in [range(len(lines))] if together else [[d] for d in range(len(lines))]:
        found = sum_of(found, [results_of(line, reaches[d], grad) if d in choice else None for d, line in enumerate(lines)], skips=True)
    return laid_like(cast(found, grad.dtype), grad)


def results_of(line: Line, reach: Reach, like: torch.Tensor) -> Taps:
    """The results that each element is a tap of, and with which factors; 0 for others, and for places that are no results."""
    element = numbers(line.size, torch.int64, like)
    before, count = reach
    place = add(add(line.start(element), before), aten.view.default(numbers(count, torch.int64, like), [-1, 1]))
    result = aten.clamp.default(place, 0, line.results - 1)
    return result, where(aten.eq.Tensor(place, result), line.part(result, element), 0.0)


def numbers(count: int, dtype: torch.dtype, like: torch.Tensor) -> torch.Tensor:
    return aten.arange.start_step(0, count, 1, dtype=dtype, device=like.device)


def sum_of(x: torch.Tensor, taps: Sequence[Taps | None], skips: bool = False) -> torch.Tensor:
    """The sum over all choices of one tap for each of the last dimensions. None: a dimension that stays as it is. skips: a factor of 0 gives 0, also
    where x is infinite."""
    several = sum(t is not None for t in taps) > 1

    def along(row: torch.Tensor, d: int) -> torch.Tensor:
        return aten.view.default(row, [-1, *(1 for _ in range(len(taps) - d - 1))])

    def added(d: int, places: list[torch.Tensor | None]) -> torch.Tensor:
        if d == len(taps):
            return aten.index.Tensor(x, [None] * (x.dim() - d) + places)
        own = taps[d]
        if own is None:
            return added(d + 1, [*places, None])
        parts = []
        for k in range(own[0].shape[0]):
            place = aten.select.int(own[0], 0, k)
            part = added(d + 1, [*places, along(place, d) if several else place])
            parts.append(part if own[1] is None else weighed(part, along(aten.select.int(own[1], 0, k), d)))
        return functools.reduce(add, parts)

    def weighed(part: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        whole = aten.expand.default(cast(factor, part.dtype), part.shape)
        made = mul(part, whole)
        return where(aten.eq.Scalar(whole, 0), 0.0, made) if skips else made

    return added(0, [])


def laid_like(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """In the memory format that ATen's kernels give a result of such an input."""
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(like.dim())
    if form is None or like.is_contiguous() or not like.is_contiguous(memory_format=form):
        return made
    return aten.clone.default(made, memory_format=form)


def forward_rule(kind: str, has_corners: bool) -> Callable:
    def rule(x, output_size, *more):
        return of_input(kind, x, output_size, more, has_corners, on_gpu_alone=True)

    return rule


def of_input(kind: str, x: torch.Tensor, results: Sequence[int], more: tuple, has_corners: bool, on_gpu_alone: bool = False) -> object:
    """more: whether corners are aligned, where the op says so, and the scales, as far as they are given."""
    scales = (*more[has_corners:], *(None for _ in results))[: len(results)]
    if (on_gpu_alone and x.device.type == "cpu") or not x.is_floating_point() or not x.numel():
        return NotImplemented
    lines = lines_of(kind, x.shape[2:], results, bool(has_corners and more[0]), scales, wide_dtype(x))
    if lines is None or math.prod(REACH[kind] for _ in lines) > MOST_TAPS:
        return NotImplemented
    return interpolated(x, lines)


def backward_rule(kind: str, has_corners: bool) -> Callable:
    def rule(grad, output_size, input_size, *more):
        return of_gradient(kind, grad, output_size, input_size, more, has_corners, on_gpu_alone=True)

    return rule


def of_gradient(
    kind: str, grad: torch.Tensor, results: Sequence[int], sizes: Sequence[int], more: tuple, has_corners: bool, on_gpu_alone: bool = False
) -> object:
    scales = (*more[has_corners:], *(None for _ in results))[: len(results)]
    if (on_gpu_alone and grad.device.type == "cpu") or not grad.is_floating_point() or not grad.numel():
        return NotImplemented
    lines = lines_of(kind, sizes[2:], results, bool(has_corners and more[0]), scales, wide_dtype(grad))
    made = None if lines is None else gradient(grad, lines)
    return NotImplemented if made is None else made


def wide_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


NAMES = {
    **{f"upsample_nearest{d}d": ("nearest", False) for d in (1, 2, 3)},
    **{f"_upsample_nearest_exact{d}d": ("nearest-exact", False) for d in (1, 2, 3)},
    "upsample_linear1d": ("linear", True),
    "upsample_bilinear2d": ("linear", True),
    "upsample_trilinear3d": ("linear", True),
    "upsample_bicubic2d": ("cubic", True),
}
for (name, (kind, has_corners)), backward in itertools.product(NAMES.items(), (False, True)):
    op = getattr(aten, name + "_backward" * backward).default
    row(INTERPOLATION, op)((backward_rule if backward else forward_rule)(kind, has_corners))
