"""Operations for which CPUs have no kernel of their operands' types, or of the type asked for by `dtype`. Fakes do not ask for one, and torch has no list of
them: each operation's is in C++.

So an operation of other types than float32 or float64, or of both, is run once, on zeros. `refused_types` has rows for operands that are too large for that.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operands import DTYPES, target_name, tensors_in
from dynacompile.capture.small_sizes import is_repeatable

USUAL = frozenset({torch.float32, torch.float64})
"""What all operations on floats have kernels of, where all operands are of one of them."""
MOST = 1 << 16
"""Elements of the operands of an operation that is run."""
MOST_MADE = 1 << 21
"""Elements of what it makes."""
REFUSALS = re.compile(
    r"not (yet )?implemented for|not (intended to )?support|(doesn't|only) support|unsupported|can't be cast to|inputs to be \w+|may not be a|mixed dtype",
    re.IGNORECASE,
)
"""How torch words that an operation has no kernel. Where it means something else, Python runs the operation, which then raises, or doesn't."""


class Kernels:
    """The operations of one attempt to capture a frame that were found to have kernels."""

    def __init__(self) -> None:
        self.known: set[tuple] = set()

    def check(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> None:
        """Raises Unsupported where an operation of torch's refuses its operands on CPUs because it has no kernel for their types."""
        asked = *map(dtype_of, args), *map(dtype_of, kwargs.values())
        types = {*(operand.dtype for operand in operands), *asked} - {None}
        if len(types) < 2 and types <= USUAL or not is_repeatable(kind, target) or not can_run(operands) or not makes_on_cpu(kwargs.get("device")):
            return
        key = kind, target, tuple((operand.dtype, operand.dim()) for operand in operands), tuple(map(type, args)), tuple(kwargs), asked
        if key in self.known:
            return
        refusal = refused(kind, target, args, kwargs)
        if refusal is not None:
            raise unsupported("op-failed", f"{target_name(target)}: {refusal}")
        self.known.add(key)


def dtype_of(value: Any) -> torch.dtype | None:
    """The type that an argument asks for, which may be a class of Python's."""
    return value if isinstance(value, torch.dtype) else DTYPES.get(value) if isinstance(value, type) else None


def makes_on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


def can_run(operands: Sequence[torch.Tensor]) -> bool:
    elements = 0
    for operand in operands:
        if operand.device.type != "cpu" or operand.layout is not torch.strided:
            return False
        count = known(operand.numel())
        if not isinstance(count, int):
            return False
        elements += count
    return elements <= MOST


def known(value: Any) -> Any:
    """What a number is in this call; None where it depends on values."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def refused(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """By which words an operation refuses zeros of its operands' types and sizes; None, too, where its result would be large."""

    creates = not tensors_in((args, kwargs))

    def run(device: str) -> Any:
        def operand(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return torch.zeros([known(n) for n in value.shape], dtype=value.dtype, device=device)
            return torch.Generator() if isinstance(value, torch.Generator) else known(value)

        positional, named = map_aggregate((tuple(args), dict(kwargs)), operand)
        if creates:
            named = {**named, "device": device}
        return getattr(positional[0], target)(*positional[1:], **named) if kind == "call_method" else target(*positional, **named)

    with torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            large = sum(made.numel() for made in tensors_in(run("meta"))) > MOST_MADE
        except Exception:  # noqa: BLE001  (not all operations know that device)
            large = creates
        try:
            if not large:
                run("cpu")
        except Exception as error:  # noqa: BLE001  (zeros may be refused for their values, by an error of any class)
            words = str(error).partition("\n")[0]
            return words if isinstance(error, RuntimeError) and REFUSALS.search(words) else None
    return None
