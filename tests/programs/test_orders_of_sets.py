"""Sets that the frame makes give their elements in the order that Python's sets have, which goes by all that was done to them."""

from __future__ import annotations

import copy
import random

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled
from tests.checking import check
from tests.scenarios import check_same


def removed(x):
    s = {33, 1, *range(2, 40)}
    for i in range(2, 40):
        if i != 33:
            s.discard(i)
    return x, list(s), [v + 1 for v in s], s


def subtracted(x):
    s = {33, 1, *range(2, 40)}
    t = s - set(range(2, 33)) - set(range(34, 40))
    return x, list(t), list(t | {9}), list(t & s), list(t ^ {1, 65, 129}), sorted(t)


def replaced(x):
    s = set(range(0, 64, 8))
    s.remove(0)
    s.add(64)
    return x, list(s), list(s.copy()), list(copy.copy(s)), list(copy.deepcopy(s)), list(set(s)), list(set(s | {1}))


def popped(x):
    s, taken = set(range(0, 80, 8)), []
    while len(s) > 2:
        taken.append(s.pop())
        x = x + taken[-1]
    s.add(640)
    taken.append(s.pop())
    try:
        while True:
            taken.append(s.pop())
    except KeyError as error:
        return x, taken, error.args


def of_a_dict(x):
    d = dict.fromkeys(range(0, 200, 8))
    return x, list(set(d)), list({*d}), list(set(d.keys())), list(set(d.values())), list(set("hello world"))


def updated(x):
    s = {33, 1}
    s.update(range(40), [65, 129], {257: 1}, {513, 0})
    s.difference_update(range(2, 40))
    s.intersection_update({1, 33, 65, 129, 7})
    s.symmetric_difference_update([9, 33, 17])
    s |= {41, 49}
    s -= {41}
    return x, list(s), list(s), len(s)


@pytest.mark.parametrize("fn", [removed, subtracted, replaced, popped, of_a_dict, updated])
def test_in_one_graph(fn):
    check(fn, torch.ones(2), options={"backend": "eager", "fullgraph": True}, graphs=None)


@pytest.mark.parametrize("make", [lambda n: dict.fromkeys(range(n)), lambda n: list(range(n)), lambda n: tuple(range(n)), lambda n: set(range(n)), str])
@pytest.mark.parametrize("cls", [set, frozenset])
def test_what_it_is_made_of_is_guarded(cls, make):
    def makes(x, given):
        made = cls(given)
        return x + len(made), sorted(made)

    def story(wrap):
        run = wrap(makes)
        for n in (2, 2, 5, 12):
            yield run(torch.ones(2), make(n))

    check_same(story, backend="eager", least=None)


@pytest.mark.parametrize("take", [0, 1, 3])
def test_behind_a_break(take):
    def goes_on(x):
        s = {33, 1, *range(2, 40)}
        s -= set(range(2, 33))
        first = [s.pop() for _ in range(take)]
        dynacompile.graph_break()
        s.add(2)
        return x + 1, first, list(s), [s.pop() for _ in range(len(s))]

    check_same(lambda wrap: iter([wrap(goes_on)(torch.ones(2)) for _ in range(2)]), backend="eager", least=None)


STEPS = """
s.add(K); s.discard(K); s.update(range(K % 50, K % 50 + 9)); s.update([K, K + 64, K + 8]); s.update({K: 1, K * 8: 2}); s.update({K, 3 * K, 5}); s = s | {K, 2};
s = s - {K, K + 1}; s = s & (s | {K}); s = s ^ {K, 8 * K}; s = set(s); s = s.copy(); s = set(sorted(s)); s = {*s, K}; out.append(s.pop() if s else None);
out.append(list(s)); out.append([v for v in s if v % 2]); s.difference_update(range(K)); s = set(list(s)); s.symmetric_difference_update({K, K + 8});
s.intersection_update(s | {K}); s = {v * 8 % 257 for v in s}; s = copy.deepcopy(s); s |= {K: 0}.keys(); s = set({K: 0, 9 * K: 1}); s = set(frozenset(s));
out.append(list(frozenset(s) | s)); out.append(list(frozenset(range(K)) & s)); out.append(list(frozenset({K: 1, 9: 2, K + 8: 3})));
out.append(list(frozenset(s) - {K})); out.append(list(s - frozenset({K, 33})))
"""


def drawn(seed: int) -> str:
    rng = random.Random(seed)
    lines = ["def program(x):", "    out = []", f"    s = {{{', '.join(str(rng.randrange(600)) for _ in range(rng.randrange(1, 30)))}}}"]
    for _ in range(rng.randrange(1, 10)):
        lines.append("    " + rng.choice(STEPS.split(";")).strip().replace("K", str(rng.choice((1, 8, 33, 64, 128, rng.randrange(600))))))
    return "\n".join([*lines, "    return x + len(s), out, list(s)"])


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_drawn_programs(first):
    for seed in range(first, first + 50):
        scope: dict = {"copy": copy}
        exec(drawn(seed), scope)
        x = torch.ones(1)
        want = scope["program"](x)
        got = dynacompile.compile(scope["program"], backend="eager", isolate_recompiles=True)(x)
        assert repr(got) == repr(want), f"seed {seed}\n{drawn(seed)}\n{want}\n{got}"


class Counted:
    """Counts how often two are compared; all have one of four hashes."""

    compared = 0

    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        Counted.compared += 1
        return self.n == other.n

    def __hash__(self):
        return self.n % 4


@pytest.mark.parametrize("of_a_set", [len, lambda kept: sorted(one.n for one in kept), lambda kept: Counted(7) in kept])
def test_capture_compares_no_elements_of_a_set_by_their_own_methods(of_a_set):
    def fn(x, first):
        return x + 1, of_a_set({Counted(first), Counted(3), Counted(1), Counted(3)})

    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    for first in (5, 7, 5, 3):
        counts = []
        for call in (fn, compiled):
            Counted.compared = 0
            counts.append((call(torch.ones(1), first)[1], Counted.compared))
        assert counts[0] == counts[1]


TAKEN = (
    "a.update({})",
    "a |= set({})",
    "a.update({}, [3])",
    "a.difference_update({}, [1])",
    "a -= set({})",
    "a.clear(); a.update({})",
    "a.update({}); a.discard(8)",
)
GIVERS = ("{}", "set({})", "frozenset({})", "dict.fromkeys({})", "dict.fromkeys({}).keys()", "iter({})", "b")


@pytest.mark.parametrize("change", TAKEN)
def test_given_sets_are_left_in_the_order_of_eager(change):
    """Python makes room for all elements of a set or dict before it takes the first, and of others for each."""
    for seed in range(40):
        drawn = random.Random(seed)
        first, second = ([drawn.randrange(200) * drawn.choice((1, 8, 32)) for _ in range(drawn.randrange(n))] for n in (12, 20))
        code = change.format(drawn.choice(GIVERS).format(second))
        world: dict = {}
        exec(f"def f(x, a, b):\n    {code}\n    return x + 1", world)
        sets = [(set(first), set(second)) for _ in range(2)]
        world["f"](torch.ones(2), *sets[0])
        dynacompile.reset()
        dynacompile.compile(world["f"], backend="eager", options={"fallback": "none"})(torch.ones(2), *sets[1])
        assert [list(s) for s in sets[0]] == [list(s) for s in sets[1]], (code, first, second)


NAMES, KINDS = {"weight", "bias", "scale", "shift"}, {int, float, str}


def of_given_sets(x, numbers):
    named = {name: x + i for i, name in enumerate(NAMES)}
    for n in numbers:
        x = x * 2 + n
    made = list(NAMES), [name for name in NAMES if "s" in name], ",".join(NAMES), [kind.__name__ for kind in KINDS], dict.fromkeys(numbers)
    return x, named, made, {name + "!" for name in NAMES}, {*[n * 8 for n in numbers]}, sum(numbers), next(iter(numbers))


def test_given_sets_give_their_elements_in_one_graph():
    check(of_given_sets, torch.ones(2), {1, 33, 65}, options={"backend": "eager", "fullgraph": True})


def test_the_same_elements_in_another_order_are_another_entry():
    orders = [{1, 33}, {33, 1}, {1, 33}, {33, 1}]
    assert len({tuple(s) for s in orders}) == 2

    def story(wrap):
        run = wrap(of_given_sets)
        for numbers in orders:
            yield run(torch.ones(2), numbers)

    assert sum(isinstance(event, Compiled) for event in check_same(story, backend="eager")) == 2


def test_a_given_set_goes_on_behind_a_break():
    def fn(x, numbers):
        iterator = iter(numbers)
        first = next(iterator)
        dynacompile.graph_break()
        return x + first, [x * n for n in iterator]

    check_same(lambda wrap: iter([wrap(fn)(torch.ones(2), {65, 1, 33, 8}) for _ in range(2)]), backend="eager", least=None)


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_drawn_programs_over_given_sets(first):
    for seed in range(first, first + 10):
        code = drawn(seed).splitlines()
        scope: dict = {"copy": copy}
        exec("\n".join(["def program(x, s):", *code[1:2], *code[3:]]), scope)
        given = [int(n) for n in code[2].partition("{")[2].rstrip("}").split(",")]
        compiled = dynacompile.compile(scope["program"], backend="eager", isolate_recompiles=True)
        for elements in (given, given[::-1], given, [*given, *range(40)]):
            eagers, ours = set(elements), set(elements)
            want, got = scope["program"](torch.ones(1), eagers), compiled(torch.ones(1), ours)
            assert repr((got, ours)) == repr((want, eagers)), f"seed {seed}\n{code}\n{want}\n{got}"
