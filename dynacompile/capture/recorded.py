"""One operation of the user's code, as it is noted for calls that repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from dynacompile.capture.values.base import Lazy, Value
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.ir.captured import Site
from dynacompile.ops.wrappers import leaves_of


@dataclass(frozen=True)
class Operation:
    """What one operation was made of, as the user's code had it, and what it gave. nodes: what it added to the graph. writes: storages that it wrote."""

    kind: str
    target: Any
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    result: Value
    site: Site
    nodes: tuple[torch.fx.Node, ...]
    writes: frozenset[int]


def as_it_is(value: Value) -> Value:
    """An argument with the content that its lists have now."""
    if isinstance(value, Lazy):
        value = value.force()
    if type(value) is ListValue:
        return ListValue([as_it_is(item) for item in value.items])
    return TupleValue([as_it_is(item) for item in value.items], value.cls) if type(value) is TupleValue else value


def storage_of(fake: torch.Tensor) -> int:
    """Of a tensor that wraps others, that of the first of them."""
    return leaves_of(fake)[0].untyped_storage()._cdata
