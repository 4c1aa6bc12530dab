"""Names of `dynamic` and `varying` that a program does not have. Nothing else would tell of a misspelled one: its sizes and numbers would be constants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import CodeType

from dynacompile.capture.symbols import is_named
from dynacompile.config import Bounds, CompileConfig
from dynacompile.errors import nearest
from dynacompile.ir.captured import Captured, Guard, TensorFacts
from dynacompile.ir.source import dotted

Unmet = tuple[str, str, str]
"""An option, the name that it gives, and what is told of that."""
MOST_NAMES = 12


def unmet(config: CompileConfig, captured: Captured, code: CodeType) -> Iterator[Unmet]:
    """What `dynamic` and `varying` name and a frame that was captured whole does not have, with the nearest name that it has. An argument may be no tensor in
    this call, or one that this call does not read."""
    ranks = {dotted(guard.source.text()): len(guard.expected.sizes) for guard in captured.guards if guard.source and isinstance(guard.expected, TensorFacts)}
    for name, dims in config.declared_shapes().items():
        rank = ranks.get(dotted(name))
        if rank is not None:
            for dim in dims:
                if dim >= rank:
                    yield "dynamic", name, f"dimension {dim} of {name!r}, which has {rank} dimension{'s' * (rank != 1)}"
        elif name not in arguments(code):
            yield "dynamic", name, f"{name!r}, and no tensor that the program reads is called so: {nearest(name, likely(ranks, dims))}"
    if config.varying:
        read = [guard.source.text() for guard in captured.guards if guard.source is not None and is_number(guard)]
        for name in config.varying:
            if not any(is_named(text, name) for text in read) and not may_read(code, name):
                yield "varying", name, f"{name!r}, and no number that the call reads is called so: {near(name, likely_numbers(read, name))}"


def is_number(guard: Guard) -> bool:
    """Whether it is about an int or float, as a constant or as one that varies."""
    return guard.kind == "EQUALS" and type(guard.expected) in (int, float) or guard.kind == "TYPE" and guard.expected in (int, float)


def may_read(code: CodeType, name: str) -> bool:
    """Whether other calls of the function may read such a number: it is an argument, or the function has the last part of its path."""
    last = re.findall(r"\w+", name)[-1:]
    return name in arguments(code) or any(part in code.co_names or part in code.co_consts for part in last if not part.isdecimal())


def likely_numbers(read: list[str], name: str) -> set[str]:
    """The numbers that may be meant: by their paths, or by the last parts where the name is one part."""
    return {*read} if "." in name else {last for text in read if not (last := re.findall(r"\w+", text)[-1]).isdecimal()}


def near(name: str, known: set[str]) -> str:
    """The nearest of the names; where none is near, all of them if they are few."""
    found = nearest(name, known)
    return found if found.startswith("did you mean") or len(known) <= MOST_NAMES else f"the call reads {len(known)} numbers"


def arguments(code: CodeType) -> tuple[str, ...]:
    """The names of a function's arguments."""
    flags = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]


def likely(ranks: Mapping[str, int], dims: Mapping[int, Bounds]) -> list[str]:
    """The tensors that may be meant: those of arguments, where there are any, that have the dimensions."""
    fit = [name for name, rank in ranks.items() if all(dim < rank for dim in dims)]
    return [name for name in fit if not name.startswith("self.")] or fit
