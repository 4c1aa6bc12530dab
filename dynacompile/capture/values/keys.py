"""What stands for a value as a key of a dict or set."""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING

import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import KeyOf, Lazy, Value
from dynacompile.capture.values.constant import CONSTANT_TYPES, ConstantValue, has_one_object, is_identity_key
from dynacompile.capture.values.identities import IdKey
from dynacompile.capture.values.own_methods import KEYS, refuse_own
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.guard_facts import identity, is_a
from dynacompile.ir.source import Source
from dynacompile.native import core as native_core

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


FOUND_BY_VALUE = (int, float, complex, str, bytes, tuple, frozenset, range)
"""Keys that an equal object finds, too: which of these it is matters to nobody."""


def key_of(value: Value) -> Hashable:
    """What a dict that capture keeps has in the place of a key: the constant where it is known completely, the tensor or function that it is, or the value
    itself where the object is found by identity. Such an object is told apart from the others that are keys: see `Value.told_apart`."""
    own = value.own_key()
    if own is not None:
        return own
    real = getattr(value, "real", None)
    if is_a(real, torch.Tensor) or real is not None and value.source is not None and is_found_by_identity(real):
        value.told_apart = True
        return real
    if isinstance(value, TupleValue):
        return key_of_tuple(value)
    try:
        found: Hashable = value.identity()
    except NotConstant:
        cls = value.pytype()
        if cls.__hash__ is None:
            raise unsupported("would-raise", f"unhashable type: {cls.__name__!r}") from None
        if not finds_by_identity(cls):
            raise unsupported("unknown-operation", f"{value.describe()} as a key, which has its own __hash__") from None
        value.told_apart = True
        return value
    if isinstance(value, ConstantValue) and found != found:  # a NaN, which only the object itself finds
        raise unsupported("unknown-operation", f"{value.describe()} as a key")
    value.told_apart = not isinstance(value, ConstantValue) and not is_a(found, (type, *FOUND_BY_VALUE))
    return found


@dataclass(frozen=True)
class TupleKey(KeyOf):
    """Of a tuple with elements of which it is known what equals them, and nothing else."""

    items: tuple[Hashable, ...]


def key_of_tuple(value: TupleValue) -> Hashable:
    if value.cls is not tuple:
        return value.constant()
    items = tuple(key_of(item.force() if isinstance(item, Lazy) else item) for item in value.items)
    return TupleKey(items) if any(isinstance(item, (Value, KeyOf)) for item in items) else items


def check_numbers(hashed: Hashable, keys: Collection[Hashable]) -> None:
    """Refuses ids beside numbers, one of which may be it."""
    if is_a(hashed, IdKey):
        mixed = any(is_a(key, int) for key in keys)
    else:  # ids stand beside no numbers so far
        mixed = is_a(hashed, int) and is_a(next(iter(keys), None), IdKey)
    if mixed:
        raise unsupported("unknown-operation", "an id as a key beside numbers")


def is_known_key(real: object) -> bool:
    """Whether the key of a dict that exists before the frame is known completely, and guards can look it up."""
    if type(real) is tuple or type(real) is frozenset:
        return all(map(is_known_key, real))
    known = type(real) in CONSTANT_TYPES or is_a(real, enum.Enum) or is_identity_key(real)
    return known and bool(native_core().can_be_key(real))


def known_key(cx: Context, real: object) -> Value:
    """The value of such a key, which guards compare."""
    found = cx.of(real)
    found.is_copy = is_a(real, FOUND_BY_VALUE) and not has_one_object(real)
    return found


def finds_by_identity(cls: type) -> bool:
    """Whether objects of a class hash by what they are and not by what they hold. torch's own classes that write a hash hash by identity."""
    written = cls.__hash__
    return written is object.__hash__ or isinstance(written, FunctionType) and written.__module__.partition(".")[0] == "torch"


def is_found_by_identity(real: object) -> bool:
    """Whether an object of before the frame is a key that nothing else equals, and that says so by no method of its own."""
    cls = type(real)
    return cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__


def as_keys(cx: Context, values: Sequence[Value]) -> Sequence[Value]:
    """Values that become keys. Of constants and classes, which are found by identity, a class that says otherwise is left to Python."""
    for value in values:
        if isinstance(value, ConstantValue) or is_a(getattr(value, "real", None), type):
            refuse_own(cx, value.pytype(), *KEYS)
    return values


def key_in(cx: Context, key: Value, container: Source | None, content: Collection[Hashable]) -> Hashable:
    """What stands for a key that is looked up, or stored, in a container that may exist before the frame. content: the keys that it has."""
    refuse_own(cx, key.pytype(), *KEYS)
    if container is not None and cx.policy is not None and cx.policy.changing:
        numbers, changing = set(key.numbers()), cx.policy.changing
        if numbers and (container in changing or not changing.isdisjoint(numbers)):
            raise unsupported("changing-key", container.text())
    hashed = key_of(key)
    check_numbers(hashed, content)
    if container is None:
        return hashed
    if isinstance(hashed, KeyOf):  # the container has numbers or methods, one of which may be it
        raise unsupported("unknown-operation", f"{key.describe()} as a key of {container.text()}")
    if not isinstance(hashed, Value) and not isinstance(hashed, torch.Tensor) and not native_core().can_be_key(hashed):
        raise unsupported("unknown-operation", f"{key.describe()} ({type(hashed).__name__}) as a key of {container.text()}")
    if key.told_apart and key.source is not None and not isinstance(hashed, Value):
        cx.guard("ID", key.source, identity(hashed))
    return hashed
