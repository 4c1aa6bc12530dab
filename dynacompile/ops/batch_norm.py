"""Batch norm in terms of the ATen op that declares that it writes to the running statistics."""

from __future__ import annotations

import torch

from dynacompile.private import of_torch


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """`torch.batch_norm`: [N, C, ...] -> the same shape; running statistics [C] are updated in place when training."""
    if not input.numel():
        return affine_of_nothing(input, weight, bias)
    if not training:
        assert running_mean is not None and running_var is not None
        return of_torch.aten_native_batch_norm_legit_no_training(input, weight, bias, running_mean, running_var, momentum, eps)[0]
    if running_mean is None or running_var is None:
        return of_torch.aten_native_batch_norm_legit_no_stats(input, weight, bias, True, momentum, eps)[0]
    return of_torch.aten_native_batch_norm_legit(input, weight, bias, running_mean, running_var, True, momentum, eps)[0]


def affine_of_nothing(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """What batch norm gives for an input without elements: statistics are left alone, and parameters get gradients of zero."""
    out = input.clone()
    out = out if weight is None else out * weight[0]
    return out if bias is None else out + bias[0]


def functional_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`torch.nn.functional.batch_norm`, by the same op."""
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


def averaged_batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    momentum: torch.Tensor | float,
    eps: float,
) -> torch.Tensor:
    """`torch.nn.functional.batch_norm` in training. momentum: of a cumulative average it is a tensor, read from a count of batches; others vary from call to
    call."""
    if input.numel() == input.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
    wide = momentum.dtype if isinstance(momentum, torch.Tensor) else torch.float64
    mean, var = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    out = batch_norm(input, weight, bias, mean, var, True, 1.0, eps)
    if input.numel():
        for statistic, new in ((running_mean, mean), (running_var, var)):
            with of_torch.unsafe_preserve_version_counter(statistic):  # as ATen's norms, whose writes no version counts
                statistic.copy_(momentum * new.to(wide) + (1 - momentum) * statistic.to(wide))
    return out


def instance_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """`torch.instance_norm`: batch norm of [1, N * C, ...]; running statistics [C] become the means over N of what that makes of them."""
    n, channels = input.shape[:2]
    kept = [None if s is None else s.repeat(n) for s in (running_mean, running_var)]
    scale, shift = (None if p is None else p.repeat(n) for p in (weight, bias))
    flat = input.contiguous().view(1, n * channels, *input.shape[2:])
    out = batch_norm(flat, scale, shift, kept[0], kept[1], use_input_stats, momentum, eps)
    for statistic, new in zip((running_mean, running_var), kept, strict=True):
        if statistic is not None and new is not None:
            statistic.copy_(new.view(n, channels).mean(0))
    return out.view(input.shape)


def functional_instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`torch.nn.functional.instance_norm`, by the same op."""
    return instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)
