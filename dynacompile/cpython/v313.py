"""CPython 3.13. As 3.12, but: instructions for two locals at once, TO_BOOL before jumps, keywords of calls on the stack, the NULL of a call above its callable,
parts of functions set one by one, cells loaded as locals, and f-strings in steps."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType

from dynacompile.cpython import v312
from dynacompile.cpython.instructions import COMPARISON_BITS, Instr, Pair, Version

TAKES_TRUTH = ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT")
AS_BOOL = 16  # of COMPARE_OP
FUNCTION_PARTS = (8, 4, 2, 1)  # closure, annotations, keyword defaults, defaults: in the order in which MAKE_FUNCTION of the set takes them
WITH_SPEC = 4  # of FORMAT_VALUE


def op_at(instrs: Sequence[Instr], at: int) -> str:
    return instrs[at].op if 0 <= at < len(instrs) else ""


def loaded(code: CodeType, slot: int) -> Pair:
    """A load of a slot: where that holds a cell, it is the cell that is loaded."""
    is_cell = slot >= code.co_nlocals or code.co_varnames[slot] in code.co_cellvars
    return ("LOAD_CLOSURE" if is_cell else "LOAD_FAST", slot)


def load_fast(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [loaded(code, instrs[at].arg)]


def load_load(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [loaded(code, arg >> 4), loaded(code, arg & 15)]


def store_load(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [("STORE_FAST", arg >> 4), loaded(code, arg & 15)]


def store_store(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [("STORE_FAST", arg >> 4), ("STORE_FAST", arg & 15)]


def to_bool(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [] if op_at(instrs, at + 1) in TAKES_TRUTH else [("TO_BOOL", 0)]


def compare(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    tests = arg & AS_BOOL and op_at(instrs, at + 1) not in TAKES_TRUTH
    return [("COMPARE_OP", arg >> 5), ("TO_BOOL", 0)] if tests else [("COMPARE_OP", arg >> 5)]


def load_const(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("KW_NAMES" if op_at(instrs, at + 1) == "CALL_KW" else "LOAD_CONST", instrs[at].arg)]


def make_function(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    flags = 0
    while op_at(instrs, at + 1) == "SET_FUNCTION_ATTRIBUTE":
        at += 1
        flags |= instrs[at].arg
    return [("MAKE_FUNCTION", flags)]


def write_function(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("MAKE_FUNCTION", 0), *(("SET_FUNCTION_ATTRIBUTE", part) for part in FUNCTION_PARTS if instrs[at].arg & part)]


def write_call(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("CALL_KW" if op_at(instrs, at - 1) == "KW_NAMES" else "CALL", instrs[at].arg)]


def write_test(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("TO_BOOL", 0), (instrs[at].op, instrs[at].arg)]


def write_format(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("FORMAT_WITH_SPEC" if instrs[at].arg & WITH_SPEC else "FORMAT_SIMPLE", 0)]


VERSION = Version(
    name="3.13",
    caches={
        **v312.VERSION.caches,
        **dict.fromkeys("CONTAINS_OP JUMP_BACKWARD POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE".split(), 1),
        "TO_BOOL": 3,
    },
    reads={
        **v312.VERSION.reads,
        "LOAD_FAST": load_fast,
        "LOAD_FAST_LOAD_FAST": load_load,
        "STORE_FAST_LOAD_FAST": store_load,
        "STORE_FAST_STORE_FAST": store_store,
        "TO_BOOL": to_bool,
        "COMPARE_OP": compare,
        "LOAD_CONST": load_const,
        "CALL_KW": lambda code, instrs, at: [("CALL", instrs[at].arg)],
        "MAKE_FUNCTION": make_function,
        "SET_FUNCTION_ATTRIBUTE": lambda code, instrs, at: [],
        "FORMAT_SIMPLE": lambda code, instrs, at: [("FORMAT_VALUE", 0)],
        "FORMAT_WITH_SPEC": lambda code, instrs, at: [("FORMAT_VALUE", WITH_SPEC)],
        "POP_TOP": lambda code, instrs, at: [] if op_at(instrs, at - 1) == "END_FOR" else [("POP_TOP", 0)],
    },
    writes={
        **v312.VERSION.writes,
        "COMPARE_OP": lambda instrs, at: [("COMPARE_OP", instrs[at].arg << 5 | COMPARISON_BITS[instrs[at].arg])],
        "LOAD_CLOSURE": lambda instrs, at: [("LOAD_FAST", instrs[at].arg)],
        "KW_NAMES": lambda instrs, at: [("LOAD_CONST", instrs[at].arg)],
        "CALL": write_call,
        "MAKE_FUNCTION": write_function,
        "FORMAT_VALUE": write_format,
        "END_FOR": lambda instrs, at: [("END_FOR", 0), ("POP_TOP", 0)],
        **dict.fromkeys(TAKES_TRUTH, write_test),
    },
    null_first=False,
    send_keeps_receiver=True,
    without_dict=" and no __dict__ for setting new attributes",
)
