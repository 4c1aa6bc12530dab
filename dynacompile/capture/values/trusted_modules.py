"""Modules of which capture takes it that nobody changes their functions and classes."""

from __future__ import annotations


def is_trusted(module: str | None) -> bool:
    """Modules whose attributes are taken as they are, without guards: the standard library's pure parts, and torch."""
    return (module or "").partition(".")[0] in TRUSTED


TRUSTED = frozenset(
    "torch math builtins operator functools itertools typing collections abc enum types contextlib dataclasses numbers copy inspect warnings logging re random "
    "time numpy dynacompile _operator _functools _collections".split()
)


def has_pure_functions(module: str | None) -> bool:
    """Modules whose cached functions give equal results for equal arguments, whatever their caches hold: they are followed past these."""
    return is_trusted(module) or (module or "").partition(".")[0] in PURE


PURE = frozenset({"einops"})
