"""Building bodies: straight-line SSA with common values found as they are emitted, and bodies copied into others with their indices rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dynacompile.ir.index import Index, Var, atom
from dynacompile.ir.loops import Access, Op


class Body:
    """A growing list of ops. An op that computes the same as an earlier one is that one; stores are always appended."""

    __slots__ = ("ops", "_known")

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self._known: dict[tuple, int] = {}

    def emit(self, name: str, args: tuple[int, ...], dtype: torch.dtype, attr: Any = None) -> int:
        """The id of the value."""
        if name == "constant":
            attr = bool(attr) if dtype == torch.bool else float(attr) if dtype.is_floating_point else int(attr)
            key: tuple = (name, dtype, repr(attr))
        elif type(attr) is Access:
            key = (name, args, dtype, attr.buffer, attr.index, attr.mask, repr(attr.other))
        else:
            key = (name, args, dtype, attr)
        found = self._known.get(key)
        if found is None:
            found = len(self.ops)
            self.ops.append(Op(name, args, dtype, attr))
            self._known[key] = found
        return found

    def store(self, value: int, buffer: str, index: Index, mask: int | None = None, summed: bool = False, added: bool = False) -> None:
        self.put(value, Access(buffer, index, mask, summed=summed, added=added))

    def put(self, value: int, access: Access) -> None:
        """The store of an access."""
        self.ops.append(Op("store", (value,), self.ops[value].dtype, access))

    def both(self, a: int | None, b: int | None) -> int | None:
        """The conjunction of two masks, None meaning true."""
        if a is None or b is None or a == b:
            return b if a is None else a
        return self.emit("and", (a, b), torch.bool)

    def splice(
        self,
        ops: Sequence[Op],
        variables: Mapping[Var, Index | int],
        mask: int | None = None,
        on_load: Callable[[Access, torch.dtype], int | None] | None = None,
        on_store: Callable[[int, Access], None] | None = None,
        before: Sequence[int] = (),
    ) -> list[int]:
        """Copies `ops` to the end, loop variables replaced; the new ids by old id (-1 for stores).

        mask guards every load and store. on_load may give the value of a load instead of emitting it; on_store takes the place of emitting stores.
        before: new ids of the ops that come before `ops` where these are the rest of a body.
        """
        ids: list[int] = list(before)
        for op in ops:
            attr = op.attr
            if type(attr) is Access:
                own = None if attr.mask is None else ids[attr.mask]
                access = attr.at(rewrite(attr.index, variables, ids), own if mask is None else self.both(mask, own))
                if op.name == "load":
                    given = None if on_load is None else on_load(access, op.dtype)
                    ids.append(self.emit("load", (), op.dtype, access) if given is None else given)
                else:
                    if on_store is None:
                        self.put(ids[op.args[0]], access)
                    else:
                        on_store(ids[op.args[0]], access)
                    ids.append(-1)
            elif op.name == "index":
                ids.append(self.emit("index", (), op.dtype, rewrite(attr, variables, ids)))
            else:
                ids.append(self.emit(op.name, tuple([ids[a] for a in op.args]), op.dtype, attr))
        return ids


def rewrite(index: Index, variables: Mapping[Var, Index | int], ids: Sequence[int] | Mapping[int, int]) -> Index:
    """index with its loop variables replaced, and its body values (%7) renumbered."""
    values = [v for v in index.variables() if v.name[0] == "%"]
    if values:
        renumbered: dict[Var, Index | int] = {v: atom(Var(f"%{ids[int(v.name[1:])]}", v.size)) for v in values}
        return index.subs({**variables, **renumbered})
    return index.subs(variables) if variables else index


def with_numbers(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """The ops, with the numbers of constants in the indices that are made of them."""
    numbers = {f"%{i}": op.attr for i, op in enumerate(ops) if op.name == "constant" and type(op.attr) is int}
    found = []
    for op in ops:
        index = op.attr.index if type(op.attr) is Access else op.attr
        values: dict[Var, Index | int] = {v: numbers[v.name] for v in index.variables() if v.name in numbers} if numbers and type(index) is Index else {}
        if values:
            attr = op.attr.at(index.subs(values), op.attr.mask) if type(op.attr) is Access else index.subs(values)
            op = Op(op.name, op.args, op.dtype, attr)
        found.append(op)
    return tuple(found)


def without_dead(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops that a store needs, renumbered."""
    live = [False] * len(ops)
    for i in range(len(ops) - 1, -1, -1):
        op = ops[i]
        if op.name == "store":
            live[i] = True
        if live[i]:
            for a in needs(op):
                live[a] = True
    if all(live):
        return tuple(ops)
    body: list[Op] = []
    ids: list[int] = []
    for op, alive in zip(ops, live, strict=True):
        ids.append(len(body) if alive else -1)
        if not alive:
            continue
        attr = op.attr
        if type(attr) is Access:
            attr = attr.at(rewrite(attr.index, {}, ids), None if attr.mask is None else ids[attr.mask])
        elif op.name == "index":
            attr = rewrite(attr, {}, ids)
        body.append(Op(op.name, tuple([ids[a] for a in op.args]), op.dtype, attr))
    return tuple(body)


def needs(op: Op) -> list[int]:
    """Ids of all values that an op uses: operands, mask, and values in its index."""
    found = list(op.args)
    index = op.attr
    if type(index) is Access:
        if index.mask is not None:
            found.append(index.mask)
        index = index.index
    if type(index) is Index:
        found += [int(v.name[1:]) for v in index.variables() if v.name[0] == "%"]
    return found
