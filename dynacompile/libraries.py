"""Loading shared libraries from descriptors, so that what is loaded is what was checked, whatever has become of the file's name."""

from __future__ import annotations

import ctypes
import itertools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dynacompile.errors import BuildError
from dynacompile.trusted import write_all

NUMBERS = itertools.count()
BITS = 40


@dataclass(frozen=True)
class Library:
    """A shared library that is loaded, and stays so. path: where it was found or is kept, for messages. handle: of dlopen."""

    path: Path
    handle: int

    def __str__(self) -> str:
        return str(self.path)

    def address(self, symbol: str) -> int:
        """Address of a function. Raises BuildError."""
        try:
            function = getattr(ctypes.CDLL(str(self.path), handle=self.handle), symbol)
        except AttributeError as error:
            raise BuildError(f"the built kernel {symbol} of {self.path} does not load: {error}. Delete the compile cache and try again") from error
        address = ctypes.cast(function, ctypes.c_void_p).value
        assert address is not None
        return address


def name_of(descriptor: int) -> str:
    """A path of what the descriptor stands for, which no other call gives: the loader knows libraries by their paths, and descriptors have successors."""
    number = next(NUMBERS)
    return "/proc/self/fd" + "".join("//." if number >> bit & 1 else "/." for bit in range(BITS)) + f"/{descriptor}"


def load_library(descriptor: int, path: Path) -> Library:
    """Loads the library that the descriptor stands for, and closes it. Raises BuildError."""
    try:
        return Library(path, ctypes.CDLL(name_of(descriptor))._handle)
    except OSError as error:
        raise BuildError(f"the library {path} does not load: {str(error).rpartition(': ')[2]}. Delete it to have it built anew") from error
    finally:
        os.close(descriptor)


def in_memory(content: bytes, name: str) -> int:
    """A descriptor of a file that is on no disk and has this content; a nameless one in the folder for temporary files where the system has none such.
    Raises OSError."""
    try:
        descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC)
    except OSError:
        descriptor, path = tempfile.mkstemp(prefix="dynacompile-")
        os.unlink(path)
    try:
        write_all(descriptor, content)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
