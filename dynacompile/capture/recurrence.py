"""Tells errors of what capture runs from exceptions that only happened to come meanwhile.

A signal handler runs between any two bytecodes, of the compiler and of torch below it, and what it raises may be of any class. Where capture takes an
error of what it runs for a fact about the program, the same call must raise it again; what does not recur is not the program's, and goes to the user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check_recurs(error: Exception, again: Callable[[], Any]) -> None:
    """Returns where `again()` raises as `error` was raised. Else raises what came only once, `error` or what `again` raised."""
    second = raised_by(again)
    if type(second) is type(error):
        return
    if second is None:
        raise error
    third = raised_by(again)  # two different errors: the one that comes once more is the program's
    raise second if type(third) is type(error) else error


def raised_by(run: Callable[[], Any]) -> Exception | None:
    try:
        run()
    except Exception as error:  # the caller's to raise
        return error
    return None
