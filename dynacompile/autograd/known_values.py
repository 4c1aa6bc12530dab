"""The values of tensors that depend on no input: constants, counters, comparisons of counters, and what is made of them by exact operations.

An abstract interpretation of the functional ATen graph, asked node by node. Its domain has three forms, from the cheapest to the dearest:
- a `Ramp`, an affine function of the indices, as `arange` and its views, sums and differences have;
- a `Split`, which has one value where a ramp is not negative, and another elsewhere, as comparisons, triangles and selections have;
- a tensor on the CPU, in which a dimension along which nothing changes has size 1.
Ramps and splits know nothing of sizes, so they serve symbolic ones. What has none of the first two forms is computed, if its sizes are known and its
elements are not too many. Only operations whose result is the same on every device are interpreted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.ir.shapes import as_static, expression_of
from dynacompile.ir.symbolic_graphs import symbolic_numbers
from dynacompile.private import of_torch

aten = torch.ops.aten
LARGEST = 1 << 24  # elements of a tensor that is computed while compiling
MOST = 400  # operations that one value may be made of
FUNCTIONALIZE = of_torch.DispatchKeySet(of_torch.functionalize_key)


@dataclass(frozen=True)
class Ramp:
    """start + sum(step * index) over the dimensions, in int64. A dimension of size 1 has step 0."""

    start: int
    steps: tuple[int, ...]

    def aligned(self, rank: int) -> Ramp:
        return Ramp(self.start, (0,) * (rank - len(self.steps)) + self.steps)

    def plus(self, other: Ramp, sign: int = 1) -> Ramp:
        rank = max(len(self.steps), len(other.steps))
        a, b = self.aligned(rank), other.aligned(rank)
        return Ramp(a.start + sign * b.start, tuple(x + sign * y for x, y in zip(a.steps, b.steps, strict=True)))


@dataclass(frozen=True)
class Split:
    """`inside` where the ramp is at least 0, else `outside`: tensors of one element, of the rank of the value."""

    ramp: Ramp
    inside: torch.Tensor
    outside: torch.Tensor


Value = Ramp | Split | torch.Tensor


@dataclass(frozen=True)
class View:
    """dims: for each dimension of the result the one that it is taken from (None: a new one of size 1), its first index, and its step.
    fixed: the index of dimensions that are left out; others that are left out have size 1."""

    dims: tuple[tuple[int | None, int, int], ...]
    fixed: tuple[tuple[int, int], ...] = ()


class KnownValues:
    """What is known of the nodes of one graph, which may grow."""

    def __init__(self) -> None:
        self._known: dict[torch.fx.Node, Value | None] = {}

    def of(self, node: torch.fx.Node) -> Value | None:
        """None where it depends on an input, or is not known."""
        if node not in self._known:
            order = self._made_of(node)
            self._known[node] = None
            with plain():
                for part in order:
                    self._known[part] = self._evaluate(part)
        return self._known[node]

    def _made_of(self, node: torch.fx.Node) -> list[torch.fx.Node]:
        """The nodes that are to be evaluated, operands first; none where one of them can't be."""
        order: list[torch.fx.Node] = []
        seen: set[torch.fx.Node] = set()
        stack = [(node, False)]
        while stack:
            part, is_done = stack.pop()
            if is_done:
                order.append(part)
            elif part not in seen:
                seen.add(part)
                if part in self._known and self._known[part] is not None:
                    continue
                if part in self._known or part.target not in RULES or len(seen) > MOST:
                    return []
                stack.append((part, True))
                stack.extend((n, False) for n in part.all_input_nodes)
        return order

    def _evaluate(self, node: torch.fx.Node) -> Value | None:
        operands = {n: self._known[n] for n in node.all_input_nodes}
        if any(value is None for value in operands.values()):
            return None
        result = RULES[node.target](node, operands)
        if isinstance(result, torch.Tensor) and (result.dtype != node.meta["val"].dtype or result.dim() != node.meta["val"].dim()):
            return None
        return result


@contextmanager
def plain() -> Iterator[None]:
    """Operations on real tensors, which no mode sees, inside of the trace of a graph."""
    with of_torch.disable_current_modes(), of_torch.ExcludeDispatchKeyGuard(FUNCTIONALIZE), torch.no_grad(), of_torch.DisableAutocast():
        yield


Operands = dict[torch.fx.Node, Any]
Rule = Callable[[torch.fx.Node, Operands], "Value | None"]


def sizes(node: torch.fx.Node) -> tuple:
    return tuple(as_static(n) for n in node.meta["val"].shape)


def static_sizes(node: torch.fx.Node) -> tuple[int, ...] | None:
    """Where they are known, and the elements not too many."""
    shape = sizes(node)
    return shape if all(isinstance(n, int) for n in shape) and math.prod(shape) <= LARGEST else None


def computed(value: Value, node: torch.fx.Node) -> torch.Tensor | None:
    """The value of the node as a tensor, in which dimensions may have size 1."""
    if isinstance(value, torch.Tensor):
        return value
    shape = static_sizes(node)
    if shape is None:
        return None
    ramp = value if isinstance(value, Ramp) else value.ramp
    total = torch.full([1] * len(shape), ramp.start, dtype=torch.int64, device="cpu")
    for dim, (step, size) in enumerate(zip(ramp.steps, shape, strict=True)):
        if step:
            total = total + (torch.arange(size, device="cpu") * step).reshape([size if d == dim else 1 for d in range(len(shape))])
    return total if isinstance(value, Ramp) else torch.where(total >= 0, value.inside, value.outside)


def whole(value: Value, node: torch.fx.Node) -> torch.Tensor | None:
    """The value with the sizes of the node."""
    shape, found = static_sizes(node), computed(value, node)
    return None if shape is None or found is None else found.expand(shape)


def compressed(tensor: torch.Tensor) -> torch.Tensor:
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.size(dim) > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def filled(place: int | None, number: Any = None) -> Rule:
    def rule(node: torch.fx.Node, operands: Operands) -> Value | None:
        given = number if place is None else as_static(node.args[place])
        value = node.meta["val"]
        return torch.full([1] * value.dim(), given, dtype=value.dtype, device="cpu") if isinstance(given, (bool, int, float)) else None

    return rule


def counted(node: torch.fx.Node, operands: Operands) -> Value | None:
    start, step = 0, 1
    if node.target is not aten.arange.default:
        start = as_static(node.args[0])
        step = as_static(node.args[2]) if len(node.args) > 2 else 1
    if type(start) is not int or type(step) is not int:
        return None
    (size,), dtype = sizes(node), node.meta["val"].dtype
    if dtype == torch.int64:
        return Ramp(start, (0 if isinstance(size, int) and size == 1 else step,))
    exact = isinstance(size, int) and size <= LARGEST and max(abs(start), abs(start + step * size)) < LARGEST
    return (torch.arange(size, dtype=torch.int64, device="cpu") * step + start).to(dtype) if exact else None


def pointwise(node: torch.fx.Node, operands: Operands) -> Value | None:
    """Any operation on elements, all of which are the same on every device."""
    if any(True for _ in symbolic_numbers((node.args, node.kwargs))):
        return None
    rank = node.meta["val"].dim()
    ramps = affine(node, operands, rank)
    if ramps is not None:
        return ramps
    splits = [v.ramp.aligned(rank) for v in operands.values() if isinstance(v, Split)]
    uniform = all(isinstance(v, Split) or (isinstance(v, torch.Tensor) and v.numel() == 1) for v in operands.values())
    if splits and uniform and all(ramp == splits[0] for ramp in splits):
        inside, outside = (run(node, {n: getattr(v, side) if isinstance(v, Split) else v for n, v in operands.items()}) for side in ("inside", "outside"))
        return Split(splits[0], inside, outside) if inside.dtype == node.meta["val"].dtype else None
    found = {n: t for n, v in operands.items() if (t := computed(v, n)) is not None}
    if len(found) < len(operands) or math.prod(torch.broadcast_shapes(*(t.shape for t in found.values()))) > LARGEST:
        return None
    return run(node, found)


def logarithm(node: torch.fx.Node, operands: Operands) -> Value | None:
    """Of 0 and 1 alone, as a mask may be made a bias: other logarithms are rounded in each device's way."""
    (value,) = operands.values()
    parts = [value.inside, value.outside] if isinstance(value, Split) else [value]
    exact = all(isinstance(t, torch.Tensor) and bool(((t == 0) | (t == 1)).all()) for t in parts)
    return pointwise(node, operands) if exact else None


def run(node: torch.fx.Node, operands: Operands) -> torch.Tensor:
    args = torch.fx.map_arg(node.args, operands.__getitem__)
    return node.target(*args, **node.kwargs)  # type: ignore[operator]


def affine(node: torch.fx.Node, operands: Operands, rank: int) -> Value | None:
    """Sums, differences and comparisons of ramps and whole numbers."""
    if node.target not in (*SUMS, *COMPARISONS) or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    sides = [as_ramp(operands[a] if isinstance(a, torch.fx.Node) else a) for a in node.args]
    left, right = sides
    if left is None or right is None or not any(isinstance(v, Ramp) for v in operands.values()):
        return None
    left, right = left.aligned(rank), right.aligned(rank)
    if node.target in SUMS:
        mirrored = node.target is aten.rsub.Scalar
        total = left.plus(right, SUMS[node.target])
        return Ramp(-total.start, tuple(-s for s in total.steps)) if mirrored else total
    sign, more = COMPARISONS[node.target]
    distance = left.plus(right, -1) if sign > 0 else right.plus(left, -1)
    ramp = Ramp(distance.start - more, distance.steps)
    low, high = ends(ramp, sizes(node))
    true, false = (torch.full([1] * rank, b, dtype=torch.bool, device="cpu") for b in (True, False))
    return true if low >= 0 else false if high < 0 else Split(ramp, true, false)


def ends(ramp: Ramp, shape: tuple) -> tuple[float, float]:
    """The least and the largest value of a ramp over indices of these sizes, of which symbolic ones may be as large as they like."""
    reaches = [step * (size - 1 if isinstance(size, int) else math.inf) for step, size in zip(ramp.steps, shape, strict=True) if step]
    return ramp.start + sum(r for r in reaches if r < 0), ramp.start + sum(r for r in reaches if r > 0)


def as_ramp(value: object) -> Ramp | None:
    if isinstance(value, Ramp):
        return value
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.dtype in (torch.int64, torch.int32):
        return Ramp(int(value.item()), (0,) * value.dim())
    return Ramp(value, ()) if type(value) is int else None


def cast(node: torch.fx.Node, operands: Operands) -> Value | None:
    (value,), dtype = operands.values(), node.meta["val"].dtype
    if isinstance(value, Ramp) and dtype == torch.int64:
        return value
    if isinstance(value, Split):
        return Split(value.ramp, value.inside.to(dtype), value.outside.to(dtype))
    (operand,) = operands
    found = computed(value, operand)
    return None if found is None else found.to(dtype)


def triangle(node: torch.fx.Node, operands: Operands) -> Value | None:
    (value,), (operand,) = operands.values(), operands
    diagonal = as_static(node.args[1]) if len(node.args) > 1 else 0
    if type(diagonal) is not int:
        return None
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        around = (0,) * (value.dim() - 2)
        lower = node.target is aten.tril.default
        rows, columns = (0 if isinstance(n, int) and n == 1 else 1 for n in sizes(node)[-2:])
        ramp = Ramp(diagonal, (*around, rows, -columns)) if lower else Ramp(-diagonal, (*around, -rows, columns))
        return Split(ramp, value, torch.zeros_like(value))
    found = whole(value, operand)
    return None if found is None else node.target(found, diagonal)  # type: ignore[operator]


def viewed(describe: Callable[[torch.fx.Node, tuple, tuple], View | None]) -> Rule:
    def rule(node: torch.fx.Node, operands: Operands) -> Value | None:
        (value,), (operand,) = operands.values(), operands
        view = describe(node, sizes(operand), sizes(node))
        if view is not None:
            return moved(value, view, sizes(node))
        found, shape = whole(value, operand), static_sizes(node)
        return None if found is None or shape is None or node.target not in RESHAPES else compressed(found.reshape(shape))

    return rule


def moved(value: Value, view: View, shape: tuple) -> Value | None:
    if isinstance(value, Split):
        ramp = moved(value.ramp, view, shape)
        assert isinstance(ramp, Ramp)
        return Split(ramp, *(t.reshape([1] * len(shape)) for t in (value.inside, value.outside)))
    if isinstance(value, Ramp):
        start = value.start + sum(value.steps[dim] * index for dim, index in view.fixed)
        start += sum(value.steps[dim] * first for dim, first, _ in view.dims if dim is not None)
        steps = [0 if dim is None or (isinstance(n, int) and n == 1) else value.steps[dim] * step for (dim, _, step), n in zip(view.dims, shape, strict=True)]
        return Ramp(start, tuple(steps))
    for left_out, index in view.fixed:
        value = value.narrow(left_out, index if value.size(left_out) > 1 else 0, 1)
    for (dim, first, step), size in zip(view.dims, shape, strict=True):
        if dim is not None and value.size(dim) > 1:
            value = value[(slice(None),) * dim + (slice(first, first + step * size, step),)]
    taken = [dim for dim, _, _ in view.dims if dim is not None]
    others = [dim for dim in range(value.dim()) if dim not in taken]
    value = value.permute([*others, *taken])
    return value.reshape([1 if dim is None else value.size(len(others) + taken.index(dim)) for dim, _, _ in view.dims])


def whole_dims(dims: Sequence[int | None]) -> View:
    return View(tuple((dim, 0, 1) for dim in dims))


def as_expand(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    more = len(after) - len(before)
    dims: list[int | None] = [None] * more
    for dim, (size, new) in enumerate(zip(before, after[more:], strict=True)):
        if expression_of(size) == expression_of(new):
            dims.append(dim)
        elif isinstance(size, int) and size == 1:
            dims.append(None)
        else:
            return None
    return whole_dims(dims)


def as_unsqueeze(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    given: Any = node.args[1]
    place = given % len(after)
    return whole_dims([*range(place), None, *range(place, len(before))])


def as_reshape(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    """Where it adds and drops dimensions of size 1 alone."""
    old = [(dim, expression_of(size)) for dim, size in enumerate(before) if not (isinstance(size, int) and size == 1)]
    new = [(dim, expression_of(size)) for dim, size in enumerate(after) if not (isinstance(size, int) and size == 1)]
    if [size for _, size in old] != [size for _, size in new]:
        return None
    taken = {place: dim for (place, _), (dim, _) in zip(new, old, strict=True)}
    return whole_dims([taken.get(place) for place in range(len(after))])


def as_permute(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    order: Any = node.args[1]
    return whole_dims([dim % len(before) for dim in order])


def as_transpose(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    dims: list[int | None] = list(range(len(before)))
    if len(dims) > 1:
        a, b = node.args[1:] if node.target is aten.transpose.int else (0, 1)
        dims[a], dims[b] = dims[b], dims[a]  # type: ignore[index]
    return whole_dims(dims)


def as_select(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    _, dim, index = (as_static(a) for a in node.args)
    dim %= len(before)
    if type(index) is not int or (index < 0 and not isinstance(before[dim], int)):
        return None
    rest = tuple((d, 0, 1) for d in range(len(before)) if d != dim)
    return View(rest, ((dim, index if index >= 0 else index + before[dim]),))


def as_slice(node: torch.fx.Node, before: tuple, after: tuple) -> View | None:
    given = [as_static(a) for a in node.args[1:]]
    defaults: list[Any] = [0, None, None, 1]
    dim, start, _, step = [*given, *defaults[len(given) :]]
    dim, first = dim % len(before), start or 0
    if type(first) is not int or type(step) is not int or (first < 0 and not isinstance(before[dim], int)):
        return None
    first = first if first >= 0 else max(first + before[dim], 0)
    if not isinstance(after[dim], int) and first + step > 1 and not isinstance(before[dim], int):
        return None  # the slice may begin behind the end
    return View(tuple((d, first, step) if d == dim else (d, 0, 1) for d in range(len(before))))


def joined(node: torch.fx.Node, operands: Operands) -> Value | None:
    parts: Any = node.args[0]
    found = [whole(operands[part], part) for part in parts]
    if static_sizes(node) is None or any(part is None for part in found):
        return None
    join = torch.stack if node.target is aten.stack.default else torch.cat
    return join(found, *node.args[1:])  # type: ignore[arg-type]


def scattered(node: torch.fx.Node, operands: Operands) -> Value | None:
    """A part of the first operand is replaced by the second."""
    parts: Any = node.args[:2]
    found = [whole(operands[part], part) for part in parts]
    if any(part is None for part in found) or any(True for _ in symbolic_numbers(node.args)):
        return None
    return node.target(*found, *node.args[2:])  # type: ignore[operator]


def indexed(node: torch.fx.Node, operands: Operands) -> Value | None:
    source: Any = node.args[0]
    indices: Any = node.args[1]
    value = operands[source]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.reshape([1] * node.meta["val"].dim())
    found = [i if i is None else whole(operands[i], i) for i in indices]
    parts = whole(value, source)
    if parts is None or static_sizes(node) is None or any(t is None and i is not None for t, i in zip(found, indices, strict=True)):
        return None
    return aten.index.Tensor(parts, found)


def copied(node: torch.fx.Node, operands: Operands) -> Value | None:
    """The values of the second operand in the place of the first's."""
    source: Any = node.args[1]
    found, result = computed(operands[source], source), node.meta["val"]
    return None if found is None else found.to(result.dtype).reshape([1] * (result.dim() - found.dim()) + list(found.shape))


RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
SUMS: dict[object, int] = {aten.add.Tensor: 1, aten.add.Scalar: 1, aten.sub.Tensor: -1, aten.sub.Scalar: -1, aten.rsub.Scalar: -1}
COMPARISONS: dict[object, tuple[int, int]] = {
    op: row for packet, row in ((aten.ge, (1, 0)), (aten.gt, (1, 1)), (aten.le, (-1, 0)), (aten.lt, (-1, 1))) for op in (packet.Tensor, packet.Scalar)
}
"""The sign of left - right, and what it must be at least, for the comparison to hold."""
POINTWISE = (
    *SUMS, *COMPARISONS, aten.eq.Tensor, aten.eq.Scalar, aten.ne.Tensor, aten.ne.Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.neg.default, aten.abs.default,
    aten.logical_not.default, aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default, aten.bitwise_not.default,
    aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor, aten.bitwise_and.Scalar, aten.bitwise_or.Scalar, aten.bitwise_xor.Scalar,
    aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, aten.masked_fill.Scalar, aten.masked_fill.Tensor,
    aten.minimum.default, aten.maximum.default, aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.isinf.default, aten.isnan.default,
)  # fmt: skip
RULES: dict[Any, Rule] = {
    aten.full.default: filled(1), aten.full_like.default: filled(1), aten.new_full.default: filled(2), aten.scalar_tensor.default: filled(0),
    aten.fill.Scalar: filled(1),
    **{op: filled(None, 0) for op in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)},
    **{op: filled(None, 1) for op in (aten.ones.default, aten.ones_like.default, aten.new_ones.default)},
    **dict.fromkeys((aten.arange.default, aten.arange.start, aten.arange.start_step), counted),
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys((aten._to_copy.default, aten.clone.default), cast),
    aten.slice_scatter.default: scattered, aten.select_scatter.default: scattered, aten.copy.default: copied, aten.fill.Tensor: copied,
    aten.tril.default: triangle, aten.triu.default: triangle, aten.cat.default: joined, aten.stack.default: joined,
    aten.log.default: logarithm, aten.index.Tensor: indexed,
    aten.expand.default: viewed(as_expand), aten.unsqueeze.default: viewed(as_unsqueeze), aten.permute.default: viewed(as_permute),
    aten.transpose.int: viewed(as_transpose), aten.t.default: viewed(as_transpose), aten.select.int: viewed(as_select),
    aten.slice.Tensor: viewed(as_slice),
    **{op: viewed(as_reshape) for op in (*RESHAPES, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)},
}  # fmt: skip
