"""Functions that a nest spells out, since not every target has them: the normal distribution function, and the logistic one as tanh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from dynacompile.ir.body import Body, without_dead
from dynacompile.ir.index import Index, Var
from dynacompile.ir.loops import Access, Nest, Op


def normal(nest: Nest) -> Nest:
    """The normal distribution function, 0.5 * (1 + erf(x * sqrt(1/2))), as one op "ndtr" of ours: also within x * 0.5 * (1 + erf(...)), which is gelu."""

    def found(body: Body, inner: Op, ids: Sequence[int]) -> int | None:
        x = times(nest.body, inner.args[0], "mul", 0.5**0.5)
        return None if x is None else body.emit("ndtr", (ids[x],), torch.float32)

    return halved(nest, "erf", found)


def logistic(nest: Nest) -> Nest:
    """0.5 * (1 + tanh(x)) as sigmoid(2 * x), where nothing else needs the tanh: also within gelu by tanh."""
    uses = Counter(a for op in nest.body for a in op.args)

    def found(body: Body, inner: Op, ids: Sequence[int]) -> int | None:
        if uses[nest.body.index(inner)] > 1:
            return None
        return body.emit("sigmoid", (body.emit("mul", (ids[inner.args[0]], body.emit("constant", (), torch.float32, 2.0)), torch.float32),), torch.float32)

    return halved(nest, "tanh", found)


Found = Callable[[Body, Op, Sequence[int]], int | None]


def halved(nest: Nest, name: str, found: Found) -> Nest:
    """0.5 * (1 + op), of float32 ops of that name, is what `found` emits in its place; None: it stays."""
    ops = nest.body
    if not any(op.name == name and op.dtype == torch.float32 for op in ops):
        return nest
    body = Body()
    ids: list[int] = []
    for op in ops:
        new = None
        if op.name == "mul" and op.dtype == torch.float32:
            for a, b in (op.args, op.args[::-1]):
                inner = times(ops, a, "add", 1.0)
                half = times(ops, b, "mul", 0.5)
                if new is not None or inner is None or ops[inner].name != name or (half is None and not is_number(ops[b], 0.5)):
                    continue
                new = found(body, ops[inner], ids)
                if new is not None and half is not None:
                    new = body.emit("mul", (ids[half], new), op.dtype)
        ids.append(copied(op, ids, body) if new is None else new)
    return replace(nest, body=without_dead(body.ops))


def is_number(op: Op, value: float) -> bool:
    return op.name == "constant" and abs(op.attr - value) < 1e-7


def times(ops: Sequence[Op], i: int, name: str, value: float) -> int | None:
    """x where op i is x + value or x * value."""
    if ops[i].name != name:
        return None
    a, b = ops[i].args
    return a if is_number(ops[b], value) else b if is_number(ops[a], value) else None


def copied(op: Op, ids: Sequence[int], body: Body) -> int:
    """The op in a new body; -1 for a store."""
    args = tuple(ids[a] for a in op.args)
    if isinstance(op.attr, Access):
        access = renumbered(op.attr, ids)
        if op.name == "store":
            body.put(args[0], access)
            return -1
        return body.emit(op.name, args, op.dtype, access)
    attr = renumbered(Access("", op.attr), ids).index if isinstance(op.attr, Index) else op.attr
    return body.emit(op.name, args, op.dtype, attr)


def renumbered(access: Access, ids: Sequence[int]) -> Access:
    values = {v: Index((((Var(f"%{ids[int(v.name[1:])]}", v.size),), 1),)) for v in access.index.variables() if v.name[0] == "%"}
    return access.at(access.index.subs(values), None if access.mask is None else ids[access.mask])
