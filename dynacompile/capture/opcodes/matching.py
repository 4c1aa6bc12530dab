"""Patterns of match statements."""

from __future__ import annotations

import collections.abc
from functools import partial
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import NotConstant, raises, unsupported
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.library.type_questions import is_subclass
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.mapping import DictLike
from dynacompile.capture.values.objects import ObjectValue
from dynacompile.capture.values.own_methods import own_method
from dynacompile.capture.values.rows import HANDLERS
from dynacompile.capture.values.sequence import TupleValue
from dynacompile.ir.namespaces import MISSING

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr

WHOLE = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)  # classes whose one positional pattern is the object itself


@opcode("MATCH_SEQUENCE", effect=1)
def match_sequence(f: SymbolicFrame, i: Instr) -> None:
    cls = f.peek(1).pytype()
    f.push(ConstantValue(is_subclass(f.cx, cls, collections.abc.Sequence) and not issubclass(cls, (str, bytes, bytearray))))


@opcode("MATCH_MAPPING", effect=1)
def match_mapping(f: SymbolicFrame, i: Instr) -> None:
    f.push(ConstantValue(is_subclass(f.cx, f.peek(1).pytype(), collections.abc.Mapping)))


@opcode("MATCH_KEYS", effect=1)
def match_keys(f: SymbolicFrame, i: Instr) -> None:
    keys, subject = f.peek(1).elements(f.cx), f.peek(2)
    if isinstance(subject, DictLike):
        found = [subject.find(f.cx, key) for key in keys]
    else:
        get, missing = subject.get_attr(f.cx, "get"), ObjectValue(object)
        given = [get.call(f.cx, [key, missing], {}) for key in keys]
        found = [None if value is missing else value for value in given]
    f.push(ConstantValue(None) if None in found else TupleValue([v for v in found if v is not None]))


@opcode("MATCH_CLASS", effect=-2)
def match_class(f: SymbolicFrame, i: Instr) -> None:
    subject, cls_value, names = f.pop_many(3)
    f.push(attributes_of(f, subject, cls_value, names.constant(), i.arg))


def attributes_of(f: SymbolicFrame, subject: Value, cls_value: Value, names: tuple[str, ...], positional: int) -> Value:
    try:
        cls = cls_value.constant()
    except NotConstant as reason:
        raise unsupported("unknown-operation", "matching an unknown class") from reason
    if not HANDLERS[isinstance](f.cx, [subject, cls_value], {}).truth(f.cx):
        return ConstantValue(None)
    told = f.cx.lookup(cls, "__match_args__") if positional else ()
    if told is MISSING and f.cx.lookup(type(cls), "__match_args__") is not MISSING or own_method(f.cx, type(cls), "__getattribute__", "__getattr__"):
        raise unsupported("unknown-operation", f"matching {cls.__name__}, whose metaclass tells the order of attributes")
    if positional == 1 and told is MISSING and issubclass(cls, WHOLE):
        return TupleValue([subject, *(subject.get_attr(f.cx, name) for name in names)])
    order = () if told is MISSING else told
    if type(order) is not tuple or not all(isinstance(name, str) for name in order):
        raise unsupported("would-raise", f"{cls.__name__}.__match_args__ must be a tuple of texts")
    wanted = (*order[:positional], *names)
    twice = next((name for place, name in enumerate(wanted) if name in wanted[:place]), None)
    if twice is not None:
        raise raises(TypeError, f"{cls.__name__}() got multiple sub-patterns for attribute {twice!r}")
    if len(wanted) != positional + len(names):
        raise unsupported("would-raise", f"{cls.__name__}() accepts fewer positional sub-patterns")
    found = [f.cx.unless_missing(partial(subject.get_attr, f.cx, name)) for name in wanted]
    return ConstantValue(None) if None in found else TupleValue([v for v in found if v is not None])
