"""Runs tests that others wrote, each test method compiled beside the plain run, and tells which pass as Python and not compiled.

    python scripts/peer_tests.py test_list test_itertools                            # of CPython's `test` package
    python scripts/peer_tests.py ../pytorch/test/test_autograd.py --backend aot_eager --only custom

A test is a method of a unittest.TestCase. Each module is a process of its own, `--processes` at once. A test that does not pass twice as Python tells
nothing, and is counted apart. Exits with 1 where one differs. Nothing of these tests is a part of this repository.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import signal
import subprocess
import sys
import unittest
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, ModuleType

import dynacompile

SECONDS = 20


class TooSlow(BaseException):
    """A test that takes longer than its limit."""


def stop(signum: int, frame: FrameType | None) -> None:
    raise TooSlow


def load(name: str) -> ModuleType:
    """A module of CPython's `test` package by its name, or one by its file."""
    if not name.endswith(".py"):
        return importlib.import_module(f"test.{name}")
    path = Path(name).resolve()
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{name} is no Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        elif hasattr(test, "_testMethodName") and test._testMethodName != "runTest":
            yield test


def outcome(test: unittest.TestCase, seconds: int) -> tuple[str, str]:
    """("passed" or what else it was, what it told)."""
    result = unittest.TestResult()
    signal.alarm(seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            test.run(result)
    except (Exception, SystemExit, TooSlow) as error:  # noqa: BLE001 - whatever a test raises is its outcome, but for an interrupt from outside
        return type(error).__name__, str(error)
    finally:
        signal.alarm(0)
    if result.errors or result.failures:
        return "failed", (result.errors or result.failures)[0][1]
    return ("skipped", "") if result.skipped or result.expectedFailures or result.unexpectedSuccesses else ("passed", "")


def compiled(test: unittest.TestCase, backend: str) -> unittest.TestCase:
    """The same test, with its method compiled."""
    name = test._testMethodName
    again = type(test)(name)
    setattr(again, name, dynacompile.compile(getattr(type(test), name), backend=backend).__get__(again))
    return again


def run(module: str, only: str, backend: str, seconds: int) -> bool:
    """Whether all tests of a module agree; prints those that do not."""
    signal.signal(signal.SIGALRM, stop)
    ran, differ, untold = 0, 0, 0
    prepared: set[type] = set()
    for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(load(module))):
        if only not in test.id():
            continue
        if type(test) not in prepared:
            prepared.add(type(test))
            type(test).setUpClass()
        if outcome(test, seconds)[0] != "passed":
            untold += 1
            continue
        what, told = outcome(compiled(test, backend), 4 * seconds)
        if what != "passed" and outcome(type(test)(test._testMethodName), seconds)[0] != "passed":
            untold += 1
            continue
        ran += 1
        if what != "passed":
            differ += 1
            print(f"differs: {test.id()}: {what}\n    " + told[-1200:].replace("\n", "\n    "), flush=True)
        dynacompile.reset()
    print(f"{module}: {ran} ran, {differ} differ, {untold} do not pass as Python", flush=True)
    return differ == 0


def apart(module: str, options: argparse.Namespace) -> int:
    """A module in a process of its own."""
    more = ["--worker", "--only", options.only, "--backend", options.backend, "--seconds", str(options.seconds)]
    done = subprocess.run([sys.executable, __file__, module, *more], capture_output=True, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode not in (0, 1) or not done.stdout:
        print(f"{module}: the process ended with {done.returncode}: {done.stderr[-300:]}", flush=True)
    return done.returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="+", help="names of modules of CPython's `test` package, or files")
    parser.add_argument("--only", default="", help="a part of the tests' names")
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of a test as Python; compiled it has four times as many")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        raise SystemExit(not run(options.modules[0], options.only, options.backend, options.seconds))
    with ThreadPoolExecutor(options.processes) as pool:
        codes = list(pool.map(lambda module: apart(module, options), options.modules))
    raise SystemExit(any(codes))


if __name__ == "__main__":
    main()
