"""What a cubin says of its kernel's registers and memory, read from its ELF sections."""

from __future__ import annotations

import struct
from collections.abc import Iterator

REGISTERS, FRAME = 0x2F, 0x11  # attributes of .nv.info: registers of a thread; bytes of local memory, where values go that registers do not hold
WITH_PAYLOAD = 4


def registers(cubin: bytes) -> int:
    """Registers of a thread of the kernel."""
    return max((value for kind, value in attributes(cubin) if kind == REGISTERS), default=0)


def spilled(cubin: bytes) -> int:
    """Bytes of a thread's local memory."""
    return max((value for kind, value in attributes(cubin) if kind == FRAME), default=0)


def attributes(cubin: bytes) -> Iterator[tuple[int, int]]:
    """(kind, value) of the attributes of functions: section .nv.info."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    strings = sections[names][4]
    for name, _, _, _, offset, length, *_ in sections:
        start = strings + name
        if cubin[start : cubin.index(b"\0", start)] != b".nv.info":
            continue
        at, end = offset, offset + length
        while at < end:
            form, kind, words = struct.unpack_from("<BBH", cubin, at)
            at += 4
            if form == WITH_PAYLOAD:
                if words == 8:
                    yield kind, struct.unpack_from("<II", cubin, at)[1]
                at += words
