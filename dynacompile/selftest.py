"""The start-up self-test of the native core: what its hot path assumes about this CPython and this torch, tried once per process (about 1 ms).

Each check returns what is wrong, or an empty string.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

STATE_BUCKET = 2**31 - 1  # a bucket that no compile gets; its entries go with the test's RegionState


def failure(core: ModuleType) -> str:
    """The first assumption that does not hold, or an empty string. Dict tags and watchers and entries of caches that are not as expected are not used, and are
    no failure."""
    for check in (swap, closure, growth, generator, callback_error, tensor_reading):
        try:
            wrong = check(core)
        except (RuntimeError, TypeError, ValueError, SystemError) as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return f"the native core's self-test {check.__name__!r} failed: {wrong}"
    core.use_dict_tags(changes_are_visible(core.dict_tag))
    core.use_dict_watchers(changes_are_visible(core.dict_epoch))
    try_links(core)
    return ""


def region(core: ModuleType, function: Callable[..., Any], code: CodeType) -> Any:
    """`function`, whose own frame runs `code` instead."""
    original = function.__code__

    def on_miss(frame: Any, state: Any) -> Any:
        return core.Entry(code, core.GuardProgram([], [], [])) if frame.code is original else core.SKIP

    return core.Region(function, on_miss, core.RegionState(STATE_BUCKET, False, 8, 256, "self-test", None))


def twice(call: Callable[..., Any], *args: Any, expected: Any) -> str:
    """Calls twice (a miss, then a hit) and compares."""
    got = [call(*args) for _ in range(2)]
    return "" if got == [expected] * 2 else f"expected {expected!r} twice, got {got!r}"


def fresh(function: Any, closure: tuple | None = None) -> FunctionType:
    """The function with a code object of its own, so that the test leaves nothing on shared code."""
    return FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, closure)


def swap(core: ModuleType) -> str:
    def original(a: int, b: int = 2) -> int:
        return a + b

    def replacement(a: int, b: int = 2) -> int:
        first, second = a * 10, b * 10
        return first + second

    return twice(region(core, fresh(original), fresh(replacement).__code__), 1, expected=30)


def closure(core: ModuleType) -> str:
    n = 5

    def original(a: int) -> int:
        return a + n

    def replacement(a: int) -> int:
        return (lambda: a * 100 + n)()

    return twice(region(core, fresh(original, original.__closure__), fresh(replacement, replacement.__closure__).__code__), 1, expected=105)


def growth(core: ModuleType) -> str:
    """Replacement code with 300 locals, run at many depths of the data stack."""

    def original(a: int, *rest: int, key: int = 0) -> Any:
        return None

    namespace: dict[str, Any] = {}
    body = "".join(f" v{i} = a\n" for i in range(300))
    exec(f"def replacement(a, *rest, key=0):\n{body} return v299, rest, key\n", namespace)
    function = region(core, fresh(original), namespace["replacement"].__code__)

    def at_depth(depth: int) -> bool:
        return function(1, 2, key=3) == (1, (2,), 3) and (depth == 0 or at_depth(depth - 1))

    return "" if at_depth(60) else "a frame that outgrew its stack chunk gave a wrong result"


def generator(core: ModuleType) -> str:
    def inner(a: int) -> int:
        return a

    def original(a: int) -> Iterator[int]:
        yield inner(a)
        yield inner(a + 1)

    call = region(core, fresh(original, original.__closure__), (lambda: None).__code__)
    return twice(lambda: list(call(1)), expected=[1, 2])


def callback_error(core: ModuleType) -> str:
    def original(a: int) -> int:
        return a

    def on_miss(frame: Any, state: Any) -> Any:
        raise KeyError("self-test")

    call = core.Region(fresh(original), on_miss, core.RegionState(STATE_BUCKET, False, 8, 256, "self-test", None))
    for _ in range(3):
        try:
            call(1)
        except KeyError:
            continue
        return "an error in the callback did not reach the caller"
    return ""


def tensor_reading(core: ModuleType) -> str:
    with torch.inference_mode(False):
        tensor = torch.empty(2, 3, dtype=torch.float64, device="cpu")
        facts = (torch.Tensor, torch.float64, torch.device("cpu"), False, (2, 3), (3, 1))
        program = core.GuardProgram([("slot", -1, 0)], [("tensor", 0, facts, 0)], [])
        others = (tensor.t(), tensor.float(), tensor.new_empty(3, 3), torch.nn.Parameter(tensor), tensor.clone().requires_grad_())
        answers = [program.check((value,), None, {}, {}) for value in (tensor, *others)]
    return "" if answers == [True] + [False] * len(others) else f"tensor checks answered {answers}"


def try_links(core: ModuleType) -> bool:
    """Whether the core finds what functools.lru_cache remembers in the entries of a bounded cache, which no function of Python gives."""

    @functools.lru_cache(maxsize=2)
    def remembered(name: str) -> object:
        return object()

    results = {name: remembered(name) for name in ("first key of the self-test", "second key of the self-test")}
    entries = [(found, name) for found in gc.get_referents(remembered) if type(found) is dict for name in results if name in found]
    return len(entries) == len(results) and all(core.try_links(found[name], name, results[name]) for found, name in entries)


def changes_are_visible(number: Callable[[Any], int]) -> bool:
    """Whether every way to change an object's dict changes what `number` gives for the object."""

    class Thing:
        a: int

    thing = Thing()
    thing.__dict__["table"] = {}
    changes: tuple[Callable[[], Any], ...] = (
        lambda: setattr(thing, "a", 1),
        lambda: setattr(thing, "a", 2),
        lambda: object.__setattr__(thing, "b", 1),
        lambda: delattr(thing, "b"),
        lambda: thing.__dict__.update(a=3),
        lambda: thing.__dict__.pop("a"),
    )
    seen = [number(thing)]
    for change in changes:
        change()
        seen.append(number(thing))
    for value in range(200):  # long enough for the interpreter to specialise the store
        thing.a = value
        seen.append(number(thing))
    return len(set(seen)) == len(seen)
