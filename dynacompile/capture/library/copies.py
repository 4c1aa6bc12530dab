"""copy.copy and copy.deepcopy of containers and plain objects."""

from __future__ import annotations

import copy
import copyreg
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.tensors.tensor import METHODS, TensorValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.classes import is_plain_class
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.deques import DequeValue
from dynacompile.capture.values.functions import function_value
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.object_parts import InstanceDict
from dynacompile.capture.values.objects import ObjectValue, is_slot
from dynacompile.capture.values.own_methods import own_method, refuse_own
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.sets import SetValue
from dynacompile.errors import Unsupported
from dynacompile.ir.namespaces import IMMUTABLE_TYPE, MISSING
from dynacompile.ir.source import Attr, Constant

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


@handles(copy.copy)
def row_copy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (value,) = args
    made = copied(cx, value)
    return by_the_module(cx, copy.copy, args, kwargs) if made is None else made


def copied(cx: Context, value: Value) -> Value | None:
    """copy.copy of containers and plain objects; None for others."""
    if isinstance(value, (DequeValue, SetValue)) or type(value) is DictValue and not value.own_names(cx):
        return value.method(cx, "copy", [], {})
    if isinstance(value, ListValue) and value.cls is list:
        return ListValue(value.items)
    if isinstance(value, ConstantValue) and own_method(cx, value.pytype(), "__copy__", *REDUCTIONS) is not None:
        return None
    if isinstance(value, TupleValue) and not issubclass(value.cls, tuple):  # a part of a container of modules
        raise unsupported("unknown-function", f"copy.copy of {value.describe()}")
    if isinstance(value, TupleValue) or isinstance(value, ConstantValue) and not isinstance(value.value, (torch.finfo, torch.iinfo)):
        return value
    if isinstance(value, ObjectValue) and copies_plainly(cx, value):
        made = ObjectValue(value.cls)
        made.stored.update(attributes(cx, value))
        return made
    return None


@handles(copy.deepcopy)
def row_deepcopy(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs:
        try:
            return deep_copy(cx, args[0], {})
        except Unsupported:
            pass
    return by_the_module(cx, copy.deepcopy, args, kwargs)


def by_the_module(cx: Context, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """As the copy module does it, whose code is followed: hooks of classes, slots, what is reduced to a call."""
    if any(isinstance(a, ModuleValue) for a in args) or function is copy.copy and isinstance(args[0], TensorValue):
        raise unsupported("unknown-function", f"copy.{function.__name__} of {args[0].describe()}")
    return function_value(cx, function, Constant(function, f"copy.{function.__name__}")).call(cx, args, kwargs)


REDUCTIONS = tuple(name for name in ("__reduce_ex__", "__reduce__", "__getstate__") if name in object.__dict__)


def has_hooks(cx: Context, cls: type) -> bool:
    """Whether a class tells the copy module how its objects are copied, in a way of the user's. The module also finds what the metaclass has."""
    hooks = ("__copy__", "__deepcopy__")
    refuse_own(cx, type(cls), *hooks)
    return own_method(cx, cls, *hooks) is not None or not cls.__flags__ & IMMUTABLE_TYPE and any(cx.lookup(cls, name) is not MISSING for name in hooks)


def copies_plainly(cx: Context, value: ObjectValue) -> bool:
    """Whether the copy module makes an empty object of the class and gives it a copy of the attributes."""
    cls = value.cls
    own = has_hooks(cx, cls) or any(cx.lookup(cls, name) is not MISSING for name in ("__setstate__", "__getnewargs__", "__getnewargs_ex__"))
    same = all(cx.lookup(cls, name) is object.__dict__[name] for name in REDUCTIONS)
    slots = any(is_slot(raw) for base in cls.__mro__ for raw in base.__dict__.values())
    return type(value) is ObjectValue and same and not own and not slots and is_plain_class(cls) and cls not in copyreg.dispatch_table


def attributes(cx: Context, value: ObjectValue) -> dict[str, Value]:
    if value.source is not None:
        cx.guard("DICT_KEYS", Attr(value.source, "__dict__"), tuple(value.own_dict()))
    own = InstanceDict(value)
    found = {name: own.find(cx, ConstantValue(name)) for name in dict.fromkeys((*value.own_dict(), *value.stored))}
    return {name: attribute for name, attribute in found.items() if attribute is not None}


def copy_attributes(cx: Context, value: ObjectValue, memo: dict[Value, Value]) -> dict[str, Value]:
    return {name: deep_copy(cx, attribute, memo) for name, attribute in attributes(cx, value).items()}


def copies_by_itself(value: TensorValue) -> bool:
    """Whether a clone is the deep copy: of all of its memory, without autograd. Views of one memory stay views of one."""
    fake = value.fake
    alone = not fake._is_view() and fake.is_contiguous() and fake.storage_offset() == 0
    return alone and value.pytype() is torch.Tensor and not (fake.requires_grad or fake.is_conj() or fake.is_neg() or value.attributes)


def deep_copy(cx: Context, value: Value, memo: dict[Value, Value]) -> Value:
    """A copy of nested containers of constants; one object is copied once."""
    if value in memo:
        return memo[value]
    if isinstance(value, ConstantValue):
        refuse_own(cx, value.pytype(), "__deepcopy__", *REDUCTIONS)
        return value
    if isinstance(value, DequeValue):
        made: Value = DequeValue([deep_copy(cx, v, memo) for v in value.elements(cx)], value.maxlen)
    elif isinstance(value, ListValue) and value.cls is list:
        made = memo[value] = ListValue([])
        made.items.extend(deep_copy(cx, v, memo) for v in value.elements(cx))  # type: ignore[attr-defined]
    elif isinstance(value, TupleValue):
        items = [deep_copy(cx, v, memo) for v in value.elements(cx)]
        made = value if all(a is b for a, b in zip(items, value.items)) else TupleValue(items, value.cls)
    elif isinstance(value, DictValue) and not value.own_names(cx):
        made = memo[value] = DictValue({}, value.cls, None, value.factory)
        for key in value.keys(cx):
            made.put(deep_copy(cx, value.content[key][0], memo), deep_copy(cx, value.at(cx, key), memo))  # type: ignore[attr-defined]
    elif isinstance(value, SetValue) and all(isinstance(v, ConstantValue) for v in value.content.values()):
        made = SetValue(list(value.content.values()), ordered=False) if value.table is None else SetValue(value.elements(cx))
    elif type(value) is TensorValue and copies_by_itself(value) and not any(isinstance(v, TensorValue) for v in memo):
        made = cx.op("call_method", "clone", [value], {})
    elif isinstance(value, InstanceDict) and isinstance(value.owner, ObjectValue):
        made = DictValue.of([(ConstantValue(name), attribute) for name, attribute in copy_attributes(cx, value.owner, memo).items()])
    elif isinstance(value, ObjectValue) and copies_plainly(cx, value):
        made = memo[value] = ObjectValue(value.cls)
        made.stored.update(copy_attributes(cx, value, memo))  # type: ignore[attr-defined]
    else:
        raise unsupported("unknown-function", f"copy.deepcopy of {value.describe()}")
    memo[value] = made
    return made


def copy_of_tensor(cx: Context, value: TensorValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """tensor.__deepcopy__(memo), as the copy module asks it."""
    if type(value) is not TensorValue or not copies_by_itself(value):
        raise unsupported("unknown-function", f"copy.deepcopy of {value.describe()}")
    return cx.op("call_method", "clone", [value], {})


METHODS["__deepcopy__"] = copy_of_tensor
