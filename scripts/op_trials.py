"""One op sample through the compiler, or through torch.compile, beside eager: what was called, what came of it, what differs."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke

OPTIONS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "reference": {"options": {"reference": True, "verify": True}},
    "default": {"options": {"verify": True}},
}
UNDEFINED = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "empty_permuted", "new_empty_strided"})
TOLERANCES = {
    torch.float16: (4e-3, 2e-3),
    torch.bfloat16: (2e-2, 1e-2),
    torch.float32: (1e-4, 2e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1e-4, 2e-5),
}


RAISED = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError, AttributeError, dynacompile.exc.DynacompileError)
"""What ops, and compilers that run them, may raise. Anything else ends the worker, and is told as a crash."""


@dataclass
class Told:
    """What became of one sample. status: ok, break, wrong, error, crash, timeout, or eager-raises (where ours raises too, with the same type)."""

    op: str
    dtype: str
    variant: str
    sample: int
    status: str
    detail: str = ""


def seedless(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """In the place of op_db's own seeding of random ops, which is no part of them: `run` seeds."""
    return op(*args, **kwargs)


def names() -> dict[str, Any]:
    return {op.name + (f".{op.variant_test_name}" if op.variant_test_name else ""): op for op in common_methods_invocations.op_db}


def callables(op: Any, variants: list[str]) -> Iterator[tuple[str, Callable]]:
    found = {"function": op.op, "method": op.method_variant, "inplace": op.inplace_variant}
    for name in variants:
        if found[name] is not None:
            yield name, found[name]


def applied(op: Callable) -> Callable:
    def fn(*args, **kwargs):
        return op(*args, **kwargs)

    return fn


def picked(samples: list[Any], most: int) -> Iterator[tuple[int, Any]]:
    count = len(samples)
    step = max(1.0, count / most) if most else 1.0
    places = sorted({int(i * step) for i in range(min(count, most) if most else count)})
    return ((i, samples[i]) for i in places if i < count)


def twin(tree: Any) -> Any:
    """A copy with memory of its own, which keeps strides, shared memory and whether gradients are wanted."""
    memo: dict[int, Any] = {}

    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kept = value.detach().clone() if value.layout is not torch.strided else copy.deepcopy(value.detach(), memo)
        return kept.requires_grad_(value.requires_grad)

    return pytree.tree_map(one, tree)


@dataclass
class Outcome:
    result: Any = None
    raised: BaseException | None = None
    args: Any = None
    grads: list[torch.Tensor | None] | None = None


def run(call: Callable, given: tuple, variant: str, finish: Callable | None) -> Outcome:
    args, kwargs = twin(given)
    if variant == "inplace":
        args = (args[0].clone() if args[0].requires_grad else args[0], *args[1:])
    torch.manual_seed(5)
    try:
        result = call(*args, **kwargs)
    except RAISED as error:
        return Outcome(raised=error)
    out = Outcome(result, None, (args, kwargs))
    if finish is not None:
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
        ends = [t for t in pytree.tree_leaves(finish(result)) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        if ends and leaves:
            try:
                out.grads = list(torch.autograd.grad(ends, leaves, [weights(t) for t in ends], allow_unused=True))
            except RuntimeError as error:
                return Outcome(raised=error)
    return out


def weights(t: torch.Tensor) -> torch.Tensor:
    real = torch.linspace(-1.0, 1.5, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape)
    return real.to(t.dtype)


def leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def difference(what: str, got: Any, want: Any, exact: bool, values: bool = True, strides: bool = True) -> str:
    """The first difference, or nothing."""
    ours, theirs = leaves(got), leaves(want)
    if len(ours) != len(theirs):
        return f"{what}: {len(ours)} leaves, eager's {len(theirs)}"
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if not isinstance(b, torch.Tensor):
            if type(a) is not type(b) or (isinstance(b, (int, float, str, bool, complex)) and a != b and a == a):
                return f"{what}[{i}]: {a!r}, eager's {b!r}"
            continue
        said = tensor_difference(a, b, exact, values, strides)
        if said:
            return f"{what}[{i}]: {said}"
    return ""


def tensor_difference(a: Any, b: torch.Tensor, exact: bool, values: bool, strides: bool) -> str:
    if not isinstance(a, torch.Tensor):
        return f"{type(a).__name__} in place of a tensor"
    for fact in ("dtype", "shape", "requires_grad", "layout", "device"):
        if getattr(a, fact) != getattr(b, fact):
            return f"{fact} {getattr(a, fact)}, eager's {getattr(b, fact)}"
    if b.layout is not torch.strided or not values:
        return ""
    rtol, atol = (0, 0) if exact else TOLERANCES.get(b.dtype, (None, None))
    try:
        torch.testing.assert_close(a.detach(), b.detach(), rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return "values: " + " ".join(str(error).split())[:200]
    if strides and b.numel() > 1 and [s for s, n in zip(a.stride(), a.shape) if n > 1] != [s for s, n in zip(b.stride(), b.shape) if n > 1]:
        return f"strides {a.stride()}, eager's {b.stride()} of {tuple(b.shape)}"
    return ""


def shared(outcome: Outcome) -> list[int]:
    """For each result: the first argument with which it shares memory."""
    given = [t for t in leaves(outcome.args) if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.numel()]
    told = []
    for t in leaves(outcome.result):
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.numel():
            told.append(next((i for i, g in enumerate(given) if g.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()), -1))
    return told


def judged(got: Outcome, want: Outcome, exact: bool, values: bool) -> tuple[str, str]:
    if want.raised is not None:
        if type(got.raised) is type(want.raised):
            return "eager-raises", ""
        return "wrong", f"raised {type(got.raised).__name__}: {got.raised}; eager {type(want.raised).__name__}: {want.raised}"[:300]
    if got.raised is not None:
        said = str(got.raised).strip().splitlines() or [""]
        return "error", f"{type(got.raised).__name__}: {said[0]}"[:300]
    found = difference("result", got.result, want.result, exact, values) or difference("arguments", got.args, want.args, exact, values)
    if not found and want.grads is not None:
        found = "no gradients" if got.grads is None else difference("gradient", got.grads, want.grads, exact, strides=False)
    if not found and shared(got) != shared(want):
        found = f"memory shared with arguments {shared(got)}, eager's {shared(want)}"
    return ("wrong", found) if found else ("ok", "")


def tried(op: Any, call: Callable, variant: str, sample: Any, args: argparse.Namespace) -> tuple[str, str]:
    given = ((sample.input, *sample.args), sample.kwargs)
    finish = sample.output_process_fn_grad if args.grad else None
    want = run(call, given, variant, finish)
    if args.rival:
        return rival(applied(call), given, variant, want)
    dynacompile.reset()
    compiled = dynacompile.compile(applied(call), isolate_recompiles=True, **OPTIONS[args.backend])
    events: list[Any] = []
    end = dynacompile.subscribe(events.append)
    try:
        got = run(compiled, given, variant, finish)
    finally:
        end()
    status, detail = judged(got, want, args.backend == "eager", op.name not in UNDEFINED)
    if status == "ok":
        broke = [f"[{e.code}] {e.reason}" for e in events if isinstance(e, GraphBroke)] + [f"skipped {e.reason}" for e in events if isinstance(e, FrameSkipped)]
        if broke:
            return "break", broke[0][:300]
        if not any(isinstance(e, Compiled) for e in events):
            return "break", "not compiled"
    return status, detail


def rival(fn: Callable, given: tuple, variant: str, want: Outcome) -> tuple[str, str]:
    """torch.compile, as it comes: fullgraph=True would also let it capture results whose shape depends on values."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    got = run(torch.compile(fn, backend="eager"), given, variant, None)
    if want.raised is not None:
        return "eager-raises", ""
    if got.raised is not None:
        said = str(got.raised).strip().splitlines() or [""]
        return "error", f"{type(got.raised).__name__}: {said[0]}"[:200]
    broke = list(counters["graph_break"]) + [k for k in ("unimplemented", "frame_skip") for k in counters[k]]
    if broke:
        return "break", " ".join(broke[0].split())[:200]
    return ("ok", "") if counters["frames"]["ok"] == counters["frames"]["total"] else ("break", "frame not compiled")
