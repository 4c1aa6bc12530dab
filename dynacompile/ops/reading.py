"""Whether a tensor has been written since an operation read it, for operations that are computed later than the graph has them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dynacompile.private import of_torch


@dataclass(frozen=True)
class Reading:
    """A tensor, and what it held when it was read."""

    tensor: torch.Tensor
    state: object

    @staticmethod
    def of(tensor: torch.Tensor) -> Reading:
        return Reading(tensor, state_of(tensor))

    def is_written(self) -> bool:
        """Whether the tensor was written since, also through a tensor that shares its memory and not its version, such as `.data`."""
        now = state_of(self.tensor)
        return now is not self.state if isinstance(now, torch.Tensor) else now != self.state


def state_of(tensor: torch.Tensor) -> object:
    """While a graph is made functional, the value that the tensor has now, which a write replaces; else its version."""
    if not of_torch.is_functional_tensor(tensor):
        return tensor._version
    with of_torch.AutoDispatchBelowADInplaceOrView():
        of_torch.functionalize_sync(tensor)
    return of_torch.from_functional_tensor(tensor)
