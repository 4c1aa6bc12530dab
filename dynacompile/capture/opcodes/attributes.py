"""Attributes and subscripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynacompile.capture.breaks import Raised, unsupported
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.values.classes import super_of
from dynacompile.capture.values.constant import SliceValue
from dynacompile.capture.values.exceptions import note_attribute

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.capture.values.base import Value
    from dynacompile.cpython.instructions import Instr


@opcode("LOAD_ATTR", effect=0)
def load_attr(f: SymbolicFrame, i: Instr) -> None:
    f.push(attribute(f, i))


@opcode("LOAD_METHOD", effect=1)
def load_method(f: SymbolicFrame, i: Instr) -> None:
    f.push_callable(attribute(f, i))


def attribute(f: SymbolicFrame, i: Instr) -> Value:
    owner, name = f.pop(), f.code.co_names[i.arg]
    f.cx.effects.check_seen(name)
    stored = None if f.cx.arm is None else f.cx.arm.stored(owner, name)
    if stored is not None:
        return stored
    try:
        return owner.get_attr(f.cx, name)
    except Raised as reason:
        note_attribute(reason, owner, name)
        raise


@opcode("LOAD_SUPER_ATTR", effect=lambda arg, jump: -2 + (arg & 1))
def load_super_attr(f: SymbolicFrame, i: Instr) -> None:
    called, cls, owner = f.pop_many(3)
    if called.constant() is not super:
        raise unsupported("unknown-function", f"{called.describe()} in the place of super")
    found = super_of(cls, owner).get_attr(f.cx, f.code.co_names[i.arg >> 2])
    if i.arg & 1:
        f.push_callable(found)
    else:
        f.push(found)


@opcode("STORE_ATTR", effect=-2)
def store_attr(f: SymbolicFrame, i: Instr) -> None:
    value, owner = f.pop_many(2)
    name = f.code.co_names[i.arg]
    if f.cx.arm is None:
        owner.set_attr(f.cx, name, value)
    else:
        f.cx.arm.store(owner, name, value)


@opcode("DELETE_ATTR", effect=-1)
def delete_attr(f: SymbolicFrame, i: Instr) -> None:
    f.pop().del_attr(f.cx, f.code.co_names[i.arg])


@opcode("BINARY_SUBSCR", effect=-1)
def binary_subscr(f: SymbolicFrame, i: Instr) -> None:
    owner, key = f.pop_many(2)
    f.push(f.cx.operator("getitem", [owner, key]))


@opcode("STORE_SUBSCR", effect=-3)
def store_subscr(f: SymbolicFrame, i: Instr) -> None:
    value, owner, key = f.pop_many(3)
    f.cx.operator("setitem", [owner, key, value])


@opcode("DELETE_SUBSCR", effect=-2)
def delete_subscr(f: SymbolicFrame, i: Instr) -> None:
    owner, key = f.pop_many(2)
    owner.del_item(f.cx, key)


@opcode("BINARY_SLICE", effect=-2)
def binary_slice(f: SymbolicFrame, i: Instr) -> None:
    owner, start, stop = f.pop_many(3)
    f.push(f.cx.operator("getitem", [owner, SliceValue([start, stop, f.cx.of(None)])]))


@opcode("STORE_SLICE", effect=-4)
def store_slice(f: SymbolicFrame, i: Instr) -> None:
    value, owner, start, stop = f.pop_many(4)
    f.cx.operator("setitem", [owner, SliceValue([start, stop, f.cx.of(None)]), value])
