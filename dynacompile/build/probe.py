"""Whether the installed C++ compiler gets right what kernels are made of, and the flags under which it does.

A program (codegen/cpp/probe.h) compares vector code with scalar code that the compiler cannot fold. It is built and run once for each compiler,
processor and set of flags, and the verdict is kept in the store.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dynacompile.build.store import Store
from dynacompile.compilers import Finished, first_errors
from dynacompile.errors import BuildError
from dynacompile.trusted import scratch_folder

PROGRAM = '#include "probe.h"\n'
# Tried in this order, until the program's results are right. Each costs some speed.
SAFER: tuple[tuple[str, ...], ...] = ((), ("-O2",), ("-O2", "-mno-avx512f"), ("-O1", "-mno-avx512f"), ("-O1", "-mno-avx2"), ("-O0",))
SECONDS = 60  # for a program that runs for milliseconds

Compile = Callable[[Path, Path, Sequence[str]], Finished]  # (source, program, further flags)


def verdict_key(*depends: str) -> str:
    """The key of the verdict on a compiler. depends: all that the compiled program depends on."""
    return "probe-" + hashlib.sha256("\0".join((*depends, repr(SAFER))).encode()).hexdigest()[:40]


def remembered(key: str, store: Store) -> tuple[str, ...] | None:
    """The further flags that the compiler needs, where an earlier build found them."""
    stored = store.get(key)
    return None if stored is None else tuple(json.loads(stored))


def find_safe_flags(key: str, store: Store, compile_program: Compile, compiler: str) -> tuple[str, ...]:
    """The first of SAFER under which the program's results are right. Raises BuildError where there is none."""
    first = ""
    with scratch_folder() as folder:
        source = folder / "probe.cpp"
        source.write_text(PROGRAM)
        for attempt, flags in enumerate(SAFER):
            wrong = wrong_pattern(source, folder / f"probe{attempt}", flags, compile_program)
            if wrong is None:
                store.put(key, json.dumps(flags).encode())
                return flags
            first = first or wrong
    fix = "install another compiler (for example `apt install g++`), and set CXX to it"
    raise BuildError(f"the C++ compiler {compiler} makes wrong code: {first}\n  fix: {fix}")


def wrong_pattern(source: Path, program: Path, flags: Sequence[str], compile_program: Compile) -> str | None:
    """What is wrong with the program compiled with further `flags`; None where all its results are right."""
    compiled = compile_program(source, program, flags)
    if compiled.status != 0:
        return first_errors(compiled.output, most=1) or f"exit status {compiled.status}"
    try:
        status = subprocess.run([str(program)], capture_output=True, check=False, timeout=SECONDS).returncode
    except subprocess.TimeoutExpired:
        return f"its program does not end within {SECONDS} seconds"
    return None if status == 0 else f"pattern {status} of codegen/cpp/probe.h" if status > 0 else f"its program dies of signal {-status}"
