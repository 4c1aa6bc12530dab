"""What the next entry of a frame should take as symbols: the sizes, ints and floats that are not what an entry was made for, and the bools and texts; and
which containers it should not look into."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dynacompile.guards.evaluate import CONTAINERS, evaluate
from dynacompile.guards.program import Failure, failures
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.guard_facts import ShapeFacts, is_a, plain_twin
from dynacompile.ir.shapes import ShapePolicy
from dynacompile.ir.source import Attr, DictAttr, Item, Length, Registered, Source
from dynacompile.private import of_torch

NUMBERS = (int, float)
FLAGS = (bool, str)
ITEMS = frozenset({"LENGTH", "DICT_KEYS", "DICT_CONTAINS", "SET", "SET_ORDER"})  # guards of what a container holds
OWN = re.compile(r"^(__\w+__|_parameters|_modules|_buffers)$|_hooks$")  # dicts that make up an object or a module
MOST_STATES = 4  # of a container that have entries


def policy_after(known: ShapePolicy, entries: Sequence[Sequence[Guard]], frame: Any, most: int | None = None) -> ShapePolicy:
    """`known`, and all that differs from the guards of one of the entries. most: entries for values of a number or text, after which it counts as changing;
    of a container MOST_STATES are enough. None: nothing does.

    Sizes of module state stay constants. So do numbers of modules, unless such numbers are all that differs: then one entry serves many.
    """
    sizes, strides, numbers, flags = dict(known.sizes), dict(known.strides), set(known.numbers), set(known.flags)
    states: Counter[Source] = Counter()
    values: Counter[Source] = Counter()
    for guards in entries:
        failed = failures(guards, frame)
        states.update({f.guard.source for f in failed if f.guard.source is not None and is_of_items(f.guard, frame)})
        values.update({source for f in failed if (source := fixed_number(f.guard)) is not None})
        modules = {g.source for g in guards if g.kind == "MODULE"}
        alike = all(is_number_change(f, frame) for f in failed)
        for failure in failed:
            source = failure.guard.source
            if source is None:
                continue
            if is_number_change(failure, frame) and (alike or not any(step in modules for step in source.steps())):
                numbers.add(source)
                if type(failure.guard.expected) is float:
                    numbers |= alike_in(guards, source)
            elif failure.guard.kind == "EQUALS" and type(failure.guard.expected) is type(evaluate(source, frame)) in FLAGS:
                flags.add(source)
                if type(failure.guard.expected) is str:
                    flags |= beside(guards, source)
            elif failure.guard.kind == "EQUALS" and type(failure.guard.expected) is torch.Size:
                numbers |= changed_numbers(source, failure.guard.expected, evaluate(source, frame))
            elif failure.guard.kind in ("LENGTH", "SET") and is_of_items(failure.guard, frame):
                numbers.add(Length(source))
            elif failure.guard.kind == "TENSOR_MATCH" and not any(isinstance(step, Registered) for step in source.steps()):
                with of_torch.DisableTorchFunction():
                    changed_extents(source, failure.guard.expected, evaluate(source, frame), sizes, strides)  # type: ignore[arg-type]
    changing = known.changing
    if most is not None:
        changing |= {source for source, count in states.items() if count >= min(MOST_STATES, most)} | {s for s, n in values.items() if n >= most}
    return replace(known, sizes=sizes, strides=strides, numbers=frozenset(numbers), flags=frozenset(flags), changing=changing)


def fixed_number(guard: Guard) -> Source | None:
    """Where a number or text lies for whose value an entry was made, though it is one that varies."""
    facts = guard.expected
    if guard.kind == "EQUALS" and isinstance(facts, str):
        return guard.source
    if not isinstance(facts, ShapeFacts) or facts.expression[0] not in ("eq", "same") or len(facts.quantities) != 1:
        return None
    (quantity,) = facts.quantities
    return quantity.source if quantity.kind in ("value", "real") else None


def is_of_items(guard: Guard, frame: Any) -> bool:
    """Whether a guard is of what a container of the program's holds. The dicts of objects and of modules change where attributes come and go."""
    source = guard.source
    if guard.kind not in ITEMS or source is None or isinstance(source, Registered) or (isinstance(source, (Attr, DictAttr)) and OWN.search(source.name)):
        return False
    return type(evaluate(source, frame)) in CONTAINERS


def beside(guards: Sequence[Guard], source: Source) -> set[Source]:
    """The other texts of the list or tuple that a text lies in: the names of a batch change together."""
    if type(source) is not Item or type(source.key) is not int:
        return set()
    texts = (g.source for g in guards if g.kind == "EQUALS" and type(g.expected) is str)
    return {s for s in texts if type(s) is Item and type(s.key) is int and s.base == source.base}


def alike_in(guards: Sequence[Guard], source: Source) -> set[Source]:
    """Other floats at the same place of the other items of a list: the rates of all groups of an optimizer change when that of one does."""
    path = list(source.steps())
    return {g.source for g in guards if g.kind == "EQUALS" and g.source is not None and type(g.expected) is float and are_alike(path, list(g.source.steps()))}


def are_alike(left: Sequence[Source], right: Sequence[Source]) -> bool:
    """Whether two paths differ in the number of one item alone, which is not their last step."""
    if len(left) != len(right) or left[0] != right[0]:
        return False
    pairs = [(a, b) for a, b in zip(left, right) if a.own() != b.own()]
    if len(pairs) != 1 or pairs[0][0] is left[-1]:
        return False
    return all(type(step) is Item and type(step.key) is int for step in pairs[0])


def changed_numbers(source: Source, was: torch.Size, now: Any) -> set[Source]:
    """Where the numbers of a size lie that are not what an entry was made for, where there are as many."""
    if type(now) is not torch.Size or len(now) != len(was):
        return set()
    return {Item(source, place) for place, (old, new) in enumerate(zip(was, now, strict=True)) if old != new}


def is_number_change(failure: Failure, frame: Any) -> bool:
    guard = failure.guard
    return guard.kind == "EQUALS" and guard.source is not None and type(guard.expected) in NUMBERS and type(evaluate(guard.source, frame)) in NUMBERS


def changed_extents(source: Source, facts: TensorFacts, now: Any, sizes: dict[Source, frozenset[int]], strides: dict[Source, frozenset[int]]) -> None:
    """Adds the dimensions in which a tensor differs from what an entry was made for, where it is one of as many dimensions."""
    now = plain_twin(now) if is_a(now, torch.Tensor) else now
    if not is_a(now, torch.Tensor) or now.layout is not torch.strided or now.is_nested or now.dim() != len(facts.sizes):
        return
    for table, was, numbers in ((sizes, facts.sizes, now.shape), (strides, facts.strides or (), now.stride())):
        changed = {dim for dim, (old, new) in enumerate(zip(was, numbers)) if old is not None and old != new}
        if changed:
            table[source] = table.get(source, frozenset()) | changed
