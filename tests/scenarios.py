"""check_same(scenario): a story told twice, once with eager functions and once with compiled ones, must show the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled, Event

Wrap = Callable[[Any], Any]
Scenario = Callable[[Wrap], Iterator[Any]]


def told(scenario: Scenario, wrap: Wrap) -> list[Any]:
    """What the scenario yields, copied at once; tensors with their gradient, strides and requires_grad."""
    dynacompile.reset()
    torch.manual_seed(0)
    out = []
    for item in scenario(wrap):
        leaves, spec = pytree.tree_flatten(item)
        out.append((spec, [seen(leaf) for leaf in leaves]))
    out.append(("random state", [torch.get_rng_state()]))
    return out


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.detach().clone(), value.requires_grad, value.dtype, strides(value) if value.layout is torch.strided else value.layout)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return value


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Those that matter: dimensions of one element, and tensors of none, may have any."""
    return tuple(stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1) if tensor.numel() else ()


def check_same(scenario: Scenario, *, least: int | None = 1, rtol: float | None = None, atol: float | None = None, **options: Any) -> list[Event]:
    """Raises AssertionError where the compiled story differs from the eager one in values, dtypes, strides, requires_grad, exceptions or random state.

    scenario: a generator over what is to be compared; it compiles with the `wrap` that it is given. least: graphs that must have been compiled.
    options: as `compile` takes them. The reference interpreter runs the kernels, unless options say otherwise: no kernel is built for a story.
    """
    options = {"isolate_recompiles": True, **options}
    options["options"] = {"fallback": "none", "verify": True, "reference": True, **options.get("options", {})}
    want = told(scenario, lambda fn: fn)
    events: list[Event] = []
    end = dynacompile.subscribe(events.append)
    try:
        got = told(scenario, lambda fn: dynacompile.compile(fn, **options))
    finally:
        end()
    lines = "\n".join(dynacompile.observe.log.line(e) for e in events if type(e).__name__ != "StageFinished")
    assert len(got) == len(want), f"{len(got)} observations, eager shows {len(want)}"
    for i, ((got_spec, got_leaves), (want_spec, want_leaves)) in enumerate(zip(got, want, strict=True)):
        assert got_spec == want_spec, f"observation {i}: {got_spec} is not {want_spec}\n{lines}"
        for j, (a, b) in enumerate(zip(got_leaves, want_leaves, strict=True)):
            match(f"observation {i}[{j}]", a, b, rtol, atol, lines)
    graphs = sum(isinstance(e, Compiled) and e.ops > 0 for e in events)
    assert least is None or graphs >= least, f"{graphs} graphs compiled, expected at least {least}\n{lines}"
    return events


def match(where: str, got: Any, want: Any, rtol: float | None, atol: float | None, lines: str) -> None:
    if isinstance(want, tuple) and want and isinstance(want[0], torch.Tensor):
        assert isinstance(got, tuple), f"{where}: {got!r} is no tensor\n{lines}"
        assert got[1:] == want[1:], f"{where}: (requires_grad, dtype, strides) {got[1:]}, eager's {want[1:]}\n{lines}"
        torch.testing.assert_close(got[0], want[0], rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{where}: {m}\n{lines}")
    elif isinstance(want, torch.Tensor):
        assert torch.equal(got, want), f"{where}: differs from eager's\n{lines}"
    else:
        assert type(got) is type(want) and (got == want or (got != got and want != want)), f"{where}: {got!r}, eager's {want!r}\n{lines}"


def attempt(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result, or the exception that was raised."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return error
