"""The table of functions that capture knows: a row takes (cx, args, kwargs) and gives the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import Value

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

Row = Callable[["Context", list[Value], dict[str, Value]], Value]
HANDLERS: dict[Any, Row] = {}
ONE_OPERATION: set[Any] = set()  # functions of torch in Python whose rows do what they do without a call of torch that a mode could see


def handles(*reals: Any, one_operation: bool = False) -> Callable[[Row], Row]:
    """one_operation: the function calls others of torch, and the row does not."""

    def register(row: Row) -> Row:
        for real in reals:
            HANDLERS[real] = row
        ONE_OPERATION.update(reals if one_operation else ())
        return row

    return register


def row_of(real: Any) -> Row | None:
    """The row of a function; None where it has none, or has no hash."""
    try:
        return HANDLERS.get(real)
    except TypeError:
        return None
