"""Builds the native core at first use and loads it: one extension module from the C++ files of frame, guards and runtime."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch.autograd import forward_ad

from dynacompile import selftest
from dynacompile.env import native_dir
from dynacompile.errors import BuildError
from dynacompile.ir.guard_facts import GLOBAL_HOOKS

NAME = "dynacompile_native"
ROOT = Path(__file__).parent
FOLDERS = ("frame", "guards", "runtime")
VERSIONS = ((3, 11), (3, 12))  # what frame_compat.h knows
FLAGS = (
    "-std=c++20",
    "-O2",
    "-DNDEBUG",  # as torch itself: its headers and Python's check every access otherwise, and torch's look for a trace at every call of an operator
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-semantic-interposition",
    "-Wall",
    "-Wno-unknown-pragmas",
    "-Wno-sign-compare",
    "-Wno-missing-field-initializers",
)
LIBRARIES = ("c10", "torch_cpu", "torch_python")
LOAD_LOCK = threading.Lock()


@dataclass(frozen=True)
class Toolchain:
    """command: the compiler as argv. stamp: what tells one compiler from another in the cache key."""

    command: tuple[str, ...]
    stamp: str


def begin_child() -> None:
    """In a forked process no other thread loads the core."""
    global LOAD_LOCK
    LOAD_LOCK = threading.Lock()


os.register_at_fork(after_in_child=begin_child)


def core() -> ModuleType:
    """The native core, built into `env.native_dir()` where it isn't there yet. Raises BuildError, which names the compiler and the fix."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        return loaded
    with LOAD_LOCK:
        if NAME not in sys.modules:
            if sys.version_info[:2] not in VERSIONS:
                supported = " and ".join(f"{major}.{minor}" for major, minor in VERSIONS)
                raise BuildError(f"the native core supports CPython {supported}, this is {sys.version.split()[0]}: use one of those")
            module = load(library())
            singletons = (torch.dtype, torch.layout, torch.memory_format)
            with torch.inference_mode(False):
                tensor = torch.empty(1, device="cpu")
                types = (torch.Tensor, torch.nn.Parameter, torch.Size, torch.device, deque)
                module.configure(*types, singletons, GLOBAL_HOOKS, forward_ad.__dict__, tensor, torch.nn.Parameter(tensor))
            sys.modules[NAME] = module
    reason = selftest_failure()
    if reason:
        warnings.warn(f"dynacompile runs eagerly: {reason}", RuntimeWarning, stacklevel=3)
    return sys.modules[NAME]


def usable() -> tuple[bool, str]:
    """Whether compiled frames may run in this process, and else why not. Builds and loads the core; raises BuildError as `core` does."""
    core()
    reason = selftest_failure()
    return not reason, reason


@functools.cache
def selftest_failure() -> str:
    """The first thing that the start-up self-test found wrong, or an empty string."""
    return selftest.failure(sys.modules[NAME])


def load(path: Path) -> ModuleType:
    """Loads the built library. Torch's own libraries are found because torch is loaded already."""
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.machinery.ModuleSpec(NAME, loader, origin=str(path))
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BuildError(
            f"the native core {path} does not load: {error}. Delete it, or set DYNACOMPILE_NATIVE_DIR to an empty folder, to build it anew"
        ) from error
    return module


def sources() -> list[Path]:
    return [ROOT / "native_module.cpp", *sorted(p for f in FOLDERS for p in (ROOT / f).glob("*.cpp"))]


def headers() -> list[Path]:
    return sorted(p for f in FOLDERS for p in (ROOT / f).glob("*.h"))


def library() -> Path:
    """Path of the built core for these sources, this Python, this torch and this compiler; builds it if needed."""
    shared, folder = shared_key(), native_dir()
    tools = toolchain()
    if tools is None:
        built = sorted(folder.glob(f"{NAME}-{shared}-*.so"))
        if built:
            return built[-1]
        raise BuildError(missing_compiler())
    path = folder / f"{NAME}-{shared}-{digest(tools.stamp)}.so"
    if not path.exists():
        with locked(folder / "lock"):
            if not path.exists():
                build(tools, folder, path)
    return path


def shared_key() -> str:
    """Digest of everything but the compiler that the core depends on; where the sources lie is not part of it."""
    texts = [f"{p.relative_to(ROOT)}\n{p.read_text()}" for p in (*sources(), *headers())]
    return digest(*texts, str(sysconfig.get_config_var("SOABI")), torch.__version__, *FLAGS, *LIBRARIES, os.environ.get("CXXFLAGS", ""))


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def toolchain() -> Toolchain | None:
    """The C++ compiler: $CXX, else the first of g++, clang++, c++ on PATH. None when there is none."""
    for candidate in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        command = shlex.split(candidate)
        found = shutil.which(command[0])
        if found:
            real = Path(found).resolve()
            stat = real.stat()
            return Toolchain((found, *command[1:]), f"{real} {stat.st_size} {stat.st_mtime_ns} {command[1:]}")
        if candidate == os.environ.get("CXX"):
            return None
    return None


def missing_compiler() -> str:
    chosen = os.environ.get("CXX")
    if chosen:
        return f"the C++ compiler CXX={chosen!r} is not on PATH: install it, or unset CXX to use g++"
    return "no C++ compiler found (looked for g++, clang++, c++): install one, for example `apt install g++`, or set CXX to its path"


def include_flags() -> list[str]:
    python = Path(sysconfig.get_path("include"))
    torch_include = Path(torch.__file__).parent / "include"
    if not (python / "Python.h").exists():
        raise BuildError(f"Python's headers are not in {python}: install them, for example `apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev`")
    return [
        f"-I{ROOT}",
        f"-isystem{python}",
        f"-isystem{python / 'internal'}",
        f"-isystem{torch_include}",
        f"-isystem{torch_include / 'torch/csrc/api/include'}",
    ]


def build(tools: Toolchain, folder: Path, path: Path) -> None:
    """Compiles every source to an object (kept, so that one changed file is one recompile), links, and renames the result to `path`."""
    start = time.perf_counter()
    progress(f"dynacompile: building the native core with {tools.command[0]} (once) ... ")
    flags = [*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")), *include_flags()]
    shared = digest(*(p.read_text() for p in headers()), tools.stamp, torch.__version__, *flags)
    objects = {source: folder / f"{source.stem}-{digest(shared, str(source), source.read_text())}.o" for source in sources()}
    largest_first = sorted((s for s in objects if not objects[s].exists()), key=lambda s: -s.stat().st_size)
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool:
        list(pool.map(lambda source: compile_one(tools, flags, source, objects[source]), largest_first))
    lib = Path(torch.__file__).parent / "lib"
    into = path.with_suffix(f".{os.getpid()}.tmp")
    run(
        [*tools.command, "-shared", "-o", str(into), *map(str, objects.values()), f"-L{lib}", *(f"-l{name}" for name in LIBRARIES), "-ldl"],
        "link the native core",
    )
    os.replace(into, path)
    sweep(folder, keep=set(objects.values()))
    progress(f"done in {time.perf_counter() - start:.1f} s\n")


def compile_one(tools: Toolchain, flags: list[str], source: Path, into: Path) -> None:
    partial = into.with_suffix(f".{os.getpid()}.tmp")
    run([*tools.command, *flags, "-c", str(source), "-o", str(partial)], f"compile {source.name}")
    os.replace(partial, into)


def run(command: list[str], doing: str) -> None:
    """Runs the compiler; on failure raises BuildError with its name, its first errors and the fix."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise BuildError(f"the C++ compiler {command[0]} can't be run to {doing}: {error}. Set CXX to a working compiler") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines
        shown = "\n  ".join(errors[:8])
        raise BuildError(
            f"the C++ compiler {command[0]} could not {doing} (exit status {done.returncode}):\n  {shown}\n"
            f"It needs C++20 (g++ 11 or clang 14, or later): set CXX to such a compiler. Command: {shlex.join(command)}"
        )


def sweep(folder: Path, keep: set[Path], days: float = 7.0) -> None:
    """Removes objects of earlier builds that are older than `days`."""
    for old in folder.glob("*.o"):
        if old not in keep and old.stat().st_mtime < time.time() - days * 86400:
            old.unlink(missing_ok=True)


def progress(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the file lock at `path`: one process builds, the others wait for it."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
