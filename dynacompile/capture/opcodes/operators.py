"""Operators, comparisons, formatting."""

from __future__ import annotations

import dis
import re
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import Raised, raises, unsupported
from dynacompile.capture.frames.table import opcode
from dynacompile.capture.library.texts import formatted, text
from dynacompile.capture.operator_names import COMPARE_SYMBOLS, INPLACE, SYMBOLS
from dynacompile.capture.tensors.deferred_texts import concat
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.exceptions import ExceptionValue, stopped_inside
from dynacompile.capture.values.sequence import ListValue, TupleValue
from dynacompile.cpython.instructions import BINARY_SIGNS

if TYPE_CHECKING:
    from dynacompile.capture.frames.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr

# argument of BINARY_OP -> name in the operator module
BINARY_NAMES = tuple("i" + SYMBOLS[s[:-1]].rstrip("_") if s.endswith("=") else SYMBOLS[s] for s in BINARY_SIGNS)


@opcode("BINARY_OP", effect=-1)
def binary_op(f: SymbolicFrame, i: Instr) -> None:
    name, depth = BINARY_NAMES[i.arg], len(f.cx.frames)
    try:
        f.push(f.cx.operator(name, f.pop_many(2)))
    except Raised as reason:
        if name in INPLACE and reason.cls is TypeError and reason.value is None and reason.args_ and depth == len(f.cx.frames):
            raise raises(TypeError, assigning(str(reason.args_[0]))) from reason
        raise


def assigning(text: str) -> str:
    """What Python says of an operator that assigns, where its plain form was tried."""
    return re.sub(r"^(unsupported operand type\(s\) for [^ =:]+)(?: or pow\(\))?:", r"\1=:", text)


@opcode("UNARY_NEGATIVE", effect=0)
def unary_negative(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.operator("neg", [f.pop()]))


@opcode("UNARY_POSITIVE", effect=0)
def unary_positive(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.operator("pos", [f.pop()]))


@opcode("UNARY_INVERT", effect=0)
def unary_invert(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.operator("invert", [f.pop()]))


@opcode("UNARY_NOT", effect=0)
def unary_not(f: SymbolicFrame, i: Instr) -> None:
    f.push(ConstantValue(not f.pop().truth(f.cx)))


@opcode("COMPARE_OP", effect=-1)
def compare_op(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.operator(COMPARE_SYMBOLS[dis.cmp_op[i.arg]], f.pop_many(2)))


@opcode("TO_BOOL", effect=0)
def to_bool(f: SymbolicFrame, i: Instr) -> None:
    f.push(ConstantValue(f.pop().truth(f.cx)))


@opcode("IS_OP", effect=-1)
def is_op(f: SymbolicFrame, i: Instr) -> None:
    f.push(f.cx.operator("is_not" if i.arg else "is_", f.pop_many(2)))


@opcode("CONTAINS_OP", effect=-1)
def contains_op(f: SymbolicFrame, i: Instr) -> None:
    item, container = f.pop_many(2)
    found = f.cx.operator("contains", [container, item])
    f.push(ConstantValue(not found.truth(f.cx)) if i.arg else found)


@opcode("FORMAT_VALUE", effect=lambda arg, jump: -1 if arg & 4 else 0)
def format_value(f: SymbolicFrame, i: Instr) -> None:
    spec = f.pop().constant() if i.arg & 4 else ""
    value = f.pop()
    if i.arg & 3:
        value = text(f.cx, value, (None, "str", "repr", "ascii")[i.arg & 3])  # type: ignore[arg-type]
    f.push(formatted(f.cx, value, spec))


@opcode("CONVERT_VALUE", effect=0)
def convert_value(f: SymbolicFrame, i: Instr) -> None:
    f.push(text(f.cx, f.pop(), (None, "str", "repr", "ascii")[i.arg]))  # type: ignore[arg-type]


@opcode("BUILD_STRING", effect=lambda arg, jump: 1 - arg)
def build_string(f: SymbolicFrame, i: Instr) -> None:
    f.push(concat(f.cx, f.pop_many(i.arg)))


@opcode("GET_LEN", effect=1)
def get_len(f: SymbolicFrame, i: Instr) -> None:
    f.push(ConstantValue(f.peek(1).length(f.cx)))


@opcode("LIST_TO_TUPLE", effect=0)
def list_to_tuple(f: SymbolicFrame, i: Instr) -> None:
    f.push(as_tuple(f.pop()))


@opcode("STOPITERATION_ERROR", effect=0)
def stopiteration_error(f: SymbolicFrame, i: Instr) -> None:
    value = f.peek(1)
    if isinstance(value, ExceptionValue) and issubclass(value.cls, StopIteration):
        f.stack[-1] = stopped_inside(value)


def as_tuple(value: Value) -> TupleValue:
    if not isinstance(value, ListValue):
        raise unsupported("unknown-operation", f"a tuple of {value.describe()}")
    return TupleValue(value.items)
