"""Runs bytecode on tracked values: one SymbolicFrame per Python frame, one row of the opcode table per instruction."""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dynacompile.capture.breaks import Raised, raises, unsupported
from dynacompile.capture.bytecode import Decoded, is_resume
from dynacompile.capture.calling import with_null
from dynacompile.capture.frames.dropping import runs_code
from dynacompile.capture.frames.table import TABLE, Opcode
from dynacompile.capture.resume import ResumePoint, arguments, resume_code
from dynacompile.capture.values.base import NULL, IteratorValue, Lazy, Value
from dynacompile.capture.values.binding import bind_call
from dynacompile.capture.values.cells import CellValue
from dynacompile.capture.values.constant import ConstantValue, is_none
from dynacompile.capture.values.context import Context, Scope
from dynacompile.capture.values.contexts import ExitValue
from dynacompile.capture.values.exceptions import ExceptionValue, HandledValue, exception_of, raised, stopped_inside, thrown, value_of_raised
from dynacompile.capture.values.functions import FunctionValue
from dynacompile.capture.values.own_methods import refuse_own
from dynacompile.capture.values.sequence import ListValue
from dynacompile.cpython.instructions import Instr
from dynacompile.ir.source import Local

if TYPE_CHECKING:
    from types import CodeType

    from dynacompile.capture.bytecode import CodeCache
    from dynacompile.capture.effects import Effects
    from dynacompile.capture.recorder import Recorder
    from dynacompile.capture.tensors.torch_modes import TorchModes
    from dynacompile.capture.values.writing import Writer
    from dynacompile.ir.captured import Guard
    from dynacompile.ir.source import Source


@dataclass(eq=False)
class Taking:
    """What empties a generator. into: the list that gets what it yields; None where only whether that is true counts, and any but the last is as expected."""

    into: ListValue | None


class Watching(Protocol):
    """Sees the instructions of a round of a loop. `watch.py` does."""

    def run(self, frame: SymbolicFrame, instr: Instr, row: Opcode) -> None: ...


class Looping(Protocol):
    """Has the rounds of loops that are alike followed once. `rounds.py` does."""

    def next(self, frame: SymbolicFrame, instr: Instr, iterator: IteratorValue) -> Value | None: ...
    def taking(self, frame: SymbolicFrame, taking: Taking) -> AbstractContextManager[None]: ...
    def is_plain(self) -> bool: ...


class Choosing(Protocol):
    """One arm of a branch both of whose arms are followed. `predication.py` follows them."""

    def check_call(self, code: CodeType) -> None: ...
    def write(self, kind: str, target: object, args: list[Value], kwargs: dict[str, Value]) -> Value | None: ...
    def store(self, owner: Value, name: str, value: Value) -> None: ...
    def stored(self, owner: Value, name: str) -> Value | None: ...


class FrameContext(Context, Protocol):
    """What frames, and the rows of the opcode table, ask of the attempt beside what values do.

    steps: instructions interpreted so far. known, ways: by the ids of objects, their values and the sources that they were first found at.
    arm: of a branch both of whose arms are followed. watching: the round of a loop that is followed to be repeated.
    """

    frames: list[SymbolicFrame]
    codes: CodeCache
    modes: TorchModes
    known: dict[int, Value]
    ways: dict[int, Source]
    rounds: Looping
    steps: int
    watching: Watching | None
    arm: Choosing | None

    @property
    def recorder(self) -> Recorder: ...
    @property
    def effects(self) -> Effects: ...
    @property
    def handling(self) -> ExceptionValue | None: ...
    @handling.setter
    def handling(self, exception: ExceptionValue | None) -> None: ...
    def count_step(self) -> None: ...
    def held(self) -> AbstractContextManager[None]: ...
    def literal(self, real: Any) -> Value: ...
    def guard_same(self, real: Any, source: Source) -> None: ...
    def guard_as(self, guard: Guard) -> None: ...


class SymbolicFrame:
    """A frame being interpreted. slots: localsplus, cells as CellValue. index: the next instruction."""

    def __init__(self, cx: FrameContext, decoded: Decoded, scope: Scope, closure: Sequence[CellValue]):
        self.cx, self.decoded, self.code, self.scope, self.closure = cx, decoded, decoded.code, scope, closure
        self.slots: list[Value | None] = [None] * len(decoded.slots)
        self.stack: list[Value] = []
        self.index = 0
        self.current: Instr = decoded.instrs[0]
        self.kw_names: tuple[str, ...] = ()
        self.calling: Value | None = None  # by the last instruction that called something
        self.returned: Value | None = None
        self.yielded: Value | None = None
        self.entry_grad_mode = torch.is_grad_enabled()
        self.steps = 0  # instructions run so far
        self.generators: list[GeneratorValue] = []  # made while this is the captured frame
        self.raised_at = 0  # the step that raised what is being handled

    def line(self) -> int:
        return self.current.line or self.code.co_firstlineno

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def push_callable(self, value: Value) -> None:
        """A value that a call will take, with no bound argument."""
        self.stack += with_null(value, NULL)

    def pop(self) -> Value:
        value = self.stack.pop()
        return value.force() if type(value) is Lazy else value

    def pop_many(self, count: int) -> list[Value]:
        taken = self.pop_unread(count)
        return [v.force() if type(v) is Lazy else v for v in taken]

    def pop_unread(self, count: int) -> list[Value]:
        """The values as they are: those that a resume function was given were not read."""
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def peek(self, depth: int) -> Value:
        """The value at a depth, 1 for the top."""
        value = self.stack[-depth]
        if type(value) is Lazy:
            value = self.stack[-depth] = value.force()
        return value

    def step(self) -> None:
        instr = self.decoded.instrs[self.index]
        self.current = instr
        self.index += 1
        self.cx.count_step()
        self.steps += 1
        row = TABLE.get(instr.op)
        if row is None:
            raise unsupported("unknown-opcode", instr.op)
        try:
            if (watch := self.cx.watching) is None:
                row.run(self, instr)
            else:
                watch.run(self, instr, row)
        except Raised as reason:
            self.link(instr, reason)
            if not self.handle(instr, reason):
                raise

    def link(self, instr: Instr, reason: Raised) -> None:
        """A new exception knows the one that is being handled."""
        handling = self.cx.handling
        if handling is None or instr.op == "RERAISE" or reason.linked:
            return
        value = value_of_raised(reason)
        reason.linked = True
        if value is not handling and value.context is None and not value.raised:
            value.context = handling

    def handle(self, instr: Instr, reason: Raised) -> bool:
        """Goes to the handler of what `instr` raised; False where this frame has none."""
        handler = self.decoded.handler_of(instr)
        if handler is None:
            return False
        value = value_of_raised(reason)
        if reason.anew:
            raise unsupported("raise", f": a {value.cls.__name__} that was raised before")
        frames = self.cx.frames
        if not value.trail:
            value.trail = self.cx.trail()
        inner = frames[frames.index(self) + 1 :]
        refuse_dropped([*self.stack[handler.depth :], *(v for frame in inner for v in frame.stack)])
        del frames[frames.index(self) + 1 :]
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(ConstantValue(instr.index))
        self.push(value)
        value.raised = True
        self.raised_at = self.steps - 1
        if frames[0] is self and value.step is None:
            value.step = self.raised_at
        self.kw_names = ()
        self.index = handler.target.index
        return True

    def handled_since(self) -> int | None:
        """The step that raised the first of the exceptions that this frame is handling; None where it handles none."""
        return next((v.step for v in self.stack if isinstance(v, HandledValue)), None)

    def run(self) -> Value:
        """Until the frame returns."""
        frames = self.cx.frames
        frames.append(self)
        while self.returned is None:
            self.step()
        frames.pop()
        return self.returned

    def let_go(self) -> None:
        """Forgets its values; see Trace.let_go."""
        self.slots, self.stack, self.generators, self.closure = [], [], [], ()

    def refuse_pending(self, kept: Sequence[Value] = ()) -> None:
        """Blocks of generators that are dropped unfinished run when Python says. kept: values that live on."""
        for generator in self.generators:
            if generator.is_pending() and generator not in kept:
                raise unsupported("generator", f"{generator.frame.code.co_qualname} is dropped inside of a block")

    def dropped(self, value: Value | None) -> None:
        """The frame lets go of a value: of a generator that Python made for it alone, a resume function has the last reference."""
        if value is not None and self.cx.frames[0] is self and isinstance(value.source, Local) and value.is_pending():
            if is_resume(self.code) and value not in self.stack and value not in self.slots:
                what = "inside of a block" if issubclass(value.pytype(), types.GeneratorType) else "and may be finalized"
                raise unsupported("generator", f"{value.describe()} is dropped {what}")

    def resume(self) -> Value | None:
        """Until the generator yields (the value) or returns (None)."""
        if self.returned is not None:
            return None
        frames = self.cx.frames
        frames.append(self)
        self.yielded = None
        try:
            while self.returned is None and self.yielded is None:
                self.step()
        except Raised as reason:
            self.returned = ConstantValue(None)
            raise left_by(reason) from None
        frames.pop()
        return self.yielded

    def throw(self, reason: Raised) -> Value | None:
        """Raises at the yield that the generator is suspended at; then as `resume`."""
        self.cx.frames.append(self)
        try:
            if not self.handle(self.current, reason):
                raise reason
        except Raised as reason:
            self.returned = ConstantValue(None)
            raise left_by(reason) from None
        self.cx.frames.pop()
        return self.resume()


def as_frames_see(cx: Context) -> FrameContext:
    """The context with what frames may do: for rows that run frames of their own."""
    frame = cx.frames[-1]
    assert isinstance(frame, SymbolicFrame)
    return frame.cx


def left_by(reason: Raised) -> Raised:
    """What the caller of a generator sees that `reason` leaves."""
    return raised(stopped_inside(value_of_raised(reason))) if issubclass(reason.cls, StopIteration) else reason


class GeneratorValue(IteratorValue):
    """A generator made by the frame; runs when asked for a value."""

    def __init__(self, frame: SymbolicFrame, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]):
        self.frame, self.started = frame, False
        self.function, self.args, self.kwargs = function, args, kwargs

    def pytype(self) -> type:
        return type(_ for _ in ())

    def live(self) -> list[int]:
        """Variables that a suspended generator may still read."""
        decoded = self.frame.decoded
        return sorted(s for s in decoded.live_slots(self.frame.current) if self.frame.slots[s] is not None and not isinstance(self.frame.slots[s], CellValue))

    def cells(self) -> list[Value]:
        """Its closure cells: those of its own, then the free ones."""
        frame = self.frame
        names = (*frame.code.co_cellvars, *frame.code.co_freevars)
        found = [frame.slots[len(frame.decoded.slots) - 1 - frame.decoded.slots[::-1].index(name)] for name in names]
        return [cell for cell in found if cell is not None]

    def children(self) -> Sequence[Value]:
        if not self.started:
            return [self.function, *self.args, *self.kwargs.values()]
        return [*(v for s in self.live() if (v := self.frame.slots[s]) is not None), *self.frame.stack, *self.cells()]

    def rebuild(self, out: Writer) -> None:
        """A generator that goes on where this one is: it begins at its last yield, whose value is thrown away."""
        if not self.started:
            with out.calling():
                out.value(self.function)
            for arg in (*self.args, *self.kwargs.values()):
                out.value(arg)
            out.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))
            return
        if not self.is_at_yield() or any(isinstance(v, ExitValue) for v in self.frame.stack):
            raise unsupported("rebuild", self.describe())
        function, held = self.goes_on()
        with out.calling():
            out.value(function)
        for value in held:
            out.value(value)
        out.call(len(held))
        out.call_method_on_top("send", None)

    def is_at_yield(self) -> bool:
        frame = self.frame
        return self.started and frame.returned is None and frame.current.op == "YIELD_VALUE" and not any(isinstance(v, HandledValue) for v in frame.stack)

    def goes_on(self) -> tuple[FunctionValue, list[Value]]:
        """A generator function that begins at the yield, whose value is to be thrown away, and its arguments."""
        frame, live = self.frame, self.live()
        stack = [*frame.stack, ConstantValue(None)]
        code = resume_code(frame.cx.codes, frame.decoded, ResumePoint(frame.current.index, tuple(live), tuple(v is NULL for v in stack), None, True))
        held = [frame.slots[s] for s in arguments(code, frame.decoded, live)]
        function = FunctionValue(code, frame.scope, code.co_qualname, [], {}, self.cells())  # type: ignore[arg-type]
        return function, [v for v in (*held, *stack) if v is not None and v is not NULL]

    def describe(self) -> str:
        return f"generator {self.frame.code.co_qualname}"

    def is_pending(self) -> bool:
        """Whether it would run a finally or with block when Python drops it."""
        frame = self.frame
        return self.started and frame.returned is None and runs_code(frame.decoded, frame.current, frame.scope.table)

    def ends_late(self) -> bool:
        return self.started and self.frame.returned is None and any(h.target.op == "PUSH_EXC_INFO" for h in self.frame.decoded.handlers)

    def next(self, cx: Context) -> Value | None:
        if self.frame in cx.frames:
            raise unsupported("would-raise", "generator already executing")
        if self.started and self.frame.returned is None:
            self.frame.push(cx.of(None))  # what send() passes
        self.started = True
        return self.frame.resume()

    def drain(self, cx: Context) -> list[Value]:
        taken = ListValue([])
        with self.frame.cx.rounds.taking(self.frame, Taking(taken)):
            while (value := self.next(cx)) is not None:
                taken.items.append(value)
        return taken.items

    def meets(self, cx: Context, truth: bool) -> bool:
        with self.frame.cx.rounds.taking(self.frame, Taking(None)):
            return super().meets(cx, truth)

    def method(self, cx: Context, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cx.effects.move(self)
        if name == "throw" and len(args) in (1, 3) and not kwargs:
            exception = exception_of(cx, args[0] if len(args) == 1 or not isinstance(args[1], ExceptionValue) else args[1])
            refuse_own(cx, type(exception.cls), "__subclasscheck__")  # which Python asks about what is raised
            if not self.started or self.frame.returned is not None:
                if self.frame.returned is None and issubclass(exception.cls, StopIteration):
                    raise unsupported("generator", "a StopIteration is thrown into one that has not begun")  # Pythons differ
                self.frame.returned = ConstantValue(None)
                raise thrown(exception)
            item = self.frame.throw(thrown(exception))
            if item is None:
                raise self.stopped()
            return item
        if name == "send" and len(args) == 1 and not kwargs and (self.started or is_none(args[0])):
            return self.sent(cx, args[0])
        if name == "close" and not args:
            return self.close(cx)
        return super().method(cx, name, args, kwargs)

    def sent(self, cx: Context, value: Value) -> Value:
        """send(value)."""
        item = self.send(cx, value)
        if item is None:
            raise self.stopped()
        return item

    def send(self, cx: Context, value: Value) -> Value | None:
        """What it gives for a value that is sent, None at the end."""
        if self.frame in cx.frames or self.frame.returned is not None or not self.started:
            return self.next(cx)
        self.frame.push(value)
        return self.frame.resume()

    def result(self, cx: Context) -> Value | None:
        return self.frame.returned

    def close(self, cx: Context) -> Value:
        if self.started and self.frame.returned is None:
            depth = len(cx.frames)
            try:
                leaving = ExceptionValue(GeneratorExit, [])
                leaving.context = self.frame.cx.handling
                item = self.frame.throw(raised(leaving))
            except Raised as reason:
                if not issubclass(reason.cls, (GeneratorExit, StopIteration)):
                    raise
                del self.frame.cx.frames[depth:]
                item = None
            if item is not None:
                raise raises(RuntimeError, "generator ignored GeneratorExit")
        self.frame.returned = self.frame.returned or ConstantValue(None)
        return ConstantValue(None)

    def stopped(self) -> Raised:
        returned = self.frame.returned
        if returned is None or isinstance(returned, ConstantValue) and returned.value is None:
            return raises(StopIteration)
        return raised(ExceptionValue(StopIteration, [returned]))


def refuse_dropped(values: Sequence[Value]) -> None:
    """An exception leaves loops: generators in them end when Python says."""
    for value in values:
        if value.is_pending():
            raise unsupported("generator", f"{value.describe()} is left by an exception inside of a block")


def inline(cx: FrameContext, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calls a Python function by interpreting it."""
    code = function.code
    if cx.arm is not None:
        cx.arm.check_call(code)
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise unsupported("generator", function.name)
    frame = SymbolicFrame(cx, cx.codes.decode(code), function.scope, function.closure)
    for index, value in enumerate(bind_call(cx, function, args, kwargs)):
        frame.slots[index] = cx.force(value) if isinstance(value, Lazy) else value
    if code.co_flags & inspect.CO_GENERATOR:
        cx.frames[0].generators.append(made := GeneratorValue(frame, function, args, kwargs))
        return made
    return frame.run()


def is_plain_frame(code: CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
