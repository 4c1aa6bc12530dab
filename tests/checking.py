"""check(fn, *args): compiled against eager, in everything that a user can see."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, Event, GraphBroke, Recompiled, StageFinished


@dataclass
class Outcome:
    """What one run showed: its result or exception, its (mutated) arguments, the leaves' gradients, the random state after it."""

    result: Any
    raised: BaseException | None
    args: tuple
    kwargs: dict
    fn: Any
    rng: torch.Tensor


def run(fn: Any, call: Callable, args: tuple, kwargs: dict, backward: bool) -> Outcome:
    torch.manual_seed(0)
    result, raised = None, None
    try:
        result = call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        raised = error
    if backward and raised is None:
        losses = [o for o in tensors(result) if o.requires_grad and o.grad_fn is not None]
        if losses:
            torch.autograd.backward([weigh(o) for o in losses])
    states = [torch.get_rng_state()] + ([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])
    return Outcome(result, raised, args, kwargs, fn, torch.cat(states))


def weigh(tensor: torch.Tensor) -> torch.Tensor:
    """A scalar that depends on every element differently, so that a permuted gradient shows."""
    weights = torch.linspace(-1.0, 1.5, tensor.numel(), dtype=torch.float64).to(tensor.device, tensor.dtype).reshape(tensor.shape)
    return (tensor * weights).sum()


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def state(outcome: Outcome) -> list[torch.Tensor]:
    """All tensors reachable from the arguments and the function: arguments, parameters, buffers."""
    found = []
    for value in [outcome.fn, *outcome.args, *outcome.kwargs.values()]:
        if isinstance(value, torch.nn.Module):
            found += [*value.parameters(), *value.buffers()]
        else:
            found += tensors(value)
    return found


def aliasing(outcome: Outcome) -> list[tuple]:
    """For each output tensor: which state tensor or earlier output it is, and with whose storage it shares memory."""
    seen = state(outcome)
    told = []
    for out in tensors(outcome.result):
        same = next((i for i, t in enumerate(seen) if t is out), None)
        shares = next((i for i, t in enumerate(seen) if t.numel() and out.numel() and t.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()), None)
        told.append((same, shares))
        seen.append(out)
    return told


def assert_same(what: str, got: Any, want: Any, rtol: float | None, atol: float | None) -> None:
    got_leaves, got_spec = pytree.tree_flatten(got)
    want_leaves, want_spec = pytree.tree_flatten(want)
    assert got_spec == want_spec, f"{what}: {got_spec} is not {want_spec}"
    for i, (a, b) in enumerate(zip(got_leaves, want_leaves, strict=True)):
        if isinstance(b, torch.Tensor):
            assert isinstance(a, torch.Tensor), f"{what}[{i}]: {a!r} is no tensor"
            assert type(a) is type(b) and a.requires_grad == b.requires_grad, f"{what}[{i}]: requires_grad {a.requires_grad}, eager's {b.requires_grad}"
            torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, i=i: f"{what}[{i}]: {m}")
            assert a.stride() == b.stride(), f"{what}[{i}]: strides {a.stride()}, eager's {b.stride()}"
        elif isinstance(b, (np.ndarray, np.generic)):
            assert type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape, f"{what}[{i}]: {a!r} is not {b!r}"
            if b.dtype.kind in "fc":
                np.testing.assert_allclose(a, b, rtol=rtol or 1e-6, atol=atol or 1e-6, err_msg=f"{what}[{i}]")
            else:
                np.testing.assert_array_equal(a, b, err_msg=f"{what}[{i}]")
        elif isinstance(b, torch.nn.Module) or callable(b):
            assert type(a) is type(b), f"{what}[{i}]: {a!r} is not {b!r}"
        else:
            assert type(a) is type(b) and (a == b or (a != a and b != b)), f"{what}[{i}]: {a!r} is not {b!r}"


def check(
    fn: Any,
    *args: Any,
    graphs: int | None = 1,
    breaks: int | None = 0,
    recompiles: int | None = 0,
    kernels: int | None = None,
    backward: bool = True,
    calls: int = 2,
    rtol: float | None = None,
    atol: float | None = None,
    options: dict | None = None,
    kwargs: dict | None = None,
) -> list[Event]:
    """Runs `fn` eagerly and compiled, each on its own deep copy of the arguments, and compares results, exceptions, mutated arguments,
    module state, gradients, aliasing and random state; then calls again (`calls` times in all) and compares again.

    graphs: non-empty graphs compiled by the first call; breaks: graph breaks reported; recompiles: over all calls; kernels: launches of
    all programs of the first call. None: not compared.
    """
    kwargs = kwargs or {}
    dynacompile.reset()
    eager_fn, eager_args, eager_kwargs = copy.deepcopy((fn, args, kwargs)) if isinstance(fn, torch.nn.Module) else (fn, *copy.deepcopy((args, kwargs)))
    our_fn, our_args, our_kwargs = copy.deepcopy((fn, args, kwargs)) if isinstance(fn, torch.nn.Module) else (fn, *copy.deepcopy((args, kwargs)))
    compiled = dynacompile.compile(our_fn, isolate_recompiles=True, options={"fallback": "none", "verify": True}, **(options or {}))
    events: list[Event] = []
    end = dynacompile.subscribe(events.append)
    try:
        for call in range(calls):
            want = run(eager_fn, eager_fn, eager_args, eager_kwargs, backward)
            got = run(our_fn, compiled, our_args, our_kwargs, backward)
            compare(f"call {call + 1}", got, want, rtol, atol)
            if call == 0:
                first = list(events)
    finally:
        end()
    assert_counts(first, events, graphs, breaks, recompiles, kernels)
    return events


def compare(when: str, got: Outcome, want: Outcome, rtol: float | None, atol: float | None) -> None:
    if want.raised is not None or got.raised is not None:
        if got.raised is not None and want.raised is None:
            raise got.raised
        assert type(got.raised) is type(want.raised) and str(got.raised) == str(want.raised), f"{when}: raised {got.raised!r}, eager {want.raised!r}"
        return
    assert_same(f"{when}: result", got.result, want.result, rtol, atol)
    for i, (a, b) in enumerate(zip(state(got), state(want), strict=True)):
        assert_same(f"{when}: state {i}", a, b, rtol, atol)
        assert (a.grad is None) == (b.grad is None), f"{when}: gradient of state {i}: {a.grad}, eager's {b.grad}"
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, i=i: f"{when}: gradient of state {i}: {m}")
    plain = [a for a in (*got.args, *got.kwargs.values()) if not isinstance(a, torch.nn.Module)]
    wanted = [a for a in (*want.args, *want.kwargs.values()) if not isinstance(a, torch.nn.Module)]
    assert_same(f"{when}: arguments", plain, wanted, rtol, atol)
    assert aliasing(got) == aliasing(want), f"{when}: aliasing {aliasing(got)}, eager's {aliasing(want)}"
    assert torch.equal(got.rng, want.rng), f"{when}: the random state differs from eager's"


def assert_counts(first: list[Event], events: list[Event], graphs: int | None, breaks: int | None, recompiles: int | None, kernels: int | None) -> None:
    made = [e for e in first if isinstance(e, Compiled) and e.ops > 0]
    told = "\n".join(dynacompile.observe.log.line(e) for e in events if not isinstance(e, StageFinished))
    if graphs is not None:
        assert len(made) == graphs, f"{len(made)} graphs, expected {graphs}\n{told}"
    broke = [e for e in first if isinstance(e, GraphBroke)]
    assert breaks is None or len(broke) == breaks, f"{len(broke)} graph breaks, expected {breaks}\n{told}"
    again = [e for e in events if isinstance(e, Recompiled)]
    assert recompiles is None or len(again) == recompiles, f"{len(again)} recompiles, expected {recompiles}\n{told}"
    if kernels is not None:
        launches = sum(value for e in first if isinstance(e, StageFinished) and e.stage == "schedule" for key, value in e.facts if key == "launches")
        assert launches == kernels, f"{launches} kernel launches, expected {kernels}\n{told}"
