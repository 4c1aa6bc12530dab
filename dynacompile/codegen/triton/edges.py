"""Values whose last bit decides what a kernel computes: 49 / 49 has to be 1 where what comes of it is rounded down, or compared with 1."""

from __future__ import annotations

from dynacompile.ir.loops import Nest, Op

COMPARISONS = frozenset(("eq", "ne", "lt", "le"))
STEPS = frozenset(("floor", "ceil", "trunc", "round", "floordiv", "mod", "fmod"))
KEEPING = frozenset(("add", "sub", "mul", "truediv", "neg", "abs", "min", "max", "where", "cast", "reduce"))
"""Ops whose results are whole numbers, or equal ones, where their operands are."""


def at_edges(nest: Nest) -> set[int]:
    """The SSA ids of values that a step, a cast to whole numbers or a comparison takes, by way of exact arithmetic too. Of a number that is compared with
    zero the sign alone counts."""
    body = nest.body
    found: set[int] = set()
    for i in reversed(range(len(body))):
        op = body[i]
        if is_step(nest, op) or (i in found and op.name in KEEPING):
            found.update(op.args)
    return found


def is_step(nest: Nest, op: Op) -> bool:
    if op.name == "cast":
        return nest.body[op.args[0]].dtype.is_floating_point and not op.dtype.is_floating_point
    if op.name in COMPARISONS:
        return not any(nest.body[a].name == "constant" and nest.body[a].attr == 0 for a in op.args)
    return op.name in STEPS
