"""What explanations of guards say: short texts about values, made without running code of the user."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Protocol

import torch

from dynacompile.ir.captured import Guard
from dynacompile.ir.source import Source

Difference = tuple[str, str, str]  # (subject, was, now)


class Find(Protocol):
    """What a frame has at a source, and its globals."""

    @property
    def globals(self) -> Mapping[str, Any]: ...

    def __call__(self, source: Source) -> Any: ...




def text(guard: Guard) -> str:
    return guard.source.text() if guard.source is not None else ""


def shown(value: Any) -> str:
    """A value in an explanation: short, and on one line."""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value._name_}"
    if isinstance(value, (torch.Tensor, torch.nn.Module)) or type(value).__module__ not in ("builtins", "torch"):
        return type(value).__name__
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, (list, dict, set, frozenset)):
        return f"{type(value).__name__} of {len(value)}"
    result = repr(value)
    return result if len(result) <= 80 else result[:77] + "..."


def same_constant(left: Any, right: Any) -> bool:
    """Equality by type and value, floats bit by bit."""
    if type(left) is not type(right):
        return False
    match left:
        case float():
            return struct.pack("d", left) == struct.pack("d", right)
        case complex():
            return same_constant(left.real, right.real) and same_constant(left.imag, right.imag)
        case tuple():
            return len(left) == len(right) and all(map(same_constant, left, right))
        case slice() | range():
            return all(same_constant(getattr(left, part), getattr(right, part)) for part in ("start", "stop", "step"))
        case int() | str() | bytes() | torch.device():
            return left == right
    return left is right


def differing(subject: str, was: Any, now: Any) -> Iterator[Difference]:
    if not same_constant(was, now):
        yield subject, *told_apart(was, now)


def told_apart(was: Any, now: Any) -> tuple[str, str]:
    """Two different values; where their short texts are one, what tells them apart."""
    texts = shown(was), shown(now)
    if texts[0] != texts[1]:
        return texts
    if type(was) is not type(now):
        return f"{texts[0]} ({type(was).__name__})", f"{texts[1]} ({type(now).__name__})"
    if isinstance(was, tuple):
        gone, new = ([value for value in one if not any(same_constant(value, v) for v in other)] for one, other in ((was, now), (now, was)))
        listed = f"{len(was)} with {shown(tuple(gone))}", f"{len(now)} with {shown(tuple(new))}"
        if listed[0] != listed[1]:
            return listed
    return texts[0], f"another {texts[1]}"


def named(was: Any, now: type) -> tuple[str, str]:
    """Two classes, told apart where they have one name."""
    return was.__qualname__, now.__qualname__ if now.__qualname__ != was.__qualname__ else f"another {now.__qualname__}"
