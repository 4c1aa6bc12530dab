"""Runs value tests of kernels with every C++ compiler that is installed, each at every instruction set of this processor, and prints a table.

    python scripts/compilers.py [--compilers g++-11,clang++-14] [--sets AVX-512,AVX2,SSE2,native] [--processes 2] [--tests PATH ...]

Each combination is a run of pytest with a compiler, flags and folders of its own. A cell tells how many tests passed, failed, or could not run, and the
further flags that the probe of the compiler (build/probe.py) adds to make them right. Where the probe refuses the compiler, the cell says so and no test
runs. Exits with 1 where not all passed. What a run printed is kept in `--into` where it failed.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from dynacompile.build.cpp import compile_program
from dynacompile.build.probe import find_safe_flags
from dynacompile.build.store import Store
from dynacompile.errors import BuildError

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("g++", *(f"g++-{v}" for v in range(11, 17)), *(f"clang++-{v}" for v in range(14, 23)))
SETS = {
    "AVX-512": ("-march=x86-64-v4", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "AVX2": ("-march=x86-64-v3", ("avx2", "fma", "f16c")),
    "SSE2": ("-march=x86-64", ("sse2",)),
    "native": ("-march=native", ()),
}
"""The flag that chooses each, and the flags of /proc/cpuinfo without which it does not run."""
TESTS = tuple(f"tests/codegen/test_cpp_{name}.py" for name in ("cases", "crossings", "groups", "math", "variants"))
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")


def installed() -> list[str]:
    """The compilers on PATH, each program once, by the most exact of its names."""
    found = {os.path.realpath(path): name for name in COMPILERS if (path := shutil.which(name))}
    return sorted(found.values(), key=COMPILERS.index)


def sets_here() -> list[str]:
    cpuinfo = Path("/proc/cpuinfo")
    words = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    return [name for name, (_, needed) in SETS.items() if words.issuperset(needed)]


def version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def run(compiler: str, instructions: str, tests: Sequence[str], into: Path) -> tuple[str, bool]:
    """The cell of the table, and whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "CXX": compiler, "DYNACOMPILE_TEST_CPP_FLAGS": SETS[instructions][0], "DYNACOMPILE_CACHE_DIR": f"{folder}/cache"}
        told, passed = run_tests(environment, tests, f"{folder}/tests", into / f"{compiler}-{instructions}.txt")
    print(f"{compiler} {instructions}: {told}", flush=True)
    return told, passed


def run_tests(environment: dict[str, str], tests: Sequence[str], folder: str, log: Path) -> tuple[str, bool]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "timeout=0", "--basetemp", folder, *tests]
    run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    if run.returncode:
        log.write_text(run.stdout)
    last = run.stdout.splitlines()[-1] if run.stdout else ""
    return ", ".join(f"{count} {what}" for count, what in COUNT.findall(last)) or f"exit status {run.returncode}", run.returncode == 0


def probed(compiler: str, instructions: str) -> tuple[str, bool]:
    """What the probe says of the compiler: nothing, further flags, or why it is refused; and whether it is taken."""
    given = (SETS[instructions][0],)
    before = os.environ.get("CXX")
    os.environ["CXX"] = compiler
    try:
        with tempfile.TemporaryDirectory() as folder:
            further = find_safe_flags("probe-of-script", Store(Path(folder)), functools.partial(compile_program, given), compiler)
    except BuildError as refusal:
        return f"refused: {str(refusal).splitlines()[0]}", False
    finally:
        os.environ.pop("CXX")
        if before is not None:
            os.environ["CXX"] = before
    return f" with {' '.join(further)}" if further else "", True


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compilers", type=lambda text: text.split(","), default=installed(), help="those that are installed")
    parser.add_argument("--sets", type=lambda text: text.split(","), default=sets_here(), help=f"of {', '.join(SETS)}: those that run here")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    parser.add_argument("--into", type=Path, default=Path("compiler_logs"))
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    pairs = [(compiler, name) for name, compiler in product(given.sets, given.compilers)]
    verdicts = {pair: probed(*pair) for pair in pairs}  # one after another: the compiler is chosen by this process's environment
    taken = [pair for pair in pairs if verdicts[pair][1]]
    with ThreadPoolExecutor(given.processes) as pool:
        ran = dict(zip(taken, pool.map(lambda pair: run(*pair, given.tests, given.into), taken), strict=True))
    results = {pair: (ran[pair][0] + told, ran[pair][1]) if pair in ran else (told, False) for pair, (told, _) in verdicts.items()}
    print(row(("compiler", *given.sets)), row(["---"] * (len(given.sets) + 1)), sep="\n")
    for compiler in given.compilers:
        print(row((version(compiler), *(results[compiler, name][0] for name in given.sets))))
    return 0 if all(passed for _, passed in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
