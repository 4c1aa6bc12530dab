"""Activation checkpointing: the function itself is captured, and what is kept for backward is the partitioner's choice."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint as checkpointing

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.refused_types import is_of_torch
from dynacompile.capture.tensors.grad_modes import GradModeContext
from dynacompile.capture.tensors.reports import warn_from
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_contexts import saved_hooks_are_enabled
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.tensors.torch_modes import TorchModes
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.contexts import DecoratedValue
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.native import core as native_core
from dynacompile.ops.collectives import is_collective
from dynacompile.ops.placed import Placing
from dynacompile.private import of_torch

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

HOOKS_OF_CHECKPOINTS = ("_checkpoint_hook.", "_recomputation_hook.")
KEEPING = dict.fromkeys("linear conv1d conv2d conv3d matmul mm bmm".split(), 2) | dict.fromkeys(
    "batch_norm layer_norm group_norm sin cos tanh exp sigmoid relu gelu silu softmax log_softmax".split(), 1
)
"""Operations that keep tensors where one of their first operands, as many as this, requires gradients."""
WRAPPED = inspect.unwrap(checkpointing.checkpoint)
VALIDITY: Any = checkpointing.check_backward_validity
OPTIONS = frozenset({"use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop"}) | frozenset(
    name for name, parameter in inspect.signature(WRAPPED).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
)


def text_in(function: Any, part: str) -> str | None:
    """What a function of torch warns with, or one of its module that it calls, by a part of the text; None where there is no such text."""
    table = function.__globals__
    called = [table[name] for name in function.__code__.co_names if isinstance(table.get(name), FunctionType)]
    return next((text for one in (function, *called) for text in one.__code__.co_consts if isinstance(text, str) and part in text), None)


@handles(checkpointing.checkpoint)
def checkpoint(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:  # a decorator, since torch 2.15
        raise unsupported("checkpoint", "checkpoint() without a function")
    given = {name: value for name, value in kwargs.items() if name not in OPTIONS}
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    reentrant = options.pop("use_reentrant", ConstantValue(None))
    if isinstance(reentrant, ConstantValue) and reentrant.value is None and (advice := text_in(WRAPPED, "use_reentrant parameter should")) is not None:
        warn_from(cx, WRAPPED, advice)
        reentrant = ConstantValue(True)
    if not isinstance(reentrant, ConstantValue) or type(reentrant.value) is not bool:
        raise unsupported("checkpoint", "checkpoint() without use_reentrant")
    policy = options.pop("context_fn", None)
    if not is_none(options.pop("respect_saved_tensors_hooks", ConstantValue(None))):
        raise unsupported("checkpoint", "checkpoint() with respect_saved_tensors_hooks")
    rule = None if policy is None else rule_of(cx, policy)
    if not all(isinstance(value, ConstantValue) for value in options.values()):
        raise unsupported("checkpoint", "checkpoint() with options that are not constant")
    if not reentrant.value:
        if not saved_hooks_are_enabled(cx, [], {}).truth(cx):
            raise unsupported("would-raise", "checkpoint() where hooks of saved tensors are disabled")
        before = len(cx.recorder.nodes)
        result = run_once(cx, options, lambda: args[0].call(cx, args[1:], given))
        if rule is not None and any(isinstance(node.target, Placing) or is_collective(node.target) for node in cx.recorder.nodes[before:]):
            note_gathers(cx, rule)
        return result
    if given or "debug" in options or "determinism_check" in options or policy is not None:
        raise unsupported("checkpoint", "checkpoint() with use_reentrant=True and keyword arguments")
    if not requires_gradients(cx, args[1:]) and (advice := text_in(VALIDITY, "None of the inputs")) is not None:
        warn_from(cx, VALIDITY, advice)
    return run_once(cx, options, lambda: call_reentrant(cx, args[0], args[1:]))


def is_checkpointed() -> bool:
    """Whether the function runs, or runs again, for a checkpoint of eager's that is not reentrant."""
    hooks = of_torch.top_saved_tensors_hooks(True)
    return hooks is not None and getattr(hooks[0], "__qualname__", "").startswith(HOOKS_OF_CHECKPOINTS)


def runs_for_checkpoint(cx: Context) -> bool:
    """As `is_checkpointed`, guarded. Graphs without gradients keep nothing, so that no checkpoint ends within them."""
    return cx.state(TorchModes).begins_with_gradients and bool(cx.flag("a checkpoint runs the function", where_saving_is_hooked()).constant())


@functools.cache
def where_saving_is_hooked() -> Callable[[], bool]:
    """`is_checkpointed`, which most calls need not ask: natively, where no hooks for saved tensors are set, it is False."""
    return native_core().where_saving_is_hooked(is_checkpointed)  # type: ignore[no-any-return]


def refuse_amid_checkpoint(cx: Context) -> None:
    """What runs again for a checkpoint ends within the last operation whose tensors are kept, with what Python did before that. A graph ends as a whole,
    without what residual code does after it: changes are left to Python, at their places between graphs."""
    if runs_for_checkpoint(cx):
        raise unsupported("checkpointed", "Python's state changes")


class WritesBehind(Exception):
    """The graph writes what exists outside of it, and it is not known that an operation behind that keeps tensors. place: of the write."""

    def __init__(self, place: tuple[CodeType, int]):
        self.place = place


class OutsideWrites:
    """Writes of tensors that exist outside, in a function that a checkpoint runs again: eager does them again where an operation behind them keeps tensors.

    asked: whether a checkpoint does so is known. last: the first of the writes behind which no operation is known to keep any."""

    def __init__(self) -> None:
        self.asked: bool | None = None
        self.last: tuple[CodeType, int] | None = None

    def note(self, cx: Context, target: Any, args: Sequence[Value], writes: bool) -> None:
        """writes: the operation writes what exists outside."""
        if writes:
            if self.asked is None:
                self.asked = runs_for_checkpoint(cx)
            if self.asked:
                place = cx.frames[-1].code, cx.frames[-1].current.index
                if place in cx.manner.writes_at:
                    raise unsupported("checkpointed", "a tensor is written")
                self.last = self.last or place
        if self.last is not None and keeps_operands(target, args):
            self.last = None

    def check(self) -> None:
        if self.last is not None:
            raise WritesBehind(self.last)


def keeps_operands(target: Any, args: Sequence[Value]) -> bool:
    """Whether autograd is known to keep tensors for the operation, after what it writes itself."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    factors = KEEPING.get(name, 0)
    if not factors or not torch.is_grad_enabled() or not is_of_torch(target):
        return False
    return any(isinstance(a, TensorValue) and a.fake.requires_grad for a in args[:factors])


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


def requires_gradients(cx: Context, args: list[Value]) -> bool:
    return any(isinstance(a, TensorValue) and a.fake.requires_grad for a in map(cx.force, args))


def call_reentrant(cx: Context, function: Value, args: list[Value]) -> Value:
    """Only tensors among the arguments themselves connect the function to autograd."""
    if not torch.is_grad_enabled() or requires_gradients(cx, args):
        return function.call(cx, args, {})
    return DecoratedValue(GradModeContext(torch.no_grad, False), function).call(cx, args, {})


class PolicyValue(Value):
    """What `create_selective_checkpoint_contexts` makes of a rule that says what to keep: a function of operators, or a list of those to keep."""

    def __init__(self, rule: Value):
        self.rule = rule

    def describe(self) -> str:
        return f"the contexts of create_selective_checkpoint_contexts({self.rule.describe()})"


@handles(checkpointing.create_selective_checkpoint_contexts)
def policy_of_rule(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ["policy_fn_or_list", "allow_cache_entry_mutation"]
    return PolicyValue(bind_arguments("create_selective_checkpoint_contexts", names, args, kwargs, {names[1]: ConstantValue(False)})[0])


def rule_of(cx: Context, policy: Value) -> Value | None:
    """What a context_fn says of what to keep; None where it says nothing. Raises Unsupported for one that does more than that."""
    if isinstance(policy, FunctionValue) and policy.real is checkpointing.noop_context_fn:
        return None
    made = policy.call(cx, [], {})
    if not isinstance(made, PolicyValue):
        raise unsupported("checkpoint", f"checkpoint() with context_fn={policy.describe()}")
    return made.rule


class Regathered:
    """asked: whether a policy has gathers made again in the backward."""

    asked = False


def note_gathers(cx: Context, rule: Value) -> None:
    """Asks the rule of a function that gathers tensors whether its gathers are to be made again. What else it says is the partitioner's choice."""
    if isinstance(cx.force(rule), SequenceValue):
        return
    kind = cx.class_value(checkpointing.SelectiveCheckpointContext, None)
    answer = cx.force(rule.call(cx, [kind.call(cx, [], {"is_recompute": ConstantValue(False)}), TorchFunction(of_torch.functional_all_gather)], {}))
    if not isinstance(answer, ConstantValue):
        raise unsupported("checkpoint", f"checkpoint() by a policy that gives {answer.describe()}")
    cx.state(Regathered).asked |= answer.value is checkpointing.CheckpointPolicy.MUST_RECOMPUTE
