"""Functions behind functools.lru_cache."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import is_constant_object
from dynacompile.capture.values.descriptors import LruWrapper
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.rows import BuiltinValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.source import Constant, Source

if TYPE_CHECKING:
    from dynacompile.capture.trace import Trace


class MemoizedFunction(CallableValue):
    """A cached function: with constants it is asked once, while the graph is made; with other arguments it is inlined, past its cache.

    Asking it runs its body at most once in all, as in eager, for the cache remembers it. That is done only while the frame has changed nothing
    that the body could read, or for functions that are marked as constant.
    """

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"{self.source.text()}, a cached function" if self.source else "a cached function"

    def pytype(self) -> type:
        return LruWrapper

    def identity(self) -> Any:
        return self.real

    def has_attr(self, cx: Trace, name: str) -> bool:
        return hasattr(self.real, name)

    def get_attr(self, cx: Trace, name: str) -> Value:
        if name == "__wrapped__":
            return self.wrapped(cx)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return cx.of(getattr(self.real, name))
        raise unsupported("unknown-attribute", f"{self.describe()}: {name}")

    def wrapped(self, cx: Trace) -> Value:
        return cx.wrap(self.real.__wrapped__, Constant(self.real.__wrapped__, f"{self.real.__qualname__}.__wrapped__"))

    def call(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
        marked = getattr(self.real.__wrapped__, "_dynamo_marked_constant", False)  # by torch.compiler.assume_constant_result
        if marked or not cx.effects and self.real.cache_parameters()["maxsize"] != 0:
            try:
                result = self.run(cx, args, kwargs)
            except NotConstant:
                return self.wrapped(cx).call(cx, args, kwargs)
            except Exception as reason:  # the program's own
                check_recurs(reason, lambda: self.run(cx, args, kwargs))
                raise raises(type(reason), str(reason), known=False, by_user=True) from reason
            if is_immutable(result):
                return cx.of(result)
        return self.wrapped(cx).call(cx, args, kwargs)

    def run(self, cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Any:
        with cx.overrides.in_force():
            return self.real(*(known(a) for a in args), **{k: known(v) for k, v in kwargs.items()})


def known(value: Value) -> Any:
    """The constant, where it is one by itself or a tuple of such."""
    found = value.constant()
    if not is_immutable(found):
        raise NotConstant(value.describe())
    return found


def is_immutable(real: Any) -> bool:
    return is_constant_object(real) or isinstance(real, (type, types.FunctionType)) or type(real) is tuple and all(is_immutable(item) for item in real)


@wraps(LruWrapper)
def wrap_memoized(cx: Trace, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    row = cx.handler(real)
    return MemoizedFunction(real, source) if row is None else BuiltinValue(real, row, source)
