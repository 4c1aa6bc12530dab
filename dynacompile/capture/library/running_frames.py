"""Frames that run, as `sys._getframe` and `inspect.currentframe` give them: the file and the line of a caller, and its globals. Variables are not shown."""

from __future__ import annotations

import inspect
import sys
import types
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.bytecode import is_resume
from dynacompile.capture.polyfills import is_polyfill
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import BoundMethod, FunctionValue
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context, Frame

CALLS = frozenset({"CALL", "CALL_FUNCTION_EX"})


class FrameValue(Value):
    """A frame that capture follows. It may be asked while it runs, and goes nowhere else."""

    def __init__(self, frame: Frame):
        self.frame = frame

    def describe(self) -> str:
        return f"the frame of {self.frame.code.co_qualname}"

    def pytype(self) -> type:
        return types.FrameType

    def get_attr(self, cx: Context, name: str) -> Value:
        depth = next((n for n, frame in enumerate(reversed(cx.frames)) if frame is self.frame), None)
        if depth is None:
            raise unsupported("unknown-object", f"{self.describe()}, which has ended,")
        match name:
            case "f_lineno":
                return ConstantValue(self.frame.line())
            case "f_globals":
                return self.frame.scope.namespace
            case "f_back":
                return FrameValue(frame_at(cx, depth + 1))
            case "f_code":
                return ConstantValue(code_of(cx, self.frame))
        raise unsupported("unknown-object", f"{name} of {self.describe()}")


def code_of(cx: Context, frame: Frame) -> types.CodeType:
    """The code that the program knows the frame by, also where a resume function goes on with it."""
    if not is_resume(frame.code):
        return frame.code
    origin = cx.codes.origin(frame.decoded)
    code = None if origin is None else origin.whole.reference()
    if code is None:
        raise unsupported("unknown-object", f"f_code of the frame of {frame.code.co_qualname}")
    return code


def frame_at(cx: Context, depth: int) -> Frame:
    """The frame that many calls above the innermost one. Between two that capture follows eager may have others, where a model stands for a function that
    calls back: so each has to be called by an instruction of the one above it."""
    frames = cx.frames[::-1]
    if depth:
        cx.recorder.mark_unrepeatable()
    for inner, outer in zip(frames[:depth], frames[1:]):
        function = outer.calling.function if isinstance(outer.calling, BoundMethod) else outer.calling
        if outer.current.op not in CALLS or not isinstance(function, FunctionValue) or function.code is not inner.code or is_polyfill(outer.code):
            raise unsupported("unknown-function", f"the frame that called {inner.code.co_qualname}")
    if depth >= len(frames):
        raise unsupported("unknown-function", f"the frame that called {frames[-1].code.co_qualname}")
    return frames[depth]


@handles(sys._getframe)
def row_getframe(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        depth = args[0].constant() if args else 0
    except NotConstant as reason:
        raise unsupported("unknown-function", f"_getframe of a {reason}") from reason
    if kwargs or len(args) > 1 or type(depth) is not int:
        raise unsupported("unknown-function", "_getframe")
    return FrameValue(frame_at(cx, max(depth, 0)))


@handles(inspect.currentframe)
def row_currentframe(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs:
        raise unsupported("unknown-function", "currentframe")
    return FrameValue(cx.frames[-1])
