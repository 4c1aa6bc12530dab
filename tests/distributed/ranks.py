"""Starts the processes of one host, each of which runs a module's `main`, and waits for all of them. They need no network but the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.forked import LIGHTNING, ROOT, TORCH, Program

DEVICE = os.environ.get("RANKS_DEVICE", "cpu")
"""What the ranks compute on: gloo joins CPUs; NCCL joins GPUs, one for each rank, beside gloo for what is on CPUs."""
OF_LIGHTNING = ("tests.callbacks.elastic_fit", "tests.callbacks.strategies_fit", "tests.fuzz.strategies")


@dataclass(frozen=True)
class Ended:
    """How a rank ended. code: as of subprocess."""

    code: int
    out: str
    err: str


def join(seconds: int) -> None:
    """Makes the process group. seconds: how long a rank waits for another one."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo", timeout=timedelta(seconds=seconds))


def run_cases(cases: Sequence[Callable[[], None]], names: Sequence[str]) -> None:
    """What a rank does: the cases of these names, or all. Prints the name of each that held."""
    join(120)
    failed = False
    for case in [case for case in cases if case.__name__ in names or not names]:
        try:
            case()
            print(f"held {case.__name__}", flush=True)
        except Exception:  # noqa: BLE001  (it is printed, and the next case runs on all ranks)
            failed = True
            print(f"{case.__name__}:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        dist.barrier()
    dist.destroy_process_group()
    sys.exit(failed)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def start(module: str, *args: str, ranks: int = 2, timeout: float = 300, **environment: str) -> list[Ended]:
    """Runs `python -m module args...` once for each rank, with the variables that torchrun sets, and with groups of gloo that have one thread (gloo.py). Those
    that have not ended by the time-out are killed, and have the code -9."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    modules = LIGHTNING if module in OF_LIGHTNING else TORCH
    command = ["-m", "tests.distributed.gloo", module, *args]
    started = [Program(modules, command, ROOT, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    end = time.monotonic() + timeout
    return [ended(program, end) for program in started]


def ended(process: Program, end: float) -> Ended:
    """The process once it has ended, by itself or killed at a time."""
    try:
        out, err = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out, err)
