"""CPython 3.11. Calls take a PRECALL, conditional jumps have a direction, and comprehensions are functions of their own."""

from __future__ import annotations

from collections.abc import Sequence

from dynacompile.cpython.instructions import Instr, Pair, Version, renamed

CONDITIONS = ("TRUE", "FALSE", "NONE", "NOT_NONE")


def call(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    return [("PRECALL", instrs[at].arg), ("CALL", instrs[at].arg)]


def conditional_jump(instrs: Sequence[Instr], at: int) -> Sequence[Pair]:
    instr = instrs[at]
    backward = instr.target is not None and instr.target.index <= instr.index
    return [(instr.op.replace("POP_JUMP", "POP_JUMP_BACKWARD" if backward else "POP_JUMP_FORWARD"), instr.arg)]


VERSION = Version(
    name="3.11",
    caches={
        **dict.fromkeys("BINARY_OP PRECALL STORE_SUBSCR UNPACK_SEQUENCE".split(), 1),
        **dict.fromkeys("COMPARE_OP".split(), 2),
        **dict.fromkeys("BINARY_SUBSCR CALL LOAD_ATTR STORE_ATTR".split(), 4),
        **dict.fromkeys("LOAD_GLOBAL".split(), 5),
        **dict.fromkeys("LOAD_METHOD".split(), 10),
    },
    reads={
        "PRECALL": lambda code, instrs, at: [],
        **{f"POP_JUMP_{way}_IF_{test}": renamed(f"POP_JUMP_IF_{test}") for way in ("FORWARD", "BACKWARD") for test in CONDITIONS},
    },
    writes={
        "CALL": call,
        "END_FOR": lambda instrs, at: [("NOP", 0)],  # FOR_ITER goes to what follows the loop
        **{f"POP_JUMP_IF_{test}": conditional_jump for test in CONDITIONS},
    },
    null_first=True,
    send_keeps_receiver=False,
    subsets_end_early=False,
)
