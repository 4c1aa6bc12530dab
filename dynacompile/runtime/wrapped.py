"""Graphs take and give the tensors inside of wrappers: around them, wrappers are taken apart and made, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynacompile import native
from dynacompile.ir.captured import Wrappers


def with_wrappers(call: Callable[..., tuple], wrappers: Wrappers) -> Any:
    """`call` with wrappers in the place of what lies inside. Several inputs may lie inside of one, which is then given for each of them."""
    gradients = tuple(enter.gradient for enter in wrappers.enters)
    outputs = tuple(None if leave is None else (len(leave.wrapping.inner), leave.make, leave.taken_apart) for leave in wrappers.outputs)
    return native.core().make_wrapped(call, wrappers.inputs, gradients, outputs)
