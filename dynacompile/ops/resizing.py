"""ATen's own operators behind `torch.nn.functional.interpolate`, for symbolic sizes: torch's Python rules would take the function apart there.

What those rules make reads at computed places, which is slower on CPUs than ATen's kernels, and its gradient adds to computed places; factors and layouts
are not always those of the kernels either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynacompile.private import of_torch

OPERATORS = {
    **{("nearest", d): f"upsample_nearest{d}d" for d in (1, 2, 3)},
    **{("nearest-exact", d): f"_upsample_nearest_exact{d}d" for d in (1, 2, 3)},
    ("linear", 1): "upsample_linear1d",
    ("bilinear", 2): "upsample_bilinear2d",
    ("trilinear", 3): "upsample_trilinear3d",
    ("bicubic", 2): "upsample_bicubic2d",
}
"""By mode and dimensions behind the channels."""


def resized(x: torch.Tensor, sizes: Sequence[int], mode: str, align_corners: bool, factors: Sequence[float | None]) -> torch.Tensor:
    """[N, C, ...] floating point or uint8 -> [N, C, *sizes], with a history. factors: from one element of `x` to results, where they are not sizes'."""
    operator = getattr(torch.ops.aten, OPERATORS[mode, x.dim() - 2]).default
    corners: tuple[Any, ...] = () if mode.startswith("nearest") else (align_corners,)
    with of_torch.DisablePythonDispatcher():
        return operator(x, sizes, *corners, *factors)
