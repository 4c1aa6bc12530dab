"""A fault of ptxas: of a sum of two pairs of 16-bit integers, of which one half is read by nobody, the other half lacks its summand.

Seen with ptxas 12.8, the one of Triton 3.6, on Hopper. An index such as `(r + 26) % 28` of a tile of few elements is computed in 16 bits, and LLVM joins the
sums of two elements to one instruction: `add.s16x2 d, {x, y}, {26, 26}`, of which only y + 26 is read, became y + 0, so that a kernel read memory far before
its tensor. Each half is a sum of its own here, which makes no longer code.

Run in workers of the pool, which import nothing of this package, so this file imports the standard library alone.
"""

from __future__ import annotations

import re

PACKED = re.compile(r"\b(add|min|max)\.([su])16x2\s+(%\w+),\s*(%\w+),\s*(%\w+);")


def apart(ptx: str) -> str:
    """The text with one instruction for each half."""
    return PACKED.sub(halves, ptx)


def halves(found: re.Match[str]) -> str:
    name, sign, result, a, b = found.groups()
    parts = [".reg .b16 a0, a1, b0, b1;", f"mov.b32 {{a0, a1}}, {a};", f"mov.b32 {{b0, b1}}, {b};"]
    parts += [f"{name}.{sign}16 a{i}, a{i}, b{i};" for i in range(2)]
    return " ".join(["{", *parts, f"mov.b32 {result}, {{a0, a1}};", "}"])
