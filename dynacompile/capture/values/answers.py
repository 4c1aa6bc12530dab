"""What Python takes as the answer of a special method of a user's class: `bool` takes bools alone, `len` numbers that are not negative."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from dynacompile.capture.breaks import raises
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue

ASKED: dict[str, Callable[[Any], Any]] = {"__bool__": bool, "__len__": len, "__hash__": hash, "__index__": operator.index, "__iter__": iter}


def is_undecided(result: Value) -> bool:
    """Whether an operator's method leaves the operation to the other operand."""
    return isinstance(result, ConstantValue) and result.value is NotImplemented


def answered(name: str, result: Value) -> Value:
    """What Python makes of the result; what it raises where that is no answer to the method."""
    if name == "__hash__" and issubclass(result.pytype(), int):
        result = ConstantValue(result.constant())  # a hash is no sum of numbers: that of -1 is -2
    if isinstance(result, ConstantValue):
        value = result.value
        owner = type("Owner", (), {name: lambda self: value})()
        try:
            found = ASKED[name](owner)
        except (TypeError, ValueError, OverflowError) as error:
            raise raises(type(error), *error.args) from None
        return result if name == "__iter__" else ConstantValue(found)  # a length of True is 1
    if name == "__bool__" and not issubclass(result.pytype(), bool):
        raise raises(TypeError, f"__bool__ should return bool, returned {result.pytype().__name__}")
    return result
