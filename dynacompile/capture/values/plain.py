"""From tracked containers of constants to Python's own, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.set_tables import Recipe, replayed
from dynacompile.capture.values.sets import SetValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def plain(value: Value) -> Any:
    """The object itself, of new containers. Raises NotConstant where a part is not known."""
    if isinstance(value, (ListValue, SetValue)) or type(value) is DictValue and value.cls is dict:
        if isinstance(value, SetValue):
            if value.table is None:  # its order is not known
                raise NotConstant(value.describe())
            return replayed(Recipe(value.table.recipe))
        if isinstance(value, DictValue):
            return {plain(key): plain(value.settled(hashed)) for hashed, (key, _) in value.content.items()} if value.known_keys else fail(value)
        return value.cls(plain(value.settled(i)) for i in range(len(value.items)))
    if isinstance(value, TupleValue) and value.cls is tuple:
        return tuple(plain(value.settled(i)) for i in range(len(value.items)))
    return value.constant()


def fail(value: Value) -> Any:
    raise NotConstant(value.describe())


def tracked(cx: Context, real: Any) -> Value:
    """The value of what a pure function gave."""
    if type(real) is list:
        return ListValue([tracked(cx, item) for item in real])
    if type(real) is tuple:
        return TupleValue([tracked(cx, item) for item in real])
    if type(real) is dict:
        return DictValue.of([(tracked(cx, key), tracked(cx, item)) for key, item in real.items()])
    return cx.of(real)
