"""The table of functions that capture knows: a row takes (cx, args, kwargs) and gives the result."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.base import Value

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

Row = Callable[["Context", list[Value], dict[str, Value]], Value]
HANDLERS: dict[Any, Row] = {}
OF_FRAMES: dict[CodeType, Row] = {}  # of Python functions with a row, which does for their own frames, too, where nothing in it breaks
ONE_OPERATION: set[Any] = set()  # functions of torch in Python whose rows do what they do without a call of torch that a mode could see


def handles(*reals: Any, one_operation: bool = False, frames: bool = False) -> Callable[[Row], Row]:
    """one_operation: the function calls others of torch, and the row does not. frames: it is a Python function, of which a frame may be captured by itself."""

    def register(row: Row) -> Row:
        for real in reals:
            HANDLERS[real] = row
            if frames:
                OF_FRAMES[real.__code__] = row
        ONE_OPERATION.update(reals if one_operation else ())
        return row

    return register


def row_of(real: Any) -> Row | None:
    """The row of a function; None where it has none, or has no hash."""
    try:
        return HANDLERS.get(real)
    except TypeError:
        return None
