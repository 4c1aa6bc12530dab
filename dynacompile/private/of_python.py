"""CPython's private names, as `of_torch` has torch's. What belongs to a version of the interpreter itself is in `cpython/`."""

from __future__ import annotations

import platform

from dynacompile.private.rows import Names, reader

NAMES = Names("CPython", platform.python_version())
add = NAMES.add
__getattr__ = reader(NAMES, globals())

add("managers that `contextlib.contextmanager` makes of generators", GeneratorContextManager="contextlib._GeneratorContextManager")
add("what is to be done before the interpreter joins its threads", "compilers that end with the interpreter", register_atexit="threading._register_atexit")
add("the thread of background compiles, which the interpreter does not wait for", "compiles in the background", active_threads="threading._active")
