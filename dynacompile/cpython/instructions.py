"""The instructions that the compiler reads and writes: one set for all versions of CPython.

Each version's file says what an instruction of its own stands for in this set, and by which of its own an instruction of the set is written. The set is
CPython 3.12's but for what that packs into arguments: methods are loaded by LOAD_METHOD, COMPARE_OP has the plain index of the comparison, and a
truth test is a part of POP_JUMP_IF_TRUE, POP_JUMP_IF_FALSE and UNARY_NOT. FOR_ITER at the end of its iterator drops it and goes on behind END_FOR, which
does nothing. KW_NAMES names the keywords of the CALL behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType

Position = tuple[int | None, int | None, int | None, int | None]
NOWHERE: Position = (None, None, None, None)
Pair = tuple[str, int]  # an instruction's name and argument


@dataclass(slots=True, eq=False)
class Instr:
    """One instruction without its caches and EXTENDED_ARG prefixes. `target` stands for the argument of a jump."""

    op: str
    arg: int = 0
    target: Instr | None = None
    position: Position = NOWHERE
    index: int = -1  # in the list that it belongs to

    @property
    def line(self) -> int | None:
        return self.position[0]

    def __repr__(self) -> str:
        return f"{self.index}:{self.op} {'-> ' + str(self.target.index) if self.target else self.arg}"


@dataclass(frozen=True, eq=False)
class Handler:
    """One row of an exception table: instructions from `start` to `end`, both included, unwind to `depth` and go to `target`."""

    start: Instr
    end: Instr
    target: Instr
    depth: int
    lasti: bool


@dataclass(frozen=True)
class Version:
    """What one version of CPython has of its own.

    caches: how many code units follow an instruction for the interpreter's own use.
    reads: for its own instructions that are not those of the set, what one stands for; called with the code, all its instructions and an index.
    Nothing: its part is in another's. writes: for instructions of the set that it has not, what it has instead; called with the list and an index.
    null_first: whether the NULL of a call without a bound argument lies below the callable on the stack, rather than above it.
    send_keeps_receiver: whether SEND leaves an iterator that has ended on the stack, for END_SEND.
    subsets_end_early: whether set.issubset takes no more of an iterator once it has found all.
    without_dict: what the error says more where an attribute is set or deleted of an object that has no dict.
    """

    name: str
    caches: dict[str, int]
    reads: dict[str, Callable[[CodeType, Sequence[Instr], int], Sequence[Pair]]]
    writes: dict[str, Callable[[Sequence[Instr], int], Sequence[Pair]]]
    null_first: bool
    send_keeps_receiver: bool
    subsets_end_early: bool = True
    without_dict: str = ""


def renamed(op: str) -> Callable[[CodeType, Sequence[Instr], int], Sequence[Pair]]:
    """The same instruction by another name."""
    return lambda code, instrs, at: [(op, instrs[at].arg)]


def written_as(op: str) -> Callable[[Sequence[Instr], int], Sequence[Pair]]:
    return lambda instrs, at: [(op, instrs[at].arg)]


# By the argument of BINARY_OP.
SIGNS = tuple("+ & // << @ * % | ** >> - / ^".split())
BINARY_SIGNS = (*SIGNS, *(sign + "=" for sign in SIGNS))

# By the index of a comparison, the bits that specialised instructions test: unordered 1, less 2, greater 4, equal 8.
COMPARISON_BITS = (2, 2 | 8, 8, 1 | 2 | 4, 4, 4 | 8)  # <, <=, ==, !=, >, >=
