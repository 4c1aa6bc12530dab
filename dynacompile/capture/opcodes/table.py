"""The opcode table: an instruction is one row with its declared stack effect and what it does to a SymbolicFrame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynacompile.capture.interpreter import SymbolicFrame
    from dynacompile.cpython.instructions import Instr

Effect = int | Callable[[int, bool], int]


@dataclass(frozen=True)
class Opcode:
    """effect: change of the stack's height, a number or a function of (argument, jump taken)."""

    name: str
    effect: Effect
    run: Callable[[Any, Any], None]

    def height(self, arg: int, jump: bool) -> int:
        return self.effect(arg, jump) if callable(self.effect) else self.effect


TABLE: dict[str, Opcode] = {}


def opcode(*names: str, effect: Effect) -> Callable[[Callable[[SymbolicFrame, Instr], None]], Callable[[SymbolicFrame, Instr], None]]:
    def register(run: Callable[[SymbolicFrame, Instr], None]) -> Callable[[SymbolicFrame, Instr], None]:
        for name in names:
            TABLE[name] = Opcode(name, effect, run)
        return run

    return register
