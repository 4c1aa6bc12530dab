"""Backward hooks of a module at run time: what torch.nn.Module's call does about them, as three operations of a graph.

`start` takes the hooks that the module has now, `enter` and `leave` put torch's own autograd nodes around what the module is given and gives. On real
tensors that is all. Where a graph is differentiated ahead of time, the two nodes' own hooks are calls of the operator `dynacompile::region`: the user's
Python runs in each backward pass, in eager's order, and what it returns goes on.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from dynacompile.errors import Unsupported
from dynacompile.markers import disable
from dynacompile.ops.backward_steps import Arrivals, Pass, Step, Tracing
from dynacompile.ops.regions import REGION, Tensors, Work, alike, handle, within_autograd
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensor

Run = Callable[[BackwardHook, tuple, tuple], tuple]  # (hooks, gradients, what else they see) -> gradients
PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class HookedCall:
    """One call of a module that has backward hooks, in a graph. inputs: how many positional arguments it gets. full, before: whether there are hooks
    on the gradients of what it is given, and of what it gives. The module is not kept alive."""

    def __init__(self, module: torch.nn.Module, inputs: int, full: bool, before: bool):
        self.module, self.inputs, self.full, self.before = weakref.ref(module), inputs, full, before

    def hooks(self) -> BackwardHook:
        """torch's own object, with the hooks that the module has now."""
        module = self.module()
        if module is None:
            raise RuntimeError("a module with backward hooks is gone before the backward pass of what it computed")
        found = BackwardHook(module, module._get_backward_hooks()[0], module._get_backward_pre_hooks())
        found.n_inputs = self.inputs
        return found


class Carrier(bytearray):
    """The memory of a token: a number, by which the hooks of one call are found as long as that memory lives, wherever autograd keeps it."""

    hooks: BackwardHook


CARRIERS: weakref.WeakValueDictionary[int, Carrier] = weakref.WeakValueDictionary()
NUMBERS = itertools.count()


def new_token(hooks: BackwardHook) -> torch.Tensor:
    number = next(NUMBERS)
    carrier = CARRIERS[number] = Carrier(number.to_bytes(8, sys.byteorder))
    carrier.hooks = hooks
    return torch.frombuffer(carrier, dtype=torch.int64)


def no_token() -> torch.Tensor:
    """A token of no call, for fakes."""
    return torch.empty(1, dtype=torch.int64, device="cpu")


def carried(token: torch.Tensor, call: HookedCall) -> BackwardHook:
    """The hooks of a token's call; where a user's hooks on saved tensors have made another tensor of it, those that the module has now."""
    carrier = CARRIERS.get(int(token))
    return call.hooks() if carrier is None else carrier.hooks


class HookStep(Step):
    """The first operand of `enter` and `leave` is the call's token, a number on the CPU that stands for the hooks, from the forward to the backward pass."""

    def __init__(self, call: HookedCall):
        self.call = call
        self.__name__ = self.__qualname__ = f"backward_hooks_{type(self).__name__.lower()}"


class Start(HookStep):
    def __call__(self, example: torch.Tensor) -> torch.Tensor:
        return new_token(self.call.hooks()) if is_real(example) else no_token()

    def traced(self, args: tuple, tracing: Tracing) -> torch.Tensor:
        begin = handle(Work(lambda _: [new_token(self.call.hooks())], lambda _: [no_token()]))
        tracing.keep(begin)
        with torch.no_grad():
            (token,) = REGION(begin, [args[0].detach()])
        token.firing = Firing(self.call, tracing)  # type: ignore[attr-defined]
        return token


class Enter(HookStep):
    def __call__(self, token: torch.Tensor, *args: Any) -> tuple:
        return carried(token, self.call).setup_input_hook(args) if is_real(*args) else attached(refuse, args)[0]

    def traced(self, args: tuple, tracing: Tracing) -> tuple:
        token, firing = args[0], args[0].firing
        made, firing.inputs = attached(lambda grads, _: firing.behind(token, grads), args[1:])
        return made


class Leave(HookStep):
    def __call__(self, token: torch.Tensor, *results: Any) -> tuple:
        return carried(token, self.call).setup_output_hook(results) if is_real(*results) else attached(refuse, results)[0]

    def traced(self, args: tuple, tracing: Tracing) -> tuple:
        token, firing, results = args[0], args[0].firing, args[1:]
        made, firing.outputs = attached(lambda _, grads: firing.before(token, grads), results)
        firing.results = len(results)
        return made


def is_real(*values: Any) -> bool:
    """Whether the tensors are no fakes. Refuses those of somebody else's trace, in which the hooks would run once and never again."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if any(isinstance(t, FakeTensor) for t in tensors):
        return False
    if any(type(t) not in PLAIN or of_torch.is_functional_tensor(t) for t in tensors):
        raise refusal()
    return True


def refusal() -> Unsupported:
    reason = "a graph with backward hooks of modules is differentiated by other means than ours"
    return Unsupported("hooks", reason, "use a backend that runs the graph as it is, or call the module outside of the compiled region")


def refuse(*_: object) -> None:
    raise refusal()


def attached(hook: Callable, values: tuple) -> tuple[tuple, list[int]]:
    """The values behind an autograd node of torch's own, which has the hook; and where there are tensors."""
    return BackwardHook(None, [], [])._apply_on_tensors(lambda node: node.register_hook(hook), values)


class Firing:
    """The two hooks of one call while its graph is differentiated. inputs, outputs: where there are tensors; no inputs: none of them requires a gradient.
    results: how many values the module gave. grads: of the results, between the two hooks."""

    def __init__(self, call: HookedCall, tracing: Tracing):
        self.call, self.tracing = call, tracing
        self.inputs: list[int] | None = None
        self.outputs: list[int] = []
        self.results = 0
        self.grads: tuple | None = None

    def before(self, token: torch.Tensor, grads: tuple) -> tuple:
        """Of the node behind the module."""
        if self.call.before or self.inputs is None:
            replay = Replay(self.inputs, self.outputs, self.results)
            grads = self.fire(token, grads, (), lambda hooks, given, _: replay.before(hooks, given), True)
        self.grads = grads
        return grads

    def behind(self, token: torch.Tensor, grads: tuple) -> tuple | None:
        """Of the node in front of the module."""
        seen, self.grads = self.grads, None
        if seen is None or not self.call.full:
            return None
        replay = Replay(self.inputs, self.outputs, self.results)
        return self.fire(token, grads, seen, replay.behind, False)

    def fire(self, token: torch.Tensor, grads: tuple, seen: tuple, run: Run, first: bool) -> tuple:
        """What the user's hooks make of gradients. seen: what else they are shown. first: the gradients come from outside."""
        work = handle(HookWork(self.call, [g is not None for g in grads], [g is not None for g in seen], run, self.tracing.now, first))
        self.tracing.keep(work)
        with torch.no_grad():
            made = iter(REGION(work, [token, *(g for g in (*grads, *seen) if g is not None)]))
        return tuple(None if g is None else next(made) for g in grads)


class Replay:
    """The hooks that torch would give its autograd nodes, called with gradients. inputs, outputs, results: as those of Firing."""

    def __init__(self, inputs: list[int] | None, outputs: list[int], results: int):
        self.inputs, self.outputs, self.results = inputs, outputs, results

    def before(self, hooks: BackwardHook, grads: tuple) -> tuple:
        caught = Caught(hooks, self.outputs)
        caught.input_tensors_index = self.inputs
        caught.setup_output_hook((None,) * self.results)
        made = caught.run((), grads)
        hooks.grad_outputs = caught.grad_outputs
        return made

    def behind(self, hooks: BackwardHook, grads: tuple, seen: tuple) -> tuple:
        caught = Caught(hooks, self.inputs)
        caught.setup_input_hook((None,) * hooks.n_inputs)
        given, hooks.grad_outputs = hooks.grad_outputs, None
        caught.grad_outputs = caught._pack_with_none(self.outputs, seen, self.results) if given is None else given
        return caught.run(grads, ())


class Caught(BackwardHook):
    """Gives what torch registers with a node as `run`."""

    run: Callable[[tuple, tuple], tuple]

    def __init__(self, hooks: BackwardHook, places: list[int] | None):
        super().__init__(hooks.module, hooks.user_hooks, hooks.user_pre_hooks)
        self.n_inputs, self.places = hooks.n_inputs, places
        self.input_tensors_index: list[int] | None = None  # type: ignore[assignment]

    def _apply_on_tensors(self, fn: Callable, args: tuple) -> tuple:
        fn(self)
        return args, self.places

    def register_hook(self, hook: Callable) -> None:
        self.run = hook


class HookWork(Arrivals):
    """The user's hooks, over gradients of one backward pass. replaced, seen: which gradients there are. first: those to replace are shown as None where
    none has come, as autograd has them."""

    def __init__(self, call: HookedCall, replaced: list[bool], seen: list[bool], run: Run, now: Pass, first: bool):
        super().__init__(now)
        self.call, self.replaced, self.seen, self.run, self.first = call, replaced, seen, disable(run), first

    def show(self, operands: Tensors) -> Tensors:  # type: ignore[override]
        return [torch.empty_like(g) for g in operands[1 : 1 + sum(self.replaced)]]

    def compute(self, operands: Tensors) -> Tensors:  # type: ignore[override]
        """Each gradient in memory of its own, before and behind the hooks: they may keep what they see. Where no tangent has come that leads here,
        or no gradient is asked for that this leads to, eager's backward would not have passed: no hook runs."""
        token, *grads = operands
        came, count = self.came(len(grads)), sum(self.replaced)
        if not self.is_wanted() or not any(came if self.first else came[count:]):
            carried(token, self.call).grad_outputs = None
            return [g.clone() for g in grads[:count]]
        kept = [here or i < count and not self.first for i, here in enumerate(came)]
        given = [g.clone() if k else None for g, k in zip(grads, kept)]
        hooks = carried(token, self.call)
        with outside():
            made = self.run(hooks, spread(self.replaced, given[:count]), spread(self.seen, given[count:]))
        results = [new for new, there in zip(made, self.replaced, strict=True) if there]
        return [torch.zeros_like(old) if new is None and not k else checked(new, old) for new, old, k in zip(results, grads, kept)]


def spread(places: Sequence[bool], values: Sequence[Any]) -> tuple:
    """The values where places say so, None elsewhere."""
    rest = iter(values)
    return tuple(next(rest) if there else None for there in places)


def checked(made: Any, old: torch.Tensor) -> torch.Tensor:
    """What a hook gave in a gradient's place."""
    if not isinstance(made, torch.Tensor) or (made.shape, made.dtype, made.device) != (old.shape, old.dtype, old.device):
        shown = f"{made.dtype} of {tuple(made.shape)} on {made.device}" if isinstance(made, torch.Tensor) else repr(made)
        reason = f"a backward hook of a module in a compiled region gave {shown} for a gradient of {old.dtype}, {tuple(old.shape)}, on {old.device}"
        raise RuntimeError(f"{reason}. Call the module outside of the region, as by dynacompile.disable")
    return alike(made.detach(), old)


@contextmanager
def outside() -> Iterator[None]:
    """As a hook runs in eager's backward."""
    with within_autograd(), torch.no_grad():
        yield
