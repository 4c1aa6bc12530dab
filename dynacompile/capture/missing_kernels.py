"""Operations for which CPUs have no kernel of their operands' types, or of the type asked for by `dtype`. Fakes do not ask for one, and torch has no list of
them: each operation's is in C++.

So an operation of other types than float32 or float64, or of both, is run once, on zeros. Whether a kernel exists depends on types and dimensions alone: for
operands or results that are large, and for sizes that depend on values, the run is one with small sizes in the place of theirs.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx.node import map_aggregate

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operands import DTYPES, target_name, tensors_in
from dynacompile.capture.small_sizes import is_repeatable
from dynacompile.ir.recurrence import check_recurs

USUAL = frozenset({torch.float32, torch.float64})
"""What all operations on floats have kernels of, where all operands are of one of them."""
MOST = 1 << 16
"""Elements of the operands of an operation that is run with the sizes that it has."""
MOST_MADE = 1 << 21
"""Elements of what it makes."""
FEW = 1 << 12
"""Elements of operands of which no operation makes many by small numbers, so that the size of its result is not asked for."""
KEPT = 8
"""Sizes and numbers up to this one stay what they are where others are made small: windows, strides, dimensions."""
REFUSALS = re.compile(
    r"not (yet )?implemented for|not (intended to )?support|(doesn't|only) support|unsupported|can't be cast to|inputs to be \w+|may not be a|mixed dtype",
    re.IGNORECASE,
)
"""How torch words that an operation has no kernel. Where it means something else, Python runs the operation, which then raises, or doesn't."""


TOO_LARGE = "too large"


class Kernels:
    """The operations of one attempt to capture a frame that were found to have kernels."""

    def __init__(self) -> None:
        self.known: set[tuple] = set()

    def check(self, kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], operands: Sequence[torch.Tensor]) -> None:
        """Raises Unsupported where an operation of torch's refuses its operands on CPUs because it has no kernel for their types."""
        asked = *map(dtype_of, args), *map(dtype_of, kwargs.values())
        types = {*(operand.dtype for operand in operands), *asked} - {None}
        if len(types) < 2 and types <= USUAL or not is_repeatable(kind, target) or not is_on_cpu(operands) or not makes_on_cpu(kwargs.get("device")):
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


def is_on_cpu(operands: Sequence[torch.Tensor]) -> bool:
    return all(operand.device.type == "cpu" and operand.layout is torch.strided for operand in operands)


def known(value: Any) -> Any:
    """What a number is in this call; None where it depends on values."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


class Small:
    """Sizes and other numbers of an operation, of which those above KEPT are small ones instead, in the same order, so that equal ones stay equal."""

    def __init__(self, operands: Sequence[torch.Tensor], given: Any):
        numbers: set[int | float] = set()

        def note(value: Any) -> Any:
            number = known(value)
            if type(number) in (int, float) and KEPT < number < math.inf:
                numbers.add(number)
            return value

        for operand in operands:
            for size in operand.shape:
                note(size)
        map_aggregate(given, note)
        self.numbers: dict[Any, int] = {number: KEPT + 1 + place for place, number in enumerate(sorted(numbers))}

    def __call__(self, value: Any) -> Any:
        number = known(value)
        if number is None and isinstance(value, torch.SymInt):
            return KEPT
        return type(number)(self.numbers[number]) if type(number) in (int, float) and number in self.numbers else number


def refused(kind: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """By which words an operation refuses zeros of its operands' types. None where it takes them, or where no sizes were found with which it could be asked."""
    operands = tensors_in((args, kwargs))
    elements = [known(operand.numel()) for operand in operands]
    given = tuple(args), dict(kwargs)
    if None not in elements and sum(elements) <= MOST:
        answer = asked_with(known, kind, target, given, creates=not operands)
        if answer is not TOO_LARGE:
            return answer
    small = Small(operands, given)
    few = bool(operands) and sum(math.prod(map(small, operand.shape)) for operand in operands) <= FEW
    answer = asked_with(small, kind, target, given, creates=not operands, is_small=few)
    return None if answer is TOO_LARGE else answer


def asked_with(number: Callable[[Any], Any], kind: str, target: Any, given: tuple[tuple, dict[str, Any]], creates: bool, is_small: bool = False) -> str | None:
    """The same for one choice of sizes; TOO_LARGE where the result would be. number: what each size and number is. creates: whether it has no operands.
    is_small: whether the result is known not to be large."""

    def run(device: str) -> Any:
        def operand(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return torch.zeros([number(n) for n in value.shape], dtype=value.dtype, device=device)
            return torch.Generator() if isinstance(value, torch.Generator) else number(value)

        positional, named = map_aggregate(given, operand)
        if creates:
            named = {**named, "device": device}
        return getattr(positional[0], target)(*positional[1:], **named) if kind == "call_method" else target(*positional, **named)

    with torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            large = not is_small and sum(made.numel() for made in tensors_in(run("meta"))) > MOST_MADE
        except Exception as error:  # noqa: BLE001  (not all operations know that device)
            check_recurs(error, lambda: run("meta"))
            large = creates
        if large:
            return TOO_LARGE
        try:
            run("cpu")
        except Exception as error:  # noqa: BLE001  (zeros may be refused for their values, by an error of any class)
            check_recurs(error, lambda: run("cpu"))
            words = str(error).partition("\n")[0]
            return words if isinstance(error, RuntimeError) and REFUSALS.search(words) else None
    return None
