"""What explanations say of values: short texts, made without running code of the user, that tell types, numbers, shapes, and of strings no more than
their length and a digest."""

from __future__ import annotations

import types
from enum import Enum

import torch

from dynacompile.quoting import is_name, printable, shown_text

BY_REPR = (
    *(bool, float, complex, range, types.NoneType, types.EllipsisType, types.NotImplementedType),
    *(torch.dtype, torch.layout, torch.device, torch.memory_format, torch.Size),
)
LONGEST = 80
MOST_BITS = 256


class Told(str):
    """A text about a value that may go anywhere. revealed: one with the value, shortened, for the screen of a user who asked for values."""

    revealed: str


def told(text: str, reveals: str) -> Told:
    made = Told(shortened(text))
    made.revealed = shortened(reveals)
    return made


def shortened(text: str) -> str:
    return printable(text, longest=LONGEST)


def revealed(text: str) -> str:
    return text.revealed if isinstance(text, Told) else text


def shown(value: object) -> Told:
    """A value in an explanation: short, and on one line."""
    kind = type(value)
    if issubclass(kind, Enum):  # isinstance() would ask the object for its `__class__`
        return told(*[f"{kind.__qualname__}.{value._name_}"] * 2)  # type: ignore[attr-defined]
    if kind in (str, bytes):
        return told(shown_text(value), repr(value[: 2 * LONGEST]))  # type: ignore[arg-type,index]
    if kind is int:
        size = int.bit_length(value)  # type: ignore[arg-type]
        return told(*[repr(value) if size <= MOST_BITS else f"int of {size} bits"] * 2)
    if kind in BY_REPR:
        return told(*[repr(value)] * 2)
    if kind is tuple:
        parts = [shown(part) for part in value]  # type: ignore[attr-defined]
        return told(*(listed([one(part) for part in parts]) for one in (str, revealed)))
    if kind is slice:
        parts = [shown(part) for part in (value.start, value.stop, value.step)]  # type: ignore[attr-defined]
        return told(*(f"slice({', '.join(map(one, parts))})" for one in (str, revealed)))
    if issubclass(kind, type):
        return told(*[value.__qualname__] * 2)  # type: ignore[attr-defined]
    if kind in (list, dict, set, frozenset):
        return told(*[f"{kind.__name__} of {len(value)}"] * 2)  # type: ignore[arg-type]
    if kind in (types.BuiltinFunctionType, types.FunctionType):
        return told(*[f"function {value.__qualname__}"] * 2)  # type: ignore[attr-defined]
    return told(*[kind.__name__] * 2)


def listed(parts: list[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def shown_name(name: object) -> str:
    """The name of an attribute or a module, or a key: as it is where it looks like a name, else as any value."""
    return repr(name) if isinstance(name, str) and is_name(name) else str(shown(name))


def shown_names(names: tuple) -> str:
    return shortened(listed([shown_name(name) for name in names]))
