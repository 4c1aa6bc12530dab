"""What Counter and OrderedDict add to the methods of dict, and popitem."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.keys import key_of
from dynacompile.capture.values.mapping import COUNTER_METHODS, DICT_METHODS, DictLike, DictValue, missing_key, pairs_of
from dynacompile.capture.values.rows import HANDLERS
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


def dict_popitem(cx: Context, self: DictLike, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (last,) = bind_arguments("popitem", ["last"] if self.cls is OrderedDict else [], args, kwargs, {"last": ConstantValue(True)}) or [ConstantValue(True)]
    keys = self.keys(cx)
    if not keys:
        raise raises(KeyError, "dictionary is empty" if self.cls is OrderedDict else "popitem(): dictionary is empty")
    hashed = keys[-1 if last.truth(cx) else 0]
    key, value = self.key_at(cx, hashed), self.at(cx, hashed)
    assert key is not None
    self.del_item(cx, key)
    return TupleValue([key, value])


def dict_move_to_end(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key, last = bind_arguments("move_to_end", ["key", "last"], args, kwargs, {"last": ConstantValue(True)})
    if self.find(cx, key) is None:
        raise missing_key(key)
    self.keys(cx)
    cx.effects.touch(self)
    self.reordered = True
    self.deletions += 1
    moved = {key_of(key): self.content.pop(key_of(key))}
    items = {**self.content, **moved} if last.truth(cx) else {**moved, **self.content}
    self.content.clear()
    self.content.update(items)
    return ConstantValue(None)


def counted(name: str) -> Callable:
    """Counter.update or Counter.subtract: operator `name` of the count and what is given."""

    def row(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = (pair for a in args for pair in counts_of(cx, self, a))
        for key, count in itertools.chain(given, ((ConstantValue(k), v) for k, v in kwargs.items())):
            self.set_item(cx, key, cx.operator(name, [self.get_item(cx, key), count]))
        return ConstantValue(None)

    return row


def counts_of(cx: Context, counter: DictValue, given: Value) -> Iterable[tuple[Value, Value]]:
    """Elements and how often each is given. An empty Counter takes a mapping as dict.update does, any other by its items()."""
    if isinstance(given, DictLike):
        return pairs_of(cx, given)
    if not HANDLERS[isinstance](cx, [given, cx.class_value(Mapping, None)], {}).truth(cx):
        return ((element, ConstantValue(1)) for element in given.each(cx))
    if not counter.keys(cx):
        return pairs_of(cx, given)
    pairs = (pair.elements(cx) for pair in given.get_attr(cx, "items").call(cx, [], {}).each(cx))
    return ((key, count) for key, count in pairs)


def counter_most_common(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (n,) = bind_arguments("most_common", ["n"], args, kwargs, {"n": ConstantValue(None)})
    pairs = pairs_of(cx, self)
    counts = [count.constant() for _, count in pairs]
    order = sorted(range(len(pairs)), key=counts.__getitem__, reverse=True)
    return ListValue([TupleValue(pairs[i]) for i in order[: n.constant()]])


def counter_total(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total: Value = ConstantValue(0)
    for _, count in pairs_of(cx, self):
        total = cx.operator("add", [total, count])
    return total


def counter_elements(cx: Context, self: DictValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return cx.call_real(Counter.elements, Constant(Counter.elements, "Counter.elements"), [self])


COUNTER_METHODS |= {"elements": counter_elements}
COUNTER_METHODS |= {"update": counted("add"), "subtract": counted("sub"), "most_common": counter_most_common, "total": counter_total}
DICT_METHODS |= {"popitem": dict_popitem, "move_to_end": dict_move_to_end}
