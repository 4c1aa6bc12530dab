"""Python programs in processes of their own that begin with what is slow to import already imported.

A server (`python -m tests.forked FD MODULE...`) imports modules, computes nothing, and forks for each program that it is asked for. The program has its own
arguments, folder, environment and streams, and ends as any process does. For tests of what programs do; those of how processes start, of the interpreter's
flags, or of what is read from the environment at import, run `sys.executable`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BARE = ("torch",)
"""For what dynacompile does, or reads from the environment, when it is imported."""
TORCH = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.testing", "pytest", "dynacompile")
LIGHTNING = (*TORCH, "lightning", "hydra", "dynacompile.callbacks", "dynacompile.callbacks.overrides", "dynacompile.callbacks.sweep_runs")
OF_NANOBIND = ("nanobind: ", " - leaked ", " - ... skipped ", "See https://nanobind.")
"""Lines of Triton's binding, which reports at the end that a frozen heap is not freed."""
MOST_BYTES = 1 << 17  # of a request
SERVERS: dict[tuple[str, ...], socket.socket] = {}


def server(modules: tuple[str, ...]) -> socket.socket:
    """The channel to the server that has imported these modules, which ends with this process."""
    if modules not in SERVERS:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forked", str(theirs.fileno()), *modules]
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        SERVERS[modules] = ours
    return SERVERS[modules]


class Program:
    """A program that runs. arguments: as of Python, any number of `-W` and its filter, then `-m`, a module and its arguments, `-c`, a text and its own, or
    a file and its own."""

    def __init__(self, modules: tuple[str, ...], arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.arguments, self.returncode = list(arguments), None
        self.streams = [tempfile.TemporaryFile() for _ in range(2)]
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"arguments": self.arguments, "cwd": str(cwd), "env": dict(env)}).encode()
        assert len(request) < MOST_BYTES
        socket.send_fds(server(modules), [request], [theirs.fileno(), *(stream.fileno() for stream in self.streams)])
        theirs.close()
        self.pid = self.told()

    def told(self) -> int:
        message = self.control.recv(64)
        if not message:
            raise RuntimeError("the server of programs has ended; what it printed says why")
        return int(message)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, 9)  # its monitor waits for it, so that the number is no other process's

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, once it has ended. Raises subprocess.TimeoutExpired."""
        self.control.settimeout(timeout)
        try:
            self.returncode = self.told()
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.arguments, timeout or 0) from None
        self.control.close()
        out, err = (read(stream) for stream in self.streams)
        return out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith(OF_NANOBIND))


def read(stream: Any) -> str:
    with stream:
        stream.seek(0)
        return stream.read().decode()


def run(modules: tuple[str, ...], *arguments: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 280) -> subprocess.CompletedProcess:
    """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`. Raises subprocess.TimeoutExpired, and kills the program then."""
    program = Program(modules, arguments, cwd, os.environ if env is None else env)
    try:
        out, err = program.communicate(timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    return subprocess.CompletedProcess(list(arguments), program.returncode, out, err)


# the server


def next_program(channel: socket.socket) -> dict[str, Any]:
    """Returns in a process for each request, with the request; in the server never. Between the two a monitor tells the asking process how the program ends."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
        if not message:
            os._exit(0)
        monitor = os.fork()
        if monitor == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        collect()
    channel.close()
    control, out, err = descriptors
    program = os.fork()
    if program:
        os.close(out), os.close(err)
        os.write(control, str(program).encode())
        os.write(control, str(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])).encode())
        os._exit(0)
    os.dup2(out, 1), os.dup2(err, 2)
    for descriptor in descriptors:
        os.close(descriptor)
    return json.loads(message)


def collect() -> None:
    """Waits for monitors that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a program, and the one at its end, would write to the heap that it shares with the server, and so copy it
    request = next_program(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    run_program(request["arguments"], request["cwd"])


def run_program(arguments: list[str], folder: str) -> None:
    """What the interpreter does with its arguments."""
    while arguments[0] == "-W":
        sys.warnoptions.append(arguments[1])
        warnings._setoption(arguments[1])
        arguments = arguments[2:]
    first, *rest = arguments
    if first == "-m":
        sys.argv, sys.path[0] = rest, folder
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = [first, *rest], os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
