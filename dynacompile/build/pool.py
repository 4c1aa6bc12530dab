"""Warm processes that compile Triton kernels: started on first use, reused by every later compile, gone with this process.

They are plain subprocesses running one script and speak length-prefixed JSON over pipes: nothing is pickled, the user's __main__ is
never imported again, and a crash of the compiler is an error of one kernel.
"""

from __future__ import annotations

import functools
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dynacompile.build.wire import read_message, write_message
from dynacompile.compilers import stamp_of_program
from dynacompile.env import Env
from dynacompile.errors import BuildError

SCRIPT = Path(__file__).with_name("triton_worker.py")
MOST = 16  # workers; each holds about 150 MB
WARM = 4  # of them start before there are kernels; more at once slow the capture down
JOB_SECONDS = 300.0
LOOK_SECONDS = 0.05
OURS = {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"}
"""Settings of Triton that every worker has."""
NEVER = ("TRITON_INTERPRET", "TRITON_KERNEL_DUMP", "TRITON_KERNEL_OVERRIDE")
"""Those that none has."""
SETTINGS = ("TRITON_", "DISABLE_LLVM_OPT", "DISABLE_MMA_V", "DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "ALLOW_LHS_TMEM_LAYOUT_CONVERSION", "LLVM_PASS_PLUGIN_PATH")
"""Beginnings of the names of those by which it may make something else."""
NEUTRAL = (
    "TRITON_HOME",
    "TRITON_CACHE_",
    "TRITON_DUMP_",
    "TRITON_OVERRIDE_DIR",
    "TRITON_REMOTE_",
    "TRITON_REDIS_",
    "TRITON_PRINT_",
    "TRITON_PROTON_",
    "TRITON_CUPTI_",
)
"""Beginnings of the names of those by which it does not."""


@dataclass(eq=False)
class Worker:
    """A running worker; log: what it wrote to stderr. job: the index of the job that it has among its caller's, None when idle. is_old: it waited for
    this job, rather than be started for it."""

    process: subprocess.Popen
    log: IO[bytes]
    job: int | None = None
    deadline: float = 0.0
    is_old: bool = True

    def tail(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:].decode(errors="replace").strip()


def is_setting(variable: str) -> bool:
    """Whether Triton may make something else by this variable of the environment, of those that workers do not have otherwise than they are set here."""
    return variable.startswith(SETTINGS) and not variable.startswith(NEUTRAL) and variable not in OURS and variable not in NEVER


@functools.cache
def settings() -> dict[str, str]:
    """Triton's settings that are the user's, as they are when they are first asked for: workers live on."""
    return {name: os.environ[name] for name in sorted(os.environ) if is_setting(name)}


def key_of_settings() -> list[str]:
    """What of them a kernel depends on. A program or a file that one names is known as it is now."""
    return [f"{name}={value} {stamp_of_program(value) if os.path.isfile(value) else ''}" for name, value in settings().items()]


class Crash(Exception):
    """The worker ended while it had a job."""


class WorkerPool:
    """At most `most` workers. compile() may be called from several threads, which share them."""

    def __init__(self, most: int):
        self.most = most
        self.workers: list[Worker] = []
        self.lock = threading.RLock()  # guards the list of workers and who is idle
        self.end = weakref.finalize(self, end_workers, self.workers)
        POOLS.add(self)

    def warm(self) -> None:
        """Starts the first workers, without waiting for them."""
        with self.lock:
            while len(self.workers) < min(self.most, WARM):
                self.start()

    def compile(self, jobs: Sequence[dict], optional: Set[int] = frozenset()) -> list[tuple[dict, bytes]]:
        """(facts, cubin) of each job, in order; see triton_worker.compile_job. Raises BuildError for the first job that fails. optional: jobs of which
        that is a result: "ok" is False among their facts, and "error" says why."""
        results: dict[int, tuple[dict, bytes]] = {}
        waiting = list(reversed(range(len(jobs))))
        crashes: dict[int, int] = {}
        mine: list[Worker] = []
        try:
            while len(results) < len(jobs):
                self.hand_out(jobs, waiting, mine, crashes)
                for worker in ready(mine, bool(waiting)):
                    index = worker.job
                    assert index is not None
                    try:
                        results[index] = receive(worker)
                    except Crash:
                        try:
                            self.crashed(worker, index, jobs[index], crashes, mine)
                        except BuildError as error:
                            if index not in optional:
                                raise
                            results[index] = ({"ok": False, "error": str(error).partition("\n")[0]}, b"")
                        else:
                            waiting.append(index)
                        continue
                    self.give_back(worker, mine)
                    if not results[index][0]["ok"] and index not in optional:
                        raise BuildError(f"Triton refused kernel {jobs[index]['entry']}: {results[index][0]['error']}\n{jobs[index]['text']}")
        except BaseException:
            for worker in mine:
                self.discard(worker)
            raise
        return [results[i] for i in range(len(jobs))]

    def begin_child(self) -> None:
        """In a forked process: the parent's workers are not ours, and no thread waits for one. What the parent has not written yet is not written twice."""
        self.lock = threading.RLock()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for worker in self.workers:
            for pipe in (worker.process.stdin, worker.process.stdout):
                assert pipe is not None
                if not pipe.closed:
                    os.dup2(nowhere, pipe.fileno())
            worker.process.returncode = 0  # nobody is to wait for it
        os.close(nowhere)
        self.workers.clear()

    def start(self) -> Worker:
        log = tempfile.TemporaryFile()
        environment = {k: v for k, v in os.environ.items() if k not in NEVER and not is_setting(k)}
        environment |= {**settings(), **OURS, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-P", str(SCRIPT)]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True)
        except OSError as error:
            raise BuildError(f"cannot start a Triton worker ({' '.join(command)}): {error}") from error
        worker = Worker(process, log)
        self.workers.append(worker)
        return worker

    def take(self, mine: list[Worker]) -> Worker | None:
        """An idle worker, a new one where there may be more. Where all have jobs of other callers: the next that is given back, or None for a caller that has
        workers. Puts it among the caller's, before it is one: an interrupt must not leave a worker that has a job, and no caller."""
        while (worker := self.taken(mine)) is None and not mine:
            time.sleep(LOOK_SECONDS)
        return worker

    def taken(self, mine: list[Worker]) -> Worker | None:
        with self.lock:
            idle = next((w for w in self.workers if w.job is None), None)
            is_old = idle is not None
            if idle is None and len(self.workers) < self.most:
                idle = self.start()
            if idle is not None:
                mine.append(idle)
                idle.job, idle.is_old = -1, is_old
            return idle

    def give_back(self, worker: Worker, mine: list[Worker]) -> None:
        with self.lock:
            place = mine.index(worker)
            worker.job = None
            del mine[place]  # no interrupt comes between two assignments

    def hand_out(self, jobs: Sequence[dict], waiting: list[int], mine: list[Worker], crashes: dict[int, int]) -> None:
        while waiting:
            worker = self.take(mine)
            if worker is None:
                return
            worker.job = index = waiting.pop()
            worker.deadline = time.monotonic() + JOB_SECONDS
            try:
                assert worker.process.stdin is not None
                write_message(worker.process.stdin, jobs[index])
            except BrokenPipeError:  # it had ended, for idleness as a rule
                self.crashed(worker, index, jobs[index], crashes, mine)
                waiting.append(index)

    def crashed(self, worker: Worker, index: int, job: dict, crashes: dict[int, int], mine: list[Worker]) -> None:
        """A job may lose one worker; the second is the job's fault. Those that had ended of idleness, as all of a pool may have, say nothing of it."""
        self.discard(worker)
        mine.remove(worker)
        if worker.process.returncode == 0 and worker.is_old:
            return
        crashes[index] = crashes.get(index, 0) + 1
        if crashes[index] > 1:
            raise BuildError(f"the Triton compiler crashed (exit {worker.process.returncode}) on kernel {job['entry']}\n{worker.tail()}\n{job['text']}")

    def discard(self, worker: Worker) -> None:
        with self.lock:
            if worker in self.workers:
                self.workers.remove(worker)
        end_workers([worker])

    def close(self) -> None:
        """Ends all workers."""
        with self.lock:
            end_workers(self.workers)
            self.workers.clear()


def ready(busy: list[Worker], more: bool) -> list[Worker]:
    """Busy workers that have written, or ended. more: look up soon, for another caller's worker may have become idle. Raises BuildError where
    one has run out of time."""
    streams = {w.process.stdout: w for w in busy if w.process.stdout is not None}
    late = min(busy, key=lambda w: w.deadline)
    left = max(0.0, late.deadline - time.monotonic())
    readable, _, _ = select.select(list(streams), [], [], min(left, LOOK_SECONDS) if more else left)
    if not readable and time.monotonic() >= late.deadline:
        raise BuildError(f"a Triton worker took more than {JOB_SECONDS:.0f} s for one kernel\n{late.tail()}")
    return [streams[s] for s in readable]


def receive(worker: Worker) -> tuple[dict, bytes]:
    assert worker.process.stdout is not None
    try:
        message = read_message(worker.process.stdout)
    except EOFError:
        message = None
    if message is None:
        raise Crash
    return message


def end_workers(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()
        for pipe in (worker.process.stdin, worker.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # a message half written to a process that is gone
                continue
        worker.process.wait()


POOLS: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def begin_child() -> None:
    for pool in POOLS:
        pool.begin_child()


os.register_at_fork(after_in_child=begin_child)


@functools.cache
def shared_pool(most: int) -> WorkerPool:
    """The process's pool of that size; it holds no object of the user's."""
    return WorkerPool(most)


def pool_for(env: Env) -> WorkerPool:
    """The pool that `env.config.workers` asks for; 0: one worker per core that this process may use."""
    return shared_pool(env.config.workers or max(1, min(MOST, len(os.sched_getaffinity(0)))))


def warm_workers(env: Env) -> None:
    """Starts the workers in the background, so that they are warm when the first kernel is ready."""
    pool_for(env).warm()
