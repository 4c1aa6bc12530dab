"""Containers that hold something else in each call: after a few entries, what has to know all of them is left to Python, and the rest stays compiled."""

from __future__ import annotations

import collections
import random

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke, Recompiled
from dynacompile.guards.changes import MOST_STATES

CALLS = 36


class State:
    def __init__(self):
        self.losses, self.kept, self.seen = [], {}, set()
        self.buffer = collections.deque(maxlen=100)
        self.meters = collections.defaultdict(float)


def mean_of_all(s, x, i):
    s.losses.append(float(i))
    return x * (sum(s.losses) / len(s.losses)) + x.sin()


def sampled(s, x, i):
    s.buffer.append(x)
    random.seed(i)
    return torch.stack(random.sample(list(s.buffer), min(len(s.buffer), 2))).mean(0) * 2


def by_step(s, x, i):
    s.kept[i] = x.sum()
    return x.cos() + 1


def by_name(s, x, i):
    s.kept[f"step {i}"] = i
    return x.cos() + 1


def of_all_keys(s, x, i):
    s.meters[f"loss {i % 11}"] += i
    return x * sum(s.meters.values())


def marked(s, x, i):
    s.seen.add(i)
    return x.cos() + len(s.seen)


def passed_on(s, x, i):
    s.losses.append(i)
    s.passed = s.seen, s.kept
    return x.exp()


def stacked(s, x, i):
    s.losses.append(x)
    return torch.cat(s.losses).mean() + x


PROGRAMS = [mean_of_all, sampled, by_step, by_name, of_all_keys, marked, passed_on, stacked]


def run(function, events=None):
    state, found = State(), []
    for i in range(CALLS):
        seen = 0 if events is None else len(events)
        found.append((function(state, torch.arange(3.0) + i, i), list(state.losses)[-2:], dict(state.kept), sorted(state.seen), dict(state.meters)))
        if events is not None and i >= CALLS * 2 // 3:
            assert not [e for e in events[seen:] if isinstance(e, (Recompiled, FrameSkipped))], f"call {i} still recompiles: {events[seen:]}"
    return found


@pytest.mark.whole
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_no_call_recompiles_in_the_end(program):
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager", recompile_limit=8)
        got = run(compiled, events)
    finally:
        end()
    torch.testing.assert_close(got, run(program), rtol=1e-5, atol=1e-6)
    assert not [e for e in events if isinstance(e, FrameSkipped)]
    breaks = {e.code for e in events if isinstance(e, GraphBroke)}
    assert breaks <= {"changing-container", "changing-key", "random-state", "unknown-function", "drawn-number"}
    assert bool(breaks) == (program is not passed_on)


@pytest.mark.parametrize("program", [mean_of_all, by_step, marked], ids=lambda p: p.__name__)
def test_one_graph_has_an_entry_for_each_state(program):
    compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager", fullgraph=True, recompile_limit=100)
    torch.testing.assert_close(run(compiled), run(program), rtol=1e-5, atol=1e-6)
    assert len(dynacompile.cache_entries(compiled)) == CALLS


def test_a_few_states_have_entries_and_no_break():
    def table(s, x, i):
        return x * s.kept[i] + len(s.kept)

    def states(function):
        state, found = State(), []
        for i in range(12):
            state.kept = {k: k + 0.5 for k in range(i % MOST_STATES + 1)}
            found.append(function(state, torch.ones(3), i % MOST_STATES))
        return found

    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        got = states(dynacompile.compile(table, isolate_recompiles=True, backend="eager"))
    finally:
        end()
    torch.testing.assert_close(got, states(table))
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]


def test_the_break_says_which_container_and_what_to_do():
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        run(dynacompile.compile(mean_of_all, isolate_recompiles=True, backend="eager"))
    finally:
        end()
    (told,) = {(e.reason, e.hint) for e in events if isinstance(e, GraphBroke)}
    assert told[0] == "s.losses holds something else in each call" and "history[-1]" in told[1]


@pytest.mark.parametrize(
    "make", [dict, set, collections.OrderedDict, lambda given: collections.defaultdict(int, given)], ids=["dict", "set", "ordered", "default"]
)
def test_lengths_that_vary_are_numbers(make):
    def program(given, x):
        return x * len(given) if len(given) % 2 else x + len(given)

    compiled = dynacompile.compile(program, isolate_recompiles=True, fullgraph=True)
    for n in (1, 2, 3, 4, 7, 10, 21):
        given, x = make(dict.fromkeys(range(n), 1)), torch.ones(3)
        torch.testing.assert_close(compiled(given, x), program(given, x))
    assert len(dynacompile.cache_entries(compiled)) == 3
