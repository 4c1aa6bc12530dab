"""Symbolic sizes: torch's ShapeEnv without Dynamo, fakes whose sizes are symbols.

torch's module for symbolic shapes, and SymPy, cost a third of a second: they are imported by name when a compile first needs symbols (`shape_envs.py`).
"""

from __future__ import annotations

import importlib
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from dynacompile.config import Bounds
from dynacompile.ir.expressions import Quantity
from dynacompile.ir.fakes import FakeMode, fake_mode
from dynacompile.ir.repeated_fakes import repeated
from dynacompile.ir.resized_fakes import RESIZED_FAKES
from dynacompile.ir.shape_envs import SYMBOLIC, shape_env
from dynacompile.ir.source import Source
from dynacompile.ir.zero_one import lenient, may_be_one
from dynacompile.private import of_torch
from dynacompile.private.of_torch import FakeTensorMode, TorchSource

FUNCTIONALIZE = of_torch.DispatchKeySet(of_torch.functionalize_key)
NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
LEAST = 2
"""Sizes 0 and 1 are constants, unless a mark or a setting allows for 1: torch broadcasts and strides them differently."""
LARGEST = 2**31 - 1
"""Sizes and integers that kernels count with are at most this."""


@dataclass(frozen=True)
class ShapePolicy:
    """Which sizes, ints and floats of a frame become symbols.

    everything: all that are no module state. sizes, strides: dimensions by the source of the tensor. numbers: sources of ints and floats.
    flags: sources of bools and texts that vary; no symbols, but values that an entry relies on only where they are read.
    changing: sources of containers that had other items for each of many entries, and of numbers and texts that were keys; what has to know all items, or
    such a key, is left to Python.
    declared: dimensions and their ranges by the user's name for the tensor. marks: there are tensors with marks, or ints of loops, or varying numbers
    that were read. loops: such ints, of loops that go on after a graph break, are symbols. varying: ends of the paths of numbers that are, too.
    ones: sizes may be 1 in the entry for others. ints, floats: such numbers may be symbols. values: so may what depends on the values of tensors;
    None: where the frame then has no break.
    """

    everything: bool = False
    sizes: Mapping[Source, frozenset[int]] = field(default_factory=dict)
    strides: Mapping[Source, frozenset[int]] = field(default_factory=dict)
    numbers: frozenset[Source] = frozenset()
    flags: frozenset[Source] = frozenset()
    changing: frozenset[Source] = frozenset()
    declared: Mapping[str, Mapping[int, Bounds]] = field(default_factory=dict)
    marks: bool = False
    ints: bool = True
    floats: bool = True
    values: bool | None = False
    loops: bool = False
    varying: tuple[str, ...] = ()
    ones: bool = False

    @property
    def varied(self) -> frozenset[Source]:
        """Where numbers of Python lie that vary, bools among them."""
        return self.numbers | self.flags

    def __bool__(self) -> bool:
        """Whether the capture needs symbols."""
        return self.marks or self.everything or self.values or bool(self.sizes or self.strides or self.numbers or self.declared)


class Named(TorchSource):
    """A quantity as ShapeEnv names where a symbol comes from."""

    def __init__(self, text: str):
        self.__dict__["name"] = text


def symbolic_rules(mode: FakeTensorMode) -> AbstractContextManager:
    """While operations run on symbolic sizes: composite ops by torch's Python rules, for those in C++ read sizes as numbers in torch 2.11."""
    return nullcontext() if mode.shape_env is None else of_torch.enable_python_dispatcher()


def symbolic_mode(site: Callable[[], Any], values: bool = False) -> FakeMode:
    """A mode for fakes with symbolic sizes. torch's cache of fake results is off, since a cached result would install no guards."""
    divide_without_asking()
    mode = fake_mode(shape_env=shape_env(site, values), static_shapes=False)
    mode.cache_enabled = False
    this, dispatch = weakref.ref(mode), type(mode).dispatch
    small = mode.shape_env.small = lenient(mode.shape_env)  # type: ignore[union-attr]

    def ruled(mode: FakeMode, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        with small.within(func, args):
            return dispatch(mode, func, types, args, kwargs)

    def decomposed(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        mode = this()
        assert mode is not None  # it is what is called
        rule = RESIZED_FAKES.get(func)
        if rule is None:
            return repeated(mode, func, args, kwargs or {}, lambda: ruled(mode, func, types, args, kwargs))
        with of_torch.ExcludeDispatchKeyGuard(FUNCTIONALIZE), mode:
            return rule(*args, **(kwargs or {}))

    mode.dispatch = decomposed  # type: ignore[method-assign]
    return mode


def divide_without_asking() -> None:
    """Rules for pools divide by a function that in torch 2.11 asks whether there is a remainder, to correct what Python's division has rounded down already:
    a guard on the parity of a size. Python's division gives everybody the same numbers, so it takes that function's place once and for good."""
    rules: Any = of_torch.meta_registrations
    if hasattr(rules, "div_rtn"):
        rules.div_rtn = operator.floordiv


def new_symbol(env: Any, quantity: Quantity, value: int, low: int | None, high: int | None = None) -> torch.SymInt:
    """A symbol for a quantity that is `value` at this call, and from `low` to `high` at every call. low: None for any int."""
    module = importlib.import_module(SYMBOLIC)
    text = quantity.text()
    positive = True if low is not None and low > 0 else None
    symbol = env.create_symbol(value, Named(text), module.DimDynamic.DYNAMIC, None, positive, do_not_specialize_zero_one=True)
    narrow(env, symbol, -LARGEST - 1 if low is None else low, LARGEST if high is None else high)
    if low == 1:
        may_be_one(env, symbol, value)
    return env.create_symintnode(symbol, hint=value, source=Named(text))


def narrow(env: Any, symbol: Any, low: int, high: int) -> None:
    """Notes between which ints a symbol lies at every call."""
    env.var_to_range[symbol] = importlib.import_module("torch.utils._sympy.value_ranges").ValueRanges(low, high)


def new_real(env: Any, text: str, value: float) -> torch.SymFloat:
    """A symbol for a float that is `value` at this call. text: where it comes from, for the user."""
    dynamic = importlib.import_module(SYMBOLIC).DimDynamic.DYNAMIC
    symbol = env.create_symbol(value, Named(text), dynamic, None, None, do_not_specialize_zero_one=True)
    return env.create_symfloatnode(symbol, hint=value, source=Named(text))


def expression_of(number: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The number as a value that can be compared and hashed without a guard: an int, or a SymPy expression."""
    if isinstance(number, int):
        return number
    expr = number.node.expr
    return int(expr) if expr.is_Integer else expr


def as_static(number: Any) -> Any:
    """A SymInt whose value is known for all calls as an int; everything else as it is."""
    if isinstance(number, (torch.SymInt, torch.SymFloat)):
        expr = number.node.expr
        return (int if isinstance(number, torch.SymInt) else float)(expr) if expr.is_number else number
    return number


EXAMPLE = 1024  # in the place of a size that depends on values, which no call has shown yet


def hint_of(number: Any) -> int:
    """The number at the call that is compiled. Adds no guard."""
    if isinstance(number, torch.SymInt) and not number.node.has_hint():
        return EXAMPLE
    return int(number.node.hint) if isinstance(number, torch.SymInt) else int(number)


def is_undecided(error: BaseException) -> bool:
    """Whether torch asked for a condition on numbers that depend on the values of tensors."""
    return type(error).__name__ == "GuardOnDataDependentSymNode"


def is_undecidable(*numbers: Any) -> bool:
    """Whether one of the numbers depends on the values of tensors."""
    return any(isinstance(n, torch.SymInt) and unbacked(n) for n in numbers)


def is_never_negative(number: int | torch.SymInt, sizes: Sequence[int | torch.SymInt]) -> bool:
    """Whether a sum of products is known not to be negative where none of the sizes is 0, whatever values tensors have. Adds no guard."""
    expr = expression_of(number)
    if isinstance(expr, int):
        return expr >= 0
    ranges = number.node.shape_env.var_to_range  # type: ignore[union-attr]
    positive = {expression_of(size) for size in sizes}
    least = {s: 1 if s in positive else ranges[s].lower for s in expr.free_symbols}
    if not all(0 <= low < LARGEST for low in least.values()):
        return False
    beyond = {s: importlib.import_module("sympy").Dummy(integer=True, nonnegative=True) for s in least}
    found = expr.xreplace({s: beyond[s] + low for s, low in least.items()}).as_poly(*beyond.values())
    return found is not None and all(c >= 0 for c in found.coeffs())


def exceeds(number: int | torch.SymInt, limit: int) -> bool:
    """number > limit; True where it depends on the values of tensors."""
    return is_undecidable(number) or bool(number > limit)


def unbacked(number: Any) -> list[Any]:
    """The symbols in a number that depend on the values of tensors."""
    known = number.node.shape_env.backed_var_to_val
    return sorted((s for s in number.node.expr.free_symbols if s not in known), key=str)


def value_symbols(number: Any) -> list[Any]:
    """The symbols in a number, as it was made, that stand for values of tensors. Torch may have found since that the program needs constants there: it still
    is to be checked that a run has these."""
    known = number.node.shape_env.backed_var_to_val
    return sorted((s for s in number.node._expr.free_symbols if s not in known), key=str)


def same_size(left: Sequence[int | torch.SymInt], right: Sequence[int | torch.SymInt]) -> bool:
    """Whether they are known to be equal at every call. Adds no guard."""
    return len(left) == len(right) and all(expression_of(a) == expression_of(b) for a, b in zip(left, right))
