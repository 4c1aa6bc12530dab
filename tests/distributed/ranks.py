"""Starts the processes of one host, each of which runs a module's `main`, and waits for all of them. They need no network but the loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Ended:
    """How a rank ended. code: as of subprocess."""

    code: int
    out: str
    err: str


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def start(module: str, *args: str, ranks: int = 2, timeout: float = 300, **environment: str) -> list[Ended]:
    """Runs `python -m module args...` once for each rank, with the variables that torchrun sets. Those that have not ended by the time-out are killed, and have
    the code -9."""
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    common |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    end = time.monotonic() + timeout
    found = []
    for process in started:
        try:
            out, err = process.communicate(timeout=max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        found.append(Ended(process.returncode, out, err))
    return found
