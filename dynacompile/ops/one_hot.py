"""One-hot vectors in terms of ATen ops of a fixed shape."""

from __future__ import annotations

import torch

from dynacompile.ops.checks import require_all


def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.nn.functional.one_hot`: int64 [...] -> int64 [..., num_classes]. Raises, as eager does, for a class that is not one of them."""
    if num_classes <= 0 or tensor.dtype != torch.int64:
        return torch.nn.functional.one_hot(tensor, num_classes)
    require_all(tensor >= 0, "Class values must be non-negative.")
    require_all(tensor < num_classes, "Class values must be smaller than num_classes.")
    classes = torch.arange(num_classes, dtype=torch.int64, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.int64)
