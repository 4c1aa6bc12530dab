"""id() of objects that are not to be guarded by it: what such a number equals is known, and nothing else of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import KeyOf, Value
from dynacompile.capture.values.constant import ConstantValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


@dataclass(frozen=True)
class IdKey(KeyOf):
    """Stands for the number as a key."""

    owner: object


class IdValue(Value):
    """id(value)"""

    def __init__(self, value: Value):
        self.value = value

    def describe(self) -> str:
        return f"the id of {self.value.describe()}"

    def pytype(self) -> type:
        return int

    def truth(self, cx: Context) -> bool:
        return True

    def own_key(self) -> IdKey:
        """An object has one value, but a constant may have several."""
        if isinstance(self.value, ConstantValue):
            return IdKey(id(self.value.value))
        self.value.told_apart = True
        return IdKey(self.value)

    def equals(self, cx: Context, other: Value) -> bool:
        if isinstance(other, IdValue):
            return cx.is_same(self.value, other.value)
        if issubclass(other.pytype(), (int, float, complex)):  # a number that may be it
            raise unsupported("unknown-operation", f"comparing {self.describe()} with {other.describe()}")
        return False

    def children(self) -> Sequence[Value]:
        return (self.value,)

    def rebuild(self, out: Writer) -> None:
        out.call_function(id, [self.value])
