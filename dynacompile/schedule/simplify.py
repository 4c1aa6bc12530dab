"""Work that a nest need not do: a sum over the elements of which at most one, at a known place, is not zero; rounding before a store that rounds;
choices between values where what uses the chosen one decides, or where the numbers can end them in one way alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dynacompile.ir.body import Body, needs, without_dead
from dynacompile.ir.index import Extent, Index, Var, atom
from dynacompile.ir.loops import Access, Buffer, Nest, Op, levels
from dynacompile.ir.ranges import Range, compared, ranges
from dynacompile.ops.scalars import NEAREST

KEEPING_ZERO = frozenset({*NEAREST.values(), "neg", "cast"})  # operations of one value that give zero of zero


def without_one_hot_sums(nest: Nest) -> Nest:
    """sum over r of where(r == place and c, a(r), 0), with place and c the same for all r, is where(0 <= place < size and c, a(place), 0);
    and so is that of such an element rounded, which leaves zeros as they are.

    This is how a loss picks the target's element, and how its gradient meets that of a log-softmax.
    """
    reduces = [i for i, op in enumerate(nest.body) if op.name == "reduce"]
    if len(reduces) != 1 or len(nest.r_axes) != 1 or nest.scans() or nest.body[reduces[0]].attr != "sum":
        return nest
    found = one_hot(nest, reduces[0])
    if found is None:
        return nest
    place, conditions, value, start, after = found
    size, level = nest.r_axes[0].size, levels(nest)
    body = Body()
    ids: list[int] = []
    for i, op in enumerate(nest.body):
        if i == reduces[0]:
            at = ids[place]
            dtype = body.ops[at].dtype
            first, last = body.emit("constant", (), dtype, start), number(body, start + size - 1, dtype)
            inside = body.both(body.emit("le", (first, at), torch.bool), body.emit("le", (at, last), torch.bool))
            for c in conditions:
                inside = body.both(inside, ids[c])
            assert inside is not None
            taken = at_place(nest, body, ids, value, atom(Var(f"%{at}", size)) - start, inside)
            for step in after:
                taken = body.emit(step.name, (taken,), step.dtype, step.attr)
            ids.append(body.emit("where", (inside, taken, body.emit("constant", (), op.dtype, 0)), op.dtype))
        elif level[i] == "r":
            ids.append(-1)
        else:
            ids += body.splice([op], {}, before=ids)[len(ids) :]
    return replace(nest, axes=nest.x_axes, body=without_dead(body.ops))


def simplified(nest: Nest, buffers: Mapping[str, Buffer], memory: Mapping[str, Range]) -> Nest:
    """What a kernel computes, without what it need not compute. memory: see ir.ranges."""
    return without_double_rounding(without_settled_choices(without_certain_choices(nest, memory)), buffers)


def without_double_rounding(nest: Nest, buffers: Mapping[str, Buffer]) -> Nest:
    """What comes from memory of bfloat16 or float16 is rounded already, and a store into such memory rounds by itself."""
    body = list(nest.body)
    plain = {i: op.args[0] for i, op in enumerate(body) if op.name in NEAREST.values() and is_load_of(body[op.args[0]], op.name, buffers)}
    for i, op in enumerate(body):
        args = tuple(plain.get(a, a) for a in op.args)
        if op.name == "store" and body[args[0]].name == NEAREST.get(buffers[op.attr.buffer].dtype):
            args = body[args[0]].args
        if args != op.args:
            body[i] = replace(op, args=args)
    return nest if body == list(nest.body) else replace(nest, body=without_dead(body))


COMPARED = ("lt", "le", "eq", "ne", "max", "min")


def without_certain_choices(nest: Nest, memory: Mapping[str, Range]) -> Nest:
    """Comparisons, and the larger or smaller of two numbers, where the ranges of the numbers leave one outcome."""
    if not any(op.name in COMPARED and not nest.body[op.args[0]].dtype.is_floating_point for op in nest.body):
        return nest
    known = ranges(nest.body, memory)
    body = Body()
    ids: list[int] = []
    for op in nest.body:
        chosen = certain(nest.body, op, known, body, ids)
        if chosen is not None:
            ids.append(chosen)
            continue
        ids += body.splice([op], {}, before=ids)[len(ids) :]
        last = body.ops[-1]
        if isinstance(last.attr, Access) and last.attr.mask is not None and is_true(body.ops[last.attr.mask]):
            body.ops[-1] = replace(last, attr=replace(last.attr, mask=None))
    return replace(nest, body=without_dead(body.ops))


def certain(old: Sequence[Op], op: Op, known: Sequence[Any], body: Body, ids: Sequence[int]) -> int | None:
    """The value of the new body that an op of the old one is for certain. ids: of the new body, for each before it."""
    if op.name in COMPARED and not any(known[a] is None for a in op.args):
        a, b = (known[i] for i in op.args)
        if op.name not in ("max", "min"):
            holds = compared(op.name, a, b)
            return None if holds is None else body.emit("constant", (), torch.bool, holds)
        if op.dtype.is_floating_point:  # of two zeros either may be the larger
            return None
        first = compared("le", b, a) if op.name == "max" else compared("le", a, b)
        second = compared("le", a, b) if op.name == "max" else compared("le", b, a)
        return ids[op.args[0]] if first else ids[op.args[1]] if second else None
    new = [body.ops[ids[a]] for a in op.args]
    if op.name == "where" and new[0].name == "constant":
        return ids[op.args[1 if new[0].attr else 2]]
    if op.name == "add" and not op.dtype.is_floating_point and any(is_zero(n) for n in new):
        return ids[op.args[0 if is_zero(new[1]) else 1]]
    if op.name == "and" and op.dtype == torch.bool and any(map(is_true, new)):
        return ids[op.args[0 if is_true(new[1]) else 1]]
    return None


def is_true(op: Op) -> bool:
    return op.name == "constant" and op.dtype == torch.bool and bool(op.attr)


Facts = dict[tuple, bool]  # what is known of conditions, by `condition_key`


def without_settled_choices(nest: Nest) -> Nest:
    """Where a value is wanted only where conditions hold or fail, a choice by these is the value that it gives there.

    A part of a concatenation that is computed in place is such: where(inside, value, 0), wanted only inside.
    """
    body = list(nest.body)
    if sum(op.name == "where" for op in body) < 2:
        return nest
    wanted: list[Facts | None] = [None] * len(body)  # in which cases; None: not wanted so far

    def want(i: int, facts: Facts) -> None:
        before = wanted[i]
        wanted[i] = facts if before is None else {key: held for key, held in before.items() if facts.get(key) == held}

    for i in range(len(body) - 1, -1, -1):
        op = body[i]
        facts = ({} if op.attr.mask is None else facts_of(body, op.attr.mask, True)) if op.name == "store" else wanted[i]
        if facts is None:
            continue
        cases = [facts] * len(op.args)
        if op.name in ("reduce", "scan"):  # of other points' values, too
            cases = [{}] * len(op.args)
        elif op.name == "where":
            cases[1:] = ({**facts, **facts_of(body, op.args[0], holds)} for holds in (True, False))
        args = tuple(settled(body, a, case) for a, case in zip(op.args, cases, strict=True))
        if args != op.args:
            op = body[i] = replace(op, args=args)
        for a, case in zip(args, cases, strict=True):
            want(a, case)
        for a in needs(replace(op, args=())):  # masks and places are wanted everywhere
            want(a, {})
    return nest if body == list(nest.body) else replace(nest, body=without_dead(body))


def settled(body: Sequence[Op], value: int, facts: Facts) -> int:
    """The value, past the choices that the facts decide."""
    while body[value].name == "where" and (holds := decided(body, body[value].args[0], facts)) is not None:
        value = body[value].args[1 if holds else 2]
    return value


def decided(body: Sequence[Op], condition: int, facts: Facts) -> bool | None:
    """Whether a condition holds, as far as the facts say."""
    key, same = condition_key(body, condition)
    if key in facts:
        return facts[key] == same
    if body[condition].name == "and":
        parts = [decided(body, a, facts) for a in body[condition].args]
        return False if False in parts else None if None in parts else True
    return None


def facts_of(body: Sequence[Op], condition: int, holds: bool) -> Facts:
    """What is known where a condition holds, or does not."""
    key, same = condition_key(body, condition)
    facts = {key: holds == same}
    if holds and body[condition].name == "and" and body[condition].dtype == torch.bool:
        for a in body[condition].args:
            facts |= facts_of(body, a, True)
    return facts


def condition_key(body: Sequence[Op], condition: int) -> tuple[tuple, bool]:
    """(what two opposite conditions have in common, whether this is the first of them): of whole numbers, b <= a is not a < b."""
    op = body[condition]
    if op.name in ("lt", "le") and not any(body[a].dtype.is_floating_point for a in op.args):
        return ("lt", *(op.args if op.name == "lt" else op.args[::-1])), op.name == "lt"
    return (condition,), True


def number(body: Body, value: Extent, dtype: torch.dtype) -> int:
    return body.emit("constant", (), dtype, value) if isinstance(value, int) else body.emit("index", (), dtype, value)


def is_load_of(op: Op, nearest: str, buffers: Mapping[str, Buffer]) -> bool:
    """A load, without another value where it is masked, of the dtype to which `nearest` rounds."""
    return op.name == "load" and op.attr.mask is None and NEAREST.get(buffers[op.attr.buffer].dtype) == nearest


def at_place(nest: Nest, body: Body, ids: list[int], value: int, place: Index, inside: int) -> int:
    """Emits the value at r = place; what it loads there is loaded only where `inside` holds."""
    known = list(ids)
    variables: dict[Var, Index | int] = {nest.r_axes[0].var: place}
    for i in range(value + 1):
        if known[i] == -1:
            known[i] = body.splice([nest.body[i]], variables, inside, before=known[:i])[i]
    return known[value]


def one_hot(nest: Nest, reduce: int) -> tuple[int, list[int], int, int, list[Op]] | None:
    """(place, further conditions, value, first place) as ids of x-level values, where the reduce sums such elements, and what was done to each
    element before, in order."""
    body, level = nest.body, levels(nest)
    choice = body[body[reduce].args[0]]
    after: list[Op] = []
    while choice.name in KEEPING_ZERO:
        after.insert(0, choice)
        choice = body[choice.args[0]]
    if choice.name != "where" or not is_zero(body[choice.args[2]]):
        return None
    place, start, conditions = None, 0, []
    waiting = [choice.args[0]]
    while waiting:
        i = waiting.pop()
        op = body[i]
        if op.name == "and" and op.dtype == torch.bool:
            waiting += op.args
        elif level[i] == "x":
            conditions.append(i)
        elif op.name == "eq" and place is None and (found := equality(nest, op, level)) is not None:
            place, start = found
        else:
            return None
    return None if place is None else (place, conditions, choice.args[1], start, after)


def equality(nest: Nest, op: Op, level: tuple[str, ...]) -> tuple[int, int] | None:
    """(x-level id, c) of a comparison of it with r + c."""
    for here, there in (op.args, op.args[::-1]):
        other = nest.body[there]
        if level[here] == "x" and other.name == "index" and isinstance(other.attr, Index):
            if other.attr == Index([((nest.r_axes[0].var,), 1)], other.attr.constant):
                return here, other.attr.constant
    return None


def is_zero(op: Op) -> bool:
    return op.name == "constant" and op.attr == 0
