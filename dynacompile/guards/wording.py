"""What explanations of guards say: short texts about values, made without running code of the user."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from dynacompile.ir.captured import Guard
from dynacompile.ir.source import Source
from dynacompile.ir.wording import Told, revealed, shown, shown_names
from dynacompile.quoting import without_values

Difference = tuple[str, str, str]  # (subject, was, now)


class Find(Protocol):
    """What a frame has at a source, and its globals."""

    @property
    def globals(self) -> Mapping[str, Any]: ...

    def __call__(self, source: Source) -> Any: ...


def text(guard: Guard) -> str:
    return "" if guard.source is None else without_values(guard.source.text())


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
        return suffixed(texts[0], f" ({type(was).__name__})"), suffixed(texts[1], f" ({type(now).__name__})")
    if isinstance(was, tuple):
        listed = counted(was, now, lambda values: str(shown(values)))
        if listed[0] != listed[1]:
            return listed
    return texts[0], f"another {texts[1]}"


def other_names(subject: str, was: tuple, now: tuple) -> Iterator[Difference]:
    """Two different lists of names of attributes or modules, or of keys."""
    if same_constant(was, now):
        return
    texts = shown_names(was), shown_names(now)
    if texts[0] == texts[1]:
        texts = counted(was, now, shown_names)
    yield subject, texts[0], texts[1] if texts[0] != texts[1] else f"another {texts[1]}"


def counted(was: tuple, now: tuple, shows: Callable[[tuple], str]) -> tuple[str, str]:
    """How many values two tuples have, with those that one has and the other lacks."""
    gone, new = (tuple([value for value in one if not any(same_constant(value, v) for v in other)]) for one, other in ((was, now), (now, was)))
    return f"{len(was)} with {shows(gone)}", f"{len(now)} with {shows(new)}"


def suffixed(text: str, suffix: str = "", before: str = "") -> str:
    made = Told(f"{before}{text}{suffix}")
    made.revealed = f"{before}{revealed(text)}{suffix}"
    return made


def named(was: Any, now: type) -> tuple[str, str]:
    """Two classes, told apart where they have one name."""
    return was.__qualname__, now.__qualname__ if now.__qualname__ != was.__qualname__ else f"another {now.__qualname__}"
