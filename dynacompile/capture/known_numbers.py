"""Tensors of one number that the frame made of a number: torch reads them where an operation takes numbers, and so may capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from dynacompile.ir.fakes import answers_devices
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor, TorchDispatchMode


@answers_devices
class Reads(TorchDispatchMode):
    """Notes which tensors are turned into numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is of_torch.aten_local_scalar_dense:
            self.seen[id(args[0])] = args[0]
        return func(*args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's own wrapper around every dispatch is for its compiler, not for ours."""
        return False


def known_number(fake: object) -> Any:
    """The number that a tensor of one number certainly holds; None where it is not known.

    Torch computes it beside the fake, and misses what is written through a view of more numbers: a tensor that was written is not known.
    """
    constant = fake.constant if isinstance(fake, FakeTensor) else None
    if constant is None or constant.numel() != 1 or constant._version != fake._version:  # type: ignore[attr-defined]
        return None
    return constant.item()


def forget(fake: torch.Tensor) -> None:
    """From now on the number is not known."""
    if isinstance(fake, FakeTensor):
        fake.constant = None


def any_known(fakes: Sequence[torch.Tensor]) -> bool:
    return any(known_number(fake) is not None for fake in fakes)


Pairs = list[tuple[Any, Any]]


def as_numbers(reads: Reads, node_of: Callable[[torch.Tensor], torch.fx.Node], args: Pairs, kwargs: dict[str, tuple]) -> tuple[Pairs, dict[str, tuple]]:
    """Pairs of arguments, of a node and of a fake, with numbers for the tensors that were read."""
    numbers = {node_of(fake): known_number(fake) for fake in reads.seen.values()}
    fakes = {id(fake): known_number(fake) for fake in reads.seen.values()}

    def replaced(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        ours = torch.fx.node.map_aggregate(pair[0], lambda part: numbers.get(part, part) if isinstance(part, torch.fx.Node) else part)
        return ours, torch.fx.node.map_aggregate(pair[1], lambda part: fakes.get(id(part), part))

    return [replaced(p) for p in args], {key: replaced(p) for key, p in kwargs.items()}


def alike(left: object, right: object) -> bool:
    """Whether two results are of one kind: the same types, dtypes, sizes and strides."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (left.dtype, left.shape, left.stride(), left.device) == (right.dtype, right.shape, right.stride(), right.device)
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return type(left) is type(right) and len(left) == len(right) and all(map(alike, left, right))
    return type(left) is type(right) and left == right
