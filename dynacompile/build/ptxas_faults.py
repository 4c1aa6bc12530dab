"""Faults of ptxas, and PTX without what they come from.

In instructions that take two 16-bit numbers at once, which LLVM joins of instructions of two elements of a tile:

- Of a sum of two pairs of integers, of which one half is read by nobody, the other half lacks its summand: of `add.s16x2 d, {x, y}, {26, 26}`, of which only
  y + 26 is read, became y + 0, so that a kernel read memory far before its tensor. An index such as `(r + 26) % 28` of a tile of few elements is such a sum.
- Of two pairs of floats whose same half is a constant in both, negative in one, that constant loses its sign: of `max.NaN.f16x2 d, {-inf, x}, {-inf, y}` one
  half became inf, and that of `add.rn.bf16x2 d, {-1, x}, {-1, y}` 0. Sums, differences, products, extremes and comparisons all do so. Such constants are what a
  load gives where its mask is known to be false, as a pool takes them for the padding around an image, all of whose results were inf.
- Whether two pairs of floats are numbers, `setp.num.f16x2`, was true of a NaN, also where it was asked of each half: ptxas joins them. LLVM asks it for
  `abs(x) >= 0`.

Seen with ptxas 12.8, the one of Triton 3.6, on Hopper, and the first two measured for each instruction there. Each half is an instruction of its own here,
which makes hardly longer code, and whether it is a number is asked of its bits.

In comparisons of float32 with constants: ptxas knows the ranges of absolute values, squares, sums of these, exponentials, sines and hyperbolic tangents, and
takes `|x| >= 0`, `|x| > -1` and `sin x < 2` for true, of NaN as well (12.8 and 12.9). It does not fold the opposite that is true of NaN, `setp.ltu`, and turns
its negation into the same instruction as it makes of a comparison that it has not folded.

Run in workers of the pool, which import nothing of this package, so this file imports the standard library alone.
"""

from __future__ import annotations

import re

PACKED = re.compile(
    r"^(?P<indent>\s*)(?P<name>(?:add|sub|mul|fma|min|max|setp)(?:\.\w+)*?\.(?:s16|u16|f16|bf16))x2\s+(?P<into>%\w+(?:\|%\w+)?),\s*(?P<given>%\w+(?:,\s*%\w+){1,2});",
    re.MULTILINE,
)
NUMBERS = re.compile(r"\bsetp\.(?P<asked>num|nan)(?:\.ftz)?\.(?P<type>f16|bf16)\s+(?P<into>%\w+),\s*(?P<a>%?\w+),\s*(?P<b>%?\w+);")
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80}  # the largest bits of a number without its sign


ORDERED = re.compile(
    r"\bsetp\.(?P<asked>lt|le|gt|ge)(?P<ftz>(?:\.ftz)?)\.f32\s+(?P<into>%\w+),\s*(?P<given>%\w+,\s*0f[0-9A-Fa-f]{8}|0f[0-9A-Fa-f]{8},\s*%\w+);"
)
OPPOSITE = {"lt": "geu", "le": "gtu", "gt": "leu", "ge": "ltu"}


def rewritten(ptx: str) -> str:
    """The text with one instruction for each half, and comparisons with constants as negations of their opposites."""
    return ORDERED.sub(negated, NUMBERS.sub(by_bits, PACKED.sub(halves, ptx)))


def negated(found: re.Match[str]) -> str:
    into = found["into"]
    return f"setp.{OPPOSITE[found['asked']]}{found['ftz']}.f32 {into}, {found['given']}; not.pred {into}, {into};"


def by_bits(found: re.Match[str]) -> str:
    """Whether two numbers of 16 bits are both numbers (num), or one is none (nan)."""
    compared, joined = ("le", "and") if found["asked"] == "num" else ("gt", "or")
    most, into = INFINITY[found["type"]], found["into"]
    parts = [".reg .b16 m, n;", *(f"and.b16 {bits}, {found[name]}, 0x7FFF;" for bits, name in (("m", "a"), ("n", "b")))]
    parts += [f"setp.{compared}.u16 {into}, m, {most};", f"setp.{compared}.{joined}.u16 {into}, n, {most}, {into};"]
    return " ".join(["{", *parts, "}"])


def halves(found: re.Match[str]) -> str:
    """In a block, whose registers are its own. A comparison gives two predicates."""
    operands = re.findall(r"%\w+", found["given"])
    names = [f"{letter}{i}" for letter in "abc"[: len(operands)] for i in range(2)]
    parts = [f".reg .b16 {', '.join(names)};"]
    parts += [f"mov.b32 {{{letter}0, {letter}1}}, {operand};" for letter, operand in zip("abc", operands)]
    into = found["into"].split("|")
    results = into if len(into) == 2 else ["a0", "a1"]
    parts += [f"{found['name']} {result}, {', '.join(name for name in names if name.endswith(str(i)))};" for i, result in enumerate(results)]
    parts += [] if len(into) == 2 else [f"mov.b32 {into[0]}, {{a0, a1}};"]
    return found["indent"] + " ".join(["{", *parts, "}"])
