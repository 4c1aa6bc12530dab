"""Code objects as lists of instructions whose jumps are references, and what can be said about them without running them."""

from __future__ import annotations

import dis
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from weakref import ReferenceType, ref

from dynacompile.cpython import RUNNING
from dynacompile.cpython.instructions import Handler, Instr

CACHES = RUNNING.caches
JUMPS = frozenset(dis.opname[i] for i in dis.hasjrel if i < 256)
BACKWARD = frozenset(name for name in JUMPS if "BACKWARD" in name)
ENDS_BLOCK = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})
READS_LOCAL = frozenset({"LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR", "DELETE_FAST"})
WRITES_LOCAL = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
CELL_OPS = frozenset({"MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
STACK_PREFIX = ".s"  # of the parameters by which a resume function gets the values on the stack
RESUME_PREFIX = "<resume at line "  # of their qualified names; tracebacks and logs show the name of the function
LOOP_SUFFIX = "i"  # of those that say how far a loop is
SLOT_OPS = READS_LOCAL | WRITES_LOCAL | CELL_OPS


def is_resume(code: CodeType) -> bool:
    return code.co_qualname.startswith(RESUME_PREFIX)


@dataclass(frozen=True, eq=False)
class Decoded:
    """A code object, read once. It does not keep the code object alive: a frame that runs or is followed does."""

    reference: ReferenceType[CodeType]
    instrs: tuple[Instr, ...]
    handlers: tuple[Handler, ...]
    slots: tuple[str, ...]  # names by localsplus index
    first_free: int
    _liveness: dict[int, frozenset[int]] = field(default_factory=dict)
    _copied: dict[int, int] = field(default_factory=dict)

    @property
    def code(self) -> CodeType:
        code = self.reference()
        if code is None:
            raise ReferenceError("the code object is gone")
        return code

    def handler_of(self, instr: Instr) -> Handler | None:
        for handler in self.handlers:
            if handler.start.index <= instr.index <= handler.end.index:
                return handler
        return None

    def loop_heads(self, instr: Instr) -> list[Instr]:
        """The first instructions of the loops that go on after `instr`, outermost first; a `break` or `return` is outside of its loop."""
        heads = {other.target.index for other in self.instrs if other.target and other.target.index <= instr.index <= other.index}
        return [self.instrs[index] for index in sorted(heads & reachable(self.instrs, self.handlers, [instr]) if heads else ())]

    def may_read_cell(self, slot: int, start: Instr) -> bool:
        """Whether the code itself may read or delete a closure variable, from `start` on, before it sets it."""
        seen: set[int] = set()
        work = [start]
        while work:
            instr = work.pop()
            if instr.index in seen:
                continue
            seen.add(instr.index)
            work.extend(h.target for h in self.handlers if h.start.index <= instr.index <= h.end.index)
            if instr.arg == slot and instr.op in ("LOAD_DEREF", "DELETE_DEREF"):
                return True
            if instr.arg != slot or instr.op != "STORE_DEREF":
                work.extend(successors(instr, self.instrs))
        return False

    def live_slots(self, instr: Instr) -> frozenset[int]:
        """Local slots that may be read at or after `instr` before they are written."""
        if not self._liveness:
            self._liveness.update(liveness(self.instrs, self.handlers))
        return self._liveness.get(instr.index, frozenset())

    def last_copy(self, index: int) -> int:
        """CPython writes the short end of a function once for each way that leads to it. The last place from which the same code runs to the same return."""
        if not self._copied:
            self._copied.update(last_copies(self))
        return self._copied.get(index, index)


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names by localsplus index: locals, then cells that are no parameters or locals, then free variables."""
    return code.co_varnames + tuple(c for c in code.co_cellvars if c not in code.co_varnames) + code.co_freevars


def decode(code: CodeType) -> Decoded:
    """The code in the instruction set of `cpython.instructions`."""
    raw, rows = read_raw(code)
    reads = RUNNING.reads
    instrs: list[Instr] = []
    first: list[int] = []  # by the index of a raw instruction, how many instructions come before it
    for at, own in enumerate(raw):
        first.append(len(instrs))
        read = reads.get(own.op)
        for op, arg in ((own.op, own.arg),) if read is None else read(code, raw, at):
            instrs.append(Instr(op, arg, own.target, own.position, len(instrs)))
    first.append(len(instrs))
    for instr in instrs:
        if instr.target is not None:
            instr.target = instrs[first[instr.target.index]]
    handlers = [Handler(instrs[first[h.start.index]], instrs[first[h.end.index + 1] - 1], instrs[first[h.target.index]], h.depth, h.lasti) for h in rows]
    names = slot_names(code)
    return Decoded(ref(code), tuple(instrs), tuple(handlers), names, len(names) - len(code.co_freevars))


def read_raw(code: CodeType) -> tuple[list[Instr], list[Handler]]:
    """The instructions that this version of CPython runs, and the rows of the exception table."""
    raw, positions = code.co_code, list(code.co_positions())
    instrs: list[Instr] = []
    targets: dict[int, int] = {}  # index of a jump -> byte offset it goes to
    at: dict[int, Instr] = {}
    offset, extended, begin = 0, 0, None
    while offset < len(raw):
        name = dis.opname[raw[offset]]
        begin = offset if begin is None else begin
        arg = raw[offset + 1] | extended
        if name == "EXTENDED_ARG":
            extended, offset = arg << 8, offset + 2
            continue
        instr = Instr(name, arg, None, positions[offset // 2], len(instrs))
        at[begin] = at[offset] = instr
        offset += 2 + 2 * CACHES.get(name, 0)
        if name in JUMPS:
            targets[instr.index] = offset + 2 * (-arg if name in BACKWARD else arg)
        instrs.append(instr)
        extended, begin = 0, None
    for index, goal in targets.items():
        instrs[index].target = at[goal]
    starts = sorted(at)
    handlers = [
        Handler(at[starts[lower(starts, first)]], at[starts[lower(starts, last) - 1]], at[target], depth, lasti)
        for first, last, target, depth, lasti in exception_rows(code.co_exceptiontable)
    ]
    return instrs, handlers


def lower(sorted_values: list[int], value: int) -> int:
    """Index of the first element >= value."""
    low, high = 0, len(sorted_values)
    while low < high:
        middle = (low + high) // 2
        if sorted_values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


def exception_rows(table: bytes) -> Iterator[tuple[int, int, int, int, bool]]:
    """(first byte, byte after the last, target byte, depth, lasti) of each row."""
    stream = iter(table)

    def varint() -> int:
        byte = next(stream)
        value = byte & 63
        while byte & 64:
            byte = next(stream)
            value = value << 6 | byte & 63
        return value

    while True:
        try:
            start = varint() * 2
        except StopIteration:
            return
        length, target, depth = varint() * 2, varint() * 2, varint()
        yield start, start + length, target, depth >> 1, bool(depth & 1)


def successors(instr: Instr, instrs: tuple[Instr, ...]) -> Iterator[Instr]:
    if instr.target is not None:
        yield instr.target
    if instr.op not in ENDS_BLOCK and instr.index + 1 < len(instrs):
        yield instrs[instr.index + 1]


def reachable(instrs: tuple[Instr, ...], handlers: Iterable[Handler], entries: Iterable[Instr]) -> set[int]:
    """Indices of the instructions that can run when control starts at one of `entries`."""
    seen: set[int] = set()
    work = list(entries)
    while work:
        instr = work.pop()
        if instr.index in seen:
            continue
        seen.add(instr.index)
        work.extend(successors(instr, instrs))
        work.extend(h.target for h in handlers if h.start.index <= instr.index <= h.end.index)
    return seen


def liveness(instrs: tuple[Instr, ...], handlers: tuple[Handler, ...]) -> dict[int, frozenset[int]]:
    """Live local slots before each instruction, by the usual backward iteration."""
    live: list[int] = [0] * len(instrs)
    changed = True
    while changed:
        changed = False
        for instr in reversed(instrs):
            after = 0
            for successor in successors(instr, instrs):
                after |= live[successor.index]
            if instr.op in WRITES_LOCAL:
                after &= ~(1 << instr.arg)
            if instr.op in READS_LOCAL:
                after |= 1 << instr.arg
            for handler in handlers:
                if handler.start.index <= instr.index <= handler.end.index:
                    after |= live[handler.target.index]
            if after != live[instr.index]:
                live[instr.index], changed = after, True
    return {i: frozenset(b for b in range(mask.bit_length()) if mask >> b & 1) for i, mask in enumerate(live)}


def last_copies(decoded: Decoded) -> dict[int, int]:
    """For each instruction that straight code leads on from to a return: the last one from which code of the same source leads on likewise."""
    found: dict[int, int] = {}
    ends: dict[Hashable, int] = {}  # by an instruction, and by the place in `ends` of what follows it
    after: int | None = None
    for instr in reversed(decoded.instrs):
        if instr.op in ENDS_BLOCK:
            after = -1 if instr.op in ("RETURN_VALUE", "RETURN_CONST") else None
        if after is None or instr.target is not None:
            after = None
            continue
        handler = decoded.handler_of(instr)
        after = found[instr.index] = ends.setdefault((instr.op, instr.arg, instr.position, handler and handler.target.index, after), instr.index)
    return found


@dataclass(frozen=True, eq=False)
class Origin:
    """What a resume function is a part of. indices: the instruction of `whole` that each of its own is a copy of, None for its prologue's."""

    whole: Decoded
    cellvars: tuple[str, ...]
    indices: tuple[int | None, ...]


@dataclass(eq=False)
class Known:
    """What is remembered about one code object. watch: tells the cache when it is gone. resumes: by the point at which they go on."""

    decoded: Decoded
    watch: ReferenceType[CodeType]
    resumes: dict[Hashable, CodeType] = field(default_factory=dict)
    origin: Origin | None = None  # of a resume function


class CodeCache:
    """What capture remembers about code objects; owned by whoever calls capture, dropped by `reset`.

    It keeps no code object alive but resume functions, which end with the function that they are a part of. Code objects that are equal are not one:
    they are found by identity. An entry of a resume function may refer to that function, and the garbage collector does not see what code objects own:
    `drop_entries` takes the entries off resume functions whose whole is gone.
    """

    def __init__(self, drop_entries: Callable[[CodeType], None] | None = None) -> None:
        self._known: dict[int, Known] = {}
        self._drop_entries = drop_entries

    def known(self, code: CodeType) -> Known:
        key = id(code)
        found = self._known.get(key)
        if found is None or found.decoded.reference() is not code:
            found = self._known[key] = Known(decode(code), ref(code, partial(forget, ref(self), key)))
        return found

    def decode(self, code: CodeType) -> Decoded:
        return self.known(code).decoded

    def origin(self, decoded: Decoded) -> Origin | None:
        """What a resume function is a part of; None for any other function."""
        return self.known(decoded.code).origin

    def cellvars(self, decoded: Decoded) -> tuple[str, ...]:
        """The variables that the function, or that which a resume function is a part of, shares with functions in it."""
        origin = self.origin(decoded)
        return decoded.code.co_cellvars if origin is None else origin.cellvars

    def forget(self, key: int, gone: ReferenceType[CodeType]) -> None:
        known = self._known.get(key)
        if known is None or known.watch is not gone:
            return
        del self._known[key]
        if self._drop_entries is not None:
            for resume in known.resumes.values():
                self._drop_entries(resume)


def forget(cache: ReferenceType[CodeCache], key: int, gone: ReferenceType[CodeType]) -> None:
    owner = cache()
    if owner is not None:
        owner.forget(key, gone)
