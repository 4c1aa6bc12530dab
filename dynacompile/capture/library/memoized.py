"""Functions behind functools.lru_cache."""

from __future__ import annotations

import functools
import gc
import types
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import Value, wraps
from dynacompile.capture.values.constant import is_constant_object
from dynacompile.capture.values.descriptors import LruWrapper
from dynacompile.capture.values.functions import CallableValue
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.rows import row_of
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.capture.values.trusted_modules import has_pure_functions, is_trusted
from dynacompile.ir.guard_facts import Presence, hashes_by_identity, identity
from dynacompile.ir.recurrence import check_recurs
from dynacompile.ir.source import Constant, Item, Remembered, Source
from dynacompile.native import core as native_core

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


class MemoizedFunction(CallableValue):
    """A cached function. What its cache has for a call is read there, by a source of its own, and the residual code makes the call, too, which the
    cache counts; the entry relies on that the cache still has it. Where it has nothing, Python makes the call.

    Functions of libraries that are taken as they are or are known as pure, and those that are marked as constant, are asked while the graph is made.
    """

    def __init__(self, real: Any, source: Source):
        self.real, self.source = real, source

    def describe(self) -> str:
        return f"{self.source.text()}, a cached function" if self.source else "a cached function"

    def name(self) -> str:
        """What it is called in texts; caches of partial functions and of objects have no name of their own."""
        return getattr(self.real, "__qualname__", type(self.real.__wrapped__).__qualname__)

    def pytype(self) -> type:
        return LruWrapper

    def identity(self) -> Any:
        return self.real

    def has_attr(self, cx: Context, name: str) -> bool:
        return hasattr(self.real, name)

    def get_attr(self, cx: Context, name: str) -> Value:
        if name == "__wrapped__":
            return self.wrapped(cx)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return cx.of(getattr(self.real, name))
        raise unsupported("unknown-attribute", f"{self.describe()}: {name}")

    def wrapped(self, cx: Context) -> Value:
        return cx.wrap(self.real.__wrapped__, Constant(self.real.__wrapped__, f"{self.name()}.__wrapped__"))

    def call(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        marked = getattr(self.real.__wrapped__, "_dynamo_marked_constant", False)  # by torch.compiler.assume_constant_result
        if marked or has_pure_functions(getattr(self.real.__wrapped__, "__module__", None)):
            return self.ask(cx, args, kwargs)
        cache = cache_of(self.real)
        key = None if cache is None else self.key(cx, args, kwargs)
        if cache is None or key is None:
            raise unsupported("unknown-function", f"{self.describe()}, with arguments that a guard can't look up in its cache,")
        bounded = self.real.cache_parameters()["maxsize"] is not None
        if bounded and not native_core().links_are_known():
            raise unsupported("unknown-function", f"{self.describe()}, of bounded size, on a Python whose caches have entries of unknown form,")
        place = Constant(cache, f"the cache of {self.name()}")
        if cx.fullgraph and key not in cache and not cx.effects:
            self.ask(cx, args, kwargs)
        if key not in cache:
            cx.guard("DICT_CONTAINS", place, Presence(key, False))
            raise unsupported("unknown-function", f"{self.describe()}, whose cache has no result for this call yet,")
        entry: Source = Item(place, key)
        real, source = (native_core().link_result(cache[key]), Remembered(entry)) if bounded else (cache[key], entry)
        again = functools.partial(call_again, self.real, tuple(kwargs)) if kwargs else self.real
        cx.effects.defer(again, [*args, *kwargs.values()], cx.frames[0].current.position)
        return cx.wrap(real, source)

    def ask(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The result, where it is immutable and the arguments are constants; else the function is followed past its cache."""
        try:
            result = self.run(cx, args, kwargs)
        except NotConstant:
            return self.wrapped(cx).call(cx, args, kwargs)
        except Exception as reason:  # the program's own
            check_recurs(reason, lambda: self.run(cx, args, kwargs))
            raise raises(type(reason), str(reason), known=False, by_user=True) from reason
        if is_immutable(result):
            return cx.of(result)
        if not is_trusted(getattr(self.real.__wrapped__, "__module__", None)):  # the cache has it from now on, and others may know it as one object
            return cx.wrap(result, Constant(result, f"what {self.name()} gives"))
        return self.wrapped(cx).call(cx, args, kwargs)

    def run(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Any:
        with cx.overrides.in_force():
            return self.real(*(known(a) for a in args), **{k: known(v) for k, v in kwargs.items()})

    def key(self, cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Any:
        """What the cache finds a call by, as functools makes it; None where an argument is not known, or has a hash of its own."""
        try:
            positional, named = [part(cx, a) for a in args], {k: part(cx, v) for k, v in kwargs.items()}
        except NotConstant:
            return None
        typed = self.real.cache_parameters()["typed"]
        if not typed and not named:
            return positional[0] if len(positional) == 1 and type(positional[0]) in (str, int) else tuple(positional)
        key = list(positional)
        if named:
            key += [gc.get_referents(self.real)[MARK], *(item for pair in named.items() for item in pair)]
        if typed:
            key += [type(value) for value in (*positional, *named.values())]
        return tuple(key)


def call_again(function: Any, names: tuple[str, ...], *args: Any) -> None:
    """The call, the last arguments by names."""
    first = len(args) - len(names)
    function(*args[:first], **dict(zip(names, args[first:])))


def part(cx: Context, value: Value) -> Any:
    """An argument as a part of a key."""
    value = cx.force(value)
    if isinstance(value, TupleValue) and value.cls in (tuple, torch.Size):
        return tuple(part(cx, item) for item in value.elements(cx))
    if isinstance(value, TensorValue):
        raise NotConstant(value.describe())
    real = value.identity()
    if type(real) in KEYS:
        return real
    if not hashes_by_identity(real) or value.source is None:
        raise NotConstant(value.describe())
    cx.guard("ID", value.source, identity(real))
    return real


KEYS = frozenset({int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
CACHE, MARK = -6, -4  # of what a cached function refers to


def cache_of(real: Any) -> dict | None:
    """The dict of a cached function; None where it is not found, or remembers nothing."""
    found = gc.get_referents(real)
    if len(found) < -CACHE or type(found[CACHE]) is not dict or type(found[MARK]) is not object or real.cache_parameters()["maxsize"] == 0:
        return None
    return found[CACHE]


def known(value: Value) -> Any:
    """The constant, where it is one by itself or a tuple of such."""
    found = value.constant()
    if not is_immutable(found):
        raise NotConstant(value.describe())
    return found


def is_immutable(real: Any) -> bool:
    return is_constant_object(real) or isinstance(real, (type, types.FunctionType)) or type(real) is tuple and all(is_immutable(item) for item in real)


@wraps(LruWrapper)
def wrap_memoized(cx: Context, real: Any, source: Source) -> Value:
    cx.guard("ID", source, identity(real))
    row = row_of(real)
    return MemoizedFunction(real, source) if row is None else BuiltinValue(real, row, source)
