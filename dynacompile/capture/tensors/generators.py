"""torch.manual_seed, torch.get_rng_state and their like, and torch.Generator objects."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.random_state import MadeValue, RandomState
from dynacompile.capture.values.base import Method, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.replaced import hidden_from_dynamo
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.symbolic import SymbolicInt
from dynacompile.ir.guard_facts import Flag
from dynacompile.ir.namespaces import class_lookup, defines
from dynacompile.ir.source import Applied, Attr, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

NONE = ConstantValue(None)


class StateValue(MadeValue):
    """The state of a generator, as residual code has it."""

    def __init__(self) -> None:
        super().__init__(torch.Tensor)

    def describe(self) -> str:
        return "the state of a random generator"


class TorchGenerator(MadeValue):
    """A torch.Generator. real: where it exists before the frame. Its calls are made before the graph."""

    def __init__(self, device: torch.device, real: torch.Generator | None = None, source: Source | None = None):
        super().__init__(torch.Generator)
        self.device, self.real, self.source = device, real, source

    def describe(self) -> str:
        return "a random generator" if self.source is None else self.source.text()

    def identity(self) -> Any:
        raise unsupported("random-state", f"{self.describe()}, compared by identity or as a key,")

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "device":
            return ConstantValue(self.device)
        return Method(self, name) if callable(class_lookup(torch.Generator, name)) and name != "__class__" else super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(torch.Generator, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        state = cx.state(RandomState)
        if name == "manual_seed" and len(args) == 1 and not kwargs:
            state.hoist(cx, torch.Generator.manual_seed, [self, seed(args[0])])
            return self
        if name == "set_state" and len(args) == 1 and isinstance(args[0], StateValue) and not kwargs:
            state.hoist(cx, torch.Generator.set_state, [self, args[0]])
            return self
        if name == "get_state" and not args:
            made = StateValue()
            state.hoist(cx, torch.Generator.get_state, [self], (), made)
            return made
        raise unsupported("random-state", f"{self.describe()}.{name}()")


def seed(value: Value) -> Value:
    if not isinstance(value, (ConstantValue, SymbolicInt)) or value.pytype() is not int:
        raise unsupported("random-state", f"a seed that is {value.describe()}")
    return value


def is_default(generator: torch.Generator) -> bool:
    return generator is torch.default_generator or generator in torch.cuda.default_generators


@wraps(torch.Generator)
def wrap_generator(cx: Context, real: torch.Generator, source: Source) -> Value:
    if is_default(real):
        raise unsupported("random-state", source.text())
    cx.guard("TYPE", source, torch.Generator)
    cx.guard("EQUALS", Attr(source, "device"), real.device)
    cx.guard("EQUALS", Applied(source, is_default, ", a default generator"), False)
    return TorchGenerator(real.device, real, source)


@handles(torch.Generator)
def row_generator(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    device = torch.device(*(a.constant() for a in (*args, *kwargs.values())) if args or kwargs else ("cpu",))
    made = TorchGenerator(device)
    cx.state(RandomState).hoist(cx, torch.Generator, [ConstantValue(device)], (), made)
    return made


def drawn(cx: Context, kind: str, target: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """An operation that takes a generator: its result is an input of the graph, where the operation takes no tensors; None where it takes no generator."""
    generator = kwargs.get("generator")
    if not isinstance(generator, TorchGenerator):
        return None
    if kind != "call_function" or cx.bodies or {"out", "requires_grad"} & kwargs.keys():
        raise unsupported("random-state", f"{getattr(target, '__name__', target)}, which draws from a generator of its own into a tensor,")
    try:
        known, named = [a.constant() for a in args], {k: v.constant() for k, v in kwargs.items() if k != "generator"}
    except NotConstant as reason:
        raise unsupported("random-state", f"{target.__name__} of a {reason}, which draws from a generator of its own,") from reason
    fake = cx.recorder.run("call_function", target, known, named)
    real = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return cx.state(RandomState).input(cx, target, [*args, *kwargs.values()], tuple(kwargs), real)


def changes(real: Callable[..., Any], count: int) -> None:
    """A function that seeds a default generator, or sets its state, and gives nothing that is asked for."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or not 1 <= len(args) <= count:
            raise unsupported("random-state", real.__name__)
        first = args[0] if isinstance(args[0], StateValue) else seed(args[0])
        if isinstance(args[0], StateValue) == ("seed" in real.__name__):
            raise unsupported("random-state", real.__name__)
        cx.state(RandomState).call(cx, real, [first, *(ConstantValue(a.constant()) for a in args[1:])])
        return NONE if "seed" not in real.__name__ else DefaultGenerator()


class DefaultGenerator(Value):
    """What torch.manual_seed gives."""

    def pytype(self) -> type:
        return torch.Generator

    def identity(self) -> Any:
        return torch.default_generator

    def rebuild(self, out: Writer) -> None:
        out.const(torch.default_generator)


def reads(real: Callable[..., Any]) -> None:
    """A function that gives the state of a default generator."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = StateValue()
        cx.state(RandomState).call(cx, real, [ConstantValue(a.constant()) for a in (*args, *kwargs.values())], made)
        return made


changes(hidden_from_dynamo(torch.manual_seed) or torch.manual_seed, 1)
changes(torch.set_rng_state, 1)
reads(torch.get_rng_state)
for _module in (torch.cuda.random,):
    changes(_module.manual_seed, 1)
    changes(_module.manual_seed_all, 1)
    changes(_module.set_rng_state, 2)
    reads(_module.get_rng_state)


@handles(torch.initial_seed)
def row_initial_seed(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if cx.state(RandomState):
        raise unsupported("random-state", "initial_seed after the frame changed the generator")
    cx.guard("FLAG", None, Flag("torch.initial_seed()", partial(torch.initial_seed), now := torch.initial_seed()))
    return ConstantValue(now)
