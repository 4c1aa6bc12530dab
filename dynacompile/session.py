"""The state of the compiler in one process, and which code it leaves alone."""

from __future__ import annotations

import inspect
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
import typing_extensions

from dynacompile.capture.bytecode import CodeCache
from dynacompile.complaints import warn
from dynacompile.events import Bus
from dynacompile.ir.fakes import CHANGED as STOOD_IN
from dynacompile.ir.fakes import WITH_DEVICES, FakeMode
from dynacompile.markers import DISABLED_CODE, LEFT_TO_PYTHON
from dynacompile.native import core as native_core
from dynacompile.native import loaded as native_loaded
from dynacompile.native import usable as native_usable
from dynacompile.private import of_torch
from dynacompile.threads import let_imports_end

DEFAULT_BUCKET = -1


class Ticket:
    """The right to compile one code object for one bucket, held by the frame that the thread `owner` compiles, and by nothing else: however that ends,
    the ticket ends with it."""

    __slots__ = ("__weakref__", "owner")

    def __init__(self) -> None:
        self.owner = threading.get_ident()


@dataclass
class Scope:
    """Compiles that have nothing in common with others. shared: their bucket in the place of the default one. classes: theirs by class."""

    shared: int
    classes: weakref.WeakKeyDictionary[Any, int] = field(default_factory=weakref.WeakKeyDictionary)


SCOPE: ContextVar[Scope | None] = ContextVar("dynacompile_scope", default=None)


class Session:
    """The state of the compiler in one process: subscribers, buckets, the code that was compiled.

    lock: held for a few look-ups at a time, never while code runs that is not in this file.
    """

    def __init__(self) -> None:
        self.bus = Bus()
        self.lock = threading.RLock()
        self._tickets: dict[tuple[int, int], weakref.ref[Ticket]] = {}  # by id of the code, which lives while its frame does; and bucket
        self._buckets = itertools.count()
        self._graphs = itertools.count()
        self._class_buckets: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._codes: dict[int, weakref.KeyedRef[int, CodeType]] = {}  # by id: code objects of different functions may be equal
        self._codes_gone: deque[weakref.KeyedRef[int, CodeType]] = deque()
        self.code_cache = CodeCache(drop_entries)
        self.ready = False
        self.resets = 0  # so often all entries were dropped

    def start(self) -> bool:
        """Loads the native core (built at the first use). False where it does not work here: then regions run eagerly, and a warning says why."""
        usable, reason = native_usable()
        if not usable:
            warn(f"dynacompile runs eagerly: {reason}")
            return False
        with self.lock:
            self.prepare()
        return True

    def prepare(self) -> None:
        """Tells the native core what it leaves alone, and what compiles change for the whole process."""
        if not self.ready:
            for place in CHANGED:
                native_core().changed_by_compiles(*place)
            FakeMode.__torch_dispatch__ = native_core().ModeMethod(FakeMode.HANDLER)  # type: ignore[method-assign]
            native_core().answer_devices(of_torch.find_torch_dispatch_rule, torch.ops.prim.device.default, WITH_DEVICES, torch.device("meta"))
            for read, change in SET:
                native_core().set_by_compiles(read, change)
            for folder, recursive in skipped_folders():
                native_core().add_skip_prefix(folder, recursive)
            for folder in LEFT_TO_PYTHON:
                native_core().add_skip_prefix(folder, False)
            for code in steps_of_optimizers():
                native_core().meet_code(code)
            native_core().watch_rival(of_torch.set_eval_frame)
            native_core().skip_code(DISABLED_CODE, True)
            native_core().skip_code(of_torch.module_call_impl.__code__, False)
            native_core().skip_code(of_torch.module_wrapped_call_impl.__code__, False)
            self.ready = True

    def bucket(self, isolate: bool | str, owner: object) -> int:
        """The bucket of a new compile. owner: the function, or the module's class."""
        scope = SCOPE.get()
        if isolate is False:
            return DEFAULT_BUCKET if scope is None else scope.shared
        if isolate == "class":
            table = self._class_buckets if scope is None else scope.classes
            with self.lock:
                if owner not in table:
                    table[owner] = next(self._buckets)
                return table[owner]
        return next(self._buckets)

    @contextmanager
    def isolated(self, scope: Scope | None = None) -> Iterator[Scope]:
        """Compiles made meanwhile in this thread share buckets with each other, and with those of `scope`, but with none of before or after."""
        token = SCOPE.set(Scope(next(self._buckets)) if scope is None else scope)
        try:
            yield SCOPE.get()  # type: ignore[misc]
        finally:
            SCOPE.reset(token)

    def claim(self, code: CodeType, bucket: int, frame: Any) -> weakref.ref[Ticket] | None:
        """Gives the frame, a FrameProxy, the ticket of (code, bucket), and returns None; where another frame has it, returns a reference to that one."""
        with self.lock:
            self.forget_tickets()
            self.remember(code)
            found = self._tickets.get((id(code), bucket))
            if found is None:
                frame.ticket = Ticket()
                self._tickets[id(code), bucket] = weakref.ref(frame.ticket)
            return found

    def known_codes(self) -> list[CodeType]:
        with self.lock:
            return self.living_codes()

    def living_codes(self) -> list[CodeType]:
        """The lock is held. A function of its own, since CPython 3.13 does not let go of a lock where a call in the condition of a comprehension is interrupted
        and the comprehension stands in the block of the lock."""
        self.forget_codes()
        return [code for held in self._codes.values() if (code := held()) is not None]

    def forget_tickets(self) -> None:
        """The same of tickets that are gone."""
        for key in [key for key, held in self._tickets.items() if held() is None]:
            del self._tickets[key]

    def forget_codes(self) -> None:
        """Lets go of code that is gone. Callbacks of weak references may run anywhere, so they only leave a note of it."""
        while self._codes_gone:
            gone = self._codes_gone.popleft()
            if self._codes.get(gone.key) is gone:
                del self._codes[gone.key]

    def remember(self, code: CodeType) -> None:
        self.forget_codes()
        found = self._codes.get(id(code))
        if found is None or found() is not code:
            self._codes[id(code)] = weakref.KeyedRef(code, self._codes_gone.append, id(code))

    def begin_child(self) -> None:
        """In a forked process, which has one of its parent's threads: what the others held or were about to do is nobody's."""
        self.lock = threading.RLock()
        mine = threading.get_ident()
        self._tickets = {key: held for key, held in self._tickets.items() if (ticket := held()) is not None and ticket.owner == mine}
        if self.ready:
            native_core().forget_other_compiles()

    def next_graph(self) -> int:
        return next(self._graphs)

    def reset(self) -> None:
        """Drops every entry of every compile; the compiled objects stay valid and compile again."""
        with self.lock:
            self.resets += 1
            codes = self.known_codes()
            self.code_cache = CodeCache(drop_entries)  # what other threads capture meanwhile keeps the old one
        if self.ready:
            for code in codes:
                native_core().reset_code(code)
            native_core().release_memory()


def drop_entries(code: CodeType, loaded: Callable[[], Any] = native_loaded) -> None:
    """Of code that is gone. loaded: bound here, as code also goes when the interpreter ends and has emptied this module."""
    core = loaded()
    if core is not None:
        core.reset_code(code)


SESSION = Session()
os.register_at_fork(before=let_imports_end)
os.register_at_fork(after_in_child=lambda: SESSION.begin_child())  # without the lock: each change of the tables may be the last that another thread makes

MODE_FLAGS = ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", "_is_in_any_mode_without_ignore_compile_internals")
CHANGED = (*STOOD_IN, *((vars(of_torch.python_dispatch), name) for name in MODE_FLAGS if name in vars(of_torch.python_dispatch)))
"""(dict, key) of what compiles change for the whole process, and what they put there where others may put something else."""
SET = ((of_torch.only_lift_cpu_tensors, of_torch.set_only_lift_cpu_tensors),)
"""What compiles set for the whole process: functions that read it and set it."""

LIBRARIES = ("sympy", "mpmath", "triton", "networkx")  # of others, in which a compile spends time
REPORTERS = ("IPython", "ipykernel", "loguru", "mlflow", "rich", "tensorboard", "tqdm", "wandb")  # what writes for the user, in print()'s place, too


def steps_of_optimizers() -> list[CodeType]:
    """The steps of torch.optim that are compiled: where one breaks, as in a closure with a backward, what follows is compiled all the same."""
    kinds = [cls for cls in vars(torch.optim).values() if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)]
    steps = [inspect.unwrap(cls.step) for cls in kinds if cls not in (torch.optim.Optimizer, torch.optim.LBFGS, torch.optim.SparseAdam)]
    return [step.__code__ for step in steps if isinstance(step, FunctionType)]


def skipped_folders() -> list[tuple[str, bool]]:
    """(folder or file, recursive): code there runs as plain Python; recursive: so does all that it calls.

    The standard library, NumPy and torch are skipped, but what they call is met (a hook, a checkpointed function); torch.nn's layers are compiled;
    other compilers and their tracing run alone, and so do libraries that report.
    """
    torch_folder = Path(torch.__file__).parent
    alone = [torch_folder / d for d in ("_dynamo", "_inductor", "_functorch", "fx", "_subclasses", "export", "_export")]
    alone.append(torch_folder / "distributed" / "tensor")  # placements and dispatch of DTensor
    inside = [p for p in torch_folder.iterdir() if p.is_dir() and p.name != "nn" and p not in alone]
    inside += [torch_folder / "nn" / d for d in ("utils", "parallel", "quantized")]
    files = [p for p in torch_folder.iterdir() if p.suffix == ".py"] + [torch_folder / "nn" / f for f in ("modules/module.py", "parameter.py")]
    ours = [p for p in Path(__file__).parent.iterdir() if p.name not in ("selftest.py", "recipes")]  # whose own functions are met
    others = [p for p in Path(os.__file__).parent.iterdir() if p.name != "site-packages"]
    others += [Path(np.__file__).parent, Path(typing_extensions.__file__)]
    specs = [spec for name in REPORTERS if (spec := find_spec(name)) is not None and spec.submodule_search_locations]
    alone += [Path(folder) for spec in specs for folder in spec.submodule_search_locations or ()]
    return [(str(p), True) for p in alone] + [(str(p), False) for p in [*inside, *files, *ours, *others]]
