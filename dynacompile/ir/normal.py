"""The normal distribution function, found in a nest that spells it out as targets without one have to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Index, Var
from dynacompile.ir.loops import Access, Nest, Op


def normal(nest: Nest) -> Nest:
    """The normal distribution function, 0.5 * (1 + erf(x * sqrt(1/2))), as one op "ndtr" of ours: also within x * 0.5 * (1 + erf(...)), which is gelu."""
    ops = nest.body
    if not any(op.name == "erf" and op.dtype == torch.float32 for op in ops):
        return nest

    def number(i: int, value: float) -> bool:
        return ops[i].name == "constant" and abs(ops[i].attr - value) < 1e-7  # type: ignore[operator]

    def other(i: int, name: str, value: float) -> int | None:
        """x where op i is x + value or x * value."""
        if ops[i].name != name:
            return None
        a, b = ops[i].args
        return a if number(b, value) else b if number(a, value) else None

    def argument(i: int) -> int | None:
        """x where op i is 1 + erf(x * sqrt(1/2))."""
        inner = other(i, "add", 1.0)
        return None if inner is None or ops[inner].name != "erf" else other(ops[inner].args[0], "mul", 0.5**0.5)

    body = Body()
    ids: list[int] = []
    for op in ops:
        new = -1
        if op.name == "mul" and op.dtype == torch.float32:
            for a, b in (op.args, op.args[::-1]):
                x = argument(a)
                half = None if x is None else other(b, "mul", 0.5)
                if x is not None and number(b, 0.5):
                    new = body.emit("ndtr", (ids[x],), op.dtype)
                elif x is not None and half is not None:
                    new = body.emit("mul", (ids[half], body.emit("ndtr", (ids[x],), op.dtype)), op.dtype)
        if new < 0:
            new = copied(op, ids, body)
        ids.append(new)
    return replace(nest, body=without_dead(body.ops))


def copied(op: Op, ids: Sequence[int], body: Body) -> int:
    """The op in a new body; -1 for a store."""
    args = tuple(ids[a] for a in op.args)
    if isinstance(op.attr, Access):
        access = renumbered(op.attr, ids)
        if op.name == "store":
            body.store(args[0], access.buffer, access.index, access.mask, access.summed)
            return -1
        return body.emit(op.name, args, op.dtype, access)
    attr = renumbered(Access("", op.attr), ids).index if isinstance(op.attr, Index) else op.attr
    return body.emit(op.name, args, op.dtype, attr)


def renumbered(access: Access, ids: Sequence[int]) -> Access:
    values = {v: Index((((Var(f"%{ids[int(v.name[1:])]}", v.size),), 1),)) for v in access.index.variables() if v.name[0] == "%"}
    return Access(access.buffer, access.index.subs(values), None if access.mask is None else ids[access.mask], access.other, access.summed)
