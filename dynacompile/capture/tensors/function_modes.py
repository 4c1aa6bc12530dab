"""Torch-function modes that the frame enters: the stack as the frame sees it. The process's own stack stays as it is until residual code runs.

While a mode is on the stack, Overrides asks it about each call of a torch function, and getters and setters of tensors are such calls. A device as a
context manager is a mode, too, of which capture knows what it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Keywords, Value
from dynacompile.capture.values.constant import EFFECTS, ConstantValue
from dynacompile.capture.values.contexts import ContextValue
from dynacompile.capture.values.rows import HANDLERS
from dynacompile.private import of_torch
from dynacompile.private.of_torch import DeviceContext

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

PUSH, POP = of_torch.push_on_torch_function_stack, of_torch.pop_torch_function_stack
CPU = torch.device("cpu")


class FunctionModes:
    """The stack, outermost first. before: as it was when the frame began, with nothing but default devices; entries of it are known by identity."""

    def __init__(self) -> None:
        self.before: tuple[Value, ...] = ()
        self.stack: list[Value] = []

    def begin(self, modes: Sequence[Value]) -> None:
        self.before, self.stack = tuple(modes), list(modes)

    @property
    def watched(self) -> bool:
        """Whether a mode is on that sees more than the functions which make tensors."""
        return bool(self.stack) and any(not isinstance(mode, DeviceMode) for mode in self.stack)

    @property
    def device(self) -> torch.device | None:
        """Where tensors are made, if a mode says so."""
        return next(reversed(self.devices()), None)

    @property
    def elsewhere(self) -> bool:
        """Whether code that capture does not follow would make its tensors in another place in the graph."""
        return self.device not in (None, CPU)

    def push(self, cx: Context, mode: Value) -> None:
        if mode.pytype() is of_torch.DeviceContext and not isinstance(mode, DeviceMode):
            mode = DeviceMode(mode.get_attr(cx, "device").constant(), mode)
        self.stack.append(mode)

    def pop(self) -> Value:
        if not self.stack:
            raise unsupported("would-raise", "no torch-function mode to pop")
        return shown(self.stack.pop())

    def at(self, place: int) -> Value:
        return shown(self.stack[place])

    def devices(self) -> tuple[torch.device, ...]:
        """Of the modes that say where tensors are made, outermost first."""
        return tuple(mode.device for mode in self.stack if isinstance(mode, DeviceMode))

    @contextmanager
    def popped(self) -> Iterator[Value]:
        mode = self.stack.pop()
        try:
            yield mode
        finally:
            self.stack.append(mode)

    @contextmanager
    def off(self) -> Iterator[None]:
        """For what a backward pass runs, in which there are no modes."""
        before, self.stack = self.stack, []
        try:
            yield
        finally:
            self.stack = before

    def changed(self) -> list[Value]:
        """The modes to be pushed when the frame's code ends here."""
        return self.stack[self.kept() :]

    def is_changed(self) -> bool:
        return len(self.stack) != len(self.before) or self.kept() != len(self.before)

    def kept(self) -> int:
        """How many of the modes of before are still where they were."""
        pairs = zip(self.before, self.stack)
        return next((i for i, (old, new) in enumerate(pairs) if old is not new), min(len(self.before), len(self.stack)))

    def restore(self, out: Writer) -> None:
        """Residual code that makes the process's stack this one. Last of all, as the modes see every call of torch from then on."""
        for _ in range(len(self.before) - self.kept()):
            out.call_function(POP, [])
            out.emit("POP_TOP")
        for mode in self.changed():
            out.call_function(PUSH, [mode])
            out.emit("POP_TOP")

    def refuse(self, what: str, *, makes_tensors: bool = False) -> None:
        """For what runs as one operation: eager would ask the modes about what it calls. makes_tensors: it may do so without saying on which device."""
        if self.watched or makes_tensors and self.elsewhere:
            raise unsupported("active-mode", f", and {what} would run as one operation")


class DeviceMode(Value):
    """torch.utils._device.DeviceContext: functions that make tensors make them on a device."""

    def __init__(self, device: torch.device, of_frame: Value | None = None):
        """of_frame: the object, where the frame has made it or read it."""
        self.device, self.of_frame = device, of_frame

    def describe(self) -> str:
        return f"the mode of {self.device!r}"

    def pytype(self) -> type:
        return DeviceContext

    def get_attr(self, cx: Context, name: str) -> Value:
        return ConstantValue(self.device) if name == "device" else super().get_attr(cx, name)

    def placed(self, function: Any, kwargs: dict[str, Value]) -> dict[str, Value]:
        """The keywords that the function gets."""
        given = kwargs.get("device")
        if function not in of_torch.device_constructors() or given is not None and not (isinstance(given, ConstantValue) and given.value is None):
            return kwargs
        return Keywords({**kwargs, "device": ConstantValue(self.device)})

    def rebuild(self, out: Writer) -> None:
        if self.of_frame is not None:
            out.value(self.of_frame)
        else:
            out.call_function(DeviceContext, [ConstantValue(self.device)])

    def children(self) -> Sequence[Value]:
        return () if self.of_frame is None else (self.of_frame,)


def shown(mode: Value) -> Value:
    """What the frame sees of a mode."""
    return mode.of_frame if isinstance(mode, DeviceMode) and mode.of_frame is not None else mode


class DeviceBlock(ContextValue):
    """`with torch.device(...):`. The stack itself is restored by FunctionModes."""

    def __init__(self, device: torch.device):
        self.device = device

    def pytype(self) -> type:
        return torch.device

    def enter(self, cx: Context) -> Value:
        made = HANDLERS[torch.device](cx, [ConstantValue(self.device)], {})  # the mode makes one, which modes around it are asked about
        cx.overrides.modes.stack.append(DeviceMode(made.constant()))
        return ConstantValue(self.device)

    def exit(self, cx: Context) -> None:
        cx.overrides.modes.pop()

    def rebuild(self, out: Writer) -> None:
        out.const(self.device)

    def rebuild_entered(self, out: Writer) -> None:
        out.const(self.device)


def enter_device(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DeviceBlock(args[0].constant()).enter(cx)


def exit_device(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cx.overrides.modes.pop()
    return ConstantValue(None)


EFFECTS |= {(torch.device, "__enter__"): enter_device, (torch.device, "__exit__"): exit_device}
