"""The persistent store of binaries: bytes by key, shared by processes, written atomically, verified when read. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from dynacompile.env import private_folder

MAGIC = b"dynacompile-binary-1\n"
KEY = re.compile(r"[0-9A-Za-z_.-]{8,128}")


class Store:
    """A folder of entries. An entry's file is its content, then MAGIC and the content's SHA-256 (32 bytes): what reads a library or a cubin
    by its own headers ignores the tail. A damaged entry counts as absent, and is replaced by the next `put`."""

    def __init__(self, folder: Path):
        self.folder = private_folder(folder, "DYNACOMPILE_CACHE_DIR")

    def file(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"a key is 8 to 128 letters, digits, '_', '.', '-', not {key!r}")
        return self.folder / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """The content, or None where there is no intact entry."""
        try:
            raw = self.file(key).read_bytes()
        except FileNotFoundError:
            return None
        content, tail = raw[: -len(MAGIC) - 32], raw[-len(MAGIC) - 32 :]
        return content if tail == MAGIC + hashlib.sha256(content).digest() else None

    def path(self, key: str) -> Path | None:
        """The file of an intact entry (its content, then the tail), or None."""
        return None if self.get(key) is None else self.file(key)

    def put(self, key: str, content: bytes) -> Path:
        """Stores `content`; returns its file. Readers see the old entry or the whole new one."""
        path = self.file(key)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(content + MAGIC + hashlib.sha256(content).digest())
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        return path
