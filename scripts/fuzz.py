"""Runs fuzzers of tests/fuzz in several processes within a time limit, and tells how many programs ran and which differed.

    python scripts/fuzz.py questions:0:20000 contract:0:20000:--backends=aot_eager --processes 16 --seconds 500 --into fuzz_logs

A job is TOPIC:FIRST:LAST[:OPTION...]. The numbers of each are cut into chunks, which the processes take in turn from all jobs, so that each job gets
its share of the time. Each chunk is a process of its own. What a chunk printed is kept in `--into` where it failed. Exits with 1 where one did.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Job:
    """done: numbers that ran to their chunk's end; failed: chunks that differed; ended: those that the time ended."""

    topic: str
    first: int
    last: int
    options: tuple[str, ...]
    done: int = 0
    failed: list[str] = field(default_factory=list)
    ended: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def chunks(self, size: int) -> Iterator[tuple[Job, int, int]]:
        return ((self, start, min(start + size, self.last)) for start in range(self.first, self.last, size))

    def line(self) -> str:
        told = f"; differ, or broke off, in {', '.join(self.failed)}" if self.failed else "; none differed"
        return f"{self.topic}: {self.done} of {self.last - self.first} ran ({self.ended} chunks were cut off by the time){told}"


def job_of(text: str) -> Job:
    topic, first, last, *options = text.split(":")
    return Job(topic, int(first), int(last), tuple(options))


def run_chunk(job: Job, first: int, last: int, end: float, into: Path) -> None:
    left = end - time.monotonic()
    if left < 5:
        return
    command = [sys.executable, "-W", "ignore", "-m", f"tests.fuzz.{job.topic}", str(first), str(last), *job.options]
    try:
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=left)
    except subprocess.TimeoutExpired as cut:
        with job.lock:
            job.ended += 1
        (into / f"{job.topic}-{first}.cut").write_bytes(cut.stdout or b"")
        return
    with job.lock:
        job.done += last - first
        if run.returncode:
            job.failed.append(f"{first}-{last}")
            (into / f"{job.topic}-{first}.txt").write_text(run.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", type=job_of, metavar="TOPIC:FIRST:LAST[:OPTION...]")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--chunk", type=int, default=100, help="numbers that one process runs")
    parser.add_argument("--into", type=Path, default=Path("fuzz_logs"))
    given = parser.parse_args()
    given.into.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.seconds
    turns = filter(None, chain.from_iterable(zip_longest(*(job.chunks(given.chunk) for job in given.jobs))))
    with ThreadPoolExecutor(given.processes) as pool:
        list(pool.map(lambda turn: run_chunk(*turn, end, given.into), turns))
    for job in given.jobs:
        print(job.line(), flush=True)
    return 1 if any(job.failed for job in given.jobs) else 0


if __name__ == "__main__":
    raise SystemExit(main())
