"""Checks of values that eager's kernels make, as operations of a graph, for ops whose decomposition has lost them."""

from __future__ import annotations

import torch

aten = torch.ops.aten


def require_all(holds: torch.Tensor, message: str) -> None:
    """Raises eager's RuntimeError where a tensor of truth values is not all true. On GPUs it is a device assertion, as in eager."""
    aten._assert_async.msg(aten.all.default(holds), message)
