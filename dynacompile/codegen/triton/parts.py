"""Rows whose width is no power of two, as several tiles of equal width: what varies along the row is written once for each."""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST = 9
LEAST_WIDTH = 128


def parts_of(width: int) -> int:
    """Into how many tiles a row is cut; 1 where that would make too many or too narrow ones."""
    part = width & -width
    return width // part if part >= LEAST_WIDTH and width // part <= MOST else 1


class Parts:
    """count: tiles of a row. names: the variables that each of them has its own of."""

    def __init__(self, count: int):
        self.count = count
        self.names = {"r"}

    def add(self, *names: str) -> None:
        self.names.update(names)

    def text(self, text: str, part: int) -> str:
        """`text` over one part's variables."""
        if self.count == 1:
            return text
        return re.sub(r"\b[A-Za-z_]\w*", lambda m: f"{m[0]}_{part}of{self.count}" if m[0] in self.names else m[0], text)

    def lines(self, lines: Iterable[str]) -> list[str]:
        """The lines for every part; for what does not vary along the row, once."""
        return list(dict.fromkeys(self.text(line, p) for p in range(self.count) for line in lines))
