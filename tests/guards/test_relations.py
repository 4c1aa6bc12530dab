"""DUPLICATE_INPUT, NOT_ALIASED and DISJOINT."""

from __future__ import annotations

import random

import torch

from dynacompile.guards.evaluate import FrameValues
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import Disjoint
from dynacompile.ir.source import Attr, Item, Local

A, B, C = (Local(name, i) for i, name in enumerate("abc"))


def answers(guards, *slots):
    held = compile_guards(guards).check(slots, None, {}, {})
    texts = [f.text for f in failures(guards, FrameValues(slots))]
    assert held is not bool(texts)
    return texts


def test_duplicates():
    one, other = [1], [1]
    guards = [Guard("DUPLICATE_INPUT", A, Item(B, 0))]
    assert answers(guards, one, [one]) == []
    assert answers(guards, one, [other]) == ["a is b[0]: True -> False"]
    assert answers(guards, one, []) == ["a is b[0]: True -> False"]


def test_distinct():
    one, other, third = [1], [1], [1]
    guards = [Guard("NOT_ALIASED", None, (A, B, C))]
    program = compile_guards(guards)
    for slots, wanted in (
        ((one, other, third), True),
        ((one, other, one), False),
        ((one, other, third), True),
        ((third, one, other), True),
        ((one, one, other), False),
    ):
        assert program.check(slots, None, {}, {}) is wanted
    assert answers(guards, one, other, one) == ["a is c: False -> True"]
    assert answers([Guard("NOT_ALIASED", A, (B,))], one, one) == ["a is b: False -> True"]


def test_what_is_missing_is_neither_equal_nor_distinct():
    assert answers([Guard("DUPLICATE_INPUT", Item(A, 0), Item(B, 0))], [], []) == ["a[0]: present -> missing"]
    assert answers([Guard("DUPLICATE_INPUT", A, Item(B, 0))], [], []) == ["a is b[0]: True -> False"]
    assert answers([Guard("NOT_ALIASED", None, (A, Item(B, 0)))], [], []) == ["b[0]: present -> missing"]


def test_values_made_on_reading():
    """A relation on a value that each reading makes anew keeps it alive until it is compared."""
    guards = [Guard("NOT_ALIASED", None, (Attr(A, "imag"), Attr(B, "imag")))]
    assert compile_guards(guards).check((1.5 + 2.5j, 2.5 + 3.5j), None, {}, {})


def test_many():
    things = [[i] for i in range(200)]
    sources = tuple(Item(A, i) for i in range(200))
    program = compile_guards([Guard("NOT_ALIASED", None, sources)])
    chosen = random.Random(0)
    for _ in range(20):
        chosen.shuffle(things)
        assert program.check((things,), None, {}, {})
        i, j = chosen.sample(range(200), 2)
        aliased = [*things]
        aliased[i] = aliased[j]
        assert not program.check((aliased,), None, {}, {})


def test_disjoint():
    t = torch.zeros(24)
    far = torch.zeros(8)
    guards = [Guard("DISJOINT", None, Disjoint((A,), (B, C)))]
    program = compile_guards(guards)
    for slots, wanted in (
        ((t[:8], t[8:16], t[16:]), True),
        ((t[:8], t[8:16], far), True),
        ((t[:8], t[7:15], far), False),
        ((t[:8], far, t[7:15]), False),
        ((t[:8], t[8:16], t[8:16]), True),
        ((t[::2], t[1::2], far), False),
        ((t[:8].view(2, 4).t(), t[8:], far), True),
        ((far, far, t), False),
        ((far, far[:0], t), True),
        ((far[:0], far, far), True),
        ((torch.empty(3, device="meta"), torch.empty(3, device="meta"), t), True),
        ((far.expand(100, 8), t, t), True),
        ((far.expand(100, 8), far[7:], t), False),
        ((1, far, t), False),
    ):
        assert program.check(slots, None, {}, {}) is wanted
        assert program.check(slots, None, {}, {}) is wanted
        assert (answers(guards, *slots) == []) is wanted
    assert answers(guards, t, t[:3], far) == ["memory shared by a (written) and b: none -> some"]
    assert answers([Guard("DISJOINT", None, Disjoint((A, B), (C,)))], t, t[:3], far) == ["memory shared by a (written) and b: none -> some"]


def test_many_disjoint():
    memory = torch.zeros(200 * 4)
    things = list(memory.split(4))
    sources = [Item(A, i) for i in range(200)]
    program = compile_guards([Guard("DISJOINT", None, Disjoint(tuple(sources[:20]), tuple(sources[20:])))])
    chosen = random.Random(0)
    for _ in range(20):
        chosen.shuffle(things)
        assert program.check((things,), None, {}, {})
        i, j = chosen.sample(range(200), 2)
        moved = [*things]
        moved[i] = moved[j][1:3]
        assert program.check((moved,), None, {}, {}) is (i >= 20 and j >= 20)
