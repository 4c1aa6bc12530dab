"""Python's operators over tracked values: graph operations for tensors, folding for constants, methods for the rest."""

from __future__ import annotations

import operator
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence, Set
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import torch

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.operator_names import BINARY, COMPARISONS, INPLACE, UNARY
from dynacompile.capture.tensors.arrays import ArrayValue, array_operator
from dynacompile.capture.tensors.deferred_texts import DeferredText, UnreadText, concat, percent
from dynacompile.capture.tensors.number_tensors import number_operator
from dynacompile.capture.tensors.numpy_numbers import NumpyNumber, computed
from dynacompile.capture.tensors.overridden_operators import overridden_operator
from dynacompile.capture.tensors.random_state import MadeValue
from dynacompile.capture.tensors.read_numbers import ReadNumber, read_operator
from dynacompile.capture.tensors.storages import AddressValue
from dynacompile.capture.tensors.tensor import TensorValue, refuse_patched
from dynacompile.capture.tensors.truncated_numbers import TruncatedNumber
from dynacompile.capture.values.answers import answered, is_undecided
from dynacompile.capture.values.base import IteratorValue, Method, Value
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.classes import ClassDict, ClassValue
from dynacompile.capture.values.constant import CONSTANT_TYPES, ConstantValue, has_one_object
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.dict_operators import dict_operator
from dynacompile.capture.values.enum_members import EnumMember
from dynacompile.capture.values.exceptions import ExceptionValue
from dynacompile.capture.values.functions import BoundMethod, CallableValue, FunctionValue, RefusedValue
from dynacompile.capture.values.identities import IdValue
from dynacompile.capture.values.mapping import DictLike, DictView
from dynacompile.capture.values.objects import ObjectValue, OpaqueValue
from dynacompile.capture.values.own_methods import own_method, refuse_own
from dynacompile.capture.values.proxies import ProxyValue
from dynacompile.capture.values.references import Reference, WeakProxy
from dynacompile.capture.values.row_functions import BuiltinValue
from dynacompile.capture.values.sequence import ListValue, SequenceValue, TupleValue
from dynacompile.capture.values.set_operators import SET_METHODS, equal_views, set_binary
from dynacompile.capture.values.sets import SetValue
from dynacompile.capture.values.symbolic import SymbolicFloat, SymbolicInt, symbolic_operator
from dynacompile.capture.values.type_hints import described, spelled
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.namespaces import MISSING

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def apply_operator(cx: Context, name: str, args: Sequence[Value]) -> Value:
    """operator.name(*args)."""
    row = OTHER.get(name)
    if row is not None:
        return row(cx, *args)
    if name == "mod" and args[0].pytype() is str and (text := percent(cx, args[0], args[1])) is not None:
        return text
    if not OF_GRAPHS.isdisjoint(map(type, args)) and (found := graph_operator(cx, name, args)) is not None:
        return found
    if any(isinstance(a, WeakProxy) for a in args):
        return apply_operator(cx, name, [a.owner if isinstance(a, WeakProxy) else a for a in args])
    if any(isinstance(a, TensorValue) for a in args):
        refuse_patched(cx, *methods_of(name))
        found = overridden_operator(cx, name, args)
        return tensor_operator(cx, name, args) if found is None else found
    if any(isinstance(a, (SymbolicInt, SymbolicFloat)) for a in args):
        found = symbolic_operator(cx, INPLACE.get(name, name), args)
        if found is not None:
            return found
    if any(isinstance(a, NumpyNumber) for a in args):
        refuse_beside_numpy(args)
        return computed(cx, getattr(operator, name), args, {})
    if name in UNARY:
        return unary(cx, name, args[0])
    if name in INPLACE:
        return inplace(cx, name, args[0], args[1])
    return binary(cx, name, args[0], args[1])


def refuse_beside_numpy(args: Sequence[Value]) -> None:
    """Of numbers of NumPy's, operators are followed with other numbers, texts and None: what they give with anything else is up to NumPy and to that."""
    for value in args:
        if not isinstance(value, ConstantValue) or not isinstance(value.value, (int, float, complex, str, np.generic, type(None))):
            raise unsupported("unknown-operation", f"an operator of a number of NumPy and {value.describe()}")


OF_GRAPHS = frozenset({ArrayValue, ReadNumber, TruncatedNumber})  # what the graph has a tensor for


def graph_operator(cx: Context, name: str, args: Sequence[Value]) -> Value | None:
    """Of arrays of numpy, and of numbers read from tensors; None for numbers that Python has to compute with."""
    if any(isinstance(a, ArrayValue) for a in args):
        return array_operator(cx, name, args)
    number = read_operator(cx, name, args)
    if number is None and any(isinstance(a, TensorValue) for a in args):
        raise unsupported("to-python", next(a for a in args if isinstance(a, ReadNumber)).describe())
    return number


def methods_of(name: str) -> tuple[str, ...]:
    """The methods of a class that Python looks up for an operator."""
    if name in UNARY:
        return (UNARY[name],)
    return (*BINARY[INPLACE.get(name, name)], *((f"__{name.rstrip('_')}__",) if name in INPLACE else ()))


def tensor_operator(cx: Context, name: str, args: Sequence[Value]) -> Value:
    found = number_operator(cx, name, args)
    if found is not None:
        return found
    if name in COMPARISONS and any(a is not None and not comparable(a) for a in args):
        if name in ("eq", "ne") and all(isinstance(a, TensorValue) or equals_no_tensor(a) for a in args):
            return ConstantValue(name == "ne")
        raise unsupported("unknown-operation", f"comparing a tensor with {args[1].describe()}")
    if any(isinstance(a, (SequenceValue, DictLike, SetValue)) for a in args):
        raise unsupported("unknown-operation", f"operator.{name} of a tensor and a container")
    for index, arg in enumerate(args):
        if index == 0 and name in INPLACE and not isinstance(arg, (TensorValue, ObjectValue)):
            return tensor_operator(cx, INPLACE[name], args)
        if isinstance(arg, ObjectValue):
            method, reflected = BINARY.get(name, ("", ""))
            result = arg.special(cx, method if index == 0 else reflected, [args[1 - index]]) if method else None
            if result is not None and not is_undecided(result):
                return result
            raise unsupported("unknown-operation", f"operator.{name} of a tensor and {arg.describe()}")
    return cx.op("call_function", getattr(operator, name), list(args), {})


def equals_no_tensor(value: Value) -> bool:
    """Whether a tensor and such an object leave it to each other whether they are equal."""
    if isinstance(value, ConstantValue):
        return compares_as_objects(value.pytype()) or isinstance(value.value, (str, bytes, torch.device))
    return isinstance(value, (DictLike, SetValue, ClassValue, CallableValue)) and not isinstance(value, RefusedValue)


def comparable(value: Value) -> bool:
    numbers = (int, float, bool, complex, np.number)
    return isinstance(value, (TensorValue, SymbolicInt, SymbolicFloat)) or isinstance(value, ConstantValue) and isinstance(value.value, numbers)


def unary(cx: Context, name: str, value: Value) -> Value:
    if isinstance(value, ObjectValue):
        return value.method(cx, UNARY[name], [], {})
    return dict_operator(cx, name, value) or cx.pure(getattr(operator, name), [value], {})


SET_INPLACE = {"ior": "update", "iand": "intersection_update", "isub": "difference_update", "ixor": "symmetric_difference_update"}


def inplace(cx: Context, name: str, left: Value, right: Value) -> Value:
    if isinstance(left, ListValue) and name == "iadd":
        left.method(cx, "extend", [right], {})
        return left
    if isinstance(left, ListValue) and name == "imul" and issubclass(right.pytype(), int):
        repeat(cx, left, right.constant())
        return left
    if isinstance(left, DictLike) and (found := dict_operator(cx, name, left, right)) is not None:
        return found
    if isinstance(left, SetValue) and name in SET_INPLACE and issubclass(right.pytype(), (set, frozenset)):
        left.method(cx, SET_INPLACE[name], [right], {})
        return left
    if isinstance(left, ObjectValue):
        result = left.special(cx, f"__{name.rstrip('_')}__", [right])
        if result is not None and not is_undecided(result):
            return result
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue) and name not in ("iadd", "imod"):
        return cx.pure(getattr(operator, name), [left, right], {})
    return binary(cx, INPLACE[name], left, right)


def repeat(cx: Context, sequence: SequenceValue, count: int) -> None:
    """sequence *= count"""
    if count < 1:
        sequence.method(cx, "clear", [], {})
    items = TupleValue(list(sequence.items))
    for _ in range(count - 1):
        sequence.method(cx, "extend", [items], {})


def binary(cx: Context, name: str, left: Value, right: Value) -> Value:
    if isinstance(left, ObjectValue) or isinstance(right, ObjectValue):
        return object_binary(cx, name, left, right)
    if (isinstance(left, EnumMember) or isinstance(right, EnumMember)) and (found := member_binary(cx, name, left, right)) is not None:
        return found
    if isinstance(left, SequenceValue) or isinstance(right, SequenceValue):
        found = sequence_binary(cx, name, left, right)
        if found is not None:
            return found
    if isinstance(left, SetValue) and isinstance(right, SetValue) and name in ("lt", "le", "gt", "ge"):
        return ConstantValue(getattr(operator, name)(left.content.keys(), right.content.keys()))
    if isinstance(left, DictLike) and (found := dict_operator(cx, name, left, right)) is not None:
        return found
    if name in SET_METHODS:
        found = set_binary(cx, name, left, right)
        if found is not None:
            return found
    if name in ("eq", "ne"):
        return ConstantValue(cx.equal(left, right) == (name == "eq"))
    if name == "add" and left.pytype() is right.pytype() is str and any(isinstance(v, (DeferredText, UnreadText)) for v in (left, right)):
        return concat(cx, [left, right])
    if name == "mod" and isinstance(left, ConstantValue) and isinstance(left.value, (str, bytes)):
        return cx.fold(operator.mod, [left, right], {})
    return cx.pure(getattr(operator, name), [left, right], {})


def member_binary(cx: Context, name: str, left: Value, right: Value) -> Value | None:
    """Of members of enumerations, where a user's class defines the operator; else None."""
    members = [value for value in (left, right) if isinstance(value, EnumMember)]
    method, reflected = BINARY[name]
    if all(own_method(cx, member.pytype(), method, reflected, *(("__eq__",) if name == "ne" else ())) is None for member in members):
        return None
    ways = [(left, right, method), (right, left, reflected)]
    if left.pytype() is not right.pytype() and issubclass(right.pytype(), left.pytype()):
        ways.reverse()
    for owner, other, special in ways[: 1 if left.pytype() is right.pytype() and name not in COMPARISONS else 2]:
        negated = special == "__ne__" and owner.pytype().__ne__ is object.__ne__  # object's own asks __eq__
        result = owner.own_call(cx, "__eq__" if negated else special, [other]) if isinstance(owner, EnumMember) else None
        if result is None:
            result = by_c(cx, owner, "__eq__" if negated else special, other)
        if not is_undecided(result):
            return ConstantValue(not result.truth(cx)) if negated else result
    if name in ("eq", "ne"):
        return ConstantValue(is_same(cx, left, right) == (name == "eq"))
    return refuse(name, left, right)


def by_c(cx: Context, owner: Value, special: str, other: Value) -> Value:
    """type(owner).special(owner, other) of constants, which a class written in C defines, or leaves undecided. Sequences are joined and repeated only after
    both operands have been asked as numbers."""
    written = getattr(owner.pytype(), special, None)
    if written is None or (special in ("__add__", "__mul__", "__rmul__") and owner.pytype() in (str, bytes, tuple)):
        return ConstantValue(NotImplemented)
    return ConstantValue(cx.guarded_call(written, [owner.constant(), other.constant()], {}))


def object_binary(cx: Context, name: str, left: Value, right: Value) -> Value:
    method, reflected = BINARY[name]
    ways = [(left, right, method), (right, left, reflected)]
    if isinstance(right, ObjectValue) and isinstance(left, ObjectValue) and right.cls is not left.cls and issubclass(right.cls, left.cls):
        if name in COMPARISONS or cx.lookup(right.cls, reflected) is not cx.lookup(left.cls, reflected):
            ways.reverse()
    alike = isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and left.cls is right.cls and name not in COMPARISONS  # asked once
    for owner, other, special in ways[: 1 if alike else 2]:
        if isinstance(owner, ObjectValue):
            result = owner.special(cx, special, [other])
            negated = result is None and special == "__ne__" and owner.cls.__ne__ is object.__ne__
            if negated:  # object's own asks __eq__
                result = owner.special(cx, "__eq__", [other])
            if result is not None and not is_undecided(result):
                return ConstantValue(not result.truth(cx)) if negated else result
    if name in ("eq", "ne") and isinstance(left, ObjectValue) and isinstance(right, ObjectValue) and left.cls is right.cls is SimpleNamespace:
        return ConstantValue(cx.equal(left.namespace, right.namespace) == (name == "eq"))
    if name in ("eq", "ne") and all(compares_by_identity(v) for v in (left, right)):
        return ConstantValue((left is right or are_two(cx, left, right)) == (name == "eq"))
    raise unsupported("unknown-operation", f"operator.{name} of {left.describe()} and {right.describe()}")


def compares_by_identity(value: Value) -> bool:
    """Whether == of an object, or what its own == left undecided, is a question of identity."""
    if isinstance(value, (OpaqueValue, RefusedValue, ArrayValue)):
        return compares_as_objects(value.pytype())
    if isinstance(value, ConstantValue):
        return type(value.value) in CONSTANT_TYPES or compares_as_objects(value.pytype())
    return not isinstance(value, ObjectValue) or value.cls.__eq__ is object.__eq__ or isinstance(value.cls.__eq__, FunctionType)


def sequence_binary(cx: Context, name: str, left: Value, right: Value) -> Value | None:
    sized = (torch.Size, tuple)
    if name in ("add", "mul") and any(isinstance(v, TupleValue) and not issubclass(v.cls, tuple) for v in (left, right)):  # a part of a container of modules
        raise unsupported("unknown-operation", f"operator.{name} of {left.describe()} and {right.describe()}")
    if isinstance(left, DequeValue) and isinstance(right, DequeValue) and name == "add":
        return DequeValue(left.items + right.items, left.maxlen)
    if any(isinstance(v, DequeValue) for v in (left, right)) and name not in ("eq", "ne", "mul"):
        raise unsupported("unknown-operation", f"operator.{name} of a deque")
    if name == "add" and is_tuple(left) and is_tuple(right):
        if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
            return cx.pure(operator.add, [left, right], {})
        sized_both = torch.Size in (left.pytype(), right.pytype())
        return TupleValue(left.elements(cx) + right.elements(cx), type(torch.Size(()) + ()) if sized_both else tuple)
    if name == "add" and isinstance(left, ListValue) and isinstance(right, ListValue):
        return ListValue(left.items + right.items)
    if name == "mul":
        sequence, count = (left, right) if isinstance(left, SequenceValue) else (right, left)
        if isinstance(sequence, SequenceValue) and (isinstance(count, SymbolicInt) or isinstance(count, ConstantValue) and isinstance(count.value, int)):
            return sequence.like(sequence.items * count.constant())
    if name in ("lt", "le", "gt", "ge"):
        return fold(cx, getattr(operator, name), left, right) or ordered(cx, name, left, right)
    if name == "mod" and isinstance(left, ConstantValue) and not isinstance(left.value, sized):
        return fold(cx, operator.mod, left, right) or refuse(name, left, right)
    return None


def ordered(cx: Context, name: str, left: Value, right: Value) -> Value:
    """Compares the first items that differ."""
    if not isinstance(left, SequenceValue) or not isinstance(right, SequenceValue) or is_tuple(left) != is_tuple(right):
        return refuse(name, left, right)
    for place, (a, b) in enumerate(zip(left.now(cx), right.now(cx))):
        if not cx.matches(a, b):
            if place < min(len(left.items), len(right.items)):  # the comparison may have shortened a list
                return apply_operator(cx, name, [a, b])
            break
    return ConstantValue(getattr(operator, name)(len(left.items), len(right.items)))


def refuse(name: str, left: Value, right: Value) -> Value:
    raise unsupported("unknown-operation", f"operator.{name} of {left.describe()} and {right.describe()}")


def fold(cx: Context, function: Callable, *args: Value) -> Value | None:
    """The result on constants, None where an argument is none."""
    try:
        for a in args:
            a.constant()
    except NotConstant:
        return None
    return cx.pure(function, list(args), {})


def is_tuple(value: Value) -> bool:
    return isinstance(value, TupleValue) or isinstance(value, ConstantValue) and isinstance(value.value, torch.Size)


def equal(cx: Context, left: Value, right: Value) -> bool:
    """left == right, for values whose comparison gives a bool."""
    left, right = (value.owner if isinstance(value, (ProxyValue, WeakProxy)) else value for value in (left, right))
    if isinstance(left, NumpyNumber) or isinstance(right, NumpyNumber):
        refuse_beside_numpy([left, right])
    if isinstance(left, (SymbolicInt, SymbolicFloat)) or isinstance(right, (SymbolicInt, SymbolicFloat)):
        found = symbolic_operator(cx, "eq", [left, right])
        if found is not None:
            return found.truth(cx)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, (AddressValue, IdValue, Reference, BoundMethod, Method, CellValue)):
            return one.equals(cx, other)
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue):
        same_length = len(left.items) == len(right.items)
        if isinstance(left, ListValue) != isinstance(right, ListValue) or isinstance(left, ListValue) and not same_length:
            return False
        if deque in (left.cls, right.cls) and left.cls is not right.cls:
            return False
        # Tuples look at their elements first, and a comparison may change a list.
        return all(cx.matches(a, b) for a, b in zip(left.now(cx), right.now(cx))) and len(left.items) == len(right.items)
    if isinstance(left, ClassDict) and isinstance(right, ClassDict) and left.real is right.real:
        return True
    if isinstance(left, DictLike) and isinstance(right, DictLike):
        if Counter in (left.cls, right.cls):
            raise unsupported("unknown-operation", "comparing a Counter")
        keys, others = left.keys(cx), right.keys(cx)
        if set(keys) != set(others) or issubclass(left.cls, OrderedDict) and issubclass(right.cls, OrderedDict) and keys != others:
            return False
        for key in keys:
            if not cx.matches(left.at(cx, key), right.at(cx, key)):
                return False
            if left.size(cx) != len(keys) or right.size(cx) != len(keys):
                raise unsupported("unknown-operation", "comparing a dict that changes meanwhile")
        return True
    if isinstance(left, DictView) or isinstance(right, DictView):
        return equal_views(cx, left, right)
    if isinstance(left, SetValue) or isinstance(right, SetValue):
        keys = [keys_of_set(value) for value in (left, right)]
        if None not in keys:
            return bool(keys[0] == keys[1])
    if any(isinstance(v, (TensorValue, ObjectValue)) for v in (left, right)):
        return apply_operator(cx, "eq", [left, right]).truth(cx)
    if (isinstance(left, EnumMember) or isinstance(right, EnumMember)) and (found := member_binary(cx, "eq", left, right)) is not None:
        return found.truth(cx)
    if all(isinstance(value, (BuiltinValue, RefusedValue)) and value.pytype() is BuiltinFunctionType for value in (left, right)):
        return bool(left.real == right.real)  # type: ignore[attr-defined]  # methods of one object are one method, and several objects
    for value in (left, right):
        if isinstance(value, (ConstantValue, ClassValue, ExceptionValue)):
            refuse_own(cx, value.pytype(), "__eq__", "__ne__")
    try:
        return bool(left.constant() == right.constant())
    except NotConstant:
        for value in (left, right):  # an object of a subclass of int or str, for example
            if isinstance(value, (OpaqueValue, RefusedValue, ArrayValue, MadeValue)) and not compares_as_objects(value.pytype()):
                raise unsupported("unknown-operation", f"comparing {left.describe()} and {right.describe()}") from None
        if left is right:
            return True
        if issubclass(left.pytype(), tuple) and issubclass(right.pytype(), tuple):  # one of which is a record of C's
            raise unsupported("unknown-operation", f"comparing {left.describe()} and {right.describe()}") from None
        if left.pytype() is not right.pytype() and not (isinstance(left, ConstantValue) and isinstance(right, ConstantValue)):
            return False
        return is_same(cx, left, right)


def compares_as_objects(cls: type) -> bool:
    """Whether an object of a class equals itself alone, or what equals it by the rule of functions and methods."""
    return cls.__eq__ is object.__eq__ or cls in (BuiltinFunctionType, MethodType, MethodWrapperType)


def keys_of_set(value: Value) -> Set | None:
    """What stands for the elements of a set or frozen set; None for another value."""
    if isinstance(value, SetValue):
        return value.content.keys()
    return value.value if isinstance(value, ConstantValue) and isinstance(value.value, frozenset) else None


def matches(cx: Context, left: Value, right: Value) -> bool:
    """left is right or left == right: how containers compare their elements. The two questions differ for what does not equal itself."""
    if left is right:
        return True
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue) and bool(left.value != left.value):
        return is_same(cx, left, right)
    return cx.equal(left, right)


def is_same(cx: Context, left: Value, right: Value) -> bool:
    """left is right."""
    if left is right:
        return True
    if left.pytype() is not right.pytype():
        return False
    if left.is_copy or right.is_copy:  # behind a break it would be another one
        raise unsupported("which-object", f"{left.describe()} is {right.describe()}")
    if isinstance(left, ConstantValue) and isinstance(right, ConstantValue):
        return same_constants(cx, left, right)
    if isinstance(left, Reference):
        return left.is_same(cx, right)
    if isinstance(left, (SymbolicInt, SymbolicFloat)) or isinstance(right, (SymbolicInt, SymbolicFloat)):
        raise unsupported("unknown-operation", f"{left.describe()} is {right.describe()}")
    if left.pytype() is tuple and not left.elements(cx) and not right.elements(cx):
        return True  # CPython has one empty tuple
    if isinstance(left, (TensorValue, SequenceValue, DictLike, SetValue)):
        return are_two(cx, left, right)
    try:
        return left.identity() is right.identity() or are_two(cx, left, right)
    except NotConstant:
        if left.source is None or right.source is None:
            return False
        if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):  # of a class with an order of its own
            return left.real is right.real or are_two(cx, left, right)
        raise unsupported("unknown-operation", f"{left.describe()} is {right.describe()}") from None


def op_is(cx: Context, name: str, left: Value, right: Value) -> Value:
    """left is right (name: "eq") or left is not right ("ne"). There is one True and one False."""
    if left.pytype() is right.pytype() is bool and left is not right and any(isinstance(v, ReadNumber) for v in (left, right)):
        return cx.operator(name, [left, right])
    return ConstantValue(is_same(cx, left, right) is (name == "eq"))


def are_two(cx: Context, left: Value, right: Value) -> bool:
    """Notes that two objects, of which a guard tells less than which they are, have to be two in later calls. Gives False."""
    if isinstance(left, IN_GROUPS):
        left.told_apart = right.told_apart = True
    elif left.source is not None and right.source is not None and left.source != right.source:
        cx.guard("NOT_ALIASED", left.source, (right.source,))
    return False


IN_GROUPS = (TensorValue, SequenceValue, DictLike, SetValue, ObjectValue, FunctionValue)
"""Values that an existing object has one of, so that the entry's guards find all that are told apart: see `written.alias_guards`."""


def same_constants(cx: Context, left: ConstantValue, right: ConstantValue) -> bool:
    """Whether two constants are one object. What capture computed, it computed as Python does; of what was there before, the object itself is guarded."""
    one, other = left.value, right.value
    if type(one) is not type(other):
        return False
    if not isinstance(one, (int, float, complex, str, bytes, torch.Size, torch.device, range, np.generic)) or has_one_object(one) or has_one_object(other):
        return one is other or has_one_object(one) and bool(one == other)
    if one is not other and one != other and not (one != one and other != other):  # two NaN may be one object
        return False
    for value in (left, right):
        if value.source is not None:
            cx.guard("ID", value.source, identity(value.value))
    return one is other


def subscript(cx: Context, owner: Value, key: Value) -> Value:
    if isinstance(owner, ClassValue) and not isinstance(owner.real, type(torch.Tensor)):
        found = owner.special(cx, "__getitem__", [key])
        if found is None and own_method(cx, owner.real, "__class_getitem__") is not None and cx.lookup(type(owner.real), "__getitem__") is MISSING:
            return owner.get_attr(cx, "__class_getitem__").call(cx, [key], {})
        if found is None and isinstance(key, SequenceValue):  # annotations such as Callable[[int], str]
            return described(cx, cx.guarded_call(operator.getitem, [owner.real, spelled(cx, key)], {}))
        return cx.pure(operator.getitem, [owner, key], {}) if found is None else found
    return owner.get_item(cx, key)


def op_not(cx: Context, value: Value) -> Value:
    return ConstantValue(not value.truth(cx))


def op_contains(cx: Context, container: Value, item: Value) -> Value:
    if isinstance(container, IteratorValue):
        return ConstantValue(container.finds(cx, item))
    return container.contains(cx, item)


def op_setitem(cx: Context, owner: Value, key: Value, value: Value) -> Value:
    owner.set_item(cx, key, value)
    return ConstantValue(None)


def op_delitem(cx: Context, owner: Value, key: Value) -> Value:
    owner.del_item(cx, key)
    return ConstantValue(None)


def op_index(cx: Context, value: Value) -> Value:
    if isinstance(value, SymbolicInt):
        return value
    if isinstance(value, TensorValue):
        raise unsupported("to-python", f"operator.index of {value.describe()}")
    if isinstance(value, ObjectValue):
        return answered("__index__", value.method(cx, "__index__", [], {}))
    return cx.pure(operator.index, [value], {})


def concatenated(cx: Context, name: str, left: Value, right: Value) -> Value:
    """a + b or a += b of sequences; operator.concat takes nothing else."""
    if not isinstance(left, SequenceValue) and left.pytype() not in (str, bytes):
        raise unsupported("unknown-operation", f"operator.concat of {left.describe()}")
    return apply_operator(cx, name, [left, right])


OTHER: dict[str, Callable[..., Value]] = {
    "not_": op_not,
    "truth": lambda cx, value: ConstantValue(value.truth(cx)),
    "is_": lambda cx, a, b: op_is(cx, "eq", a, b),
    "is_not": lambda cx, a, b: op_is(cx, "ne", a, b),
    "contains": op_contains,
    "getitem": subscript,
    "setitem": op_setitem,
    "delitem": op_delitem,
    "index": op_index,
    "concat": lambda cx, a, b: concatenated(cx, "add", a, b),
    "iconcat": lambda cx, a, b: concatenated(cx, "iadd", a, b),
}
OPERATORS = frozenset((*BINARY, *INPLACE, *UNARY, *OTHER))
