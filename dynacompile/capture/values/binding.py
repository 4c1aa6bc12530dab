"""Arguments of a call to the parameters of a Python function."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def bind_call(cx: Context, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> list[Value | None]:
    """Values of the parameters in localsplus order, as CPython binds them."""
    code = function.code
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    slots: list[Value | None] = [None] * (positional + keyword_only)
    slots[: min(positional, len(args))] = args[:positional]
    extra = dict(kwargs)
    for index in range(code.co_posonlyargcount, positional + keyword_only):
        if names[index] in extra:
            if slots[index] is not None:
                raise unsupported("would-raise", f"{function.name}() got multiple values for argument {names[index]!r}")
            slots[index] = extra.pop(names[index])
    first_default = positional - len(function.defaults)
    for index in range(positional):
        if slots[index] is None and index >= first_default:
            slots[index] = function.defaults[index - first_default]
    for index in range(positional, positional + keyword_only):
        if slots[index] is None:
            slots[index] = function.kwdefaults.get(names[index])
    if any(s is None for s in slots):
        raise unsupported("would-raise", f"{function.name}() misses argument {names[slots.index(None)]!r}")
    if code.co_flags & inspect.CO_VARARGS:
        slots.append(TupleValue(args[positional:]))
    elif len(args) > positional:
        raise unsupported("would-raise", f"{function.name}() takes {positional} positional arguments but {len(args)} were given")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        slots.append(DictValue.of([(ConstantValue(k), v) for k, v in extra.items()]))
    elif extra:
        raise unsupported("would-raise", f"{function.name}() got an unexpected keyword argument {next(iter(extra))!r}")
    return slots
