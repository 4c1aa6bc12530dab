"""Graphs that may raise what a clause of the program takes, or find that a branch goes elsewhere: then what they have changed is as before, and the call starts
again as Python."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from dynacompile.errors import DynacompileError
from dynacompile.ir.captured import Restarts
from dynacompile.markers import disable
from dynacompile.native import core as native_core

ERRORS = (IndexError, RuntimeError, ValueError, ArithmeticError)


def is_of_values(error: BaseException) -> bool:
    """Whether a graph has raised it by the values of its operands: it raises again as Python, as memory that ran out may not."""
    return isinstance(error, ERRORS) and not isinstance(error, (DynacompileError, torch.OutOfMemoryError)) and not is_of_a_handler(error)


def is_of_a_handler(error: BaseException) -> bool:
    """Whether it comes from a signal handler of the program, which ran in the midst of something else, and does not run again."""
    codes = {code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def code_of(handler: Any) -> Any:
    for function in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        if isinstance(function, FunctionType):
            return function.__code__
    return None


def restarting(call: Callable[..., tuple], restarts: Restarts) -> Callable[..., tuple]:
    """`call`, in whose place of an error comes `Restart`, which the frame hook knows."""
    written, draws, required, restart = restarts.written, restarts.draws, restarts.required, native_core().Restart

    def run(*inputs: Any) -> tuple:
        before = [inputs[n].detach().clone() for n in written]
        state = torch.get_rng_state() if draws else None
        try:
            outputs = call(*inputs)
            if all(outputs[n] for n in required):
                return outputs
        except DynacompileError:
            raise
        except ERRORS as error:
            if is_of_a_handler(error):
                raise
        with torch.no_grad():
            for n, copy in zip(written, before, strict=True):
                inputs[n].detach().copy_(copy)
        if state is not None:
            torch.set_rng_state(state)
        restarts.count += 1
        raise restart

    return disable(run)
