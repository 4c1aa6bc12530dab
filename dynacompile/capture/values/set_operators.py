"""Operators of sets, frozen sets and the views of dicts."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictView
from dynacompile.capture.values.sets import SetValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

SET_METHODS = {"or_": "union", "and_": "intersection", "sub": "difference", "xor": "symmetric_difference"}


def set_binary(cx: Context, name: str, left: Value, right: Value) -> Value | None:
    """Of sets, frozen ones and the views of dicts; None for other values."""
    views = [isinstance(v, DictView) and v.kind != "values" for v in (left, right)]
    if not views[0] and not all(view or issubclass(v.pytype(), (set, frozenset)) for v, view in zip((left, right), views)):
        return None
    if isinstance(left, SetValue) and (not views[1] or name == "or_"):  # a view adds its elements one by one
        return left.method(cx, SET_METHODS[name], [right], {})
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return None
    if isinstance(left, ConstantValue) and isinstance(right, SetValue) and right.table is not None:
        return ConstantValue(getattr(operator, name)(left.value, right.table.keys))
    elements = list(left.content.values()) if isinstance(left, SetValue) else left.elements(cx)
    found = SetValue(elements, ordered=False).method(cx, SET_METHODS[name], [right], {})
    if left.pytype() is not frozenset or any(views):
        return found
    if len(found.content) > 1:  # type: ignore[attr-defined]
        raise unsupported("unknown-operation", "a frozenset whose order is not known")
    return cx.pure(frozenset, [ConstantValue(tuple(v.constant() for v in found.content.values()))], {})  # type: ignore[attr-defined]


def equal_views(cx: Context, left: Value, right: Value) -> bool:
    """Views compare as sets do, those of values by identity."""
    if left is right or any(isinstance(v, DictView) and v.kind == "values" for v in (left, right)):
        return left is right
    if not all(isinstance(v, DictView) or issubclass(v.pytype(), (set, frozenset)) for v in (left, right)):
        return False
    if any(isinstance(v, DictView) and v.kind == "items" for v in (left, right)):
        raise unsupported("unknown-operation", "comparing the items of dicts")
    return SetValue(left.elements(cx)).content.keys() == SetValue(right.elements(cx)).content.keys()
