"""Rows for what typing says about annotations."""

from __future__ import annotations

import collections.abc
import operator
import types
import typing
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.mapping import DictValue, pairs_of
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue, TupleValue
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

SPELLED = (
    *(typing.Union, typing.List, typing.List[int], typing.Union[int, str], typing.Literal[1]),  # noqa: UP006, UP007
    *(typing.Callable, typing.Callable[[int], int], collections.abc.Callable[[int], int], typing.Tuple, typing.Annotated[int, 1]),  # noqa: UP006
)
FORMS = tuple(type(form) for form in SPELLED)
HINTS = tuple(dict.fromkeys((*FORMS, types.UnionType, types.GenericAlias, typing.NewType)))  # annotations that are objects of their own kinds


class HintValue(ConstantValue):
    """An annotation such as `Box[int]`. Calling it makes an object of its class."""

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if isinstance(self.value, typing.NewType):
            (value,) = args
            return value
        origin = getattr(self.value, "__origin__", None)
        if not isinstance(origin, type) or not getattr(self.value, "_inst", True):  # `_inst`: typing makes objects by it, which it refuses of typing.List
            return super().call(cx, args, kwargs)
        made = cx.class_value(origin, None).call(cx, args, kwargs)
        if isinstance(made, ObjectValue):
            made.set_attr(cx, "__orig_class__", self)
        return made

    def get_item(self, cx: Context, key: Value) -> Value:
        """Typing's forms make immutable objects of what they are given, and keep nothing."""
        return described(cx, cx.guarded_call(operator.getitem, [self.value, spelled(cx, key)], {}))


def spelled(cx: Context, key: Value) -> Any:
    """What stands in the brackets of an annotation: constants, and lists and tuples of these."""
    if isinstance(key, SequenceValue) and key.cls in (list, tuple):
        return key.cls(spelled(cx, item) for item in key.elements(cx))
    real = getattr(key, "real", None)
    if isinstance(real, (typing.TypeVar, typing.ParamSpec)) and key.source is not None:
        cx.guard("ID", key.source, identity(real))
        return real
    return hint(key)


@wraps(*HINTS)
def wrap_hint(cx: Context, real: object, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    return HintValue(real, source)


def hint(value: Value) -> object:
    try:
        return value.constant()
    except NotConstant as reason:
        raise unsupported("unknown-operation", f"typing's view of {value.describe()}") from reason


@handles(typing.get_origin)
def row_origin(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return described(cx, typing.get_origin(hint(args[0])))


@handles(typing.get_args)
def row_args(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return TupleValue([described(cx, part) for part in typing.get_args(hint(args[0]))])


@handles(typing.get_type_hints)
def row_hints(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a function that the frame made: its annotations, where none is a text that Python would evaluate."""
    function = args[0]
    if not isinstance(function, FunctionValue) or function.real is not None or kwargs or len(args) > 1:
        found = cx.guarded_call(typing.get_type_hints, [hint_owner(a) for a in args], {k: hint_owner(v) for k, v in kwargs.items()})
        return DictValue.of([(ConstantValue(name), described(cx, part)) for name, part in found.items()])
    written = {name.constant(): hint(part) for name, part in pairs_of(cx, function.get_attr(cx, "__annotations__"))}
    if any(map(has_text, written.values())):
        raise unsupported("unknown-function", f"typing.get_type_hints of {function.describe()}, some of which are texts,")
    read = typing.get_type_hints(types.SimpleNamespace(__annotations__=written))
    return DictValue.of([(ConstantValue(name), described(cx, part)) for name, part in read.items()])


def hint_owner(value: Value) -> Any:
    real = getattr(value, "real", None)
    return hint(value) if real is None else real


def has_text(part: object) -> bool:
    """Whether typing would evaluate a text in an annotation."""
    origin, parts = typing.get_origin(part), part if isinstance(part, list) else typing.get_args(part)
    if origin is typing.Literal:
        return False
    return isinstance(part, (str, typing.ForwardRef)) or any(map(has_text, parts[:1] if origin is typing.Annotated else parts))


def described(cx: Context, part: object) -> Value:
    return HintValue(part) if isinstance(part, HINTS) else cx.of(part)
