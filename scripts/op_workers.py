"""Worker processes for op samples: one that hangs or dies costs its sample, and is told as such."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from queue import Empty, Queue

import torch
from torch.testing._internal import common_methods_invocations

from scripts.op_trials import Told, callables, names, picked, seedless, tried


def work(args: argparse.Namespace) -> None:
    """A worker: reads `op dtype skip` lines, writes what became of each sample."""
    sys.excepthook = tell_crash
    warnings.simplefilter("ignore")
    common_methods_invocations.wrapper_set_seed = seedless
    torch.set_num_threads(1)
    table = names()
    for line in sys.stdin:
        name, dtype_name, first = line.split()
        op, dtype, done = table[name], getattr(torch, dtype_name), int(first)
        torch.manual_seed(3)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=args.grad and op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)))
        tasks = [(v, c, i, s) for v, c in callables(op, args.variants) for i, s in picked(samples, args.most) if v != "inplace" or not s.broadcasts_input]
        for place, (variant, call, i, sample) in enumerate(tasks):
            if place < done:
                continue
            say({"begin": [place, variant, i]})
            status, detail = tried(op, call, variant, sample, args)
            say(asdict(Told(name, dtype_name, variant, i, status, detail)))
        say({"end": True})


def say(value: dict) -> None:
    print("@@" + json.dumps(value), flush=True)


def tell_crash(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """The last that a worker says, of an exception that no op and no compiler should raise."""
    said = str(error).strip().splitlines() or [""]
    say({"raised": f"{kind.__name__}: {said[0]}"[:300]})


class Worker:
    """A process that runs samples, and the samples that it is at."""

    def __init__(self, script: str, argv: list[str]):
        """script: the one that runs `work` when it is given --work."""
        self.command = [sys.executable, script, "--work", *argv]
        self.process: subprocess.Popen | None = None
        self.lines: Queue[str | None] = Queue()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = Queue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()

    @staticmethod
    def read(process: subprocess.Popen, lines: Queue[str | None]) -> None:
        for line in process.stdout or ():
            if line.startswith("@@"):
                lines.put(line[2:])
        lines.put(None)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def op(self, name: str, dtype: str, timeout: float) -> Iterator[Told]:
        done = 0
        while True:
            if self.process is None:
                self.start()
            process = self.process
            assert process is not None and process.stdin is not None
            process.stdin.write(f"{name} {dtype} {done}\n")
            process.stdin.flush()
            at: list | None = None
            raised = ""
            while True:
                try:
                    line = self.lines.get(timeout=timeout)
                    status = "crash"
                except Empty:
                    line, status = None, "timeout"
                if line is None:
                    self.stop()
                    if at is None:
                        yield Told(name, dtype, "", -1, status, f"while samples were made {raised}".strip())
                        return
                    done = at[0] + 1
                    yield Told(name, dtype, at[1], at[2], status, raised)
                    break
                value = json.loads(line)
                if "begin" in value:
                    at = value["begin"]
                elif "raised" in value:
                    raised = value["raised"]
                elif "end" in value:
                    return
                else:
                    yield Told(**value)
