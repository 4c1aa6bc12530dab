"""Graphs that may raise what a clause of the program takes, or find that a branch goes elsewhere: then what they have changed is as before, and the call starts
again as Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dynacompile.errors import DynacompileError
from dynacompile.ir.captured import Restarts
from dynacompile.markers import disable
from dynacompile.native import core as native_core


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
        except (IndexError, RuntimeError, ValueError, ArithmeticError):
            pass
        with torch.no_grad():
            for n, copy in zip(written, before, strict=True):
                inputs[n].detach().copy_(copy)
        if state is not None:
            torch.set_rng_state(state)
        restarts.count += 1
        raise restart

    return disable(run)
