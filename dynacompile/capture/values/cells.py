"""Closure cells: of the frame itself, of the functions that it makes, and of those that were there before."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.values.base import Lazy, Value, next_serial
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.ir.source import ClosureCell, Source

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer


class Cells:
    """Values of closure cells that exist before the frame, by the ids of the cells."""

    def __init__(self) -> None:
        self.values: dict[int, CellValue] = {}


UNBOUND = "cannot access local variable {!r} where it is not associated with a value"
"""What Python says of a variable of the frame itself, a closure variable or not."""


class CellValue(Value):
    """A closure cell. slot: its localsplus index in the frame being captured; free: its index among that frame's free variables.

    holder: where a cell of another function is loaded from (the function's source and the cell's index).
    """

    def __init__(self, content: Value | None, name: str, slot: int | None = None, free: int | None = None, holder: tuple[Source, int] | None = None):
        self.content, self.name, self.slot, self.free, self.holder = content, name, slot, free, holder
        self.was_empty = content is None
        self.serial = next_serial()
        self.overwritten: bool | None = None  # whether the frame's first change was to set it

    def pytype(self) -> type:
        return types.CellType

    def read(self, cx: Context) -> Value:
        if self.content is None:
            raise unsupported("would-raise", f"cannot access variable {self.name!r}")
        if isinstance(self.content, Lazy):
            self.content = cx.force(self.content)
        return self.content

    def write(self, cx: Context, value: Value | None) -> None:
        cx.effects.touch(self)
        if self.overwritten is None:
            self.overwritten = value is not None
        self.content = value

    def exists(self, own_cells: bool = True) -> bool:
        """Whether the residual code has the real cell. own_cells: it makes those of the frame itself."""
        return self.slot is not None and own_cells or self.free is not None or self.holder is not None

    def get_attr(self, cx: Context, name: str) -> Value:
        return self.read(cx) if name == "cell_contents" else super().get_attr(cx, name)

    def equals(self, cx: Context, other: Value) -> bool:
        if not isinstance(other, CellValue) or self.content is None or other.content is None:
            return isinstance(other, CellValue) and self.content is other.content
        return cx.equal(self.read(cx), other.read(cx))

    def replay_values(self) -> Sequence[Value]:
        return () if self.content is None or not self.exists() else (self.content,)

    def replay(self, out: Writer) -> None:
        if not self.exists():
            return
        if self.content is None:
            if self.slot is None and self.free is None:
                raise unsupported("mutation", f"del of the closure variable {self.name!r}")
            if self.free is not None and self.overwritten:  # another call may find it empty, or not
                out.value(ConstantValue(None))
                out.cell_op("STORE_DEREF", self.name, self.slot, self.free)
            if self.free is not None or not self.was_empty:
                out.cell_op("DELETE_DEREF", self.name, self.slot, self.free)
            return
        out.value(self.content)
        if self.holder is None:
            out.cell_op("STORE_DEREF", self.name, self.slot, self.free)
        else:
            out.value(self)
            out.store_attr("cell_contents")

    def children(self) -> Sequence[Value]:
        return () if self.exists() or self.content is None else (self.content,)

    def rebuild(self, out: Writer) -> None:
        if self.holder is not None:
            out.source(self.holder[0])
            out.load_attr("__closure__")
            out.const(self.holder[1])
            out.emit("BINARY_SUBSCR")
        elif self.exists():
            out.cell_op("LOAD_CLOSURE", self.name, self.slot, self.free)
        else:
            out.callee(types.CellType)
            if self.content is not None:
                out.value(self.content)
            out.call(0 if self.content is None else 1)


def cell_value(cx: Context, cell: types.CellType, name: str, holder: Source, index: int) -> CellValue:
    """The value of a closure cell of a function that exists before the frame runs."""
    cells, source = cx.state(Cells).values, ClosureCell(holder, name, index)
    found = cells.get(id(cell))
    if found is None:
        try:
            content: Value | None = Lazy(cx, cell.cell_contents, source)
        except ValueError:
            content = None
        found = cells[id(cell)] = CellValue(content, name, holder=(holder, index))
        cx.keep(cell)
    elif found.content is not None and found.content.source is not None and found.content.source != source:
        cx.guard("DUPLICATE_INPUT", source, found.content.source)
    return found
