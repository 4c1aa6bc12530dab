"""Lists and deques that grow from call to call: an entry relies on no more of their length than the program asks for."""

from __future__ import annotations

import collections

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled
from tests.dynamic.varying import check_varying


class Agent:
    def __init__(self, memory):
        self.memory, self.count = memory, 0


def push(a, x, i):
    a.memory.append(i)
    return x * 2 if len(a.memory) > 3 else x


def every_second(a, x, i):
    a.memory.append(x.sum().item())
    return x * len(a.memory) if len(a.memory) % 2 == 0 else x


def before(a, x, i):
    count = len(a.memory)
    a.memory.append(i)
    return x + count, count


def is_empty(a, x, i):
    x = x * 2 if a.memory else x
    a.memory.append(i)
    return x


def last(a, x, i):
    a.memory.append(x.sum())
    return a.memory[-1] + x


def difference_to_the_last(a, x, i):
    found = x - a.memory[-1] if a.memory else x
    a.memory.append(x)
    return found


def window(a, x, i):
    a.memory.append(x)
    return torch.stack(list(a.memory)[-2:] if isinstance(a.memory, collections.deque) else a.memory[-2:]).mean(0)


def first(a, x, i):
    a.memory.append(x)
    return x - a.memory[0]


def of_the_last(a, x, i):
    a.memory.append({"loss": x.sum(), "step": i})
    return a.memory[-1]["loss"] * a.memory[-1]["step"] + x


def stored(a, x, i):
    a.memory.append(x)
    a.count = len(a.memory)
    return x / a.count


def extended(a, x, i):
    a.memory.extend([x.sum(), x.mean()])
    return x + a.memory[-2] * len(a.memory)


def extended_in_place(a, x, i):
    a.memory += (x, x + i)
    return x - a.memory[-1]


def names_of_batches(a, x, i):
    a.memory.extend(NAMES[i])
    return x * 2


NAMES = [[f"{i}{j}" for j in range(3)] for i in range(12)]
SAME = {of_the_last: 2, stored: 2, extended: 2, extended_in_place: 2}
LISTS = {push: 3, every_second: 3, before: 2, is_empty: 2, last: 2, difference_to_the_last: 2, window: 2, first: 2} | SAME
DEQUES = {push: 3, before: 2, is_empty: 2, last: 2, difference_to_the_last: 2} | SAME


def check(fn, make, entries):
    compiled = dynacompile.compile(fn, isolate_recompiles=True, backend="eager")
    events = []
    end = dynacompile.subscribe(events.append)
    ours, eagers = Agent(make()), Agent(make())
    try:
        for i in range(12):
            x = torch.arange(3.0) + i
            torch.testing.assert_close(compiled(ours, x, i), fn(eagers, x, i))
            torch.testing.assert_close([*ours.memory], [*eagers.memory])
            assert ours.count == eagers.count
    finally:
        end()
    assert sum(isinstance(e, Compiled) for e in events) == entries, "\n".join(map(dynacompile.observe.log.line, events))


@pytest.mark.parametrize("fn", LISTS, ids=lambda fn: fn.__name__)
def test_lists(fn):
    check(fn, list, LISTS[fn])


@pytest.mark.parametrize("fn", DEQUES, ids=lambda fn: fn.__name__)
def test_deques(fn):
    check(fn, collections.deque, DEQUES[fn])


@pytest.mark.parametrize("fn,entries", [(push, 4), (before, 2), (is_empty, 2), (last, 2), (stored, 3)], ids=lambda p: getattr(p, "__name__", None))
def test_deques_that_are_full_at_some_time(fn, entries):
    check(fn, lambda: collections.deque(maxlen=6), entries)


def test_what_reads_all_has_an_entry_for_each_length():
    calls = [(list(range(n)), torch.ones(2)) for n in (1, 2, 3, 2)]
    check_varying(lambda numbers, x: x * sum(numbers) + len(numbers), calls, 3)
