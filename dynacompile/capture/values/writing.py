"""What values write residual code with: the instructions that make them again after the graph, or store what the frame changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch.fx

    from dynacompile.capture.values.base import Value
    from dynacompile.cpython.instructions import Handler, Instr, Position
    from dynacompile.ir.source import Source


class CallWriter(Protocol):
    """Writes calls of what is known."""

    def const(self, value: Any) -> None: ...
    def callee(self, function: Any) -> None: ...
    def call(self, count: int) -> None: ...


class LeafWriter(CallWriter, Protocol):
    """Writes how a resume function makes a value of parameters."""

    def leaf(self, value: Value) -> None: ...


@dataclass(frozen=True)
class Assumed:
    """What the graph takes for true. condition: a tensor, which is asked after the graph. function: what is called with `args` where it is false, and raises;
    without one `args` is the exception. after: the last operation of the graph before it. changed: values that had changed since the assumption before,
    which residual code changes before it asks, and their contents then. count: of changes by then."""

    condition: Value
    function: Callable | None
    args: list[Value]
    position: Position
    after: torch.fx.Node
    changed: dict[Value, dict[str, Any]]
    count: int


class Writer(Protocol):
    """Collects the instructions of one residual code object. `Builder` (`capture/residual.py`) writes the code of frames.

    uses: how often each value is used. made: results of calls before the graph, by their place. arrays: ids of arrays of numpy, parts of which were made.
    """

    instrs: list[Instr]
    handlers: list[Handler]
    position: Position
    uses: dict[Value, int]
    made: dict[int, Value]
    arrays: set[int]

    # single instructions

    def emit(self, op: str, arg: int = 0, target: Instr | None = None) -> Instr: ...
    def const(self, value: Any) -> None: ...
    def named(self, op: str, name: str) -> None: ...
    def load_attr(self, name: str) -> None: ...
    def load_method(self, name: str) -> None: ...
    def store_attr(self, name: str) -> None: ...
    def del_attr(self, name: str) -> None: ...
    def push_null(self) -> None: ...
    def cell_op(self, op: str, name: str, slot: int | None, free: int | None) -> None: ...

    # calls

    def calling(self) -> AbstractContextManager[None]: ...
    def callee(self, function: Any) -> None: ...
    def call(self, count: int, keywords: tuple[str, ...] = ()) -> None: ...
    def call_function(self, function: Any, args: Sequence[Value], keywords: tuple[str, ...] = ()) -> None: ...
    def call_method_on_top(self, name: str, argument: Any) -> None: ...

    def unless(self, assumed: Assumed) -> None: ...

    # values

    def value(self, value: Value) -> None: ...
    def tuple_of(self, values: Sequence[Value]) -> None: ...
    def has(self, value: Value) -> bool: ...
    def keep(self, value: Value) -> None: ...
    def remember(self, value: Value) -> None: ...
    def source(self, source: Source) -> None: ...
    def graph_output(self, value: Value) -> None: ...
