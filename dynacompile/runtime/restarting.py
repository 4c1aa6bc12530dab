"""Graphs that may raise what a clause of the program takes, or find that a branch goes elsewhere: then what they have changed is as before, and the call starts
again as Python."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dynacompile.errors import DynacompileError
from dynacompile.ir.captured import Restarts
from dynacompile.markers import disable
from dynacompile.native import core as native_core

ERRORS = (IndexError, RuntimeError, ValueError, ArithmeticError)
FILES = (os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parent.parent) + os.sep, "<eval_with_key>")  # code of torch, ours, and of graphs


def is_of_values(error: BaseException) -> bool:
    """Whether a graph has raised it by the values of its operands: it raises again as Python. Memory that ran out may not run out there, and code of the
    program that ran in the graph's midst, as handlers of signals do, does not run again."""
    if not isinstance(error, ERRORS) or isinstance(error, (DynacompileError, torch.OutOfMemoryError)):
        return False
    return all(frame.f_code.co_filename.startswith(FILES) for frame, _ in traceback.walk_tb(error.__traceback__))


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
        except ERRORS:
            pass
        with torch.no_grad():
            for n, copy in zip(written, before, strict=True):
                inputs[n].detach().copy_(copy)
        if state is not None:
            torch.set_rng_state(state)
        restarts.count += 1
        raise restart

    return disable(run)
