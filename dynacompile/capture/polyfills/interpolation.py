"""`torch.nn.functional.interpolate`, as far as its sizes are Python's."""

from __future__ import annotations

import torch

from dynacompile.ops.resizing import resized


def by_factors(x: torch.Tensor, factors: list[float], mode: str, align_corners: bool | None, recomputes: bool) -> torch.Tensor:
    """ATen cuts off what is no whole element. recomputes: the sizes that are found say what the factors are."""
    sizes = [n * int(f) if f == int(f) else int(n * f) for n, f in zip(x.shape[2:], factors)]
    if mode == "area":
        return torch.nn.functional.interpolate(x, size=sizes, mode=mode)
    return resized(x, sizes, mode, bool(align_corners), [None if recomputes else float(f) for f in factors])


def to_sizes(x: torch.Tensor, sizes: list[int], mode: str, align_corners: bool | None) -> torch.Tensor:
    return resized(x, sizes, mode, bool(align_corners), [None for _ in sizes])
