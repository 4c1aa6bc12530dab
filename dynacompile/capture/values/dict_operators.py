"""Operators of dicts, and of Counters, whose own are written in Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from dynacompile.capture.values.answers import is_undecided
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.mapping import DictLike, DictValue, pairs_of
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

COUNTER_METHODS = {
    "add": "__add__",
    "sub": "__sub__",
    "or_": "__or__",
    "and_": "__and__",
    "lt": "__lt__",
    "le": "__le__",
    "gt": "__gt__",
    "ge": "__ge__",
    "iadd": "__iadd__",
    "isub": "__isub__",
    "ior": "__ior__",
    "iand": "__iand__",
    "pos": "__pos__",
    "neg": "__neg__",
}


def dict_operator(cx: Context, name: str, left: Value, right: Value | None = None) -> Value | None:
    """operator.name of values of which the first or the second is a dict; None where the operator is none of dicts."""
    if name == "or_" and isinstance(left, DictLike) and isinstance(right, DictLike) and not is_counter(left) & is_counter(right):
        return merged(cx, left, right)
    if is_counter(left) and name in COUNTER_METHODS:
        method = getattr(Counter, COUNTER_METHODS[name])
        found = cx.call_real(method, Constant(method, method.__qualname__), [left] if right is None else [left, right])
        return None if is_undecided(found) else found
    if name == "ior" and isinstance(left, DictLike) and right is not None:
        left.method(cx, "update", [right], {})
        return left
    return None


def is_counter(value: Value | None) -> bool:
    return isinstance(value, DictValue) and value.cls is Counter


def merged(cx: Context, left: DictLike, right: DictLike) -> DictValue:
    """left | right, of the class that Python chooses; a Counter beside another kind of dict is merged as any dict is."""
    cls = type(left.cls() | right.cls())
    factory = next((d.factory for d in (left, right) if isinstance(d, DictValue) and d.cls is defaultdict), None)
    out = DictValue({}, cls, None, factory if cls is defaultdict else None)
    for key, value in (*pairs_of(cx, left), *pairs_of(cx, right)):
        out.put(key, value)
    return out
