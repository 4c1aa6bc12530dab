"""Batch norm in terms of the ATen op that declares that it writes to the running statistics."""

from __future__ import annotations

import torch


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
    if not training:
        assert running_mean is not None and running_var is not None
        return torch.ops.aten._native_batch_norm_legit_no_training.default(input, weight, bias, running_mean, running_var, momentum, eps)[0]
    if running_mean is None or running_var is None:
        return torch.ops.aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)[0]
    return torch.ops.aten._native_batch_norm_legit.default(input, weight, bias, running_mean, running_var, True, momentum, eps)[0]


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
