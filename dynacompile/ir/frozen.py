"""Frozen dataclasses that a compile makes by the ten thousand, and keeps."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True)
def record(cls: T) -> T:
    """As `dataclass(frozen=True, slots=True)`, and made in a third of the time: the constructor fills the slots itself, where that of `dataclass` goes through
    `object.__setattr__` for each field. Without a dict for each object Python has half as many to look through for garbage."""
    made: Any = dataclass(frozen=True, slots=True, eq="__eq__" not in cls.__dict__)(cls)
    scope: dict[str, Any] = {}
    parameters, lines = [], []
    for number, field in enumerate(fields(made)):
        if field.default_factory is not MISSING or not field.init:
            raise TypeError(f"{cls.__name__}.{field.name} is made in a way of its own")
        scope[f"set_{number}"] = getattr(made, field.name).__set__
        if field.default is not MISSING:
            scope[f"default_{number}"] = field.default
        parameters.append(field.name if field.default is MISSING else f"{field.name}=default_{number}")
        lines.append(f"    set_{number}(self, {field.name})")
    exec("\n".join([f"def __init__({', '.join(['self', *parameters])}):", *(lines or ["    pass"])]), scope)
    constructor = scope["__init__"]
    constructor.__qualname__, constructor.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    constructor.__annotations__ = made.__init__.__annotations__
    made.__init__ = constructor
    return made  # type: ignore[no-any-return]
