"""Graphs are given plain tensors: one of a class that overrides torch's functions would run its code inside of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def with_plain(call: Callable[..., tuple], positions: Sequence[int]) -> Callable[..., tuple]:
    """`call` with plain aliases of the inputs at these positions: the same memory, version counter and history."""

    def run(*inputs: Any) -> tuple:
        given = list(inputs)
        for n in positions:
            given[n] = torch.Tensor.as_subclass(given[n], torch.Tensor)
        return call(*given)

    return run
