"""From instructions to a code object: offsets, inline caches, EXTENDED_ARG, exception table, line table, stack size."""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import Any

from dynacompile.capture.bytecode import CACHES, ENDS_BLOCK
from dynacompile.cpython import RUNNING
from dynacompile.cpython.instructions import Handler, Instr, Position
from dynacompile.errors import VerifyError


def assemble(base: CodeType, instrs: Sequence[Instr], handlers: Sequence[Handler] = (), **fields: Any) -> CodeType:
    """A copy of `base` with the body `instrs` and the given code fields (co_consts, co_varnames, ...).

    Arguments of instructions are final, except for jumps, which go to their `target`. Handlers that cover nothing are dropped.
    """
    instrs, handlers = as_run(instrs, handlers)
    sizes = [1 + CACHES.get(instr.op, 0) for instr in instrs]
    offsets, args = place(instrs, sizes)
    raw = bytearray()
    for instr, arg in zip(instrs, args):
        number = dis.opmap[instr.op]
        for shift in (24, 16, 8):
            if arg >> shift:
                raw += bytes((dis.opmap["EXTENDED_ARG"], arg >> shift & 255))
        raw += bytes((number, arg & 255)) + bytes(2 * CACHES.get(instr.op, 0))
    first = fields.get("co_firstlineno", base.co_firstlineno)
    nlocals = len(fields.get("co_varnames", base.co_varnames))
    return base.replace(
        co_code=bytes(raw),
        co_stacksize=stack_size(instrs, handlers),
        co_linetable=line_table(instrs, offsets, len(raw) // 2, first),
        co_exceptiontable=exception_table(handlers, offsets, len(raw) // 2),
        co_nlocals=nlocals,
        **fields,
    )


def as_run(instrs: Sequence[Instr], handlers: Sequence[Handler]) -> tuple[list[Instr], list[Handler]]:
    """The same in the instructions of the CPython that runs."""
    for index, instr in enumerate(instrs):
        instr.index = index
    writes = RUNNING.writes
    own: list[Instr] = []
    first: list[int] = []  # by the index of an instruction, how many of CPython's come before it
    for at, instr in enumerate(instrs):
        first.append(len(own))
        write = writes.get(instr.op)
        pairs = ((instr.op, instr.arg),) if write is None else write(instrs, at)
        own += [Instr(op, arg, None, instr.position) for op, arg in pairs]
        own[-1].target = instr.target
    first.append(len(own))
    for index, instr in enumerate(own):
        instr.index = index
        if instr.target is not None:
            instr.target = own[first[instr.target.index]]
    rows = [Handler(own[first[h.start.index]], own[first[h.end.index + 1] - 1], own[first[h.target.index]], h.depth, h.lasti) for h in handlers]
    return own, rows


def place(instrs: Sequence[Instr], sizes: list[int]) -> tuple[list[int], list[int]]:
    """Offsets (in code units, of the first EXTENDED_ARG) and arguments; grows prefixes until all arguments fit."""
    prefixes = [prefix_count(instr.arg) if instr.target is None else 0 for instr in instrs]
    while True:
        offsets, at = [], 0
        for size, prefix in zip(sizes, prefixes):
            offsets.append(at)
            at += size + prefix
        offsets.append(at)
        args, grown = [], False
        for index, instr in enumerate(instrs):
            arg = instr.arg
            if instr.target is not None:
                distance = offsets[instr.target.index] - offsets[index + 1]
                arg = -distance if "BACKWARD" in instr.op else distance
                if arg < 0:
                    raise VerifyError("capture", f"{instr.op} jumps in the wrong direction")
                if prefix_count(arg) > prefixes[index]:
                    prefixes[index], grown = prefix_count(arg), True
            args.append(arg)
        if not grown:
            return offsets, pad(args, prefixes)


def pad(args: list[int], prefixes: list[int]) -> list[int]:
    """A jump that needs a prefix less after all would shift the code; such arguments never arise as prefixes only grow to fit."""
    for arg, prefix in zip(args, prefixes):
        if prefix_count(arg) != prefix:
            raise VerifyError("capture", "jump distances did not settle")
    return args


def prefix_count(arg: int) -> int:
    return 0 if arg < 1 << 8 else 1 if arg < 1 << 16 else 2 if arg < 1 << 24 else 3


def varint(value: int) -> bytes:
    """Little-endian groups of six bits, as in line tables."""
    out = bytearray()
    while value > 63:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def signed_varint(value: int) -> bytes:
    return varint(-value << 1 | 1 if value < 0 else value << 1)


def line_table(instrs: Sequence[Instr], offsets: list[int], end: int, line: int) -> bytes:
    out = bytearray()
    for index, instr in enumerate(instrs):
        length = (offsets[index + 1] if index + 1 < len(instrs) else end) - offsets[index]
        while length > 0:
            units = min(length, 8)
            entry, line = location(instr.position, units, line)
            out += entry
            length -= units
    return bytes(out)


def location(position: Position, units: int, previous: int) -> tuple[bytes, int]:
    """One entry of the location table (PEP 626 / 657 encoding) and the line it ends on."""
    line, end_line, column, end_column = position
    if line is None:
        return bytes((0x80 | 15 << 3 | units - 1,)), previous
    if end_line is None or column is None or end_column is None:
        return bytes((0x80 | 13 << 3 | units - 1,)) + signed_varint(line - previous), line
    head = bytes((0x80 | 14 << 3 | units - 1,))
    return head + signed_varint(line - previous) + varint(max(end_line - line, 0)) + varint(column + 1) + varint(end_column + 1), line


def exception_table(handlers: Sequence[Handler], offsets: list[int], end: int) -> bytes:
    out = bytearray()
    ends = [*offsets[1:], end]
    for handler in sorted(handlers, key=lambda h: offsets[h.start.index]):
        start, stop = offsets[handler.start.index], ends[handler.end.index]
        for position, value in enumerate((start, stop - start, offsets[handler.target.index], handler.depth << 1 | handler.lasti)):
            groups = [value & 63]
            while value := value >> 6:
                groups.append(64 | value & 63)
            groups.reverse()
            groups[0] |= 128 if position == 0 else 0
            out += bytes(groups)
    return bytes(out)


def stack_size(instrs: Sequence[Instr], handlers: Sequence[Handler]) -> int:
    """The deepest stack over all paths."""
    depth_at: dict[int, int] = {}
    work = [(0, 0)] + [(h.target.index, h.depth + h.lasti + 1) for h in handlers]
    deepest = 0
    while work:
        index, depth = work.pop()
        while index < len(instrs) and depth_at.get(index, -1) < depth:
            depth_at[index] = depth
            instr = instrs[index]
            number = dis.opmap[instr.op]
            arg = instr.arg if number >= dis.HAVE_ARGUMENT else None
            if instr.target is not None:
                work.append((instr.target.index, depth + dis.stack_effect(number, 0, jump=True)))
                arg = 0
            deepest = max(deepest, depth, depth + max(0, dis.stack_effect(number, arg, jump=False)))
            if instr.op in ENDS_BLOCK:
                break
            depth += dis.stack_effect(number, arg, jump=False) if instr.op != "RETURN_GENERATOR" else 1  # the value that the first next() sends
            index += 1
    return deepest + 2
