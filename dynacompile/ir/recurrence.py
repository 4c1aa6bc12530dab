"""Tells errors of what a compile runs from exceptions that only happened to come meanwhile.

A signal handler runs between any two bytecodes, of the compiler and of torch below it, and what it raises may be of any class. Where the compiler takes
an error of what it runs for a fact about the program, the same call must raise it again; what does not recur is not the program's, and goes to the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check_recurs(error: Exception, again: Callable[[], Any]) -> None:
    """Returns where `again()` raises as `error` was raised. Else raises what came only once: `error`, or what `again` raised."""
    try:
        again()
    except Exception as second:
        if type(second) is type(error):
            return
        if not raises(type(second), again, type(error)):
            raise
    raise error


def raises(kind: type[Exception], run: Callable[[], Any], other: type[Exception]) -> bool:
    """Whether `run()` raises a `kind` of error, rather than the `other` or none."""
    try:
        run()
    except kind:
        return True
    except other:
        return False
    return False
