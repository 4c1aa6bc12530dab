"""Messages between the pool and its workers: two lengths (big-endian, 4 bytes each), a JSON object, raw bytes. Imports nothing heavy:
a worker loads this file by its path."""

from __future__ import annotations

import json
import struct
from typing import IO


def read_message(stream: IO[bytes]) -> tuple[dict, bytes] | None:
    """One message, or None at the end of the stream. Raises EOFError inside a message."""
    head = read_all(stream, 8)
    if not head:
        return None
    if len(head) < 8:
        raise EOFError("message cut off")
    header, blob = struct.unpack(">II", head)
    text, rest = read_all(stream, header), read_all(stream, blob)
    if len(text) < header or len(rest) < blob:
        raise EOFError("message cut off")
    return json.loads(text), rest


def read_all(stream: IO[bytes], n: int) -> bytes:
    """n bytes, fewer only at the end; the stream may be unbuffered, so that select() sees what is not read yet."""
    parts = []
    while n > 0 and (part := stream.read(n)):
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def write_message(stream: IO[bytes], header: dict, blob: bytes = b"") -> None:
    text = json.dumps(header).encode()
    stream.write(struct.pack(">II", len(text), len(blob)) + text + blob)
    stream.flush()
