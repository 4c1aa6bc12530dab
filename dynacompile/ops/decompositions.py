"""The decomposition table: ATen ops that are rewritten into simpler ones while a graph is traced.

What has a row in `ops.table` is left whole, and so is what runs best as one call of ATen: matmuls, convolutions, fused attention,
sorting, scatters, and everything that draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from dynacompile.errors import Unsupported
from dynacompile.ops.activations import ACTIVATIONS
from dynacompile.ops.interpolation import INTERPOLATION
from dynacompile.ops.losses import LOSSES
from dynacompile.ops.norms import NORMS
from dynacompile.ops.randomness import RANDOM
from dynacompile.ops.rules import Table, aten, cast, mul, row, scalar
from dynacompile.private import of_torch

SHAPES: Table = {}
MOST_JOINED = 8
"""Tensors that a kernel puts together: each of its points tests for every one. More are put together by a call."""


@row(SHAPES, aten._unsafe_view.default)
def unsafe_view(x, size):
    return aten.view.default(x, size)


@row(SHAPES, aten.split.Tensor, aten.unsafe_split.Tensor)
def split(x, size, dim=0):
    """Where sizes are symbolic the number of parts is a constant, and all but the last are as long as each other."""
    n = x.shape[dim]
    if size == 0:
        return [aten.slice.Tensor(x, dim, 0, n)]
    last = max(int((n + size - 1) // size), 1) - 1
    return [aten.slice.Tensor(x, dim, i * size, (i + 1) * size if i < last else n) for i in range(last + 1)]


@row(SHAPES, aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(x, sizes, dim=0):
    parts, start = [], 0
    for size in sizes:
        parts.append(aten.slice.Tensor(x, dim, start, start + size))
        start += size
    return parts


@row(SHAPES, aten.unbind.int)
def unbind(x, dim=0):
    return [aten.select.int(x, dim, i) for i in range(x.shape[dim])]


@row(SHAPES, aten.stack.default)
def stack(tensors, dim=0):
    if len(tensors) > MOST_JOINED:
        return NotImplemented
    dim = dim % (tensors[0].dim() + 1)
    return aten.cat.default([aten.unsqueeze.default(t, dim) for t in tensors], dim)


@row(SHAPES, aten.channel_shuffle.default, aten.native_channel_shuffle.default)
def channel_shuffle(x, groups):
    """[n, groups * c, ...] -> the first channel of each group, then the second ones. New memory, which torch's kernel of GPUs does not make of one group. Of
    images of one element the call alone knows the strides."""
    n, channels, *places = x.shape
    if all(isinstance(size, int) and size == 1 for size in places):
        return NotImplemented
    parts = aten.transpose.int(aten.view.default(x, [n, groups, channels // groups, *places]), 1, 2)
    made = aten.view.default(aten.clone.default(parts, memory_format=torch.contiguous_format), list(x.shape))
    form = of_torch.suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    return made if form == torch.contiguous_format else aten.clone.default(made, memory_format=form)


@row(SHAPES, aten.index_put.default)
def index_put(x, indices, values, accumulate=False):
    """One number where a mask is true."""
    (mask, *more) = indices
    if more or mask is None or mask.dtype != torch.bool or values.dim() or accumulate or x.dtype != values.dtype:
        return NotImplemented
    if tuple(mask.shape) != tuple(x.shape[: mask.dim()]) or not mask.dim():
        return NotImplemented
    for _ in range(x.dim() - mask.dim()):
        mask = aten.unsqueeze.default(mask, -1)
    return aten.where.self(mask, values, x)


@row(SHAPES, aten.as_strided_scatter.default)
def as_strided_scatter(x, values, size, stride, offset=None):
    """The op counts from the start of a storage, which in a program is that of many tensors: here it counts from the start of x."""
    if not x.is_contiguous() or x.storage_offset():
        raise Unsupported("as-strided", "as_strided of a tensor that is not contiguous is written or differentiated", "use slicing and indexing")
    place = scalar(offset or 0, aten.empty.memory_format([0], dtype=torch.int64, device=x.device))
    for d, (n, step) in enumerate(zip(size, stride, strict=True)):
        if step:
            steps = aten.arange.start_step(0, n * step, step, dtype=torch.int64, device=x.device)
        else:
            steps = aten.full.default([n], 0, dtype=torch.int64, device=x.device)
        place = aten.add.Tensor(place, aten.view.default(steps, [n] + [1] * (len(size) - 1 - d)))
    count = math.prod(size)
    flat = aten.scatter.src(aten.view.default(x, [-1]), 0, aten.reshape.default(place, [count]), aten.reshape.default(values, [count]))
    return aten.view.default(flat, list(x.shape))


@row(SHAPES, aten.select_backward.default)
def select_backward(grad, sizes, dim, index):
    return aten.select_scatter.default(aten.full.default(sizes, 0, dtype=grad.dtype, device=grad.device), grad, dim, index)


@row(SHAPES, aten.slice_backward.default)
def slice_backward(grad, sizes, dim, start, end, step):
    dim = dim % len(sizes)
    n = sizes[dim]
    start, end = bounded(start, n), bounded(end, n)
    if step == 1:
        before, after = [0, 0] * len(sizes), 2 * (len(sizes) - 1 - dim)
        before[after], before[after + 1] = start, n - max(end, start)
        return aten.constant_pad_nd.default(grad, before, 0)
    zeros = aten.full.default(sizes, 0, dtype=grad.dtype, device=grad.device)
    return aten.slice_scatter.default(zeros, grad, dim, start, end, step)


def bounded(i: int, n: int) -> int:
    """A slice's bound as an index of 0..n."""
    return min(max(i + n if i < 0 else i, 0), n)


@row(SHAPES, aten.diagonal_backward.default)
def diagonal_backward(grad, sizes, offset, dim1, dim2):
    return aten.diagonal_scatter.default(aten.full.default(sizes, 0, dtype=grad.dtype, device=grad.device), grad, offset, dim1, dim2)


@row(SHAPES, aten.native_dropout_backward.default)
def dropout_backward(grad, mask, scale):
    return mul(mul(grad, cast(mask, grad.dtype)), scale)


@row(SHAPES, aten.aminmax.default)
def aminmax(x, *, dim=None, keepdim=False):
    dims = [] if dim is None else [dim]
    return aten.amin.default(x, dims, keepdim), aten.amax.default(x, dims, keepdim)


@row(SHAPES, aten.dot.default)
def dot(a, b):
    return NotImplemented if a.is_complex() else aten.sum.default(mul(a, b), dtype=a.dtype)


@row(SHAPES, aten.mm.default, aten.bmm.default)
def outer_product(a, b):
    """A product over one element is a kernel like any other, and one of a list of them, where a call of the library stands between kernels."""
    inner = a.shape[-1]
    if type(inner) is not int or inner != 1 or not a.dtype.is_floating_point:
        return NotImplemented
    made = mul(a, b)
    return made if made.is_contiguous() else aten.clone.default(made, memory_format=torch.contiguous_format)


def each(op: of_torch.OpOverload, lists: int) -> Callable[..., list[torch.Tensor]]:
    """The rule of a _foreach op: `op` on each element of the first `lists` arguments, the others shared; a list of scalars is zipped too."""

    def rule(*args, **kwargs):
        columns = [a if i < lists or is_scalar_list(a) else [a] * len(args[0]) for i, a in enumerate(args)]
        return [op(*values, **kwargs) for values in zip(*columns, strict=True)]

    return rule


def is_scalar_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def scaled(op: of_torch.OpOverload) -> Callable[..., list[torch.Tensor]]:
    """The rule of _foreach_addcmul and _foreach_addcdiv: value is one number, or one per tensor."""

    def rule(x, a, b, value=1):
        values = value if is_scalar_list(value) else [value] * len(x)
        return [op(*row_, value=v) for *row_, v in zip(x, a, b, values, strict=True)]

    return rule


def foreach_copy(targets, sources, non_blocking=False):
    """The values that the targets take; NotImplemented where they are broadcast, or come from another device."""
    if any(t.shape != s.shape or t.device != s.device for t, s in zip(targets, sources, strict=True)):
        return NotImplemented
    return [cast(s, t.dtype) for t, s in zip(targets, sources, strict=True)]


FOREACH_UNARY = (
    *("sqrt", "rsqrt", "neg", "abs", "exp", "log", "reciprocal", "sign", "sigmoid", "tanh"),
    *("floor", "ceil", "round", "trunc", "sin", "cos", "erf", "expm1", "log1p"),
)


def foreach_table() -> Table:
    table: Table = {}
    for name in FOREACH_UNARY:
        packet = getattr(torch.ops.aten, "_foreach_" + name, None)
        if packet is not None:
            table[packet.default] = each(getattr(aten, name).default, 1)
    for name in ("add", "sub", "mul", "div"):
        packet, op = getattr(torch.ops.aten, "_foreach_" + name), getattr(aten, name).Tensor
        for overload, lists in (("List", 2), ("Scalar", 1), ("ScalarList", 1), ("Tensor", 1)):
            if overload in packet.overloads():
                table[getattr(packet, overload)] = each(op, lists)
    for name, scalar_op in (("maximum", aten.clamp_min), ("minimum", aten.clamp_max)):
        packet = getattr(torch.ops.aten, "_foreach_" + name)
        table[packet.List] = each(getattr(aten, name).default, 2)
        table[packet.Scalar] = table[packet.ScalarList] = each(scalar_op.default, 1)
    for name, tensor_op in (("clamp_min", aten.maximum), ("clamp_max", aten.minimum)):
        packet = getattr(torch.ops.aten, "_foreach_" + name)
        table[packet.List] = each(tensor_op.default, 2)
        table[packet.Scalar] = table[packet.ScalarList] = each(getattr(aten, name).default, 1)
    table[aten._foreach_pow.Scalar] = table[aten._foreach_pow.ScalarList] = each(aten.pow.Tensor_Scalar, 1)
    table[aten._foreach_pow.ScalarAndTensor] = lambda base, exponents: [aten.pow.Scalar(base, e) for e in exponents]
    table[aten._foreach_zero.default] = each(aten.zeros_like.default, 1)
    table[aten._foreach_copy.default] = foreach_copy
    table[aten._foreach_pow.List] = each(aten.pow.Tensor_Tensor, 2)
    table[aten._foreach_lerp.List] = each(aten.lerp.Tensor, 3)
    table[aten._foreach_lerp.Scalar] = table[aten._foreach_lerp.ScalarList] = each(aten.lerp.Scalar, 2)
    for name in ("addcmul", "addcdiv"):
        packet, rule = getattr(torch.ops.aten, "_foreach_" + name), scaled(getattr(aten, name).default)
        table[packet.Scalar] = table[packet.ScalarList] = rule
    table[aten._foreach_norm.Scalar] = lambda tensors, ord=2, dtype=None: [aten.linalg_vector_norm.default(t, ord, dtype=dtype) for t in tensors]
    return table


DECOMPOSITIONS: Table = {**SHAPES, **ACTIVATIONS, **LOSSES, **NORMS, **RANDOM, **INTERPOLATION, **foreach_table()}
