"""Special methods that a user's class has by other means than C: where capture answers for C, that the class has none is guarded, or Python is asked."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operator_names import BINARY, INPLACE, UNARY
from dynacompile.capture.values.trusted_modules import is_trusted
from dynacompile.ir.namespaces import IMMUTABLE_TYPE, MISSING

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType)


def is_own(cls: type, name: str, raw: Any) -> bool:
    """Whether a special method that a class has, `raw`, is neither C's nor the standard library's: a function of the user, None, or another object."""
    if raw is MISSING or isinstance(raw, IN_C):
        return False
    if isinstance(raw, types.FunctionType):  # enumerations have copies of the library's
        return not is_trusted(raw.__module__)
    owner = next(base for base in cls.__mro__ if name in base.__dict__)
    return raw is None or not is_trusted(owner.__module__)


def own_method(cx: Context, cls: type, *names: str) -> str | None:
    """The first of these special methods that a class has of its own, None where it has none, which is guarded."""
    if cls.__flags__ & IMMUTABLE_TYPE:
        return None
    return next((name for name in names if is_own(cls, name, cx.lookup(cls, name))), None)


def refuse_own(cx: Context, cls: type, *names: str) -> None:
    """Leaves an operation to Python where a class has one of these special methods of its own."""
    if not cls.__flags__ & IMMUTABLE_TYPE:
        for name in names:
            refuse_if_own(cls, name, cx.lookup(cls, name))


def refuse_if_own(cls: type, name: str, raw: Any) -> None:
    """The same of a special method that was looked up."""
    if is_own(cls, name, raw):
        raise unsupported("unknown-operation", f"{cls.__qualname__}.{name}, which is not followed here")


KEYS = ("__hash__", "__eq__")
TEXTS = ("__str__", "__repr__")
NUMBERS = ("__int__", "__index__", "__float__", "__trunc__")
ASKED_BY: dict[Any, tuple[str, ...]] = {  # functions that compute on constants, and the special methods that they ask for
    str: TEXTS,
    repr: ("__repr__",),
    ascii: ("__repr__",),
    format: ("__format__", *TEXTS),
    hash: ("__hash__",),
    len: ("__len__",),
    int: NUMBERS,
    float: NUMBERS,
    complex: (*NUMBERS, "__complex__"),
    abs: ("__abs__",),
    divmod: ("__divmod__", "__rdivmod__"),
    operator.contains: ("__contains__", "__iter__", "__eq__"),
    operator.getitem: ("__getitem__",),
    operator.index: ("__index__",),
    **{getattr(operator, name): methods for name, methods in BINARY.items()},
    **{getattr(operator, name): (*BINARY[plain], f"__{name.rstrip('_')}__") for name, plain in INPLACE.items()},
    **{getattr(operator, name): (method,) for name, method in UNARY.items()},
}


def refuse_asked(cx: Context, function: Callable, constants: Sequence[Any]) -> None:
    """Leaves a function of constants to Python where it asks one of them for a method that its class has of its own."""
    names = ASKED_BY.get(function, ()) if function.__hash__ is not None else ()
    owner = getattr(function, "__self__", None)
    if type(owner) is str and getattr(function, "__name__", "") == "format" or function is operator.mod and constants and type(constants[0]) is str:
        names = ("__format__", *TEXTS)
    for value in reached(constants) if names else ():  # what is asked asks its parts
        refuse_own(cx, type(value), *names)


def reached(values: Iterable[Any]) -> Iterator[Any]:
    """Values, and what tuples, lists, sets and dicts among them hold, of which their texts, hashes and comparisons are made."""
    for value in values:
        yield value
        if isinstance(value, (tuple, list, frozenset, set)):
            yield from reached(value)
        elif isinstance(value, dict):
            yield from reached((*value, *value.values()))
