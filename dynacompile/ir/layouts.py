"""Strides of results, where torch's rules for fakes give others than eager.

Those rules compose other operations, which take the operands in another order, or preserve strides that a kernel does not. A view of the result, or the
result itself, then has strides that eager's has not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.view_fakes import same
from dynacompile.ops.resizing import OPERATORS
from dynacompile.private import of_torch

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
Run = Callable[..., torch.Tensor]
Layout = Callable[[Run, torch.Tensor, tuple[Any, ...]], torch.Tensor | None]


def as_iterated(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """One pass over two operands: the first decides, and the second where the first leaves the order open."""
    first, second = args[:2]
    return run(aten.add.Tensor, first, second) if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) else None


def as_scaled(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The first operand times powers of two, which are contiguous whatever the second is."""
    return run(aten.mul.Tensor, args[0], run(aten.empty_like.default, args[1], memory_format=torch.contiguous_format))


def as_first(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Memory like the first operand's, unless the result is reduced."""
    return as_preserved(run, run(aten.empty_like.default, args[0]), args, {}) if made.dim() == args[0].dim() else None


def as_second(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Memory like the second operand's, which a gradient is of."""
    return as_first(run, made, args[1:])


def as_format(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """On the CPU, the memory format of the first operand: a permuted one gives a contiguous result."""
    x = args[0]
    return run(aten.empty_like.default, x, memory_format=of_torch.suggest_memory_format(x)) if x.device.type == "cpu" else None


def as_second_format(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """On the CPU, the memory format of the second operand, which a gradient is of; that of the first, the result's gradient, does not count."""
    return as_format(run, made, args[1:])


def as_batch_norm(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """On the CPU, the memory format in which the first operand is contiguous, where strides of dimensions of one element do not count; else as above."""
    x = args[0]
    formats = (torch.contiguous_format, *({4: (torch.channels_last,), 5: (torch.channels_last_3d,)}.get(x.dim(), ())))
    found = next((f for f in formats if is_dense(x, f)), None)
    if x.device.type != "cpu" or found is None:
        return as_format(run, made, args)
    return run(aten.empty.memory_format, x.shape, dtype=x.dtype, device=x.device, memory_format=found)


def as_contiguous(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    return run(aten.empty_like.default, made, memory_format=torch.contiguous_format)


def as_format_resized(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """On the CPU, the memory format of the first operand for a result of another size."""
    x = args[0]
    return run(aten.empty_like.default, made, memory_format=of_torch.suggest_memory_format(x)) if x.device.type == "cpu" else None


def as_rolled(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """Along each dimension, two parts that the CPU puts together; without dimensions the elements are rolled in one row."""
    x, shifts, dims = (*args, ())[:3]
    if x.device.type != "cpu" or not dims or is_dense(x):
        return None
    for shift, dim in zip(shifts, dims):
        size = x.shape[dim]
        start = (size - shift) % size if size else 0
        x = run(aten.cat.default, [run(aten.slice.Tensor, x, dim, *part) for part in ((start, size), (0, start))], dim)
    return x


def is_dense(x: torch.Tensor, form: torch.memory_format = torch.contiguous_format) -> bool:
    """Whether a tensor is known to be contiguous in a memory format at every call, without a guard. Where this is not known, its strides tell the order of
    dimensions, unless one has one element, for which torch is asked."""
    if any(type(n) is int and n <= 1 for n in x.shape):
        return x.is_contiguous(memory_format=form)
    order = range(x.dim()) if form is torch.contiguous_format else (0, *range(2, x.dim()), 1)
    step: Any = 1
    for d in reversed(order):
        if not same(x.stride(d), step):
            return False
        step = step * x.shape[d]
    return True


def as_contiguous_on_cpus(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    return as_contiguous(run, made, args) if made.device.type == "cpu" else None


def as_contiguous_on_gpus(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    return None if made.device.type == "cpu" else as_contiguous(run, made, args)


def as_interpolated(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The memory format of what is interpolated, whatever the count of channels, which torch's rule for fakes looks at."""
    return run(aten.empty_like.default, made, memory_format=of_torch.suggest_memory_format(args[0])) if made.dim() > 3 else as_contiguous(run, made, args)


def as_shuffled(run: Run, made: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """GPUs copy the channels in their new order into contiguous memory."""
    return as_format(run, made, args) if made.device.type == "cpu" else as_contiguous(run, made, args)


LAYOUTS: Mapping[Any, Layout] = {
    aten.floor_divide.default: as_iterated,
    aten.div.Tensor_mode: as_iterated,
    aten.copysign.Tensor: as_iterated,
    aten.xlogy.Tensor: as_iterated,
    aten.special_xlog1py.default: as_iterated,
    aten.heaviside.default: as_iterated,
    aten.logaddexp.default: as_iterated,
    aten.logaddexp2.default: as_iterated,
    aten.logical_and.default: as_iterated,
    aten.logical_or.default: as_iterated,
    aten.logical_xor.default: as_iterated,
    aten.native_dropout_backward.default: as_iterated,
    aten.binary_cross_entropy.default: as_first,
    aten.binary_cross_entropy_backward.default: as_second,
    aten.native_batch_norm.default: as_batch_norm,
    aten._native_batch_norm_legit.default: as_batch_norm,
    aten._native_batch_norm_legit.no_stats: as_batch_norm,
    aten._native_batch_norm_legit_functional.default: as_batch_norm,
    aten._native_batch_norm_legit_no_training.default: as_batch_norm,
    aten._batch_norm_with_update.default: as_batch_norm,
    aten._batch_norm_with_update_functional.default: as_batch_norm,
    aten.native_group_norm.default: as_format,
    aten.native_group_norm_backward.default: as_second_format,
    aten.pixel_shuffle.default: as_contiguous_on_gpus,
    aten.pixel_unshuffle.default: as_contiguous_on_gpus,
    **{getattr(aten, name + end).default: as_interpolated for name in OPERATORS.values() for end in ("", "_backward")},
    aten.channel_shuffle.default: as_shuffled,
    aten.native_channel_shuffle.default: as_shuffled,
    aten.reflection_pad2d_backward.default: as_second_format,
    aten.replication_pad2d_backward.default: as_second_format,
    aten.reflection_pad2d.default: as_format_resized,
    aten.reflection_pad3d.default: as_format_resized,
    aten.replication_pad2d.default: as_format_resized,
    aten.replication_pad3d.default: as_format_resized,
    aten.max_unpool2d.default: as_format_resized,
    aten.roll.default: as_rolled,
    aten.log_sigmoid_forward.default: as_contiguous_on_cpus,
    aten.mse_loss_backward.default: as_contiguous,
    aten.huber_loss_backward.default: as_contiguous,
    aten._log_softmax_backward_data.default: as_contiguous,
    aten._standard_gamma.default: as_contiguous,
    aten.normal.Tensor_Tensor: as_contiguous,
    aten.rrelu_with_noise.default: as_contiguous,
    of_torch.aten_weight_norm_interface: as_contiguous,
    aten.rrelu_with_noise_functional.default: as_contiguous,
    aten.nll_loss2d_forward.default: as_contiguous,
    aten.any.dims: as_contiguous,
    aten.pow.Scalar: as_contiguous,
    aten.normal.float_Tensor: as_contiguous,
    aten.poisson.default: as_contiguous,
    aten.im2col.default: as_contiguous,
    aten.isin.Tensor_Scalar: as_contiguous,
    aten.isin.Tensor_Tensor: as_contiguous,
    aten.ldexp.Tensor: as_scaled,
    aten.all.dims: as_contiguous,
}
"""By operation, what has the strides of its first result; None leaves them as they are."""


PRESERVED = frozenset({
    *(getattr(aten, f"{name}_like").default for name in ("empty", "full", "zeros", "ones", "rand", "randn", "randint")),
    *(aten.randint_like.low_dtype, aten.flip.default, aten.fill.Scalar, aten.fill.Tensor, aten.frexp.Tensor, aten.nan_to_num.default),
    *(aten.deg2rad.default, aten.rad2deg.default, aten.sort.default, aten.sort.stable, aten.hardtanh.default, aten.huber_loss.default),
    *(aten._prelu_kernel.default, aten.log_sigmoid_backward.default),
})  # fmt: skip
"""Operations whose results lie as the first operand does, if it has no gaps: also along dimensions of one element, by whose strides others choose a memory
format. Torch's rules give these the strides of dense tensors."""


def as_preserved(run: Run, made: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What an operation of `PRESERVED` gives."""
    x: torch.Tensor = args[0]
    ones = [d for d, n in enumerate(x.size()) if type(n) is int and n == 1]
    if not ones or kwargs.get("memory_format") not in (None, torch.preserve_format):
        return made

    def preserved(value: torch.Tensor) -> torch.Tensor:
        if value.dim() != x.dim() or any(not same(a, b) for d, (a, b) in enumerate(zip(value.stride(), x.stride())) if d not in ones):
            return value
        return run(aten.new_empty_strided.default, value, value.size(), x.stride()) if any(not same(value.stride(d), x.stride(d)) for d in ones) else value

    return type(made)(map(preserved, made)) if isinstance(made, (tuple, list)) else preserved(made)


FILLED = (aten.masked_fill.Scalar, aten.masked_fill.Tensor)
MASKED = frozenset({aten.where.self, *FILLED})
COPIES = frozenset((aten.clone.default, aten._to_copy.default, aten._conj_physical.default, *FILLED, aten.mvlgamma.default))
"""Pointwise operations of which eager makes others: a copy that is written, or that keeps more of the strides."""
UNTAGGED = frozenset((aten.hardswish_backward.default,))
"""Pointwise operations that torch does not call so."""
WRAPPED = frozenset(("self", "other", "x", "n"))
"""Names of operands whose numbers become tensors without dimensions, which are no longer of the result's size."""


@functools.cache
def is_iterated(func: Any) -> bool:
    """Whether one pass of eager's iterator over the operands makes the results."""
    if func in UNTAGGED:
        return True
    if func.namespace != "aten" or torch.Tag.pointwise not in func.tags or func._schema.is_mutable or func in PRESERVED or func in COPIES:
        return False
    return LAYOUTS.get(func, as_iterated) is as_iterated


def is_new(tensor: torch.Tensor) -> bool:
    """Whether the strides are those of a new tensor, also along dimensions of one element."""
    step = 1
    for size, stride in zip(reversed(tensor.size()), reversed(tensor.stride())):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def has_no_gaps(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory, each once, in any order."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size()) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def iterated_strides(func: Any, made: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[int] | None:
    """The strides that eager's iterator (ATen's `TensorIteratorBase`: `fast_set_up`, `reorder_dimensions`) gives a result with dimensions of one element; None
    where that can't be said, and where they are a new tensor's. Torch's rules look at the stride of such a dimension otherwise, and a concatenation or
    convolution chooses its memory format by it."""
    shape, arguments = made.size(), func._schema.arguments
    named = dict(zip(arguments, args)) | {a: kwargs[a.name] for a in arguments if a.name in kwargs}
    given = [value for value in named.values() if isinstance(value, torch.Tensor)]
    if any(x._has_symbolic_sizes_strides or x.layout is not torch.strided for x in (made, *given)):  # type: ignore[attr-defined]
        return None
    if 1 not in shape or all(map(is_new, given)):
        return None
    common = common_type([x for x in given if x.dim() > 0 and not is_mask(func, x)])
    if made.is_floating_point() and not (common.is_floating_point or common.is_complex):
        common = made.dtype
    given = [x if x.dtype == common or is_mask(func, x) or made.device.type != "cpu" else converted(x) for x in given]
    wraps = any(isinstance(value, (int, float, complex)) and a.name in WRAPPED and str(a.type) != "int" for a, value in named.items())
    if not wraps and all(x.size() == shape for x in given):
        for form in (torch.contiguous_format, *((torch.channels_last,) if len(shape) == 4 else ())):
            if all(x.is_contiguous(memory_format=form) for x in given):
                return torch.empty(shape, device="meta", memory_format=form).stride()
        if all(x.stride() == given[0].stride() for x in given) and has_no_gaps(given[0]):
            return given[0].stride()
    return by_strides(shape, given)


def converted(x: torch.Tensor) -> torch.Tensor:
    """An operand as CPUs convert it to the common type, before they look at its strides: without gaps."""
    return x if has_no_gaps(x) else torch.empty_strided(x.size(), by_strides(x.size(), [x]), device="meta")


def by_strides(shape: Sequence[int], given: Sequence[torch.Tensor]) -> Sequence[int]:
    """Strides of a new tensor in the order of the operands' dimensions in memory: the first operand decides that has two of them apart."""
    rank, order = len(shape), list(reversed(range(len(shape))))
    strides = []
    for x in given:
        missing = rank - x.dim()
        strides.append([0 if d < missing or (x.size(d - missing) == 1 and shape[d] != 1) else x.stride(d - missing) for d in range(rank)])

    def apart(a: int, b: int) -> int:
        """1 where a lies outside of b, -1 where inside, and 0 where no operand says so."""
        for own in strides:
            if own[a] and own[b]:
                if own[a] != own[b]:
                    return 1 if own[a] > own[b] else -1
                if shape[a] > shape[b]:
                    return 1
        return 0

    for i in range(1, rank):
        place = i
        for j in range(i - 1, -1, -1):
            found = apart(order[j], order[place])
            if found > 0:
                order[j], order[place] = order[place], order[j]
                place = j
            elif found < 0:
                break
    result, step = [0] * rank, 1
    for d in order:
        result[d] = step
        step *= max(shape[d], 1)
    return result


def is_widened_early(func: Any, made: Any, args: tuple[Any, ...]) -> bool:
    """Whether torch's rule converts an expanded operand before it looks at strides, which makes it dense: of half precision to float32, and of other types to
    the one in which the operation computes. Eager's kernels look at operands as they are, but on CPUs at those of other types than the common one."""
    tensors = [a for a in args if isinstance(a, torch.Tensor) and a.dim() > 1]
    if len(tensors) < 2 or not isinstance(made, torch.Tensor) or not any(map(is_expanded, tensors)):
        return False
    if torch.Tag.pointwise not in func.tags or func._schema.is_mutable:
        return False
    operands = [a for a in tensors if not is_mask(func, a)]
    common = common_type(operands)
    if made.device.type == "cpu":
        return common in HALVES
    return any(is_expanded(a) and a.dtype != wide_type(common, made) for a in operands)


def is_mask(func: Any, operand: torch.Tensor) -> bool:
    """Whether an operand says where others are taken, which no rule converts."""
    return func in MASKED and operand.dtype == torch.bool


def common_type(operands: Sequence[torch.Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, (a.dtype for a in operands), torch.bool)


def wide_type(common: torch.dtype, made: torch.Tensor) -> torch.dtype:
    """The type in which an operation computes: not in half precision, nor in ints where it gives floats."""
    return torch.float32 if common in HALVES or (made.is_floating_point() and not (common.is_floating_point or common.is_complex)) else common


def is_expanded(tensor: torch.Tensor) -> bool:
    return any(type(stride) is int and not stride and not (type(size) is int and size == 1) for size, stride in zip(tensor.size(), tensor.stride()))


def as_wide(run: Run, func: Any, made: torch.Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    """The result with the strides that it has of operands that need no conversion; on CPUs those of other types than the common one still do."""
    common = common_type([a for a in args if isinstance(a, torch.Tensor) and a.dim() > 0 and not is_mask(func, a)])
    wide = wide_type(common, made)

    def operand(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or is_mask(func, value) or (made.device.type == "cpu" and value.dtype != common):
            return value
        return run(aten.new_empty_strided.default, value, value.size(), value.stride(), dtype=wide)

    like = run(func, *map(operand, args), **kwargs)
    return made if like.stride() == made.stride() else run(aten.new_empty_strided.default, made, made.size(), like.stride())


def laid_out(layout: Layout, run: Run, made: Any, args: tuple[Any, ...]) -> Any:
    """What an operation gives, the first result with eager's strides. run: runs an operation on fakes."""
    first = made[0] if isinstance(made, (tuple, list)) else made
    like = layout(run, first, args)
    if like is None or like.dim() != first.dim():
        return made
    laid = run(aten.new_empty_strided.default, first, first.shape, like.stride())
    return (laid, *made[1:]) if isinstance(made, (tuple, list)) else laid
