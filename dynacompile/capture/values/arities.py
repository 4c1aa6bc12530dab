"""How many arguments, and which keywords, a function takes that capture has a row for: a call that does not fit is left to Python, which refuses it.

The signature is the function's own where it tells one (`__text_signature__`), else that of a row below. A function without either is not checked.
"""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import math
import operator
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from dynacompile.capture.breaks import raises
from dynacompile.ir.namespaces import class_lookup

IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
CALLED = (*IN_C, type)
DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)


@dataclass(frozen=True)
class Arity:
    """names: of the parameters that positions fill, None for those that keywords do not. least: how many of these have no default. most: how many positional
    arguments are taken. keywords: names that are taken by keyword, None where any is. needed: those of them that have no default, and no position."""

    names: tuple[str | None, ...]
    least: int
    most: float
    keywords: frozenset[str] | None
    needed: frozenset[str]

    def takes(self, count: int, keywords: Collection[str]) -> bool:
        """Whether a call with so many positional arguments, and with these keywords, fits."""
        if not keywords:
            return self.least <= count <= self.most and not self.needed
        if count > self.most or not (self.keywords is None or self.keywords.issuperset(keywords)) or not self.needed.issubset(keywords):
            return False
        return not any(n in keywords for n in self.names[:count]) and all(name in keywords for name in self.names[count : self.least])


def arity_of(signature: inspect.Signature, skipped: int = 0) -> Arity:
    """skipped: of how many parameters at the beginning the caller gives no account."""
    parameters = list(signature.parameters.values())[skipped:]
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    kinds = {p.kind for p in parameters}
    return Arity(
        tuple(p.name if p.kind is p.POSITIONAL_OR_KEYWORD else None for p in placed),
        sum(p.default is p.empty for p in placed),
        math.inf if inspect.Parameter.VAR_POSITIONAL in kinds else len(placed),
        None if inspect.Parameter.VAR_KEYWORD in kinds else frozenset(p.name for p in named),
        frozenset(p.name for p in named if p.kind is p.KEYWORD_ONLY and p.default is p.empty),
    )


def none(self: Any, /) -> None: ...
def one(self: Any, value: Any, /) -> None: ...
def one_or_none(self: Any, value: Any = None, /) -> None: ...
def two(self: Any, first: Any, second: Any, /) -> None: ...
def one_or_two(self: Any, first: Any, second: Any = None, /) -> None: ...
def one_to_three(self: Any, first: Any, second: Any = None, third: Any = None, /) -> None: ...
def any_of(self: Any, /, *values: Any) -> None: ...
def filled(self: Any, other: Any = None, /, **entries: Any) -> None: ...


METHODS: dict[Callable, str] = {  # of classes whose methods tell no signature in some version of CPython
    none: "clear copy __copy__ __reversed__ keys values items reverse pop popleft __reduce__ __length_hint__",
    one: "add discard remove isdisjoint issubset issuperset symmetric_difference symmetric_difference_update append appendleft extend extendleft count "
    "__getitem__ __contains__ __missing__",
    one_or_none: "rotate",
    two: "insert",
    one_to_three: "index",
    any_of: "difference difference_update intersection intersection_update union update",
}
CLASSES = (set, frozenset, collections.deque, dict, collections.OrderedDict, collections.defaultdict, list, tuple)
OTHER_METHODS: dict[tuple[type, str], Callable] = {
    (dict, "pop"): one_or_two,
    (dict, "update"): filled,
    (collections.OrderedDict, "update"): filled,
    (collections.OrderedDict, "pop"): lambda self, key, default=None: None,
    **{(cls, "__reduce__"): none for cls in CLASSES},
}
FUNCTIONS: dict[Any, Callable] = {
    bool: lambda x=0, /: None,
    range: lambda start, stop=0, step=0, /: None,
    slice: lambda start, stop=0, step=0, /: None,
    set: lambda iterable=(), /: None,
    frozenset: lambda iterable=(), /: None,
    dict: lambda other=(), /, **entries: None,
    collections.OrderedDict: lambda other=(), /, **entries: None,
    collections.defaultdict: lambda default_factory=None, other=(), /, **entries: None,
    collections.deque: lambda iterable=(), maxlen=None: None,
    getattr: lambda object, name, default=0, /: None,
    vars: lambda object=0, /: None,
    dir: lambda object=0, /: None,
    iter: lambda object, sentinel=0, /: None,
    next: lambda iterator, default=0, /: None,
    zip: lambda *iterables, strict=False: None,
    map: lambda function, iterable, /, *iterables: None,
    filter: lambda function, iterable, /: None,
    max: lambda iterable, /, *others, key=None, default=0: None,
    min: lambda iterable, /, *others, key=None, default=0: None,
    functools.reduce: lambda function, iterable, initial=0, /: None,
    itertools.chain: lambda *iterables: None,
    itertools.islice: lambda iterable, start, stop=0, step=0, /: None,
    itertools.product: lambda *iterables, repeat=1: None,
    itertools.repeat: lambda object, times=1: None,
    itertools.zip_longest: lambda *iterables, fillvalue=None: None,
    functools.partial: lambda function, /, *args, **kwargs: None,
    operator.itemgetter: lambda item, /, *items: None,
    operator.attrgetter: lambda name, /, *names: None,
    operator.methodcaller: lambda name, /, *args, **kwargs: None,
    math.hypot: lambda *coordinates: None,
    math.log: lambda x, base=0, /: None,
}


def method_rows() -> dict[Any, Callable]:
    rows: dict[Any, Callable] = {}
    for row, names in METHODS.items():
        for cls, name in itertools.product(CLASSES, names.split()):
            rows[class_lookup(cls, name)] = row
    return rows | {class_lookup(cls, name): row for (cls, name), row in OTHER_METHODS.items()}


ROWS = method_rows() | FUNCTIONS
MODULES = frozenset({"builtins", "collections", "functools", "itertools", "operator"})
ARITIES: dict[Any, Arity | None] = {}  # of functions and classes that modules have, as they are asked for


def arity(function: Any) -> Arity | None:
    """Of a method: without the object that it is a method of. None where the signature is not known."""
    if function in ARITIES:
        return ARITIES[function]
    signature = signature_of(function)
    found = ARITIES[function] = None if signature is None else arity_of(signature, int(isinstance(function, (*DESCRIPTORS, types.FunctionType))))
    return found


def signature_of(function: Any) -> inspect.Signature | None:
    """What the function tells; its row where it tells nothing."""
    if isinstance(function, type) and function.__module__ not in MODULES:
        return None
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(ROWS[function]) if function in ROWS else None


def check_call(function: Any, args: Collection[object], kwargs: Collection[str]) -> None:
    """Leaves a call of a function written in C, or of a class, to Python where it does not take so many arguments, or such keywords."""
    if isinstance(function, CALLED):
        check(function, args, kwargs)


def check_method(cls: type, name: str, args: Collection[object], kwargs: Collection[str], after: type | None = None) -> None:
    """The same of a method, written in C or of a class of MODULES. after: the class behind which it is looked for."""
    raw = class_lookup(cls, name, after)
    if isinstance(raw, DESCRIPTORS) or isinstance(raw, types.FunctionType) and raw.__module__ in MODULES:
        check(raw, args, kwargs)


def check(function: Any, args: Collection[object], kwargs: Collection[str]) -> None:
    known = arity(function)
    if known is not None and not known.takes(len(args), kwargs):
        raise raises(TypeError, f"{getattr(function, '__qualname__', function)}() does not take such arguments", known=False)
