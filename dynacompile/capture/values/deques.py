"""collections.deque made by the frame, and copies of containers."""

from __future__ import annotations

import collections
import copy
import copyreg
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.classes import is_plain_class
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.mapping import DictValue
from dynacompile.capture.values.object_parts import InstanceDict
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.sets import SetValue
from dynacompile.ir.source import Attr

if TYPE_CHECKING:
    from dynacompile.capture.residual import Builder
    from dynacompile.capture.trace import Trace

SHARED = ("pop", "clear", "reverse", "remove", "index", "count", "__len__", "__getitem__", "__contains__", "__iter__")  # with list


class DequeValue(ListValue):
    """A deque; when it is full, what is added at one end pushes out an item at the other."""

    cls = collections.deque

    def __init__(self, items: list[Value], maxlen: int | None):
        super().__init__([])
        self.maxlen = maxlen
        for item in items:
            self.add(item, False)

    def add(self, item: Value, left: bool) -> None:
        self.items.insert(0 if left else len(self.items), item)
        if self.maxlen is not None and len(self.items) > self.maxlen:
            del self.items[-1 if left else 0]

    def get_item(self, cx: Trace, key: Value) -> Value:
        if isinstance(key, SliceValue):
            raise raises(TypeError, "sequence index must be integer, not 'slice'")
        return super().get_item(cx, key)

    def get_attr(self, cx: Trace, name: str) -> Value:
        return ConstantValue(self.maxlen) if name == "maxlen" else super().get_attr(cx, name)

    def argument(self) -> tuple[Any, Any]:
        raise NotConstant("deque")

    def like(self, items: object) -> Value:
        raise unsupported("unknown-operation", "an operator on a deque")

    def method(self, cx: Trace, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("append", "appendleft") and len(args) == 1 and not kwargs:
            self.add(args[0], name == "appendleft")
        elif name in ("extend", "extendleft") and len(args) == 1 and not kwargs:
            for item in args[0].elements(cx):
                self.add(item, name == "extendleft")
        elif name == "popleft" and not args:
            if not self.items:
                raise raises(IndexError, "pop from an empty deque")
            item = self.at(cx, 0)
            del self.items[0]
            return item
        elif name == "rotate" and not kwargs:
            by = args[0].constant() % len(self.items) if args and self.items else min(1, len(self.items))
            self.items = self.items[-by:] + self.items[:-by] if by else self.items
        elif name == "copy" and not args:
            return DequeValue(self.items, self.maxlen)
        elif name in SHARED and not (name == "pop" and (args or not self.items)):
            return super().method(cx, name, args, kwargs)
        else:
            raise unsupported("unknown-operation", f"deque.{name}()")
        return ConstantValue(None)

    def rebuild(self, out: Builder) -> None:
        out.push_null()
        out.const(collections.deque)
        super().rebuild(out)
        out.const(self.maxlen)
        out.call(2)


@handles(collections.deque)
def row_deque(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    iterable, maxlen = bind_arguments("deque", ["iterable", "maxlen"], args, kwargs, {"iterable": TupleValue([]), "maxlen": ConstantValue(None)})
    return DequeValue(iterable.elements(cx), maxlen.constant())


@handles(copy.deepcopy)
def row_deepcopy(cx: Trace, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise unsupported("unknown-function", "copy.deepcopy with a memo")
    return deep_copy(cx, args[0], {})


def copies_plainly(cls: type) -> bool:
    """Whether the copy module makes an empty object of the class and gives it a copy of the attributes."""
    own = any(hasattr(cls, name) for name in ("__deepcopy__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"))
    same = all(getattr(cls, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
    return same and not own and is_plain_class(cls) and cls not in copyreg.dispatch_table


def copy_object(cx: Trace, value: ObjectValue, memo: dict[Value, Value]) -> ObjectValue:
    made = memo[value] = ObjectValue(value.cls)
    made.stored.update(copy_attributes(cx, value, memo))
    return made


def copy_attributes(cx: Trace, value: ObjectValue, memo: dict[Value, Value]) -> dict[str, Value]:
    if value.source is not None:
        cx.guard("DICT_KEYS", Attr(value.source, "__dict__"), tuple(value.own_dict()))
    own = InstanceDict(value)
    found = {name: own.find(cx, ConstantValue(name)) for name in dict.fromkeys((*value.own_dict(), *value.stored))}
    return {name: deep_copy(cx, attribute, memo) for name, attribute in found.items() if attribute is not None}


def deep_copy(cx: Trace, value: Value, memo: dict[Value, Value]) -> Value:
    """A copy of nested containers of constants; one object is copied once."""
    if value in memo:
        return memo[value]
    if isinstance(value, ConstantValue):
        return value
    if isinstance(value, DequeValue):
        made: Value = DequeValue([deep_copy(cx, v, memo) for v in value.elements(cx)], value.maxlen)
    elif isinstance(value, ListValue):
        made = memo[value] = ListValue([])
        made.items.extend(deep_copy(cx, v, memo) for v in value.elements(cx))  # type: ignore[attr-defined]
    elif isinstance(value, TupleValue):
        items = [deep_copy(cx, v, memo) for v in value.elements(cx)]
        made = value if all(a is b for a, b in zip(items, value.items)) else TupleValue(items, value.cls)
    elif isinstance(value, DictValue):
        made = memo[value] = DictValue({}, value.cls, None, value.factory)
        for key in value.keys(cx):
            made.put(deep_copy(cx, value.content[key][0], memo), deep_copy(cx, value.at(cx, key), memo))  # type: ignore[attr-defined]
    elif isinstance(value, SetValue) and all(isinstance(v, ConstantValue) for v in value.content.values()):
        made = SetValue(list(value.content.values()))
    elif isinstance(value, InstanceDict):
        made = DictValue.of([(ConstantValue(name), attribute) for name, attribute in copy_attributes(cx, value.owner, memo).items()])
    elif type(value) is ObjectValue and copies_plainly(value.cls):
        made = copy_object(cx, value, memo)
    else:
        raise unsupported("unknown-function", f"copy.deepcopy of {value.describe()}")
    memo[value] = made
    return made
