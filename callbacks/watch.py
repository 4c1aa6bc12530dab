"""Catches a step in the act of doing what can't be undone: writing files, printing, talking to loggers, processes and sockets.

Python's audit events tell of what is opened, started and connected; a profile function tells of the calls that no event tells of, such as a write to a
file that is open already. Both come before the deed, so the step is ended there and nothing has happened.
"""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import Logger as PythonLogger
from typing import Any

import torch
from lightning.pytorch.loggers import Logger
from torch.utils.data import DataLoader

from dynacompile.callbacks.saveable import Unrepeatable, is_library
from dynacompile.private.of_torch import BaseDataLoaderIter

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AUDITED: dict[str, str] = {
    "os.chmod": "changes a file",
    "os.chown": "changes a file",
    "os.exec": "starts a program",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.kill": "sends a signal",
    "os.link": "makes a file",
    "os.mkdir": "makes a folder",
    "os.posix_spawn": "starts a program",
    "os.putenv": "changes the environment",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.rmdir": "removes a folder",
    "os.spawn": "starts a program",
    "os.symlink": "makes a file",
    "os.system": "starts a program",
    "os.truncate": "writes a file",
    "os.unsetenv": "changes the environment",
    "os.utime": "changes a file",
    "shutil.rmtree": "removes a folder",
    "socket.bind": "opens a socket",
    "socket.connect": "opens a socket",
    "socket.sendmsg": "sends to a socket",
    "socket.sendto": "sends to a socket",
    "sqlite3.connect": "opens a database",
    "subprocess.Popen": "starts a program",
    "urllib.Request": "asks a server",
    "_thread.start_new_thread": "starts a thread",
    "_thread.start_joinable_thread": "starts a thread",
}
WRITES = frozenset(("write", "writelines", "truncate", "send", "sendall", "sendto", "sendmsg", "sendfile"))
CALLS: dict[types.CodeType, str] = {
    torch.save.__code__: "writes a file",
    DataLoader.__iter__.__code__: "draws from a data loader",
    BaseDataLoaderIter.__next__.__code__: "draws from a data loader",
    PythonLogger.handle.__code__: "logs by `logging`",
    threading.Thread.start.__code__: "starts a thread",
    ThreadPoolExecutor.submit.__code__: "hands work to another thread",
    ProcessPoolExecutor.submit.__code__: "hands work to another process",
}
READS = frozenset(("name", "version", "save_dir", "log_dir", "root_dir", "group_separator"))  # what a step may ask of a logger
# Compilers' files are caches, which are the same for the next step; imports write bytecode; a warning is shown once, by whichever step comes first.
HARMLESS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch.utils.cpp_extension", "triton", "dynacompile", "importlib._bootstrap", "warnings")


class CaughtInTheAct(BaseException):
    """Ends a step before it does what can't be undone. No Exception, so that a handler in the step does not take it for an error of its own."""


@dataclass
class Watch:
    """What is watched for while `thread` runs a step; `seen` is the first thing that was caught."""

    thread: int = 0
    calls: dict[types.CodeType, str] = field(default_factory=dict)
    seen: str = ""

    def caught(self, deed: str, frame: types.FrameType | None) -> None:
        """Raises CaughtInTheAct unless the deed is a compiler's or an import's."""
        culprit = responsible(frame)
        if culprit is None:
            return
        self.seen = self.seen or f"{deed} ({culprit.f_code.co_qualname}, {os.path.basename(culprit.f_code.co_filename)}:{culprit.f_lineno})"
        raise CaughtInTheAct(self.seen)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event not in AUDITED:
            return
        frame = sys._getframe().f_back
        frame = frame and frame.f_back  # who called the audit hook
        if frame is None or (threading.get_ident() != self.thread and is_in_python_thread(frame)):
            return
        if event != "open":
            self.caught(AUDITED[event], frame)
        elif is_writing(*arguments):
            self.caught(f"writes the file {arguments[0]}", frame)

    def on_call(self, frame: types.FrameType, event: str, called: Any) -> None:
        if event == "call":
            if frame.f_code in self.calls:
                self.caught(self.calls[frame.f_code], frame.f_back)
        elif event == "c_call":
            if called is print:
                self.caught("prints", frame)
            elif called is input:
                self.caught("asks for input", frame)
            elif getattr(called, "__name__", "") in WRITES and is_outside(getattr(called, "__self__", None)):
                self.caught("writes to an open file or socket", frame)


def is_outside(target: Any) -> bool:
    """Whether what is written to it leaves this process's memory."""
    return isinstance(target, io.IOBase | socket.SocketType) and not isinstance(target, io.StringIO | io.BytesIO)


def is_writing(path: Any, mode: Any, flags: Any) -> bool:
    """Of the audit event `open`: whether the file is opened for writing, the null device aside."""
    if path == os.devnull:
        return False
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & WRITING)


def is_in_python_thread(frame: types.FrameType) -> bool:
    """Whether the frame's thread was started by `threading`; autograd's threads, which run the step's backward, were not."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "threading"


def responsible(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame of the user's, or else of a library; None for what a compiler or an import writes and for what `warnings` shows."""
    library = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("dynacompile.callbacks"):  # what runs the step
            break
        if not is_library(name):
            return frame
        if name.startswith(HARMLESS):
            return None
        if library is None and name.partition(".")[0] not in sys.stdlib_module_names:
            library = frame
        frame = frame.f_back
    return library


@dataclass
class AuditHook:
    """The one audit hook of this process: such a hook can't be removed, so it is added once and does nothing while no step is watched."""

    watch: Watch | None = None
    is_added: bool = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.watch is not None:
            self.watch.on_event(event, arguments)

    def add(self) -> None:
        if not self.is_added:
            self.is_added = True
            sys.addaudithook(self)


AUDIT_HOOK = AuditHook()


@contextmanager
def watched(loggers: Iterable[Logger]) -> Iterator[Watch]:
    """The step that runs inside ends with CaughtInTheAct where it would do what can't be undone.

    Another profile function, if there is one, is put back afterwards. Raises Unrepeatable where there is one that is not Python's, and so can't be.
    """
    before = sys.getprofile()
    if before is not None and not callable(before):
        raise Unrepeatable(f"calls are watched by another profiler ({type(before).__module__}.{type(before).__qualname__})")
    of_loggers = {code: "uses a logger" for logger in loggers for code in codes_of(logger)}
    watch = Watch(threading.get_ident(), CALLS | of_loggers | wandb_calls() | stream_calls())
    AUDIT_HOOK.add()
    AUDIT_HOOK.watch = watch
    sys.setprofile(watch.on_call)
    try:
        yield watch
    finally:
        sys.setprofile(before)
        AUDIT_HOOK.watch = None


def codes_of(logger: Logger) -> Iterator[types.CodeType]:
    """The code of every method and property of a logger, those aside that only tell its name and place."""
    for kind in type(logger).__mro__[:-1]:
        for name, held in vars(kind).items():
            if name in READS or name.startswith("_"):
                continue
            for part in (held, getattr(held, "fget", None), getattr(held, "__func__", None)):
                yield from codes_under(part)


def codes_under(fn: Callable[..., Any] | None) -> Iterator[types.CodeType]:
    while isinstance(fn, types.FunctionType):
        yield fn.__code__
        fn = getattr(fn, "__wrapped__", None)


def stream_calls() -> dict[types.CodeType, str]:
    """The writes of streams that are written in Python, as notebooks have them."""
    return {code: "prints" for stream in (sys.stdout, sys.stderr) for code in codes_under(getattr(type(stream), "write", None))}


def wandb_calls() -> dict[types.CodeType, str]:
    """The calls that reach a run of W&B without Lightning's logger; nothing is imported for this."""
    wandb = sys.modules.get("wandb")
    log = getattr(getattr(wandb, "log", None), "__func__", None)
    return dict.fromkeys(codes_under(log), "logs to W&B")
