"""Faults of ptxas in instructions that take two 16-bit numbers at once, which LLVM joins of instructions of two elements of a tile.

- Of a sum of two pairs of integers, of which one half is read by nobody, the other half lacks its summand: of `add.s16x2 d, {x, y}, {26, 26}`, of which only
  y + 26 is read, became y + 0, so that a kernel read memory far before its tensor. An index such as `(r + 26) % 28` of a tile of few elements is such a sum.
- Of the maximum of two pairs of floats, where a half is known to be -inf, that half became inf: of `max.NaN.f16x2 d, {-inf, x}, {-inf, y}` that is what a
  pool takes for the padding around an image, and all its results were inf.

Seen with ptxas 12.8, the one of Triton 3.6, on Hopper. Each half is an instruction of its own here, which makes hardly longer code.

Run in workers of the pool, which import nothing of this package, so this file imports the standard library alone.
"""

from __future__ import annotations

import re

PACKED = re.compile(r"\b((?:add|min|max)(?:\.NaN)?\.(?:s16|u16|f16|bf16))x2\s+(%\w+),\s*(%\w+),\s*(%\w+);")


def apart(ptx: str) -> str:
    """The text with one instruction for each half."""
    return PACKED.sub(halves, ptx)


def halves(found: re.Match[str]) -> str:
    name, result, a, b = found.groups()
    parts = [".reg .b16 a0, a1, b0, b1;", f"mov.b32 {{a0, a1}}, {a};", f"mov.b32 {{b0, b1}}, {b};"]
    parts += [f"{name} a{i}, a{i}, b{i};" for i in range(2)]
    return " ".join(["{", *parts, f"mov.b32 {result}, {{a0, a1}};", "}"])
