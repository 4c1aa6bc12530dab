"""Cross entropy of a linear layer's results, computed in chunks of rows: the layer's results, the logits, never exist as a whole.

Where the loss is one number, its gradients follow in the same pass: they are computed for an incoming gradient of 1 and kept, and the backward multiplies
them. Where each row has a loss of its own, the backward computes the logits again, also in chunks. So it does for float16, whose gradients need the
scale of the loss before they are rounded.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from dynacompile.ops.logit_points import HALVES, ROWS, Passed, Point, wide
from dynacompile.ops.losses import require_classes
from dynacompile.ops.reading import Reading

LIBRARY = torch.library.Library("dynacompile", "FRAGMENT")
LIBRARY.define("keep(Tensor value) -> Tensor")
LIBRARY.define("after(Tensor value, Tensor other) -> Tensor")
LIBRARY.define("add_to(Tensor sum, Tensor part) -> Tensor")
LIBRARY.impl("add_to", torch.add, "CompositeExplicitAutograd")
LIBRARY.define("product_into(Tensor rows, Tensor a, Tensor b, SymInt start) -> Tensor")
LIBRARY.impl("product_into", lambda rows, a, b, start: torch.slice_scatter(rows, a.mm(b), 0, start, start + a.shape[0]), "CompositeExplicitAutograd")
LIBRARY.impl("product_into", lambda rows, a, b, start: torch.empty_like(rows), "Meta")
LIBRARY.define("add_product(Tensor sum, Tensor a, Tensor b) -> Tensor")
LIBRARY.impl("add_product", lambda sum, a, b: torch.addmm(sum, a, b, out_dtype=torch.float32), "CUDA")
LIBRARY.impl("add_product", lambda sum, a, b: torch.empty_like(sum), "Meta")
for name in ("keep", "after"):
    LIBRARY.impl(name, lambda value, *_: value.clone(), "CompositeExplicitAutograd")
KEEP = torch.ops.dynacompile.keep.default
"""Its argument, which the forward computes and never the backward, although only the backward reads it."""
AFTER = torch.ops.dynacompile.after.default
"""Its first argument, as part of the pass that computes the second, which is made before a call that takes the result."""

PRODUCT_INTO = torch.ops.dynacompile.product_into.default
"""Its first argument, which nothing else reads, with the product of a and b as the rows from `start` on: the product is made there."""
ADD_PRODUCT = torch.ops.dynacompile.add_product.default
"""float32 and the product of two matrices of half precision, which is not rounded before. An operation of ours, since torch 2.11 has no rule by which its
own runs on fakes."""
ADD_TO = torch.ops.dynacompile.add_to.default
"""The sum of its arguments, in the memory of the first, which nothing else reads; a call, since fused sums would hold all parts until the last."""


@dataclass(frozen=True)
class Loss:
    """classes: of the targets. rows: of a chunk. padded: classes that the product is made with, those beyond `classes` being zeros that do not count.
    dtype: that the product is computed in; result: that of the loss. wide_products: the device has products of half precision with results and summands
    in float32. has_logsumexp: the graph takes the logarithms of the rows' sums of exponentials, too. picks: "gather" or "index", where the
    targets are places that such an operation takes; negative ones of an index count from the end. It checks them itself. chunks: how many there are, where
    the number of rows is a symbol; else 0."""

    classes: int
    rows: int
    padded: int
    dtype: torch.dtype
    result: torch.dtype
    reduction: str
    ignore_index: int
    label_smoothing: float
    wide_products: bool
    has_logsumexp: bool = False
    picks: str = ""
    chunks: int = 0


@dataclass(frozen=True)
class Pick:
    """What is taken of each row for one class: the "logarithm" of its probability, its "probability", or its "logit", as `dtype`."""

    kind: str
    dtype: torch.dtype


class WrittenBetween(Exception):
    """The graph writes an operand of the layer before the loss reads it."""


class Held:
    """What stands for the logits: the rows that they are the product of, and the layer's parameters."""

    def __init__(self, rows: torch.Tensor, *parameters: torch.Tensor | None):
        self.rows, self.parameters = rows, parameters
        self.points: tuple[Point, ...] = ()
        self.is_recorded = torch.is_grad_enabled()

    def among(self, rows: torch.Tensor, *points: Point) -> Held:
        held = copy.copy(self)
        held.rows, held.points = rows, self.points + points
        return held

    read: list[Reading]
    """Of the operands of the layer and of the points; of the targets and the classes' weights, too, once both results of a region with two are computed."""
    made: list[torch.Tensor]
    """Of a region with two results: both, the loss and the logarithms, once the first was asked for."""


def hold_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Held:
    operands = [t if t is None or torch.is_grad_enabled() else t.detach() for t in (x, weight, bias)]
    held = Held(*operands)  # type: ignore[arg-type]
    held.read, held.made = [Reading.of(t) for t in (x, weight, bias) if t is not None], []
    return held


def hold_product(x: torch.Tensor, matrix: torch.Tensor) -> Held:
    return hold_linear(x, matrix.t())


def hold_reshaped(held: Held, shape: Sequence[int]) -> Held:
    """shape: of the rows, without the classes."""
    return held.among(held.rows.reshape(*shape, held.rows.shape[-1]))


def hold_indexed(held: Held, index: Any) -> Held:
    return held.among(held.rows[index])


def hold_same(held: Held) -> Held:
    return held


def hold_point(held: Held, name: str, others: Sequence[Any], dtype: torch.dtype, is_written: bool = False) -> Held:
    """The logits after an operation on each of them (a row of `logit_points.ROWS`), which gives `dtype`. is_written: it writes where they are. Raises
    WrittenBetween for such a one that autograd does not see and the layer is seen, or the other way round."""
    if is_written and torch.is_grad_enabled() != held.is_recorded:
        raise WrittenBetween
    held.read.extend(Reading.of(o) for o in others if isinstance(o, torch.Tensor))
    taken = tuple(o.detach() if isinstance(o, torch.Tensor) and not torch.is_grad_enabled() else o for o in others)
    return held.among(held.rows, Point(name, taken, dtype))


def loss_of(held: Held, target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None = None) -> torch.Tensor:
    """The loss. Raises WrittenBetween."""
    return results_of(held, target, loss, class_weights)[0]


def picked_of(held: Held, target: torch.Tensor, loss: Loss, pick: Pick) -> torch.Tensor:
    """What is picked of each row, in the shape of `target`: from the same pass as a loss of each row. Raises WrittenBetween."""
    losses, *logarithms = results_of(held, target, loss, None)
    if pick.kind == "logit":
        value = logarithms[0].reshape(target.shape) - losses
    else:
        value = -losses if pick.kind == "logarithm" else (-losses).exp()
    return (value + checked_zeros(held, target, loss)).to(pick.dtype)


def checked_zeros(held: Held, target: torch.Tensor, loss: Loss) -> torch.Tensor:
    """Zeros of the target's shape. Eager's operation makes them, so that a place which is no class raises eager's error."""
    zeros = torch.zeros((), dtype=loss.result, device=target.device).expand(*held.rows.shape[:-1], loss.classes)
    if loss.picks == "gather":
        return zeros.gather(-1, target)
    return zeros[torch.arange(zeros.shape[0], device=target.device), target]


def logsumexp_of(held: Held, target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials, from the pass that the loss comes from. Raises WrittenBetween."""
    return results_of(held, target, loss, class_weights)[1].to(dtype).reshape(shape)


def results_of(held: Held, target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None) -> list[torch.Tensor]:
    if not held.made:
        held.made += computed(held, target, loss, class_weights)
        held.read += [Reading.of(t) for t in (target, class_weights) if t is not None and loss.has_logsumexp]
    elif any(reading.is_written() for reading in held.read if reading.tensor is target or reading.tensor is class_weights):
        raise WrittenBetween
    return held.made


def computed(held: Held, target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None) -> list[torch.Tensor]:
    if any(reading.is_written() for reading in held.read):
        raise WrittenBetween
    weight, bias = held.parameters
    assert weight is not None
    scalars = [t for point in held.points for t in point.tensors()]
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] = held.rows.reshape(-1, held.rows.shape[-1]), weight, bias
    given: tuple[Any, ...] = target.reshape(-1), loss, class_weights, held.points
    is_recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*operands, *scalars))
    if loss.reduction != "none" and loss.dtype != torch.float16 and not loss.has_logsumexp:
        if is_recorded:
            return [OnePass.apply(*operands, *given, *scalars)]
        with torch.no_grad():
            return [Chunks(*operands, *given).total()]
    if is_recorded:
        rows, *logarithms = ByRows.apply(*operands, *given, *scalars)
    else:
        with torch.no_grad():
            rows, *logarithms = Chunks(*operands, *given).results()
    if loss.reduction == "none":
        return [rows.to(loss.result).reshape(target.shape), *logarithms]
    total = rows.sum()
    return [(total / counted(target.reshape(-1), loss, class_weights) if loss.reduction == "mean" else total).to(loss.result), *logarithms]


@functools.cache
def has_wide_sums() -> bool:
    """Whether products of half precision can be added to a sum of float32 on GPUs; where there is none to ask, those of recent versions of torch can."""
    if not torch.cuda.is_available():
        return True
    half = torch.zeros(8, 8, dtype=torch.bfloat16, device="cuda")
    try:
        torch.addmm(half.float(), half, half, out_dtype=torch.float32)
    except RuntimeError:  # that of a version whose kernels ask for summands of half precision
        return False
    return True


def counted(target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None) -> torch.Tensor:
    """What a mean divides by: the rows that count, each as often as its class's weight says."""
    counts = target != loss.ignore_index
    if class_weights is not None:
        return torch.where(counts, wide(class_weights)[torch.where(counts, target, 0)], 0).sum()
    return counts.sum().to(torch.float64 if loss.dtype == torch.float64 else torch.float32)


def dense(t: torch.Tensor) -> torch.Tensor:
    """The tensor without gaps: `keep` and `after` stand for memory of the strides that a copy has."""
    return t if t.is_contiguous() or (t.dim() == 2 and t.t().is_contiguous()) else t.contiguous()


class Rows:
    """One chunk of the logits, and what its rows have in common. All are numbers of float32 or float64 until `gradients` rounds."""

    def __init__(self, logits: torch.Tensor, target: torch.Tensor, loss: Loss, class_weights: torch.Tensor | None, points: Sequence[Point]):
        self.loss, self.class_weights, self.passed = loss, class_weights, Passed(logits, points)
        classes = torch.arange(logits.shape[1], device=logits.device, dtype=target.dtype)
        self.counts = (target != loss.ignore_index)[:, None]
        self.hit = classes[None, :] == torch.where(self.counts, target[:, None], 0)
        self.exists = None if loss.padded == loss.classes else (classes < loss.classes)[None, :]
        values = wide(self.passed.results[-1])
        if self.exists is not None:
            values = torch.where(self.exists, values, -torch.inf)
        self.row_weights = None if class_weights is None else class_weights[torch.where(self.counts[:, 0], target, 0)][:, None]
        self.top = values.amax(1, keepdim=True)
        self.shifted = values - self.top
        self.total = self.shifted.exp().sum(1, keepdim=True)

    def losses(self) -> torch.Tensor:
        log_total, smoothing = self.total.log(), self.loss.label_smoothing
        value = log_total - torch.where(self.hit, self.shifted, 0).sum(1, keepdim=True)
        if self.row_weights is not None:
            value = value * self.row_weights
        if smoothing:
            shifted = self.shifted if self.exists is None else torch.where(self.exists, self.shifted, 0)
            if self.class_weights is None:
                even = log_total - shifted.sum(1, keepdim=True) / self.loss.classes
            else:
                even = (log_total * self.class_weights.sum() - (shifted * self.class_weights).sum(1, keepdim=True)) / self.loss.classes
            value = (1 - smoothing) * value + smoothing * even
        return torch.where(self.counts, value, 0)[:, 0]

    def logarithms(self) -> torch.Tensor:
        return (self.total.log() + self.top)[:, 0]

    def gradients(self, factor: torch.Tensor, of_logarithms: torch.Tensor | None = None) -> list[torch.Tensor]:
        """Of the logits, and, of each row, of tensors among the points' operands.

        factor: the incoming gradient of all rows, or one for each as a column; of_logarithms: that of the rows' logarithms."""
        smoothing = self.loss.label_smoothing
        share = self.shifted.exp() / self.total
        own = 1 - smoothing if self.row_weights is None else (1 - smoothing) * self.row_weights
        value = share if self.row_weights is None else share * own
        if smoothing and self.class_weights is None:
            even = smoothing / self.loss.classes
            value = value - (even if self.exists is None else torch.where(self.exists, torch.full_like(self.total, even), 0))
        elif smoothing and self.class_weights is not None:
            value = value + (smoothing / self.loss.classes) * (share * self.class_weights.sum() - self.class_weights)
        value = torch.where(self.counts, torch.where(self.hit, value - own, value) * factor, 0)
        own_value, *of_others = self.passed.back(value if of_logarithms is None else value + share * of_logarithms)
        if self.exists is not None and self.passed.points:
            own_value = torch.where(self.exists, own_value, 0)
        return [own_value.to(self.loss.dtype), *of_others]


def apart(rows: torch.Tensor, places: Sequence[slice]) -> Sequence[torch.Tensor]:
    """Copies of parts of the rows."""
    return torch.ops.aten.split_with_sizes_copy.default(rows, [p.stop - p.start for p in places])


class Chunks:
    """The rows of a layer's results, in chunks. done: what the last chunk gave; the next one is not begun before."""

    def __init__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        loss: Loss,
        class_weights: torch.Tensor | None,
        points: Sequence[Point],
        is_checked: bool = False,
    ):
        self.loss, self.own_weights, self.points = loss, class_weights, points
        self.target = torch.where(target < 0, target + loss.classes, target) if loss.picks == "index" else target
        self.count: Any = x.shape[0]
        more = loss.padded - loss.classes
        given = None if class_weights is None else wide(class_weights)
        self.class_weights = given if given is None or not more else torch.cat([given, given.new_zeros(more)])
        self.done: torch.Tensor | None = None
        self.x, self.width = self.filled(x.to(loss.dtype)).contiguous(), weight.shape[1]
        self.is_turned = weight.stride(0) == 1 != weight.stride(1)  # then eager's gradient is, too
        self.weight = self.with_padding(weight)
        self.bias = None if bias is None else self.with_padding(bias)
        if not (is_checked or loss.picks):
            require_classes(target, loss.classes, loss.ignore_index)

    def with_padding(self, parameter: torch.Tensor) -> torch.Tensor:
        made, more = parameter.to(self.loss.dtype), self.loss.padded - self.loss.classes
        return made if not more else torch.cat([made, made.new_zeros(more, *made.shape[1:])])

    def rows(self) -> Any:
        """Of a chunk. Of a symbolic number two at least, since torch would guard that there is more than one."""
        return (self.count + (self.loss.chunks - 1)) // self.loss.chunks + 1 if self.loss.chunks else self.loss.rows

    def filled(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows of all chunks: where their number is a symbol, all chunks have as many, and the last row stands for those that are missing."""
        if not self.loss.chunks:
            return rows
        return rows.index_select(0, torch.arange(self.loss.chunks * self.rows(), device=rows.device).clamp(max=self.count - 1))

    def emptied(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows that are not filled in."""
        return rows.index_select(0, torch.arange(self.count, device=rows.device)) if self.loss.chunks else rows

    def filled_with(self, value: int, of_rows: torch.Tensor) -> torch.Tensor:
        """A number of each row, and for rows that are filled in another one."""
        if not self.loss.chunks:
            return of_rows
        exists = torch.arange(self.loss.chunks * self.rows(), device=of_rows.device) < self.count
        return torch.where(exists, self.filled(of_rows), value)

    def places(self) -> list[slice]:
        count, rows = self.count, self.rows()
        if self.loss.chunks:
            return [slice(i * rows, (i + 1) * rows) for i in range(self.loss.chunks)]
        return [slice(start, min(start + self.loss.rows, count)) for start in range(0, count, self.loss.rows)]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, Rows]]:
        places = self.places()
        targets = apart(self.filled_with(self.loss.ignore_index, self.target), places)  # in memory of their own, so that all chunks are one kernel
        parts = self.x.view(self.loss.chunks, -1, self.width).unbind() if self.loss.chunks else [self.x[place] for place in places]
        turned = self.weight.t()
        for x, target in zip(parts, targets, strict=True):
            late = x if self.done is None else AFTER(x, self.done)
            logits = late.mm(turned) if self.bias is None else torch.addmm(self.bias, late, turned)
            yield x, Rows(logits, target, self.loss, self.class_weights, self.points)

    def results(self) -> list[torch.Tensor]:
        """The losses of all rows, and their logarithms where those are wanted."""
        losses: list[torch.Tensor] = []
        logarithms: list[torch.Tensor] = []
        for _, rows in self:
            losses.append(rows.losses())
            self.done = losses[-1]
            if self.loss.has_logsumexp:
                logarithms.append(AFTER(rows.logarithms(), self.done))  # so that they have one kernel
        return [self.emptied(torch.cat(found)) for found in (losses, logarithms) if found]

    def reduced(self, losses: list[torch.Tensor]) -> torch.Tensor:
        total = torch.cat(losses).sum()
        return (total / counted(self.target, self.loss, self.own_weights) if self.loss.reduction == "mean" else total).to(self.loss.result)

    def total(self) -> torch.Tensor:
        return self.reduced(self.results())


class Gradients:
    """The sums of what the chunks bring. wanted: which of rows, weight and bias have a gradient, and from `SCALARS` on which of the points' tensors."""

    def __init__(self, chunks: Chunks, wanted: Sequence[bool]):
        self.chunks, self.wanted = chunks, wanted
        self.of_scalars: list[list[torch.Tensor]] = [[] for _ in wanted[SCALARS:]]
        self.rows = torch.empty_like(chunks.x, memory_format=torch.contiguous_format) if wanted[0] else None
        self.start = 0
        self.is_turned = chunks.is_turned
        sizes = [chunks.rows()] if chunks.loss.chunks else sorted({p.stop - p.start for p in chunks.places()})
        self.ones = [chunks.x.new_ones(n, 1) for n in sizes] if wanted[2] else []
        self.weight: torch.Tensor | None = None
        self.bias: torch.Tensor | None = None

    def add(self, x: torch.Tensor, gradient: torch.Tensor, *of_scalars: torch.Tensor) -> None:
        for found, of_rows in zip((f for f, w in zip(self.of_scalars, self.wanted[SCALARS:]) if w), of_scalars, strict=True):
            found.append(of_rows)
            gradient = AFTER(gradient, of_rows)
        if self.rows is not None:
            self.rows = PRODUCT_INTO(self.rows, gradient, self.chunks.weight, self.start)
        self.start += gradient.shape[0]
        if self.wanted[1]:
            self.weight = self.product(self.weight, *((x.t(), gradient) if self.is_turned else (gradient.t(), x)))
        if self.wanted[2]:  # as a product: sums of all chunks would be one kernel, which holds them all
            ones = self.ones[0] if len(self.ones) == 1 else next(one for one in self.ones if one.shape[0] == gradient.shape[0])
            self.bias = self.product(self.bias, gradient.t(), ones)

    def product(self, before: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """before + a @ b, in float32 for half precision."""
        if a.dtype not in HALVES:
            return a.mm(b) if before is None else torch.addmm(before, a, b)
        if self.chunks.loss.wide_products:
            return torch.mm(a, b, out_dtype=torch.float32) if before is None else ADD_PRODUCT(before, a, b)
        part = a.mm(b)
        return part.float() if before is None else ADD_TO(before, part)

    def last(self) -> torch.Tensor | None:
        """A sum with the last chunk in it."""
        return next((t for t in (self.bias, self.weight, self.rows) if t is not None), None)

    def results(self) -> list[torch.Tensor | None]:
        classes = self.chunks.loss.classes
        bias = None if self.bias is None else self.bias[:, 0]
        weight = self.weight.t() if self.weight is not None and self.is_turned else self.weight
        of_scalars = [torch.cat(of_rows).sum() if of_rows else None for of_rows in self.of_scalars]
        rows = None if self.rows is None else self.chunks.emptied(self.rows)
        return [rows, *(None if t is None else t[:classes] for t in (weight, bias)), *of_scalars]


SCALARS = 7
"""The first of the points' tensors among the arguments of what follows."""


class OnePass(torch.autograd.Function):
    """A loss that is one number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor, loss: Loss, *more: Any) -> Any:
        class_weights, points, *scalars = more
        chunks = Chunks(x, weight, bias, target, loss, class_weights, points)
        gradients = Gradients(chunks, ctx.needs_input_grad)
        one = torch.ones((), dtype=torch.float64 if loss.dtype == torch.float64 else torch.float32, device=x.device)
        factor = one / counted(target, loss, class_weights) if loss.reduction == "mean" else one
        losses = []
        for part, rows in chunks:
            chunks.done = rows.losses()
            losses.append(chunks.done)
            gradients.add(part, *(AFTER(g, chunks.done) for g in rows.gradients(factor)))  # so that they have one kernel
        ctx.made = [None if g is None else KEEP(dense(g)) for g in gradients.results()]
        ctx.save_for_backward(*operands_kept(chunks, x, weight), *given(class_weights), target)  # for the writes between, which are errors in eager
        ctx.dtypes = [t if t is None else t.dtype for t in (x, weight, bias, *scalars)]
        return chunks.reduced(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple:
        factor = wide(incoming)
        made = [None if g is None else (wide(g) * factor).to(dtype) for g, dtype in zip(ctx.made, ctx.dtypes)]
        return *made[:3], None, None, None, None, *made[3:]


class ByRows(torch.autograd.Function):
    """A loss for each row, in float32 or float64, and the rows' logarithms where those are wanted."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, target: torch.Tensor, loss: Loss, *more: Any) -> Any:
        class_weights, points, *scalars = more
        chunks = Chunks(x, weight, bias, target, loss, class_weights, points)
        ctx.save_for_backward(*operands_kept(chunks, x, weight), *given(class_weights), target)
        ctx.operands, ctx.loss, ctx.class_weights, ctx.points = (x, weight, bias, *scalars), loss, class_weights, points
        return tuple(chunks.results())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: torch.Tensor) -> tuple:
        operands: list[Any] = [t if t is None else t.detach() for t in ctx.operands[:3]]
        x, weight, bias = operands
        target = AFTER(ctx.saved_tensors[-1].contiguous(), incoming[0])  # else masks of the forward would be kept for it
        chunks = Chunks(AFTER(x.contiguous(), incoming[0]), weight, bias, target, ctx.loss, ctx.class_weights, ctx.points, is_checked=True)
        gradients = Gradients(chunks, ctx.needs_input_grad)
        factors = zip(*(apart(chunks.filled_with(0, g.contiguous()), chunks.places()) for g in incoming), strict=True)
        for (part, rows), columns in zip(chunks, factors, strict=True):
            gradients.add(part, *rows.gradients(*(c[:, None] for c in columns)))
            chunks.done = gradients.last()
        made = [None if g is None else g.to(t.dtype) for g, t in zip(gradients.results(), ctx.operands, strict=True)]
        return *made[:3], None, None, None, None, *made[3:]


def given(tensor: torch.Tensor | None) -> list[torch.Tensor]:
    return [] if tensor is None else [tensor]


def operands_kept(chunks: Chunks, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Those of the operands that eager's autograd keeps as they are: it keeps copies of what is cast. Of sums it keeps none."""
    kept = [t for p in chunks.points if ROWS[p.name].keeps_other for t in p.tensors()]
    return [t for t in (x, weight) if t.dtype == chunks.loss.dtype] + kept
