"""The C++ compiler: which one it is, and running it within a limit of time. What it starts ends with it, and with this process.

What it makes depends on more than its command: a script may run any compiler, ccache has the names of several, and GCC and Clang read the environment.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import select
import shlex
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dynacompile.errors import BuildError, ConfigError
from dynacompile.private import of_python
from dynacompile.quoting import printable, printable_lines

NAMES = ("g++", "clang++", "c++")
SECONDS = 300.0
SECONDS_VARIABLE = "DYNACOMPILE_COMPILER_SECONDS"
LOOK_SECONDS = 0.05
MOST_OUTPUT = 1 << 20  # bytes of messages that are kept
MOST_SCRIPT = 1 << 20  # bytes of a script that are read
FOLDERS = ("CPATH", "CPLUS_INCLUDE_PATH", "COMPILER_PATH", "LIBRARY_PATH", "LD_RUN_PATH")
"""Variables of the environment with folders in which GCC and Clang look for headers, programs and libraries, or in which what they link will look."""
OTHERS = ("GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS", "CCACHE_COMPILER", "NIX_CFLAGS_COMPILE", "NIX_CXXSTDLIB_COMPILE", "NIX_LDFLAGS")
"""Further variables, and beginnings of their names, by which the compiler, or what stands in its place, does something else."""
# Runs the command that follows in a process group of its own. The watcher reads a pipe whose other end this process alone holds: it ends, and with it the
# group, when this process is gone, whatever ended it.
WATCHED = """
exec 3<&0 </dev/null
"$@" & command=$!
( exec >/dev/null 2>&1; read nothing <&3; kill -9 -$$ ) & watcher=$!
exec 3<&-
wait $command; status=$?
{ kill -9 $watcher; wait $watcher; } >/dev/null 2>&1
exit $status
"""
SHELL = "/bin/sh"


@dataclass(frozen=True)
class Toolchain:
    """command: the compiler as argv. stamp: what tells one compiler from another in the cache key, and its environment. version: the first line of what
    it says of itself; "" where the program's name and file tell that."""

    command: tuple[str, ...]
    stamp: str
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in (self.version or os.path.basename(os.path.realpath(self.command[0])))


@dataclass(frozen=True)
class Finished:
    """status: of the exit, negative for a signal. output: what it wrote, both streams, the beginning of it where that is long."""

    status: int
    output: str


def toolchain() -> Toolchain | None:
    """The C++ compiler: $CXX, else the first of g++, clang++, c++ on PATH. None where there is none; `missing_compiler` says why."""
    chosen = os.environ.get("CXX")
    if chosen is not None:
        found = refused_choice(chosen)
        return None if isinstance(found, str) else stamped(found)
    located = (shutil.which(name) for name in NAMES)
    return next((stamped([os.path.abspath(path)]) for path in located if path), None)


def refused_choice(chosen: str) -> list[str] | str:
    """$CXX as argv, its program as an absolute path; or what is wrong with it."""
    named = f"the C++ compiler CXX={printable(repr(chosen))}"
    unset = "or unset CXX to use g++"
    try:
        command = shlex.split(chosen)
    except ValueError as error:
        return f"{named} can't be split into words ({error}): correct its quotes, {unset}"
    if not command or not command[0]:
        return f"{named} is empty: name a compiler, {unset}"
    try:
        program = pinned(command[0]) if "/" in command[0] else command[0]
    except FileNotFoundError:
        return f"{named} is relative to the program's folder, which is gone: name the compiler by its whole path, {unset}"
    if "\0" in chosen or "/" in program and not os.path.lexists(program):
        return f"{named} does not exist: install it, {unset}"
    if os.path.isdir(program) and "/" in program:
        return f"{named} is a folder: name the program in it, {unset}"
    found = shutil.which(program)
    if found is None and "/" in program:
        return f"{named} is not executable: `chmod +x` it, {unset}"
    if found is None:
        return f"{named} is not on PATH: install it, {unset}"
    return [os.path.abspath(found), *command[1:]]


@functools.cache
def pinned(path: str) -> str:
    """A path of the environment as an absolute one, from the first time on that it is asked for, wherever the program goes."""
    return os.path.abspath(os.path.expanduser(path))


def stamped(command: Sequence[str]) -> Toolchain:
    """The compiler, known by all programs among its words: `ccache g++` changes with g++."""
    words = []
    for i, word in enumerate(command):
        found = word if i == 0 else None if word.startswith("-") else shutil.which(word)
        try:
            words.append(stamp_of_program(found) if found else word)
        except OSError as error:
            raise BuildError(f"the C++ compiler {printable(word)} can't be looked at: {error}. Set CXX to a working compiler") from error
    version = "" if is_compiler(command) else version_of(tuple(command), tuple(words), os.environ.get("CCACHE_COMPILER"))
    return Toolchain(tuple(command), "\0".join((*words, version, *environment())), version)


def is_compiler(command: Sequence[str]) -> bool:
    """Whether the command is a compiler's own program, and no script or program that runs one: its file tells its version, and nothing has to run for that,
    as in a process that finds all in the caches."""
    if any(not word.startswith("-") for word in command[1:]):
        return False
    real = os.path.realpath(command[0])
    try:
        with open(real, "rb") as file:
            begin = file.read(4)
    except OSError:
        return False
    return begin == b"\x7fELF" and any(name in os.path.basename(real) for name in ("g++", "gcc", "clang"))


def stamp_of_program(path: str) -> str:
    """What tells a program from others, and from itself after a change: one that many names lead to may do something else by each. What a script does
    changes with few bytes, and where times of files are set, as in images, with these alone."""
    real = os.path.realpath(path)
    status = os.stat(real)
    stamp = f"{os.path.basename(path)} {real} {status.st_size} {status.st_mtime_ns}"
    if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_SCRIPT:
        return stamp
    try:
        with open(real, "rb") as file:
            content = file.read(MOST_SCRIPT)
    except OSError:  # who may run a program need not be able to read it
        return stamp
    return f"{stamp} {hashlib.sha256(content).hexdigest()}"


@functools.cache
def version_of(command: tuple[str, ...], words: tuple[str, ...], chosen: str | None) -> str:
    """The first line of what the compiler says of itself, which names the one that a script or ccache runs; "" where it says nothing. It is asked in a folder
    that there is, and its errors are not read: shells complain where the program's folder is gone, and others of the locale. words: what it is known by
    otherwise. chosen: what ccache is told to run."""
    done = run_compiler([*command, "--version"], "ask it for its version", folder="/", errors=subprocess.DEVNULL)
    return next((line.strip() for line in done.output.splitlines() if line.strip()), "") if done.status == 0 else ""


def environment() -> list[str]:
    """What the environment says to the compiler. Folders that it names are absolute, as the compiler, which runs where the program is, sees them."""
    said = [f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith(OTHERS)]
    for name in FOLDERS:
        if folders := os.environ.get(name):
            said.append(f"{name}={os.pathsep.join(map(from_here, folders.split(os.pathsep)))}")
    return said


def from_here(folder: str) -> str:
    try:
        return os.path.abspath(folder)
    except FileNotFoundError:  # the program's own folder is gone
        return folder


def missing_compiler() -> str:
    chosen = os.environ.get("CXX")
    wrong = refused_choice(chosen) if chosen is not None else None
    if isinstance(wrong, str):
        return wrong
    return f"no C++ compiler found (looked for {', '.join(NAMES)}): install one, for example `apt install g++`, or set CXX to its path"


def time_limit() -> float:
    """Seconds that one run of the compiler may take: DYNACOMPILE_COMPILER_SECONDS, else 300."""
    given = os.environ.get(SECONDS_VARIABLE)
    if not given:
        return SECONDS
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"{SECONDS_VARIABLE} must be a number of seconds above 0, not {given!r}")
    return seconds


class Exiting(BuildError):
    """A thread of the compiler's own would run a compiler while the program exits. Whoever waits for its work does that work."""


class Running:
    """The compilers that run now, for the exit of this process."""

    def __init__(self) -> None:
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.is_exiting = False
        self._of_thread = threading.local()

    def begin_helper(self) -> None:
        """This thread is the compiler's own, none of the program's. The exit waits for it."""
        self._of_thread.is_helper = True

    def check(self, command: str, doing: str) -> None:
        """Raises Exiting where this thread runs no compiler any more."""
        if self.is_exiting and getattr(self._of_thread, "is_helper", False):
            raise Exiting(f"the program is exiting: {command} is not run any more to {doing}")

    def end_all(self) -> None:
        """Ends them, once; from now on the compiler's own threads start none. The program's do, as long as there are any."""
        if self.is_exiting:
            return
        self.is_exiting = True
        for process in tuple(self.processes):
            if process.returncode is None:
                end_group(process)


RUNNING = Running()
# Before the interpreter joins its threads: one that waits for a compiler would hold the exit up for as long as that takes.
of_python.register_atexit(RUNNING.end_all)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that is not yet waited for, and its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def run_compiler(command: Sequence[str], doing: str, folder: str | None = None, errors: int = subprocess.STDOUT) -> Finished:
    """Runs the compiler, without input. folder: where, if not where the program is. errors: where its stream of errors goes. Raises BuildError, which names
    it, where it does not start or takes longer than the limit. Whatever ends the waiting, the compiler and all that it started in its group are gone
    afterwards."""
    RUNNING.check(command[0], doing)
    limit = time_limit()
    fix = "Set CXX to a working compiler"
    watched = [SHELL, "-c", WATCHED, "dynacompile", *command] if os.path.exists(SHELL) else list(command)
    try:
        process = subprocess.Popen(watched, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0, cwd=folder)
    except (OSError, ValueError) as error:
        raise BuildError(f"the C++ compiler {command[0]} can't be run to {doing}: {error}. {fix}") from error
    RUNNING.processes.add(process)
    try:
        RUNNING.check(command[0], doing)  # the exit may have begun since, and not have seen this one
        output = output_until_exit(process, time.monotonic() + limit)
        end_group(process)  # what the compiler left behind, while the process that is not yet waited for keeps the group's number
        if output is None:
            raise BuildError(
                f"the C++ compiler {command[0]} took more than {limit:g} s to {doing} and was ended. {fix}, or {SECONDS_VARIABLE} to a longer time. "
                f"Command: {printable(shlex.join(command), longest=4000)}"
            )
        status = process.wait()
    finally:
        if process.returncode is None:
            end_group(process)
            process.wait()
        RUNNING.processes.discard(process)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
    if status != 0:
        RUNNING.check(command[0], doing)
    if status in (126, 127):
        raise BuildError(f"the C++ compiler {command[0]} can't be run to {doing}: {printable_lines(output.strip()) or f'exit status {status}'}. {fix}")
    return Finished(128 - status if status > 128 else status, output)  # as the shell tells of signals


def output_until_exit(process: subprocess.Popen[bytes], end: float) -> str | None:
    """What the process writes until it exits; None where `end` comes first. What is more than MOST_OUTPUT is read and dropped."""
    assert process.stdout is not None
    descriptor, kept, is_open = process.stdout.fileno(), bytearray(), True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    while (left := end - time.monotonic()) > 0:
        if is_open and waiting.poll(min(left, LOOK_SECONDS) * 1000):
            part = os.read(descriptor, 1 << 16)
            is_open = bool(part)
            kept += part[: MOST_OUTPUT - len(kept)]
        elif has_exited(process):
            return kept.decode("utf-8", errors="replace")
        elif not is_open:
            time.sleep(0.001)
    return None


def has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended; it stays to be waited for."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:  # the program ignores SIGCHLD
        return True


def first_errors(output: str, most: int = 8) -> str:
    """The lines of a compiler's output that say what is wrong, for a message."""
    lines = output.strip().splitlines()
    errors = [line for line in lines if "error" in line] or lines
    return "\n  ".join(printable(line) for line in errors[:most])


def made_file(compiler: str, path: Path) -> bytes:
    """What the compiler made. Raises BuildError where it reported no error, and made nothing."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise BuildError(f"the C++ compiler {compiler} reported no error and made nothing ({error}). Set CXX to a working compiler") from error


def made_library(compiler: str, path: Path) -> bytes:
    """The library that the compiler made. Raises BuildError where it is none."""
    content = made_file(compiler, path)
    if not content.startswith(b"\x7fELF"):
        raise BuildError(f"the C++ compiler {compiler} made something that is no library for this system. Set CXX to a working compiler")
    return content


def words(flags: str, name: str) -> list[str]:
    """Flags as words. Raises ConfigError, which names the setting that they come from."""
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise ConfigError(f"{name}={printable(repr(flags))} can't be split into words: {error}") from error
