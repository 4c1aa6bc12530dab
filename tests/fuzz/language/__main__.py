"""python -m tests.fuzz.language FIRST LAST [--reference] [--shrink]: runs the programs of seeds FIRST up to LAST in a child process, whose
end is noticed; prints those that differ from eager."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import selectors
import subprocess
import sys
import time

from tests.fuzz.language.observe import difference
from tests.fuzz.language.programs import Program, generate
from tests.fuzz.language.shrink import shrink

SILENT = 90.0  # seconds without a sign of life


def work(first: int, last: int, reference: bool) -> None:
    """The child: one line per program, before it starts and after it ends."""
    faulthandler.enable()
    for seed in range(first, last):
        print(f"begin {seed}", flush=True)
        told = difference(generate(seed), reference)
        print(f"end {seed} {' '.join((told or '').split())[:600]}", flush=True)


def watch(first: int, last: int, reference: bool) -> dict[int, str]:
    """Runs children over the seeds; gives what differs by seed, a crash or a hang included."""
    found: dict[int, str] = {}
    while first < last:
        command = [sys.executable, "-m", "tests.fuzz.language", str(first), str(last), "--child", *(["--reference"] if reference else [])]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        at, why = first - 1, ""
        selector = selectors.DefaultSelector()
        assert child.stdout is not None and child.stderr is not None
        selector.register(child.stdout, selectors.EVENT_READ)
        selector.register(child.stderr, selectors.EVENT_READ)
        texts = {child.stdout: b"", child.stderr: b""}
        heard = time.monotonic()
        while selector.get_map():
            for key, _ in selector.select(timeout=5.0):
                chunk = os.read(key.fileobj.fileno(), 65536)  # type: ignore[union-attr]
                heard = time.monotonic()
                if not chunk:
                    selector.unregister(key.fileobj)
                texts[key.fileobj] += chunk  # type: ignore[index]
            *lines, texts[child.stdout] = texts[child.stdout].split(b"\n")
            for line in lines:
                word, _, rest = line.decode().partition(" ")
                number, _, told = rest.partition(" ")
                if word == "begin":
                    at = int(number)
                elif word == "end" and told:
                    found[int(number)] = told
                    print(f"seed {number}: {told}", flush=True)
            if time.monotonic() - heard > SILENT:
                why = "hangs"
                child.kill()
        code = child.wait()
        if code == 0:
            break
        tail = texts[child.stderr].decode(errors="replace").strip().splitlines()
        found[at] = f"{why or f'the process ended with {code}'}: {tail[:12] if code < 0 else tail[-3:]}"
        print(f"seed {at}: {found[at]}", flush=True)
        first = at + 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.language", description="Compare random Python programs, compiled and eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?", help="FIRST + 1 if left out")
    parser.add_argument("--reference", action="store_true", help="through all stages, with interpreted kernels; otherwise capture alone")
    parser.add_argument("--shrink", action="store_true", help="print a smaller program for each that differs")
    parser.add_argument("--show", action="store_true", help="print the programs alone")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.last = given.first + 1 if given.last is None else given.last
    logging.disable(logging.ERROR)
    if given.child:
        work(given.first, given.last, given.reference)
        return 0
    if given.show:
        for seed in range(given.first, given.last):
            print(generate(seed).source)
        return 0
    start = time.monotonic()
    found = watch(given.first, given.last, given.reference)
    for seed in found if given.shrink else ():
        if "the process ended" not in found[seed]:
            small = shrink(generate(seed), given.reference)
            print(f"\n# seed {seed}: {difference(Program(seed, small), given.reference)}\n{small}", flush=True)
    print(f"{given.last - given.first} programs, {len(found)} differ; {time.monotonic() - start:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
