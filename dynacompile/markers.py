"""Marks that a user's program carries for the compiler. At run time they do nothing; capture knows them by identity."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch

from dynacompile.errors import ConfigError

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


AFTER_GRAPH = "_dynacompile_after_graph"  # attribute of functions whose calls are made after the graph


class AfterGraph(NamedTuple):
    """How calls of a function are made after the graph; see `after_graph`."""

    changes: frozenset[str]
    history: str
    talks: str


def after_graph(fn: F, *, changes: Sequence[str] = (), history: str = "", talks: str = "") -> F:
    """Calls of `fn` in compiled code are noted, and made after the graph with the same values in the same order, as plain Python: what reports need not
    end a graph. fn must be a function that returns None; it is marked, and given back.

    Lists, dicts and tensors have the content that they had at the call: the graph ends before a tensor is written, or another object changed, that such
    a call was given. The first argument of a method is not among these: what the frame writes to it fn may see. changes: names of attributes that a call of
    fn may change; the graph ends before code reads one of them after the call. history: the parameter of fn that, where it is given as true, has tensors
    come with their autograd history; in other calls they come detached. "": they always come as they are. talks: the parameter that, where it is given as
    true, has fn talk to other processes; the graph ends before a collective that follows such a call, as each process has to make them in one order.
    """
    setattr(fn, AFTER_GRAPH, AfterGraph(frozenset(changes), history, talks))
    return fn


def leave_to_python(*left: ModuleType | Callable[..., Any], reason: str = "left to Python") -> None:
    """The functions of imported packages are compiled where compiled code calls them, as parts of that code, and by themselves nowhere: what a framework
    does around the user's functions runs as plain Python. What such functions call is compiled where a region is open. A function that is given here is
    plain Python also where compiled code calls it: a graph break, with the reason. Raises ConfigError for a module that has no file. To be called before
    the first compile."""
    for one in left:
        if isinstance(one, FunctionType):
            setattr(one, DISABLED, reason)
            continue
        file = getattr(one, "__file__", None)
        if not file:
            raise ConfigError(f"leave_to_python() takes functions, and imported packages and modules, not {one!r}")
        path = Path(str(file))
        LEFT_TO_PYTHON.append(str(path.parent if path.name == "__init__.py" else path))


LEFT_TO_PYTHON: list[str] = []


TRACED_THROUGH: weakref.WeakSet[type] = weakref.WeakSet()  # classes of tensors that wrap others


def trace_through(cls: type) -> type:
    """Tensors of a class that wraps others (with `__tensor_flatten__`, `__tensor_unflatten__` and `__torch_dispatch__`) are taken apart for graphs: the class's
    `__torch_dispatch__` runs while a graph is traced, and not in its calls. To be called before the first compile, and as `@trace_through`.

    It must be a function of the tensors inside and of the context that `__tensor_flatten__` gives, which is compared by `==`: what else it reads is not
    noticed where it changes. DTensor needs no such call.
    """
    missing = [name for name in ("__tensor_flatten__", "__tensor_unflatten__", "__torch_dispatch__") if not hasattr(cls, name)]
    if not issubclass(cls, torch.Tensor) or missing:
        raise ConfigError(f"trace_through() takes classes of tensors that wrap others, and {cls.__qualname__} lacks {', '.join(missing) or 'torch.Tensor'}")
    TRACED_THROUGH.add(cls)
    return cls


def graph_break(reason: str = "") -> None:
    """Ends the graph here, and starts another after it."""


def is_compiling() -> bool:
    """True while the code is being captured; a program can branch on it."""
    return False


class DimRange(NamedTuple):
    """The sizes that a dimension may have; None: any."""

    dim: int
    min: int | None
    max: int | None


def mark_dynamic(tensor: torch.Tensor, dim: int | Sequence[int], *, min: int | None = None, max: int | None = None) -> None:
    """Has the next compile serve every size of `dim`, or those from `min` to `max`, with one entry. Size 0 gets an
    entry of its own; so does 1 where min is not 0 or 1, where it comes first, or where the program treats it differently.

    The mark stays on this tensor object, and counts where the tensor is an input of a compiled function. A program that is right only for
    one size, or that has an unsupported operation there, raises MarkViolated. Raises IndexError for a dimension that the tensor has not.
    """
    ranges = table(tensor, "_dynamo_dynamic_range")
    for d in dimensions(tensor, dim):
        if min is not None and min < 0 or max is not None and max < (min or 0):
            raise ConfigError(f"mark_dynamic: min and max are sizes, min <= max, not {min!r} and {max!r}")
        table(tensor, "_dynamo_dynamic_indices").add(d)
        ranges -= {r for r in ranges if r.dim == d}
        ranges.add(DimRange(d, min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int | Sequence[int]) -> None:
    """As mark_dynamic, where that is possible: a program that needs one size gets an entry for it."""
    table(tensor, "_dynamo_weak_dynamic_indices").update(dimensions(tensor, dim))


def mark_static(tensor: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Each size of `dim` (None: of every dimension) gets an entry of its own, whatever has changed before."""
    table(tensor, "_dynamo_static_indices").update(range(tensor.dim()) if dim is None else dimensions(tensor, dim))


def dimensions(tensor: torch.Tensor, dim: int | Sequence[int]) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim)
    for d in given:
        if not -tensor.dim() <= d < tensor.dim():
            raise IndexError(f"dimension {d} of a tensor of {tensor.dim()} dimensions")
    return [d % tensor.dim() for d in given]


def table(tensor: torch.Tensor, name: str) -> set[Any]:
    """The marks of one kind, in the attribute in which torch keeps its own: marks of either mean the same to both."""
    return tensor.__dict__.setdefault(name, set())
