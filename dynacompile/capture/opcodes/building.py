"""Making and unpacking containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynacompile.capture.breaks import raises, unsupported
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.values.constant import ConstantValue, SliceValue
from dynacompile.capture.values.keys import as_keys, key_of
from dynacompile.capture.values.mapping import DictLike, DictValue, is_mapping, pairs_of
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.capture.values.sets import SetValue

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr


def gathers(arg: int, jump: bool) -> int:
    return 1 - arg


@opcode("BUILD_TUPLE", effect=gathers)
def build_tuple(f: SymbolicFrame, i: Instr) -> None:
    f.push(TupleValue(f.pop_many(i.arg)))


@opcode("BUILD_LIST", effect=gathers)
def build_list(f: SymbolicFrame, i: Instr) -> None:
    f.push(ListValue(f.pop_many(i.arg)))


@opcode("BUILD_SET", effect=gathers)
def build_set(f: SymbolicFrame, i: Instr) -> None:
    f.push(SetValue(as_keys(f.cx, f.pop_many(i.arg))))


@opcode("BUILD_MAP", effect=lambda arg, jump: 1 - 2 * arg)
def build_map(f: SymbolicFrame, i: Instr) -> None:
    flat = f.pop_many(2 * i.arg)
    f.push(DictValue.of(list(zip(as_keys(f.cx, flat[::2]), flat[1::2]))))


@opcode("BUILD_CONST_KEY_MAP", effect=lambda arg, jump: -arg)
def build_const_key_map(f: SymbolicFrame, i: Instr) -> None:
    keys = f.pop().elements(f.cx)
    f.push(DictValue.of(list(zip(keys, f.pop_many(i.arg)))))


@opcode("BUILD_SLICE", effect=lambda arg, jump: -2 if arg == 3 else -1)
def build_slice(f: SymbolicFrame, i: Instr) -> None:
    parts = f.pop_many(i.arg)
    f.push(SliceValue(parts if i.arg == 3 else [*parts, ConstantValue(None)]))


@opcode("LIST_APPEND", effect=-1)
def list_append(f: SymbolicFrame, i: Instr) -> None:
    value = f.pop_unread(1)
    f.peek(i.arg).method(f.cx, "append", value, {})


@opcode("SET_ADD", effect=-1)
def set_add(f: SymbolicFrame, i: Instr) -> None:
    value = f.pop()
    f.peek(i.arg).method(f.cx, "add", [value], {})


@opcode("MAP_ADD", effect=-2)
def map_add(f: SymbolicFrame, i: Instr) -> None:
    key, value = f.pop_many(2)
    f.peek(i.arg).set_item(f.cx, key, value)


@opcode("LIST_EXTEND", effect=-1)
def list_extend(f: SymbolicFrame, i: Instr) -> None:
    values = f.pop()
    f.peek(i.arg).method(f.cx, "extend", [values], {})


@opcode("SET_UPDATE", effect=-1)
def set_update(f: SymbolicFrame, i: Instr) -> None:
    values = f.pop()
    f.peek(i.arg).method(f.cx, "update", [values], {})


@opcode("DICT_UPDATE", effect=-1)
def dict_update(f: SymbolicFrame, i: Instr) -> None:
    other = f.pop()
    if not isinstance(other, DictLike) and not is_mapping(f.cx, other):
        raise raises(TypeError, f"'{other.pytype().__name__}' object is not a mapping")
    f.peek(i.arg).method(f.cx, "update", [other], {})


@opcode("DICT_MERGE", effect=-1)
def dict_merge(f: SymbolicFrame, i: Instr) -> None:
    other, target = f.pop(), f.peek(i.arg)
    assert isinstance(target, DictValue)
    if not isinstance(other, DictLike) and not is_mapping(f.cx, other):
        raise unsupported("would-raise", f"an argument after ** that is no mapping: {other.describe()}")
    for key, value in pairs_of(f.cx, other):
        if key_of(key) in target.content:
            raise unsupported("would-raise", f"multiple values for keyword argument {key.describe()}")
        target.put(key, value)


@opcode("UNPACK_SEQUENCE", effect=lambda arg, jump: arg - 1)
def unpack_sequence(f: SymbolicFrame, i: Instr) -> None:
    values = f.pop().elements(f.cx)
    if len(values) != i.arg:
        few = len(values) < i.arg
        text = f"not enough values to unpack (expected {i.arg}, got {len(values)})" if few else f"too many values to unpack (expected {i.arg})"
        raise raises(ValueError, text)
    f.stack.extend(reversed(values))


@opcode("UNPACK_EX", effect=lambda arg, jump: (arg & 255) + (arg >> 8))
def unpack_ex(f: SymbolicFrame, i: Instr) -> None:
    before, after = i.arg & 255, i.arg >> 8
    values = f.pop().elements(f.cx)
    if len(values) < before + after:
        raise unsupported("would-raise", f"expected at least {before + after} values to unpack, got {len(values)}")
    end = len(values) - after
    f.stack.extend(reversed([*values[:before], ListValue(values[before:end]), *values[end:]]))
