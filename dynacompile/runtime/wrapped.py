"""Graphs take and give the tensors inside of wrappers: around them, wrappers are taken apart and made, and so are their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynacompile.ir.captured import PENDING, Wrappers
from dynacompile.markers import disable
from dynacompile.native import core as native_core


def with_wrappers(call: Callable[..., tuple], wrappers: Wrappers) -> Any:
    """`call` with wrappers in the place of what lies inside. Several inputs may lie inside of one, which is then given for each of them."""
    gradients = tuple(disable(enter.gradient) for enter in wrappers.enters)
    inputs = tuple(None if row is None else (*row, gradient_sizes(wrappers, row)) for row in wrappers.inputs)
    outputs = tuple(None if leave is None else (len(leave.wrapping.inner), disable(leave.make), disable(leave.taken_apart)) for leave in wrappers.outputs)
    return native_core().make_wrapped(call, inputs, gradients, outputs)


def gradient_sizes(wrappers: Wrappers, row: tuple[int, str]) -> tuple[int, ...] | None:
    """The sizes of the gradient of what lies inside of a wrapper; None where there is none."""
    index, name = row
    if index == PENDING:
        return None
    enter = wrappers.enters[index]
    return enter.grad_parts[enter.wrapping.inner.index(name)] if enter.grad_parts else None
