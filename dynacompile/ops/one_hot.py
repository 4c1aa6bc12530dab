"""One-hot vectors in terms of ATen ops of a fixed shape."""

from __future__ import annotations

import torch


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.nn.functional.one_hot`: int64 [...] -> int64 [..., num_classes]. Eager raises for a class that is not one of them; here it gets zeros."""
    if num_classes <= 0 or tensor.dtype != torch.int64:
        return torch.nn.functional.one_hot(tensor, num_classes)
    classes = torch.arange(num_classes, dtype=torch.int64, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)
