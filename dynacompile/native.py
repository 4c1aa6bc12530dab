"""Builds the native core at first use and loads it: one extension module from the C++ files of frame, guards and runtime."""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import shlex
import stat
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch.autograd import forward_ad

from dynacompile.compilers import Toolchain, first_errors, made_file, made_library, missing_compiler, run_compiler, toolchain, words
from dynacompile.complaints import COMPLAINTS, Reporting, warn
from dynacompile.cpython import SUPPORTED
from dynacompile.env import native_dir, secret_key
from dynacompile.errors import BuildError, ConfigError
from dynacompile.ir.guard_facts import GLOBAL_HOOKS
from dynacompile.libraries import limit_of_files, load_copy
from dynacompile.private import of_python, of_torch
from dynacompile.quoting import printable
from dynacompile.selftest import failure as self_test_failure
from dynacompile.threads import on_threads
from dynacompile.trusted import Untrusted, drop, locked, open_folder, private_folder, read_own, scratch_folder, sealed, touch, unsealed, write_own

NAME = "dynacompile_native"
ROOT = Path(__file__).parent
FOLDERS = ("cpython", "frame", "guards", "runtime")
HEADERS = "native_headers"  # what is included instead of the compiler's own headers
# Files that include the same headers, which take longer to compile than the files themselves: each group is compiled as one.
TOGETHER = (
    ("frame/hook.cpp", "frame/dispatch.cpp", "frame/index.cpp", "frame/proxy.cpp", "frame/region.cpp"),
    ("frame/outside.cpp", "frame/background.cpp", "frame/restarts.cpp"),
    ("guards/build.cpp", "guards/features.cpp", "guards/gather.cpp", "guards/machine.cpp", "guards/names.cpp", "guards/shapes.cpp", "guards/snapshot.cpp"),
    ("guards/global_state.cpp", "guards/tensor_match.cpp"),
    ("guards/autograd_meta.cpp", "runtime/again.cpp", "runtime/asked.cpp", "runtime/continuation.cpp", "runtime/view_writes.cpp"),
    ("runtime/externs.cpp", "runtime/packed.cpp", "runtime/draws.cpp"),
    ("runtime/program.cpp", "runtime/objects.cpp", "runtime/paused.cpp", "runtime/program_type.cpp", "runtime/stages.cpp"),
    ("runtime/graph_memory.cpp", "runtime/cpu_memory.cpp", "runtime/cuda_driver.cpp", "runtime/fake_devices.cpp", "runtime/marks.cpp", "runtime/sizes.cpp"),
)
FLAGS = (
    "-std=c++20",
    "-O2",
    "-DAT_PER_OPERATOR_HEADERS",  # else torch's headers include those of all operators
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
FORMAT = "2"  # of what is kept


def begin_child() -> None:
    """In a forked process no other thread loads the core."""
    global LOAD_LOCK
    LOAD_LOCK = threading.Lock()


os.register_at_fork(after_in_child=begin_child)


def loaded(modules: Mapping[str, ModuleType] = sys.modules, name: str = NAME) -> ModuleType | None:
    """The native core, where it is loaded: it may not be yet, or no longer while the interpreter ends. modules, name: bound here, as callbacks of weak
    references run when the interpreter has emptied this module, too."""
    return modules.get(name)


def core() -> ModuleType:
    """The native core, built into `env.native_dir()` where it isn't there yet. Raises BuildError, which names the compiler and the fix."""
    loaded = sys.modules.get(NAME)
    if loaded is not None:
        return loaded
    with LOAD_LOCK:
        if NAME not in sys.modules:
            if sys.version_info[:2] not in SUPPORTED:
                supported = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
                raise BuildError(f"the native core supports CPython {supported}, this is {sys.version.split()[0]}: use one of those")
            module = load(*library())
            singletons = (torch.dtype, torch.layout, torch.memory_format)
            with torch.inference_mode(False):
                tensor = torch.empty(1, device="cpu")
                types = (torch.Tensor, torch.nn.Parameter, torch.Size, torch.device, deque)
                module.configure(*types, singletons, GLOBAL_HOOKS, forward_ad.__dict__, of_torch.DeviceContext, tensor, torch.nn.Parameter(tensor))
            sys.modules[NAME] = module
    reason = selftest_failure()
    if reason:
        warn(f"dynacompile runs eagerly: {reason}")
    return sys.modules[NAME]


def usable() -> tuple[bool, str]:
    """Whether compiled frames may run in this process, and else why not. Builds and loads the core; raises BuildError as `core` does."""
    core()
    reason = selftest_failure()
    return not reason, reason


@functools.cache
def selftest_failure() -> str:
    """The first thing that the start-up self-test found wrong, or an empty string."""
    return of_torch.NAMES.failure() or of_python.NAMES.failure() or self_test_failure(sys.modules[NAME])


def load(content: bytes, path: Path) -> ModuleType:
    """Loads a core that has this content. Torch's own libraries are found because torch is loaded already. path: where it is kept."""

    def load_from(place: str) -> ModuleType:
        loader = importlib.machinery.ExtensionFileLoader(NAME, place)
        module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(NAME, loader, origin=place))
        loader.exec_module(module)
        return module

    try:
        module = load_copy(content, path, load_from)
    except (OSError, ImportError, ConfigError) as error:
        fix = limit_of_files(error) or "Delete it, or set DYNACOMPILE_NATIVE_DIR to an empty folder, to build it anew"
        raise BuildError(f"the native core {path} does not load: {error}. {fix}") from error
    assert module.__spec__ is not None
    module.__spec__.origin = module.__file__ = str(path)
    return module


def sources() -> list[Path]:
    return [ROOT / "native_module.cpp", *sorted(p for f in FOLDERS for p in (ROOT / f).glob("*.cpp"))]


def headers() -> list[Path]:
    return sorted(p for f in (*FOLDERS, HEADERS) for p in (ROOT / f).glob("*.h"))


def units() -> list[tuple[Path, ...]]:
    """The sources by what is compiled as one."""
    group_of = {ROOT / name: tuple(ROOT / n for n in group) for group in TOGETHER for name in group}
    return list(dict.fromkeys(group_of.get(source, (source,)) for source in sources()))


def library() -> tuple[bytes, Path]:
    """The content of the core for these sources, this Python, this torch and this compiler, and its path; builds it if needed. The core is as it was
    built, by its seal. Where it can't be kept, it is built for this process."""
    folder = native_dir()
    try:
        inside = open_folder(private_folder(folder, "DYNACOMPILE_NATIVE_DIR"))
    except (OSError, Untrusted) as error:
        complain(folder, "used", error)
        return build_unkept(folder)
    try:
        return library_in(folder, inside)
    finally:
        os.close(inside)


def library_in(folder: Path, inside: int) -> tuple[bytes, Path]:
    """As `library`. inside: the folder's descriptor."""
    shared, tools = shared_key(), toolchain()
    if tools is None:
        for name in sorted(names_in(inside), reverse=True):
            if name.startswith(f"{NAME}-{shared}-") and name.endswith(".so") and (found := kept(name, inside, folder)) is not None:
                return found, folder / name
        raise BuildError(missing_compiler())
    name = f"{NAME}-{shared}-{digest(tools.stamp)}.so"
    found = kept(name, inside, folder)
    if found is None:
        with locked("lock", inside):
            found = kept(name, inside, folder)
            if found is None:
                return build(tools, folder, inside, name), folder / name
    return found, folder / name


def build_unkept(folder: Path) -> tuple[bytes, Path]:
    tools = toolchain()
    if tools is None:
        raise BuildError(missing_compiler())
    return build(tools, folder, None, NAME), folder / NAME


def kept(name: str, inside: int | None, folder: Path) -> bytes | None:
    """The content of a kept file; None where there is none that is as it was built."""
    if inside is None:
        return None
    try:
        descriptor, raw = read_own(name, inside)
    except FileNotFoundError:
        return None
    except (OSError, Untrusted) as error:
        complain(folder, "read", error)
        return None
    try:
        content = unsealed(raw, f"native {name}", secret_key())
        if content is not None:
            touch(descriptor)
        return content
    finally:
        os.close(descriptor)


def keep(name: str, content: bytes, inside: int | None, folder: Path) -> None:
    """Keeps a file, where that is possible."""
    if inside is None:
        return
    try:
        write_own(name, sealed(content, f"native {name}", secret_key()), inside)
    except OSError as error:
        complain(folder, "written", error)


def complain(folder: Path, what: str, error: OSError | Untrusted) -> None:
    """Warns once for each kind of error and what could not be done."""
    kind = error.errno if isinstance(error, OSError) else Untrusted
    fix = "Remove what is there, or set DYNACOMPILE_NATIVE_DIR to a folder of your own with room in it"
    COMPLAINTS.warn(("native", str(folder), what, kind), f"the folder of the native core {folder} can't be {what} ({error}): the core is built anew. {fix}")


def shared_key() -> str:
    """Digest of everything but the compiler that the core depends on; where the sources lie is not part of it."""
    texts = [f"{p.relative_to(ROOT)}\n{p.read_text()}" for p in (*sources(), *headers())]
    return digest(FORMAT, *texts, str(sysconfig.get_config_var("SOABI")), torch.__version__, *FLAGS, *LIBRARIES, os.environ.get("CXXFLAGS", ""))


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def include_flags() -> list[str]:
    python = Path(sysconfig.get_path("include"))
    torch_include = Path(torch.__file__).parent / "include"
    if not (python / "Python.h").exists():
        raise BuildError(f"Python's headers are not in {python}: install them, for example `apt install python{sys.version_info[0]}.{sys.version_info[1]}-dev`")
    return [
        f"-I{ROOT}",
        f"-isystem{ROOT / HEADERS}",
        f"-isystem{python}",
        f"-isystem{python / 'internal'}",
        f"-isystem{torch_include}",
        f"-isystem{torch_include / 'torch/csrc/api/include'}",
    ]


def build(tools: Toolchain, folder: Path, inside: int | None, name: str) -> bytes:
    """Compiles every unit to an object (kept, so that one changed file is one recompile), links, and keeps the result under `name`.

    inside: the descriptor of `folder`, None where nothing can be kept. Returns the library's content.
    """
    start = time.perf_counter()
    progress(f"dynacompile: building the native core with {printable(tools.command[0])} (once) ... ")
    flags = [*FLAGS, *words(os.environ.get("CXXFLAGS", ""), "CXXFLAGS"), *include_flags()]
    shared = digest(*(p.read_text() for p in headers()), tools.stamp, torch.__version__, *flags)
    objects = {unit: f"{unit[0].stem}-{digest(FORMAT, shared, *map(str, unit), *(p.read_text() for p in unit))}.o" for unit in units()}
    try:
        with scratch_folder() as scratch:
            missing = [unit for unit in objects if not fetched(objects[unit], inside, folder, scratch)]
            largest_first = sorted(missing, key=lambda unit: -sum(p.stat().st_size for p in unit))
            on_threads(max(2, os.cpu_count() or 2), lambda unit: compile_one(tools, flags, unit, objects[unit], inside, folder, scratch), largest_first)
            lib, made = Path(torch.__file__).parent / "lib", scratch / "core.so"
            placed = [str(scratch / name) for name in objects.values()]
            link = [*tools.command, "-shared", "-o", str(made), *placed, f"-L{lib}", *(f"-l{name}" for name in LIBRARIES), "-ldl"]
            on_threads(1, lambda command: run(command, "link the native core"), [link])  # by a helper: one that the exit ends is run again
            content = made_library(tools.command[0], made)
        keep(name, content, inside, folder)
    except OSError as error:
        raise BuildError(f"the native core can't be built: {error}. Set TMPDIR to a folder with room in it") from error
    if inside is not None:
        sweep(inside, keep={*objects.values(), name})
    progress(f"done in {time.perf_counter() - start:.1f} s\n")
    return content


def fetched(name: str, inside: int | None, folder: Path, scratch: Path) -> bool:
    """Whether an object is kept; then it is in the scratch folder, too, as it was built."""
    found = kept(name, inside, folder)
    if found is None:
        return False
    (scratch / name).write_bytes(found)
    return True


def compile_one(tools: Toolchain, flags: list[str], unit: Sequence[Path], name: str, inside: int | None, folder: Path, scratch: Path) -> None:
    source = unit[0]
    if len(unit) > 1:
        source = (scratch / name).with_suffix(".cpp")
        source.write_text("".join(f'#include "{p}"\n' for p in unit))
    run([*tools.command, *flags, "-c", str(source), "-o", str(scratch / name)], f"compile {', '.join(p.name for p in unit)}")
    keep(name, made_file(tools.command[0], scratch / name), inside, folder)


def run(command: list[str], doing: str) -> None:
    """Runs the compiler; on failure raises BuildError with its name, its first errors and the fix."""
    done = run_compiler(command, doing)
    if done.status:
        raise BuildError(
            f"the C++ compiler {command[0]} could not {doing} (exit status {done.status}):\n  {first_errors(done.output)}\n"
            f"It needs C++20 (g++ 11 or clang 14, or later): set CXX to such a compiler. Command: {printable(shlex.join(command), longest=8000)}"
        )


def sweep(inside: int, keep: set[str], days: float = 7.0) -> None:
    """Removes objects and cores of earlier builds that have not been used for `days`, and what processes that died have left after an hour."""
    for name in names_in(inside):
        days_of_this = days if name.endswith((".o", ".so")) else 1 / 24 if name.startswith(".new-") or name.endswith(".tmp") else None
        if name in keep or days_of_this is None:
            continue
        try:
            status = os.stat(name, dir_fd=inside, follow_symlinks=False)
        except OSError:  # another process has removed it
            continue
        if stat.S_ISREG(status.st_mode) and status.st_mtime < time.time() - days_of_this * 86400:
            drop(name, inside)


def names_in(inside: int) -> list[str]:
    """Names in a folder; none where it can't be listed, which then has nothing that could be used."""
    try:
        return os.listdir(inside)
    except OSError:
        return []


def progress(text: str) -> None:
    with Reporting("the line that tells of building the native core"):
        sys.stderr.write(text)
        sys.stderr.flush()
