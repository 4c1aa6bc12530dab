"""Activation checkpointing: the function itself is captured, and what is kept for backward is the partitioner's choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.utils.checkpoint as checkpointing

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.grad_modes import GradModeContext
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.contexts import DecoratedValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.partials import PartialValue
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
POLICIES = tuple(getattr(checkpointing, name) for name in ("noop_context_fn", "create_selective_checkpoint_contexts"))


@handles(checkpointing.checkpoint)
def checkpoint(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    reentrant = options.pop("use_reentrant", None)
    if not isinstance(reentrant, ConstantValue) or type(reentrant.value) is not bool:
        raise unsupported("checkpoint", "checkpoint() without use_reentrant")
    policy = options.pop("context_fn", None)
    if policy is not None and not is_policy(policy):
        raise unsupported("checkpoint", f"checkpoint() with context_fn={policy.describe()}")
    if not all(isinstance(value, ConstantValue) for value in options.values()):
        raise unsupported("checkpoint", "checkpoint() with options that are not constant")
    if not reentrant.value:
        return run_once(cx, options, lambda: args[0].call(cx, args[1:], given))
    if given or "debug" in options or "determinism_check" in options or policy is not None:
        raise unsupported("checkpoint", "checkpoint() with use_reentrant=True and keyword arguments")
    return run_once(cx, options, lambda: call_reentrant(cx, args[0], args[1:]))


def run_once(cx: Context, options: dict[str, Value], call: Callable[[], Value]) -> Value:
    """Eager runs the function again for the backward pass, and all that it changes is changed twice: a graph, which does not, takes none of that."""
    if not torch.is_grad_enabled():
        return call()
    before, changes = cx.recorder.input_versions(), cx.effects.outside
    with cx.recorder.watching() as draws:
        result = call()
    after = cx.recorder.input_versions()
    if cx.effects.outside != changes or any(before.get(key, cx.recorder.versions[key]) != version for key, version in after.items()):
        raise unsupported("checkpoint", "checkpoint() of a function that changes what is there outside of it, as batch norm's statistics,")
    keeps = options.get("preserve_rng_state")
    if draws.seen and isinstance(keeps, ConstantValue) and not keeps.value:
        raise unsupported("checkpoint", "checkpoint() with preserve_rng_state=False of a function that draws random numbers")
    return result


def call_reentrant(cx: Context, function: Value, args: list[Value]) -> Value:
    """Only tensors among the arguments themselves connect the function to autograd."""
    if not torch.is_grad_enabled() or any(isinstance(a, TensorValue) and a.fake.requires_grad for a in args):
        return function.call(cx, args, {})
    return DecoratedValue(GradModeContext(torch.no_grad, False), function).call(cx, args, {})


def is_policy(value: Value) -> bool:
    """Whether a context_fn says no more than what to keep."""
    if isinstance(value, PartialValue):
        return is_policy(value.function)
    return isinstance(value, FunctionValue) and value.real in POLICIES
