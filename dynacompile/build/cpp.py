"""C++ sources to shared libraries: from the store, or by the C++ compiler, a few translation units at a time.

The libraries use the OpenMP runtime that torch has loaded: two in one process would fight over the cores.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import dynacompile.build.probe as probe
import dynacompile.compilers as compilers
from dynacompile.build.autotune import tune
from dynacompile.build.claims import once
from dynacompile.build.processor import measure_here, processor
from dynacompile.build.store import Store
from dynacompile.compilers import first_errors, made_library, run_compiler, words
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked
from dynacompile.ir.schedule import CpuKernel, KernelSource
from dynacompile.libraries import Library
from dynacompile.threads import begin, can_start_threads, on_threads
from dynacompile.trusted import scratch_folder

FORMAT = "2"
HEADERS = Path(__file__).parent.parent / "codegen" / "cpp"
HEADER_NAMES = ("intrinsics.h", "vec.h", "vecmath.h", "attention.h", "product.h", "scans.h")
# No contraction: user code rounds as eager does. No trapping and no errno: comparisons and library calls stay in the lanes.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",
    "-fno-exceptions",
    "-fno-rtti",
    "-fPIC",
    "-fvisibility-inlines-hidden",
    "-w",
)
# GCC 12's vectorizer of loops makes wrong code of loops over the lanes of a vector (pattern 12 of codegen/cpp/probe.h). Kernels are made of vectors as
# they are, and are as fast without it. Clang does not know the flag.
ONLY_GCC = ("-fno-tree-loop-vectorize",)
INTRINSICS = "-DDC_IMMINTRIN"  # tried where the compiler knows other builtins than intrinsics.h
LINK = ("-nodefaultlibs", "-lm", "-lc", "-lgcc", "-Wl,--build-id=none")
UNIT_CHARACTERS = 12000  # of kernel text, above which a graph is cut into units that compile in parallel
TEMPLATE_CHARACTERS = 12000  # of other kernels' text, which take as long to compile as a template
OPENMP = re.compile(r"lib(gomp|iomp5|omp)\b[^/]*\.so")


def build_cpp(sources: Mapping[str, KernelSource], env: Env, store: Store) -> dict[str, CpuKernel]:
    """The kernels by name; of those that have variants, the fastest. Raises BuildError where there is no compiler, or it refuses our source."""
    if env.config.autotune and any(s.variants for s in sources.values()):
        sources = chosen(sources, env, store)
    return build_units(sources, env, store)


def chosen(sources: Mapping[str, KernelSource], env: Env, store: Store) -> dict[str, KernelSource]:
    """The sources, each with its fastest variant as text: measured here, or remembered."""

    def candidates(wanted: Sequence[tuple[str, int]]) -> dict[tuple[str, int], CpuKernel]:
        texts = {f"{name}_{i}": variant(sources[name], i) for name, i in wanted}
        built = build_units(texts, env, store)
        return {(name, i): built[f"{name}_{i}"] for name, i in wanted}

    winners = tune({n: s for n, s in sources.items() if s.variants}, candidates, env, store, measure_here)
    return {n: replace(s, text=s.variants[winners[n]]) if n in winners else s for n, s in sources.items()}


def variant(source: KernelSource, index: int) -> KernelSource:
    """A candidate under a name of its own, so that all can stand in one library."""
    entry = f"{source.entry}_{index}"
    return replace(source, text=source.variants[index].replace(f"void {source.entry}(", f"void {entry}("), entry=entry)


def build_units(sources: Mapping[str, KernelSource], env: Env, store: Store) -> dict[str, CpuKernel]:
    """The kernels by name, from as many libraries as their text is worth."""
    groups = units(sources)
    if not groups:
        return {}
    given = words(env.config.cpp_flags, "cpp_flags")
    threads = [f"-DDC_THREADS={env.config.threads}"] if env.config.threads else []
    begun = TRIALS.pop(trial_of(given, store), None)
    safe = probe.remembered(verdict_key(given), store)
    if safe is not None:
        return build_groups(groups, [*given, *safe, *threads], env, store)
    probing = begun or begin_trial(given, store)  # nearly every compiler is right: the kernels are compiled while that is found out
    built = build_groups(groups, [*given, *threads], env, store)
    safe = probing()
    return build_groups(groups, [*given, *safe, *threads], env, store) if safe else built


TRIALS: dict[tuple, Callable[[], tuple[str, ...]]] = {}
"""Trials of the compiler that began with a capture and that no build has asked for yet. A forked process has none of the threads, and no entries."""


def expect_cpp(env: Env, store: Store) -> None:
    """Begins the trial of the compiler, which takes longer than most kernels, beside what comes before a build."""
    given = words(env.config.cpp_flags, "cpp_flags")
    trial = trial_of(given, store)
    if trial not in TRIALS and can_start_threads():
        TRIALS[trial] = begin_trial(given, store)


def trial_of(given: Sequence[str], store: Store) -> tuple:
    return os.getpid(), store.folder, *given


def begin_trial(given: Sequence[str], store: Store) -> Callable[[], tuple[str, ...]]:
    return begin(lambda: probed_once(verdict_key(given), store, given), "dynacompile-probe")


def verdict_key(given: Sequence[str]) -> str:
    return probe.verdict_key(probe_text(), *libraries_depend_on(given))


def probed_once(key: str, store: Store, given: Sequence[str]) -> tuple[str, ...]:
    """The further flags that the compiler needs, tried out by one of the processes that want to know."""
    safe: list[tuple[str, ...]] = []

    def find(key: str) -> bool:
        known = probe.remembered(key, store)
        safe.extend(() if known is None else (known,))
        return known is not None

    def make(keys: Sequence[str]) -> None:
        safe.extend(probe.find_safe_flags(key, store, functools.partial(compile_program, given), toolchain().command[0]) for key in keys)

    once(store, [key], find, make, "the trial of the C++ compiler")
    return safe[-1]


def build_groups(groups: list[dict[str, KernelSource]], flags: list[str], env: Env, store: Store) -> dict[str, CpuKernel]:
    """The kernels by name, from a library for each group."""
    if len(groups) < 2:
        return unit(groups[0], flags, env, store)
    built = on_threads(min(len(groups), jobs(env)), lambda names: unit(names, flags, env, store), groups)
    return {name: kernel for group in built for name, kernel in group.items()}


def jobs(env: Env) -> int:
    return env.config.workers or len(os.sched_getaffinity(0))


def units(sources: Mapping[str, KernelSource]) -> list[dict[str, KernelSource]]:
    """The sources cut into groups of about equal length, one per job where there is enough text for it. The cut depends on the text alone."""
    sizes = {name: len(s.text) + (0 if s.kernel.call is None else TEMPLATE_CHARACTERS) for name, s in sources.items()}
    total = sum(sizes.values())
    count = max(1, min(8, total // UNIT_CHARACTERS))
    groups: list[dict[str, KernelSource]] = [{} for _ in range(count)]
    lengths = [0] * count
    for name, source in sorted(sources.items(), key=lambda item: (-sizes[item[0]], item[0])):
        k = lengths.index(min(lengths))
        groups[k][name] = source
        lengths[k] += sizes[name]
    return [g for g in groups if g]


def unit(sources: Mapping[str, KernelSource], flags: list[str], env: Env, store: Store) -> dict[str, CpuKernel]:
    """One translation unit: its kernels, from one library."""
    texts: dict[str, str] = {}
    for name in sorted(sources):
        if texts.setdefault(sources[name].entry, sources[name].text) != sources[name].text:
            raise BuildError(f"two kernels are named {sources[name].entry}: a bug in dynacompile")
    text = '#include "vecmath.h"\n\n' + "\n".join(texts.values())
    key = unit_key(text, tuple(flags))
    library = store.library(key)
    env.emit(CacheLooked(region=env.region, bucket=env.bucket, tier="binaries", key=key, hit=library is not None))
    if library is None:
        library = built_once(key, text, flags, store)
    return {name: CpuKernel(library, s.entry) for name, s in sources.items()}


def built_once(key: str, text: str, flags: list[str], store: Store) -> Library:
    """The library of a unit that the store lacks, compiled by one of the processes that want it."""
    found: list[Library] = []

    def find(key: str) -> bool:
        library = store.library(key)
        found.extend(() if library is None else (library,))
        return library is not None

    def make(keys: Sequence[str]) -> None:
        found.extend(store.put_library(key, compile_unit(text, flags)) for key in keys)

    once(store, [key], find, make, f"the library {key}")
    return found[-1]


def unit_key(text: str, flags: tuple[str, ...]) -> str:
    """Digest of all that the library depends on: text, headers, compiler, flags, the processor's instructions, the OpenMP runtime."""
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    openmp = openmp_library()
    runtime = "" if openmp is None else f"{openmp.name} {openmp.stat().st_size}"
    parts = (FORMAT, bare, *libraries_depend_on(flags), runtime)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def libraries_depend_on(flags: Sequence[str]) -> tuple[str, ...]:
    """What every library depends on: headers, compiler, flags, the processor's instructions."""
    return header_text(), toolchain().stamp, *flags, *FLAGS, *ONLY_GCC, *LINK, processor()


@functools.cache
def header_text() -> str:
    return "".join((HEADERS / n).read_text() for n in HEADER_NAMES)


@functools.cache
def probe_text() -> str:
    return (HEADERS / "probe.h").read_text()


def toolchain() -> compilers.Toolchain:
    tools = compilers.toolchain()
    if tools is None:
        raise BuildError(compilers.missing_compiler())
    return tools


@functools.cache
def openmp_library() -> Path | None:
    """The OpenMP runtime that this process has loaded (torch's), None where there is none."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    found = {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if OPENMP.search(line.rsplit("/", 1)[-1])}
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    return torchs_runtime(map(Path, found), Path(torch.origin).parent)


def torchs_runtime(found: Iterable[Path], torch_folder: Path) -> Path | None:
    """Of several OpenMP runtimes that a process has loaded, torch's: one in its folder, else one of the system. Other packages bring their own in folders
    that end with .libs."""

    def rank(library: Path) -> tuple[bool, bool, Path]:
        own = torch_folder in library.parents or library.parent == torch_folder.with_suffix(".libs")
        return not own, library.parent.suffix == ".libs", library

    return min(found, key=rank, default=None)


def compile_unit(text: str, flags: list[str]) -> bytes:
    """The library for `text`."""
    try:
        with scratch_folder() as folder:
            (folder / "kernels.cpp").write_text(text, encoding="utf-8")
            return compile_in(folder, flags)
    except OSError as error:
        raise BuildError(f"there is no folder to compile a kernel in: {error}. Set TMPDIR to a folder of your own with room in it") from error


def compile_in(folder: Path, flags: list[str]) -> bytes:
    """The library for the folder's kernels.cpp."""
    tools = toolchain()
    openmp = openmp_library()
    runtime = [str(openmp)] if openmp is not None else ["-lgomp"]
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    command = [*compiler_with(flags), str(source), *runtime, "-shared", *LINK, "-o", str(library)]
    run = compiled(command, "compile a kernel")
    if run.status != 0:
        raise BuildError(refusal(tools.command[0], command, run))
    return made_library(tools.command[0], library)


def compiled(command: list[str], doing: str) -> compilers.Finished:
    """A run of the compiler, and again without what not every compiler knows; of runs that all fail, the first."""
    first = run_compiler(command, doing)
    if first.status == 0:
        return first
    others = ([*command, INTRINSICS], [word for word in command if word not in ONLY_GCC])
    return next((run for run in (run_compiler(other, doing) for other in others if other != command) if run.status == 0), first)


def compile_program(given: Sequence[str], source: Path, program: Path, flags: Sequence[str]) -> compilers.Finished:
    """Builds an executable of `source` as kernels are built."""
    command = [*compiler_with([*given, *flags]), str(source), *LINK, "-o", str(program)]
    return compiled(command, "compile its probe")


def compiler_with(flags: Sequence[str]) -> list[str]:
    """The command up to the source: later flags have the last word."""
    arch = [] if any(f.startswith(("-march", "-mcpu")) for f in flags) else ["-march=native"]
    own = () if toolchain().is_clang else ONLY_GCC
    return [*toolchain().command, *FLAGS, *own, *arch, *flags, f"-I{HEADERS}"]


def refusal(compiler: str, command: list[str], run: compilers.Finished) -> str:
    first = first_errors(run.output, most=1) or f"exit status {run.status}"
    return (
        f"the C++ compiler {compiler} refused a kernel: {first}\n"
        f"  fix: check that `{compiler} --version` is GCC 11 or newer (or Clang 16), and the flags in options cpp_flags; command: {shlex.join(command)}"
    )
