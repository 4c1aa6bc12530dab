"""What the scheduler asks of whoever decides whether a product of matrices is one kernel with what is computed of its results, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dynacompile.ir.loops import Buffer, Extern, Nest


@dataclass(frozen=True)
class Joint:
    """Two ways to do the same. nest: all as one kernel. calls: products that the library does; then `reader` is the kernel that reads their results.

    m, n, k: the products' extents, n along their results' memory. batch: how many products of matrices each call does.
    """

    nest: Nest
    calls: tuple[Extern, ...]
    reader: Nest
    buffers: Mapping[str, Buffer]
    m: int
    n: int
    k: int
    batch: int = 1


@dataclass(frozen=True)
class Decision:
    """us: microseconds of the one kernel, and of the two; measured, or what the model of the device expects; 0 where neither was asked."""

    fused: bool
    reason: str
    measured: bool = False
    fused_us: float = 0.0
    apart_us: float = 0.0

    def facts(self) -> dict:
        return vars(self).copy()


Choose = Callable[[Joint], Decision]
