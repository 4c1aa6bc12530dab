"""The opcode table: an instruction is one row with its declared stack effect and what it does to a SymbolicFrame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Run = TypeVar("Run", bound=Callable[..., None])  # takes the SymbolicFrame and the instruction
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


def opcode(*names: str, effect: Effect) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        for name in names:
            TABLE[name] = Opcode(name, effect, run)
        return run

    return register
