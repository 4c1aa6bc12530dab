"""CPython 3.12. LOAD_ATTR also loads methods, COMPARE_OP has bits for specialised forms, and comprehensions are part of the function that has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType

from dynacompile.cpython.instructions import COMPARISON_BITS, Instr, Pair, Version

INTRINSICS = {3: "STOPITERATION_ERROR", 5: "UNARY_POSITIVE", 6: "LIST_TO_TUPLE"}  # of CALL_INTRINSIC_1


def load_attr(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [("LOAD_METHOD" if arg & 1 else "LOAD_ATTR", arg >> 1)]


def intrinsic(code: CodeType, instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [(INTRINSICS[arg], 0)] if arg in INTRINSICS else [("CALL_INTRINSIC_1", arg)]


def write_intrinsic(arg: int) -> Callable[[Sequence[Instr], int], Sequence[Pair]]:
    return lambda instrs, at: [("CALL_INTRINSIC_1", arg)]


def comparison(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    arg = instrs[at].arg
    return [("COMPARE_OP", arg << 4 | COMPARISON_BITS[arg])]


VERSION = Version(
    name="3.12",
    caches={
        **dict.fromkeys("BINARY_OP BINARY_SUBSCR COMPARE_OP FOR_ITER LOAD_SUPER_ATTR SEND STORE_SUBSCR UNPACK_SEQUENCE".split(), 1),
        **dict.fromkeys("CALL".split(), 3),
        **dict.fromkeys("LOAD_GLOBAL STORE_ATTR".split(), 4),
        **dict.fromkeys("LOAD_ATTR".split(), 9),
    },
    reads={
        "LOAD_ATTR": load_attr,
        "COMPARE_OP": lambda code, instrs, at: [("COMPARE_OP", instrs[at].arg >> 4)],
        "CALL_INTRINSIC_1": intrinsic,
    },
    writes={
        "LOAD_ATTR": lambda instrs, at: [("LOAD_ATTR", instrs[at].arg << 1)],
        "LOAD_METHOD": lambda instrs, at: [("LOAD_ATTR", instrs[at].arg << 1 | 1)],
        "COMPARE_OP": comparison,
        **{name: write_intrinsic(arg) for arg, name in INTRINSICS.items()},
    },
    null_first=True,
    send_keeps_receiver=True,
)
