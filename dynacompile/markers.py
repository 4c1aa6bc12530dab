"""Marks that a user's program carries for the compiler. At run time they do nothing; capture knows them by identity."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from dynacompile.errors import Unsupported

F = TypeVar("F", bound=Callable[..., Any])

DISABLED = "_dynacompile_disabled"  # attribute of functions that run as plain Python, with all that they call


def disable(fn: F | None = None, *, reason: str = "") -> Any:
    """`fn` and everything that it calls run as plain Python, also inside a compiled region (there: a graph break at the call).

    Works as `disable(fn)`, `@disable` and `@disable(reason="...")`; the reason is shown with the break.
    """
    if fn is None:
        return lambda f: disable(f, reason=reason)

    @wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(disabled, DISABLED, reason or "marked with dynacompile.disable")
    return disabled


DISABLED_CODE = disable(lambda: None).__code__  # of every function that `disable` returns


ALLOWED = "_dynacompile_allowed"  # attribute of functions that are one operation of the graph


def allow_in_graph(fn: F) -> F:
    """`fn` becomes one operation of the graph, into which capture does not look: a way around Python that it does not follow.

    While it is captured, fn runs on tensors without data; it must be a function of its arguments (tensors, constants, and containers of
    them) without other effects, and give tensors or a list or tuple of them. What it does to tensors is compiled, differentiated and fused.
    """
    setattr(fn, ALLOWED, True)
    return fn


def graph_break(reason: str = "") -> None:
    """Ends the graph here, and starts another after it."""


def is_compiling() -> bool:
    """True while the code is being captured; a program can branch on it."""
    return False


def mark_dynamic(tensor: torch.Tensor, dim: int, *, min: int | None = None, max: int | None = None) -> None:
    """Asks for one entry that serves every size of `dim`.

    Raises Unsupported: shapes are static in this version, each size gets an entry of its own.
    """
    raise Unsupported(
        "dynamic-shapes",
        f"mark_dynamic(dim={dim}): symbolic sizes are not compiled; each size of an input gets an entry of its own",
        "pad to a few sizes, or raise recompile_limit to the number of sizes that occur",
    )
