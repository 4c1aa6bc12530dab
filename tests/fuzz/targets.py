"""python -m tests.fuzz.targets FIRST LAST: every way of naming what is to be compiled.

A program takes a callable, wraps it some times over (partials, decorators, methods, objects), compiles it and calls it. It gives eager's result, and
is not silently eager: an entry was made, or an event and one warning say why not; under fullgraph there is an entry, or an error.
"""

from __future__ import annotations

import argparse
import functools
import logging
import operator
import random
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dynacompile
from dynacompile.errors import DynacompileError
from dynacompile.events import Compiled, Event, FrameSkipped, GraphBroke


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x - 1

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class WithoutGradients(Layer):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Calls:
    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class Holds:
    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def method(self, *args: Any) -> Any:
        return self.function(*args)

    partial = functools.partialmethod(method)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def generator(x: torch.Tensor) -> Any:
    yield x + 1


async def coroutine(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def hooked() -> nn.Module:
    made = Layer()
    made.register_forward_hook(lambda module, args, out: out + 1)
    return made


LEAVES: list[Callable[[], Any]] = [
    lambda: plain,
    lambda: lambda x: x * 3,
    lambda: torch.abs,
    lambda: torch.nn.functional.gelu,
    lambda: torch.Tensor.sin,
    lambda: torch.ops.aten.cos,
    lambda: torch.ops.aten.cos.default,
    lambda: functools.partial(torch.add, torch.ones(3)),
    lambda: functools.partial(operator.mul, 2),
    lambda: operator.neg,
    lambda: operator.attrgetter("T"),
    lambda: torch.ones(3).__add__,
    lambda: torch.nn.functional.relu,
    lambda: Layer(),
    lambda: Layer().forward,
    lambda: Layer().other,
    lambda: Layer.static,
    lambda: Layer.of_class,
    lambda: WithoutGradients(),
    lambda: WithoutGradients().forward,
    hooked,
    lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
    lambda: nn.MSELoss().forward,
    lambda: nn.DataParallel(Layer()),
    lambda: torch.jit.trace(plain, (torch.ones(3),)),
    lambda: torch.fx.symbolic_trace(Layer()),
    lambda: generator,
    lambda: coroutine,
    lambda: torch.utils._pytree.tree_leaves,
    lambda: list,
    lambda: torch.distributions.Normal(0.0, 1.0).log_prob,
]


def part(function: Any) -> Any:
    """A part of a target that is a target by itself, and warned of by itself."""
    compiled_parts.append(function)
    return dynacompile.compile(function, backend="eager")


compiled_parts: list[Any] = []  # of the program that was generated last
WRAPPINGS: list[Callable[[Any], Any]] = [
    lambda f: functools.partial(f),
    lambda f: functools.wraps(f)(lambda *args: f(*args)) if hasattr(f, "__name__") else (lambda *args: f(*args)),
    lambda f: torch.no_grad()(f) if isinstance(f, types.FunctionType) else f,
    lambda f: Calls(f),
    lambda f: Holds(f).method,
    lambda f: Holds(f).partial,
    lambda f: part(f) if not isinstance(f, type) else f,
    lambda f: dynacompile.disable(f) if not isinstance(f, nn.Module) and hasattr(f, "__name__") else f,
    lambda f: torch.compiler.disable(f) if isinstance(f, types.FunctionType) else f,
    lambda f: functools.lru_cache(f),
    lambda f: functools.singledispatch(f) if isinstance(f, types.FunctionType) else f,
]


def generate(seed: int) -> Any:
    choose = random.Random(seed)
    compiled_parts.clear()
    torch.manual_seed(seed)
    made = choose.choice(LEAVES)()
    for _ in range(choose.randint(0, 3)):
        made = choose.choice(WRAPPINGS)(made)
    return made


def arguments(target: Any) -> tuple[torch.Tensor, ...]:
    return (torch.linspace(-1, 1, 3), torch.ones(3)) if isinstance(getattr(target, "__self__", None), nn.MSELoss) else (torch.linspace(-1, 1, 3),)


def result(call: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        try:
            return call()
        except DynacompileError:
            raise
        except Exception as error:  # noqa: BLE001 - its class is compared
            return type(error)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    return a is b or type(a) is type(b)


def difference(seed: int, fullgraph: bool) -> str | None:
    """What is wrong with the compiled target, as text."""
    target = generate(seed)
    args = arguments(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = result(lambda: generate(seed)(*args))
    dynacompile.reset()  # of what a compiled part of the target made in the eager call
    events: list[Event] = []
    end = dynacompile.subscribe(events.append)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                compiled = dynacompile.compile(target, backend="eager", fullgraph=fullgraph)
                got = [result(lambda: compiled(*args)) for _ in range(2)]
            except DynacompileError as error:
                classes = isinstance(target, type) and "takes a class" in str(error)
                return None if fullgraph or classes else f"{type(error).__name__}: {error}"
    finally:
        end()
    said = [str(w.message) for w in told if "compiled in name only" in str(w.message)]
    if not all(equal(expected, g) for g in got):
        return f"eager {expected}, compiled {got}"
    if isinstance(expected, type) and issubclass(expected, Exception):
        return None
    made = any(isinstance(e, Compiled) for e in events)
    if not made and not (any(isinstance(e, FrameSkipped) for e in events) and 0 < len(said) <= 1 + len(compiled_parts) and not fullgraph):
        return f"silently eager: warnings {said}, {[type(e).__name__ for e in events]}"
    if fullgraph and any(isinstance(e, GraphBroke) for e in events):
        return "a graph break under fullgraph"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.targets", description="Compile callables of every kind.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = 0
    for seed in range(given.first, given.last):
        if told := difference(seed, fullgraph=seed % 2 == 1):
            failed += 1
            print(f"seed {seed}: {generate(seed)!r:.200}: {told}", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
