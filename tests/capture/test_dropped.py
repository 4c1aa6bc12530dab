"""What is compiled, called and dropped leaves nothing behind: live objects are counted over many rounds."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

import dynacompile
from dynacompile import native

ROUNDS = 20
MOST_COLLECTIONS = 8  # what is reached through C++ alone is found once what reaches it is gone
X = torch.ones(4, 4)


def made(source: str, **names: Any) -> Any:
    """A function in a namespace of its own, with a code object of its own."""
    namespace: dict[str, Any] = {"torch": torch, "dynacompile": dynacompile, **names}
    exec(source, namespace)
    return namespace["program"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(x)) * self.scale


compiled = functools.partial(dynacompile.compile, backend="eager")


def function(number: int) -> list[Any]:
    program = made(f"def helper(x):\n    return x + 1\ndef program(x):\n    return helper(torch.sin(x) * {number}) - 1\n")
    compiled(program)(X)
    return [program, program.__code__]


def isolated(number: int) -> list[Any]:
    program = made(f"def program(x):\n    return torch.sin(x) * {number}\n")
    compiled(program, isolate_recompiles=True)(X)
    return [program, program.__code__]


def equal_code(number: int) -> list[Any]:
    """Functions whose code objects are equal and not the same."""
    program = made("def program(x):\n    dynacompile.graph_break()\n    return torch.sin(x) * 3\n")
    compiled(program)(X)
    return [program, program.__code__]


def each_other(number: int) -> list[Any]:
    """Two functions that call each other, both compiled as frames."""
    program = made(
        f"def other(x, n):\n    dynacompile.graph_break()\n    return program(x + {number}, n - 1)\n"
        "def program(x, n):\n    dynacompile.graph_break()\n    return other(x * 2, n) if n else x\n"
    )
    compiled(program, dynamic=False)(X, 2)
    return [program, program.__code__, program.__globals__["other"].__code__]


def closure(number: int) -> list[Any]:
    tensor = torch.ones(4)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sum() * tensor + number

    compiled(program, isolate_recompiles=True, dynamic=False)(X)
    return [program, tensor]


def broken(number: int) -> list[Any]:
    program = made(f"def program(x):\n    for i in range(3):\n        x = x * {number}\n        dynacompile.graph_break()\n    return x + 1\n")
    compiled(program)(X)
    compiled(program)(torch.ones(5, 3))
    return [program, program.__code__]


def sizes(number: int) -> list[Any]:
    program = made(f"def program(x, n):\n    return (torch.sin(x) * {number}).sum(0) + n\n")
    for size in (2, 3, 5):
        compiled(program)(torch.ones(size, 3), size + 1)
    return [program, program.__code__]


def twin(number: int) -> list[Any]:
    model = Model()
    dynacompile.compile(model, isolate_recompiles=True, options={"reference": True})(X).sum().backward()
    return [model, model.scale]


def in_place(number: int) -> list[Any]:
    model = Model()
    compiled(model, inplace=True)
    model(X)
    return [model, model.scale]


def method(number: int) -> list[Any]:
    model = Model()
    compiled(model.forward, isolate_recompiles=True)(X)
    return [model, model.layer.weight]


def raising(number: int) -> list[Any]:
    program = made(f"def program(x):\n    y = torch.sin(x) * {number}\n    if x.shape[0] == 4:\n        raise ValueError('no')\n    return y\n")
    with pytest.raises(ValueError, match="no"):
        compiled(program)(X)
    compiled(program)(torch.ones(3))
    return [program, program.__code__]


def failing_backend(number: int) -> list[Any]:
    def backend(graph: Any, inputs: Any) -> Any:
        raise ZeroDivisionError("division")

    program = made(f"def program(x):\n    return torch.sin(x) * {number}\n")
    with pytest.raises(Exception, match="division"):
        dynacompile.compile(program, backend=backend)(X)
    return [program, program.__code__]


@pytest.fixture(scope="module", autouse=True)
def nothing_older_is_looked_at() -> None:
    """Collections and counts go through what these tests make, not through all that the process had before."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_records(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest keeps what is logged."""
    monkeypatch.setattr(type(caplog.handler), "emit", lambda self, record: None)


def collect() -> None:
    for _ in range(MOST_COLLECTIONS):
        if not gc.collect():
            return


def sort_of(value: object) -> str:
    """Of functions in C, and of references that call something, also which one."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    called = value if isinstance(value, BuiltinMethodType) else getattr(value, "__callback__", None) if isinstance(value, weakref.ref) else None
    return f"{name} of {getattr(called, '__qualname__', called)}" if called is not None else name


def live() -> Counter[str]:
    FakeTensorMode.cache_clear()
    collect()
    return Counter(map(sort_of, gc.get_objects()))


SORTS = (function, isolated, equal_code, each_other, closure, broken, sizes, twin, in_place, method, raising, failing_backend)


@pytest.mark.parametrize("once", SORTS, ids=[sort.__name__ for sort in SORTS])
def test_rounds_of_compile_call_and_drop(once: Callable[[int], list[Any]]):
    """Nothing grows with the rounds. Caches of the process may fill up once, as those of abstract classes do with classes that they are asked about."""

    def rounds(first: int, count: int) -> list[weakref.ref]:
        return [weakref.ref(value) for number in range(first, first + count) for value in once(number)]

    def grown(first: int) -> dict[str, int]:
        before = live()
        alive = rounds(first, ROUNDS)
        gc.collect()
        assert not any(reference() is not None for reference in alive)
        alive.clear()
        collect()
        rounds(first + ROUNDS, 1)  # notes of code that is gone are read by the next compile
        return {name: count - before[name] for name, count in live().items() if count - before[name] >= ROUNDS // 2}

    rounds(2, 3)
    found = grown(10)
    again = grown(100) if found else {}
    assert not {name: (count, again[name]) for name, count in found.items() if name in again}


def shape_envs() -> list[Any]:
    module = sys.modules.get("torch.fx.experimental.symbolic_shapes")
    return [value for value in gc.get_objects() if module is not None and isinstance(value, module.ShapeEnv)]


def symbolic(number: int) -> list[Any]:
    program = made(f"def program(x):\n    return (torch.sin(x) * {number}).sum(0) + x.shape[0]\n")
    compiled(program, dynamic=True)(X)
    return [program]


def symbolic_and_refused(number: int) -> list[Any]:
    def backend(graph: Any, inputs: Any) -> Any:
        raise ZeroDivisionError("division")

    program = made(f"def program(x):\n    return (torch.sin(x) * {number}).sum(0) + x.shape[0]\n")
    with pytest.raises(Exception, match="division"):
        dynacompile.compile(program, backend=backend, dynamic=True)(X)
    return [program]


@pytest.mark.parametrize("once", [symbolic, sizes, broken, symbolic_and_refused], ids=lambda once: once.__name__)
def test_shape_envs_need_no_third_collection(once: Callable[[int], list[Any]]):
    """Full collections are rare in a large process. The first finds the function, whose code leads to the graph through C++; the second finds the graph."""
    once(70)
    collect()
    before = len(shape_envs())
    gc.disable()
    try:
        for number in range(3):
            once(80 + number)
        gc.collect()
        gc.collect()
        assert len(shape_envs()) <= before
    finally:
        gc.enable()


def test_programs_that_are_compiled_after_a_reset_are_dropped():
    """The parts of a loop behind its break lead to each other through their code, which no collection of garbage sees."""
    dynacompile.reset()
    before = len(shape_envs())
    for number in range(3):
        broken(90 + number)
    collect()
    assert len(shape_envs()) <= before


def test_a_running_frame_whose_function_is_dropped():
    """The part behind a break is compiled while neither the function nor its code is there any more."""
    source = "def program(x):\n    y = x * 2\n    drop()\n    y = y + 1\n    drop()\n    return y.sin()\n"
    for _ in range(2):
        held: list[Any] = []

        def drop(held=held) -> None:
            held.clear()
            gc.collect()

        held.append(made(source, drop=dynacompile.disable(drop)))
        run = compiled(held[0], isolate_recompiles=True)
        held.append(run)
        call = held[1].__call__
        del run
        assert torch.equal(call(X), torch.sin(X * 2 + 1))


def test_reset_reaches_code_objects_that_are_equal():
    programs = [made("def program(x):\n    return x + 41\n") for _ in range(2)]
    for program in programs:
        compiled(program)(X)
    dynacompile.reset()
    assert [native.core().entries(program.__code__) for program in programs] == [[], []]
