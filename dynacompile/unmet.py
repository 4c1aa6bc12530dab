"""Names and dimensions of `dynamic` that a program does not have. Nothing else would tell of a misspelled one: its sizes would be constants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType

from dynacompile.config import Bounds, CompileConfig
from dynacompile.errors import nearest
from dynacompile.ir.captured import Captured, TensorFacts
from dynacompile.ir.source import dotted


def unmet(config: CompileConfig, captured: Captured, code: CodeType) -> Iterator[str]:
    """What `dynamic` names and a frame that was captured whole does not have, with the nearest name that it has. An argument may be no tensor in this call,
    or one that this call does not read."""
    ranks = {dotted(guard.source.text()): len(guard.expected.sizes) for guard in captured.guards if guard.source and isinstance(guard.expected, TensorFacts)}
    for name, dims in config.declared_shapes().items():
        rank = ranks.get(dotted(name))
        if rank is not None:
            yield from (f"dimension {dim} of {name!r}, which has {rank} dimension{'s' * (rank != 1)}" for dim in dims if dim >= rank)
        elif name not in arguments(code):
            yield f"{name!r}, and no tensor that the program reads is called so: {nearest(name, likely(ranks, dims))}"


def arguments(code: CodeType) -> tuple[str, ...]:
    """The names of a function's arguments."""
    flags = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)  # *args, **kwargs
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]


def likely(ranks: Mapping[str, int], dims: Mapping[int, Bounds]) -> list[str]:
    """The tensors that may be meant: those of arguments, where there are any, that have the dimensions."""
    fit = [name for name, rank in ranks.items() if all(dim < rank for dim in dims)]
    return [name for name in fit if not name.startswith("self.")] or fit
