"""Decompositions of normalisations, softmax and statistics, with their gradients. Statistics are float32 for float16 and bfloat16."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from dynacompile.ops.rules import Table, add, aten, cast, div, exp, mul, row, sub, total, where, wide
from dynacompile.private import of_torch

NORMS: Table = {}


@row(NORMS, aten._softmax.default)
def softmax(x, dim, half_to_float):
    if not x.numel():
        return NotImplemented
    v = wide(x)
    e = exp(sub(v, aten.amax.default(v, [dim], True)))
    return cast(div(e, total(e, [dim], True)), v.dtype if half_to_float else x.dtype)


@row(NORMS, aten._log_softmax.default)
def log_softmax(x, dim, half_to_float):
    if not x.numel():
        return NotImplemented
    v = wide(x)
    shifted = sub(v, aten.amax.default(v, [dim], True))
    return cast(sub(shifted, aten.log.default(total(exp(shifted), [dim], True))), v.dtype if half_to_float else x.dtype)


@row(NORMS, aten._safe_softmax.default)
def safe_softmax(x, dim, dtype=None):
    """A row of minus infinities gives zeros."""
    v = x if dtype is None else cast(x, dtype)
    if not v.numel():
        return NotImplemented
    masked = aten.all.dim(aten.eq.Scalar(v, -math.inf), dim, True)
    return where(masked, 0.0, softmax(v, dim, False))


@row(NORMS, aten._softmax_backward_data.default)
def softmax_backward(grad, output, dim, input_dtype):
    y = wide(output)
    weighted = mul(wide(grad), y)
    return cast(sub(weighted, mul(y, total(weighted, [dim], True))), input_dtype)


@row(NORMS, aten._log_softmax_backward_data.default)
def log_softmax_backward(grad, output, dim, input_dtype):
    g = wide(grad)
    return cast(sub(g, mul(exp(wide(output)), total(g, [dim], True))), input_dtype)


@row(NORMS, aten.logsumexp.default)
def logsumexp(x, dim, keepdim=False):
    if not x.is_floating_point() or not x.numel():
        return NotImplemented
    v = wide(x)
    peak = aten.amax.default(v, dim, True)
    finite = where(aten.eq.Scalar(aten.abs.default(peak), math.inf), 0.0, peak)
    out = add(aten.log.default(total(exp(sub(v, finite)), all_dims(v, dim), True)), finite)
    return cast(out if keepdim else aten.squeeze.dims(out, all_dims(v, dim)), x.dtype)


def all_dims(x: torch.Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """The dims that a reduction's dim argument means, none of them negative."""
    if isinstance(dim, int):
        dim = [dim]
    if dim is None or len(dim) == 0:
        return list(range(x.dim()))
    return sorted(d % max(x.dim(), 1) for d in dim)


def moments(x: torch.Tensor, dims: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(mean, x - mean, biased variance), reduced dims kept."""
    variance, mean = aten.var_mean.correction(x, list(dims), correction=0, keepdim=True)
    return mean, sub(x, mean), variance


def count(x: torch.Tensor, dims: Sequence[int]) -> int:
    """Elements that are reduced to one, 1 where there are none: to divide by."""
    return max(math.prod(x.shape[d] for d in dims), 1) if x.dim() else 1


@row(NORMS, aten.dist.default)
def dist(x, other, p=2):
    return aten.linalg_vector_norm.default(aten.sub.Tensor(x, other), p)


@row(NORMS, aten.linalg_vector_norm.default)
def vector_norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    if not x.is_floating_point():
        return NotImplemented
    v, dims = wide(x if dtype is None else cast(x, dtype)), all_dims(x, dim)
    if ord == 2:
        out = aten.sqrt.default(aten.sum.dim_IntList(mul(v, v), dims, keepdim))
    elif ord == 1:
        out = aten.sum.dim_IntList(aten.abs.default(v), dims, keepdim)
    elif ord == math.inf:
        out = aten.amax.default(aten.abs.default(v), dims, keepdim)
    elif ord == -math.inf:
        out = aten.amin.default(aten.abs.default(v), dims, keepdim)
    elif ord == 0:
        out = aten.sum.dim_IntList(cast(aten.ne.Scalar(v, 0), v.dtype), dims, keepdim)
    else:
        powers = aten.pow.Tensor_Scalar(aten.abs.default(v), ord)
        out = aten.pow.Tensor_Scalar(aten.sum.dim_IntList(powers, dims, keepdim), 1.0 / ord)
    return cast(out, dtype or x.dtype)


@row(NORMS, aten.native_layer_norm.default)
def layer_norm(x, normalized_shape, weight, bias, eps):
    v, dims = wide(x), trailing(x, normalized_shape)
    mean, centred, variance = moments(v, dims)
    rstd = aten.rsqrt.default(add(variance, eps))
    out = mul(centred, rstd)
    out = out if weight is None else mul(out, wide(weight))
    out = out if bias is None else add(out, wide(bias))
    return cast(out, x.dtype), mean, rstd


def trailing(x: torch.Tensor, shape: Sequence[int]) -> list[int]:
    return list(range(x.dim() - len(shape), x.dim()))


@row(NORMS, aten.native_layer_norm_backward.default)
def layer_norm_backward(grad, x, normalized_shape, mean, rstd, weight, bias, mask):
    g, dims = wide(grad), trailing(x, normalized_shape)
    outer = list(range(x.dim() - len(normalized_shape)))
    normal = mul(sub(wide(x), mean), rstd)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = g if weight is None else mul(g, wide(weight))
        grad_x = cast(norm_gradient(scaled, normal, rstd, dims), x.dtype)
    if mask[1] and weight is not None:
        grad_weight = cast(total(mul(g, normal), outer), weight.dtype)
    if mask[2] and bias is not None:
        grad_bias = cast(total(g, outer), bias.dtype)
    return grad_x, grad_weight, grad_bias


def norm_gradient(g: torch.Tensor, normal: torch.Tensor, rstd: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """Gradient through (x - mean) * rstd over `dims`: rstd * (g - mean(g) - normal * mean(g * normal))."""
    mean_g = aten.mean.dim(g, list(dims), True)
    mean_gn = aten.mean.dim(mul(g, normal), list(dims), True)
    return mul(sub(sub(g, mean_g), mul(normal, mean_gn)), rstd)


@row(NORMS, aten._fused_rms_norm.default)
def rms_norm(x, normalized_shape, weight, eps):
    v, dims = wide(x), trailing(x, normalized_shape)
    rstd = aten.rsqrt.default(add(aten.mean.dim(mul(v, v), dims, True), torch.finfo(v.dtype).eps if eps is None else eps))
    out = mul(v, rstd)
    return cast(out if weight is None else mul(out, wide(weight)), x.dtype), rstd


@row(NORMS, aten._fused_rms_norm_backward.default)
def rms_norm_backward(grad, x, normalized_shape, rstd, weight, mask):
    g, dims = wide(grad), trailing(x, normalized_shape)
    outer = list(range(x.dim() - len(normalized_shape)))
    normal = mul(wide(x), rstd)
    grad_x = grad_weight = None
    if mask[0]:
        scaled = g if weight is None else mul(g, wide(weight))
        grad_x = cast(mul(sub(scaled, mul(normal, aten.mean.dim(mul(scaled, normal), dims, True))), rstd), x.dtype)
    if mask[1] and weight is not None:
        grad_weight = cast(total(mul(g, normal), outer), weight.dtype)
    return grad_x, grad_weight


def per_channel(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """[C] as [1, C, 1, ...] for x of [N, C, ...]."""
    return aten.view.default(p, [1, p.shape[0], *([1] * (x.dim() - 2))])


def all_but_channel(x: torch.Tensor) -> list[int]:
    return [d for d in range(x.dim()) if d != 1]


def scale_and_shift(x, weight, bias):
    x = x if weight is None else mul(x, per_channel(wide(weight), x))
    return x if bias is None else add(x, per_channel(wide(bias), x))


def batch_norm_training(x, weight, bias, eps):
    """(output, mean [C], rstd [C], biased variance [C])."""
    v, dims = wide(x), all_but_channel(x)
    mean, centred, biased = moments(v, dims)
    rstd = aten.rsqrt.default(add(biased, eps))
    out = cast(scale_and_shift(mul(centred, rstd), weight, bias), x.dtype)
    return out, aten.squeeze.dims(mean, dims), aten.squeeze.dims(rstd, dims), aten.squeeze.dims(biased, dims)


@row(NORMS, aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(x, weight, bias, running_mean, running_var, training, momentum, eps):
    if not training:
        return (*batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps), running_mean, running_var)
    out, mean, rstd, biased = batch_norm_training(x, weight, bias, eps)
    n = count(x, all_but_channel(x))
    unbiased = mul(biased, n / max(n - 1, 1))
    new_mean = add(mul(wide(running_mean), 1 - momentum), mul(mean, momentum))
    new_var = add(mul(wide(running_var), 1 - momentum), mul(unbiased, momentum))
    return out, mean, rstd, cast(new_mean, running_mean.dtype), cast(new_var, running_var.dtype)


@row(NORMS, aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(x, weight, bias, running_mean, running_var, momentum, eps):
    out, mean, rstd, new_mean, new_var = batch_norm_functional(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return out, mean, rstd, aten.full.default([0], 0, dtype=torch.uint8, device=x.device), new_mean, new_var


@row(NORMS, aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(x, weight, bias, training, momentum, eps):
    return batch_norm_training(x, weight, bias, eps)[:3]


@row(NORMS, aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps):
    v = wide(x)
    rstd = aten.rsqrt.default(add(wide(running_var), eps))
    out = scale_and_shift(mul(sub(v, per_channel(wide(running_mean), x)), per_channel(rstd, x)), weight, bias)
    unused = aten.full.default([0], 0, dtype=v.dtype, device=x.device)
    return cast(out, x.dtype), unused, unused


@row(NORMS, aten.native_batch_norm_backward.default)
def batch_norm_backward(grad, x, weight, running_mean, running_var, save_mean, save_rstd, training, eps, mask):
    g, dims = wide(grad), all_but_channel(x)
    mean = save_mean if training else wide(running_mean)
    rstd = save_rstd if training else aten.rsqrt.default(add(wide(running_var), eps))
    normal = mul(sub(wide(x), per_channel(mean, x)), per_channel(rstd, x))
    sum_g, sum_gn = total(g, dims), total(mul(g, normal), dims)
    grad_x = None
    if mask[0]:
        if training:
            scale = 1 / count(x, dims)
            g = sub(sub(g, per_channel(mul(sum_g, scale), x)), mul(normal, per_channel(mul(sum_gn, scale), x)))
        factor = rstd if weight is None else mul(rstd, wide(weight))
        grad_x = cast(mul(g, per_channel(factor, x)), x.dtype)
    grad_weight = cast(sum_gn, x.dtype if weight is None else weight.dtype) if mask[1] else None
    grad_bias = cast(sum_g, x.dtype if weight is None else weight.dtype) if mask[2] else None
    return grad_x, grad_weight, grad_bias


@row(NORMS, aten.batch_norm_backward.default)
def batch_norm_with_update_backward(grad, x, weight, running_mean, running_var, save_mean, save_rstd, training, eps, mask, reserve):
    return batch_norm_backward(grad, x, weight, running_mean, running_var, save_mean, save_rstd, training, eps, mask)


@row(NORMS, aten.native_group_norm.default)
def group_norm(x, weight, bias, n, channels, inner, groups, eps):
    grouped = wide(aten.reshape.default(x, [n, groups, (channels // groups) * inner]))
    mean, centred, variance = moments(grouped, [2])
    rstd = aten.rsqrt.default(add(variance, eps))
    out = scale_and_shift(aten.reshape.default(mul(centred, rstd), list(x.shape)), weight, bias)
    return cast(out, x.dtype), aten.squeeze.dims(mean, [2]), aten.squeeze.dims(rstd, [2])


def is_stored_by_channels(x):
    """Whether eager's kernels on the CPU store what they make of x in another order than its dimensions': channels last."""
    return x.device.type == "cpu" and of_torch.suggest_memory_format(x) is not torch.contiguous_format


def in_format_of(x, made):
    """The result in the memory format of x where eager's kernels on the CPU store it so."""
    return aten.clone.default(made, memory_format=of_torch.suggest_memory_format(x)) if is_stored_by_channels(x) else made


@row(NORMS, aten.native_group_norm_backward.default)
def group_norm_backward(grad, x, mean, rstd, weight, n, channels, inner, groups, mask):
    if is_stored_by_channels(x) and (mask[1] or mask[2]):
        return group_norm_backward_by_channels(grad, x, mean, rstd, weight, n, channels, inner, groups, mask)
    g, grouped = wide(grad), [n, groups, (channels // groups) * inner]
    rstd3 = aten.unsqueeze.default(rstd, 2)
    normal = mul(sub(aten.reshape.default(wide(x), grouped), aten.unsqueeze.default(mean, 2)), rstd3)
    grad_x = grad_weight = grad_bias = None
    if mask[0]:
        scaled = g if weight is None else mul(g, per_channel(wide(weight), x))
        flat = norm_gradient(aten.reshape.default(scaled, grouped), normal, rstd3, [2])
        grad_x = in_format_of(x, cast(aten.reshape.default(flat, list(x.shape)), x.dtype))
    if mask[1]:
        grad_weight = cast(total(mul(g, aten.reshape.default(normal, list(x.shape))), all_but_channel(x)), x.dtype if weight is None else weight.dtype)
    if mask[2]:
        grad_bias = cast(total(g, all_but_channel(x)), x.dtype if weight is None else weight.dtype)
    return grad_x, grad_weight, grad_bias


def group_norm_backward_by_channels(grad, x, mean, rstd, weight, n, channels, inner, groups, mask):
    """The same where the channels of a pixel lie side by side, and weights have gradients: all follow from two sums over the pixels of each image's channel, so
    that memory is read twice. What a group has is spread over its channels, so that a row of memory needs one number for each of its elements."""
    of_group = channels // groups

    def spread(v):
        """[n, groups] as [n, channels]."""
        return aten.reshape.default(aten.expand.default(aten.unsqueeze.default(v, 2), [n, groups, of_group]), [n, channels])

    def by_pixel(v):
        return aten.view.default(v, [n, channels, *([1] * (x.dim() - 2))])

    def mean_of_group(v):
        """Of all elements of a group, by their sums over pixels."""
        scaled = v if weight is None else mul(v, wide(weight))
        return mul(total(aten.view.default(scaled, [n, groups, of_group]), [2]), 1 / max(of_group * inner, 1))

    g, scale, pixels = wide(grad), spread(rstd), list(range(2, x.dim()))
    centred = sub(wide(x), by_pixel(spread(mean)))
    sums, products = total(g, pixels), mul(total(mul(g, centred), pixels), scale)
    dtype = x.dtype if weight is None else weight.dtype
    grad_x = None
    if mask[0]:
        slope, shift = mul(mean_of_group(products), mul(rstd, rstd)), mul(mean_of_group(sums), rstd)
        factor = scale if weight is None else mul(scale, wide(weight))
        made = sub(sub(mul(g, by_pixel(factor)), by_pixel(spread(shift))), mul(centred, by_pixel(spread(slope))))
        grad_x = in_format_of(x, cast(made, x.dtype))
    return grad_x, cast(total(products, [0]), dtype) if mask[1] else None, cast(total(sums, [0]), dtype) if mask[2] else None
