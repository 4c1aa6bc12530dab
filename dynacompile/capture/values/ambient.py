"""Calls of functions on constants, whose answer may depend on a setting of the process or the thread, too, which is guarded then: the context of decimal
numbers, the limit of digits in texts of ints, the limit of recursion."""

from __future__ import annotations

import decimal
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dynacompile.capture.values.own_methods import reached
from dynacompile.ir.guard_facts import Flag

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

WRITES_NUMBERS = frozenset({"str", "repr", "ascii", "format", "__str__", "__repr__", "__format__"})
DIGITS = sys.int_info.str_digits_check_threshold  # no limit is lower
BITS = DIGITS * 3  # fewer than so many digits have


def called(cx: Context, function: Callable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """function(*args, **kwargs)"""
    values = list(reached((getattr(function, "__self__", None), *args, *kwargs.values())))
    if function is decimal.Decimal or any(type(v) is decimal.Decimal for v in values):
        return called_in_context(cx, partial(function, *args, **kwargs))
    many_digits = any(type(v) is int and v.bit_length() > BITS for v in values)
    writes = many_digits and (getattr(function, "__name__", "") in WRITES_NUMBERS or any(type(v) is str for v in values))
    if writes or function is int and any(type(v) in (str, bytes) and len(v) > DIGITS for v in values):
        guard_setting(cx, "sys.get_int_max_str_digits()", sys.get_int_max_str_digits)
    if function is sys.getrecursionlimit:
        guard_setting(cx, "sys.getrecursionlimit()", function)
    return function(*args, **kwargs)


def called_in_context(cx: Context, call: Callable[[], Any]) -> Any:
    """A call that asks the thread's context of decimal numbers, and may set flags there: an entry is for calls in which they are set already."""
    guard_setting(cx, "decimal.getcontext()", settings_of_decimals)
    context = decimal.getcontext()
    with decimal.localcontext() as own:
        own.clear_flags()
        result = call()
    raised = tuple(signal for signal, is_set in own.flags.items() if is_set)
    for signal in raised:
        context.flags[signal] = True
    if raised:
        guard_setting(cx, f"decimal.getcontext().flags of {', '.join(signal.__name__ for signal in raised)}", partial(are_set, raised))
    return result


def guard_setting(cx: Context, name: str, read: Callable[[], Hashable]) -> None:
    cx.guard("FLAG", None, Flag(name, read, read()))


def settings_of_decimals() -> Hashable:
    now = decimal.getcontext()
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, tuple(signal.__name__ for signal, is_set in now.traps.items() if is_set)


def are_set(signals: tuple[type, ...]) -> bool:
    flags = decimal.getcontext().flags
    return all(flags[signal] for signal in signals)  # type: ignore[index]
