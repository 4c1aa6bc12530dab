"""functools.cmp_to_key and singledispatch, whose own forms are written in C or keep caches."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.functions import SpecialFunction, function_value
from dynacompile.capture.values.partials import PartialValue
from dynacompile.capture.values.rows import handles
from dynacompile.ir.guard_facts import function_facts
from dynacompile.ir.source import ClosureCell, Item, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class ComparedKey:
    """What functools.cmp_to_key(compare) makes of an object."""

    def __init__(self, compare: Callable[[Any, Any], int], obj: Any):
        self.compare, self.obj = compare, obj

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return self.compare(self.obj, other.obj) == 0  # type: ignore[attr-defined]

    def __lt__(self, other: ComparedKey) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: ComparedKey) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: ComparedKey) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: ComparedKey) -> bool:
        return self.compare(self.obj, other.obj) >= 0


@handles(functools.cmp_to_key)
def row_cmp_to_key(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("unknown-function", "functools.cmp_to_key of this form")
    return PartialValue(cx.class_value(ComparedKey, None), args, {})


GENERIC: Any = functools.singledispatch(lambda value: None)
WRAPPER_CODE, DISPATCH_CODE = GENERIC.__code__, GENERIC.dispatch.__code__  # of every generic function and of its `dispatch`


class GenericFunction(SpecialFunction):
    """A function of functools.singledispatch, or its `dispatch`: chooses by the class of the first argument among what is registered now."""

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            return self.function.call(cx, args, kwargs)
        if self.function.code is WRAPPER_CODE:
            return self.chosen(cx, args[0].pytype()).call(cx, args, kwargs)
        try:
            return self.chosen(cx, args[0].constant())
        except NotConstant as reason:
            raise unsupported("unknown-operation", f"{self.describe()} for an unknown class") from reason

    def chosen(self, cx: Context, cls: type) -> Value:
        real = self.function.real
        assert real is not None
        names = real.__code__.co_freevars
        if "registry" not in names:  # the wrapper has it through its `dispatch`
            index = names.index("dispatch")
            dispatch, source = real.__closure__[index].cell_contents, ClosureCell(self.source, "dispatch", index)  # type: ignore[index]
            return GenericFunction(function_value(cx, dispatch, source)).chosen(cx, cls)
        index = names.index("registry")
        registry = real.__closure__[index].cell_contents  # type: ignore[index]
        source = ClosureCell(self.source, "registry", index)
        cx.guard("DICT_KEYS", source, tuple(registry))
        implementation = real(cls)
        key = next(k for k, v in registry.items() if v is implementation)
        return cx.wrap(implementation, Item(source, key))


def wrap_generic(cx: Context, real: types.FunctionType, source: Source) -> Value | None:
    """The value of a generic function, None for other functions."""
    if real.__code__ is not WRAPPER_CODE and real.__code__ is not DISPATCH_CODE:
        return None
    cx.guard("FUNCTION", source, function_facts(real, cx.root_scope.table))
    return GenericFunction(function_value(cx, real, source))
