"""Numbers that the generators of `random` and of `numpy.random` draw: the graph takes them as inputs.

Nothing in a graph draws from these generators. So residual code draws before it calls the graph, in the frame's order, and the program goes on with numbers
that are read from tensors (`read_numbers`): computed with, returned, and used as places. Where Python itself needs one (a branch, a size of what is made), the
graph ends, and by default, the frame is then captured as if it could not draw at all.
"""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.random_state import MadeValue, RandomState
from dynacompile.capture.values.base import Method, Value, wraps
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import RefusedValue
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.rows import handles, row_of
from dynacompile.capture.values.sequence import SequenceValue
from dynacompile.capture.values.symbolic import SymbolicInt
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import class_lookup, defines
from dynacompile.ir.source import Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

PYTHON = {
    **dict.fromkeys("random uniform triangular betavariate expovariate gammavariate gauss lognormvariate normalvariate".split(), float),
    **dict.fromkeys("vonmisesvariate paretovariate weibullvariate".split(), float),
    **dict.fromkeys("randint randrange getrandbits binomialvariate".split(), int),
}
NUMPY = dict.fromkeys("rand randn random random_sample uniform beta normal standard_normal exponential gamma laplace lognormal triangular".split(), float)
DRAWS: dict[type, dict[str, type]] = {
    random.Random: PYTHON,
    np.random.RandomState: {**NUMPY, "randint": int},
    np.random.Generator: {name: cls for name, cls in NUMPY.items() if name not in ("rand", "randn", "random_sample")},
}
"""What gives one Python number, by the class of the generator. (`Generator.integers` and `choice` of NumPy give numbers of NumPy.)"""
LARGEST = 2**63
CYTHON = type(np.random.RandomState.rand)


class DrawingValue(MadeValue):
    """A generator of Python's or NumPy's. source: where it existed before the frame; else residual code makes it before the graph."""

    def __init__(self, cls: type, source: Source | None = None, real: object = None):
        super().__init__(cls)
        self.source, self.real = source, real

    def describe(self) -> str:
        return f"a {self.cls.__qualname__} of the frame" if self.source is None else self.source.text()

    def identity(self) -> Any:
        return self.real if self.source is not None else super().identity()

    def truth(self, cx: Context) -> bool:
        return True

    def get_attr(self, cx: Context, name: str) -> Value:
        return Method(self, name) if callable(class_lookup(self.cls, name)) and name != "__class__" else super().get_attr(cx, name)

    def has_attr(self, cx: Context, name: str) -> bool:
        return defines(self.cls, name)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            args = [ConstantValue(tuple(item.constant() for item in a.items)) if isinstance(a, SequenceValue) else a for a in args]
            known = [a.constant() for a in args]
        except NotConstant as reason:
            raise unsupported("drawn-number", f"{self.describe()}.{name}() of a {reason}") from reason
        if kwargs or cx.effects.calls or cx.bodies:
            raise unsupported("drawn-number", f"{self.describe()}.{name}()")
        if name == "seed" and self.cls is not np.random.Generator and len(args) == 1 and is_seed(args[0]):
            cx.state(RandomState).hoist(cx, self.cls.seed, [self, *args])  # type: ignore[attr-defined]
            return ConstantValue(None)
        cls = type_of_draw(self.cls, name, known)
        if cls is None:
            raise unsupported("drawn-number", f"{self.describe()}.{name}()")
        if cx.symbols is None or not cx.symbols.policy.values:  # the frame is captured with symbols for values, by default where that makes it one graph
            raise unsupported("drawn-value", f"{self.describe().removesuffix(f'.{name}.__self__')}.{name}()")
        return drawn(cx, self, name, args, cls)

    def rebuild(self, out: Writer) -> None:
        if self.source is None:
            return super().rebuild(out)
        out.source(self.source)
        return None


def is_seed(value: Value) -> bool:
    """Whether every generator takes it as its seed."""
    return isinstance(value, ConstantValue) and type(value.value) is int and 0 <= value.value < 2**32


def type_of_draw(owner: type, name: str, args: list[Any]) -> type | None:
    """float or int, where the method with these arguments gives such a number, else None: what raises is left to Python."""
    if owner is random.Random and name == "choice" and len(args) == 1 and type(args[0]) in (tuple, range):
        kinds = {type(item) for item in args[0]}
        return next(iter(kinds)) if len(kinds) == 1 and kinds <= {int, float} and all(abs(item) < LARGEST for item in args[0]) else None
    cls = DRAWS[owner].get(name)
    if cls is None:
        return None
    try:
        found = {type(getattr(twin(owner), name)(*args)) for _ in range(4)}
    except (TypeError, ValueError, AttributeError, OverflowError):
        return None
    if found != {cls} or name == "randrange" and len(args) > 2:
        return None
    fits = args[0] < 64 if name == "getrandbits" else all(abs(a) < LARGEST for a in args if isinstance(a, int))
    return cls if fits or cls is float else None


def twin(owner: type) -> Any:
    """Another generator of the class."""
    return np.random.default_rng(0) if owner is np.random.Generator else owner(0)


def drawn(cx: Context, owner: DrawingValue, name: str, args: list[Value], cls: type) -> Value:
    """The number that residual code draws before the graph."""
    given = [owner, ConstantValue(name), ConstantValue(cls), *args]
    number = cx.state(RandomState).input(cx, tensor_of_draw, given, (), torch.zeros((), dtype=DTYPES[cls], device="cpu")).method(cx, "item", [], {})
    ends = [a.constant() for a in (args if len(args) > 1 else [ConstantValue(0), *args])[:2]]
    if isinstance(number, SymbolicInt) and cx.symbols is not None and name in ("randint", "randrange") and all(type(end) is int for end in ends):
        low, high = ends
        cx.symbols.bound(number.sym, low, high if (owner.cls, name) == (random.Random, "randint") else high - 1)
    return number


DTYPES = {float: torch.float64, int: torch.int64}


def tensor_of_draw(owner: Any, name: str, cls: type, *args: Any) -> torch.Tensor:
    """The number that a generator's method gives, in a tensor on the CPU: float64 or int64."""
    return torch.tensor(getattr(owner, name)(*args), dtype=DTYPES[cls], device="cpu")


def wrap_generator(cx: Context, real: object, source: Source) -> Value:
    cx.guard("TYPE", source, type(real))
    return DrawingValue(type(real), source, real)


@wraps(CYTHON)
def wrap_method(cx: Context, real: Any, source: Source) -> Value:
    """The function of a method of NumPy's global generator, as `numpy.random.rand`."""
    cx.guard("ID", source, identity(real))
    row = row_of(real)
    return RefusedValue(real, "unknown-function", source, source.text()) if row is None else BuiltinValue(real, row, source)


def makes(real: Callable[..., Any], cls: type) -> None:
    """A function that makes a generator from a seed."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or len(args) != 1 or not is_seed(args[0]):
            raise unsupported("drawn-number", f"a {cls.__qualname__} of another seed than an int")
        made = DrawingValue(cls)
        cx.state(RandomState).hoist(cx, real, args, (), made)
        return made


def follows(name: str, real: Callable[..., Any]) -> None:
    """A method that is found as a function: of random.Random, written in Python, or of NumPy's global generator."""

    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or not isinstance(args[0], DrawingValue):
            raise unsupported("drawn-number", f"random.Random.{name}")
        return args[0].method(cx, name, args[1:], kwargs)


@handles(np.random.seed)
def seed_numpy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if cx.effects.calls or len(args) != 1 or kwargs or not is_seed(args[0]):
        raise unsupported("drawn-number", "numpy.random.seed()")
    cx.state(RandomState).hoist(cx, np.random.seed, args)
    return ConstantValue(None)


makes(random.Random, random.Random)
makes(np.random.RandomState, np.random.RandomState)
makes(np.random.default_rng, np.random.Generator)
for _name, _real in vars(random.Random).items():
    if isinstance(_real, types.FunctionType) and not _name.startswith("_"):
        follows(_name, _real)
for _name in NUMPY | {"randint": int, "seed": None}:
    if hasattr(np.random.RandomState, _name):
        follows(_name, getattr(np.random.RandomState, _name))
for _cls in DRAWS:
    wraps(_cls)(wrap_generator)
