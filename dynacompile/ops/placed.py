"""What a program does to place tensors on a mesh, as operations of a graph: `DTensor.from_local`, `to_local`, `redistribute` and `full_tensor` with what they
were given beside tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch

from dynacompile.ops.backward_steps import Step, Tracing
from dynacompile.ops.wrappers import DTENSORS


class Placing(Step):
    """options: arguments by name."""

    def __init__(self, options: tuple[tuple[str, Any], ...]):
        self.options = options

    def traced(self, args: tuple, tracing: Tracing) -> torch.Tensor:
        return self(*args)

    def __call__(self, tensor: Any) -> torch.Tensor:
        return getattr(tensor, self.__name__)(**dict(self.options))


class FromLocal(Placing):
    __name__ = __qualname__ = "from_local"

    def __call__(self, tensor: Any) -> torch.Tensor:
        cls: Any = sys.modules[DTENSORS].DTensor  # type: ignore[attr-defined]
        return cls.from_local(tensor, **dict(self.options))


class Redistribute(Placing):
    __name__ = __qualname__ = "redistribute"


class ToLocal(Placing):
    __name__ = __qualname__ = "to_local"


class FullTensor(Placing):
    __name__ = __qualname__ = "full_tensor"
