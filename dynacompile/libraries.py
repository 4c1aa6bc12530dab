"""Loading shared libraries from private copies, so that what is loaded is what was checked, and stays so, whatever becomes of the file that it is kept in."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from dynacompile.errors import BuildError, ConfigError
from dynacompile.trusted import drop, scratch_folder, temporary_name, write_all

Loaded = TypeVar("Loaded")
NUMBERS = itertools.count()
BITS = 40


@dataclass(frozen=True)
class Library:
    """A shared library that is loaded, and stays so. path: where it was found or is kept, for messages. handle: of dlopen."""

    path: Path
    handle: int = field(compare=False)  # one library may be loaded twice

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


def load_library(content: bytes, path: Path) -> Library:
    """Loads a library that has this content. path: where it is kept, for messages. Raises BuildError."""
    try:
        return Library(path, load_copy(content, path, lambda place: ctypes.CDLL(place)._handle))
    except (OSError, ConfigError) as error:
        fix = "Delete it to have it built anew; make room in memory and in the folder for temporary files"
        raise BuildError(f"the library {path} does not load: {str(error).rpartition(': ')[2]}. {limit_of_files(error) or fix}") from error


def limit_of_files(error: Exception) -> str:
    """What to do where no file may be as large as a copy of the library, in memory neither; "" for other errors."""
    return "Raise the limit of how large files may be (`ulimit -f`)" if isinstance(error, OSError) and error.errno == errno.EFBIG else ""


def load_copy(content: bytes, path: Path, load: Callable[[str], Loaded]) -> Loaded:
    """What `load` makes of the name of a file with this content, which is there for the length of the call.

    The loader maps the pages of a file, and those that were not read yet are read when they are used, at the end of the process for some: whoever
    cuts or writes the file meanwhile ends the process, or changes what it runs. So what is loaded is a copy that nothing else knows, of the bytes
    that were checked: in memory; where the system has no such files, or no /proc to name them by, in a folder for a while; and, where nothing in that
    folder may run, beside `path`. Raises what `load` raised first where it takes none of them.
    """
    refused: list[Exception] = []
    for copy in (in_memory, in_scratch_folder, beside):
        try:
            with copy(content, path) as place:
                return load(place)
        except (OSError, ImportError, ConfigError) as error:
            refused.append(error)
    raise refused[0]


@contextmanager
def in_memory(content: bytes, path: Path) -> Iterator[str]:
    """A file that is on no disk. Profilers show its name. Raises OSError."""
    descriptor = os.memfd_create(f"dynacompile-{path.parent.name}-{path.name}"[:200], os.MFD_CLOEXEC)
    try:
        write_all(descriptor, content)
        yield name_of(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def in_scratch_folder(content: bytes, path: Path) -> Iterator[str]:
    """Raises OSError, ConfigError."""
    with scratch_folder() as folder:
        place = folder / path.name
        place.write_bytes(content)
        yield str(place)


@contextmanager
def beside(content: bytes, path: Path) -> Iterator[str]:
    """A file in the folder of `path`, whose name is that of a temporary file. Raises OSError."""
    place = path.with_name(temporary_name())
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
    try:
        try:
            write_all(descriptor, content)
        finally:
            os.close(descriptor)
        yield str(place)
    finally:
        drop(str(place))
