"""Iterators of built-in types and of itertools: what they are, what they see of changes, how they end, and what is left of them behind a break."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections import OrderedDict, deque

import pytest
import torch

import dynacompile
from tests.checking import check


def alike(fn, *args):
    """Compares calls with new arguments each."""
    compiled = dynacompile.compile(fn, backend="eager", options={"fallback": "none"})
    want = repr(fn(torch.ones(2), *copy.deepcopy(args)))
    assert [repr(compiled(torch.ones(2), *copy.deepcopy(args))) for _ in range(2)] == [want, want]


AS_IN_EAGER = {"options": {"backend": "eager"}, "graphs": None, "breaks": None}


class MyList(list):
    pass


class MyDict(dict):
    pass


class Items:
    def __init__(self, n):
        self.n = n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        return i


below = functools.partial(operator.gt, 4)  # no function of Python: each that is called between the graphs would be compiled by itself


ITERATORS = {
    "list": lambda: iter([3, 1, 2, 5]),
    "list, reversed": lambda: reversed([3, 1, 2, 5]),
    "list of a user's class, reversed": lambda: reversed(MyList([3, 1, 2, 5])),
    "tuple, reversed": lambda: reversed((3, 1, 2, 5)),
    "text": lambda: iter("abcd"),
    "text, reversed": lambda: reversed("abcd"),
    "range, reversed": lambda: reversed(range(4)),
    "dict": lambda: iter({"a": 1, "b": 2, "c": 3}),
    "dict, reversed": lambda: reversed({"a": 1, "b": 2, "c": 3}),
    "items of a user's class, reversed": lambda: reversed(MyDict(a=1, b=2, c=3).items()),
    "ordered, reversed": lambda: reversed(OrderedDict(a=1, b=2, c=3)),
    "set": lambda: iter({1, 2, 3}),
    "deque, reversed": lambda: reversed(deque([3, 1, 2, 5])),
    "product": lambda: itertools.product([1, 2], "ab"),
    "repeat": lambda: itertools.repeat(7, 3),
    "repeat of no end": lambda: itertools.repeat(7),
    "permutations": lambda: itertools.permutations([1, 2, 3]),
    "combinations": lambda: itertools.combinations([1, 2, 3], 2),
    "islice of nothing": lambda: itertools.islice(iter(range(9)), 3, 3),
    "islice by steps": lambda: itertools.islice(iter(range(20)), 1, 17, 3),
    "islice without end": lambda: itertools.islice(itertools.count(2), 3, None, 2),
    "count": lambda: itertools.count(3),
    "count by halves": lambda: itertools.count(3, 0.5),
    "cycle": lambda: itertools.cycle([1, 2, 3]),
    "cycle of nothing": lambda: itertools.cycle([]),
    "pairwise": lambda: itertools.pairwise([1, 2, 3, 4, 5]),
    "accumulate": lambda: itertools.accumulate([1, 2, 3, 4, 5]),
    "accumulate from none": lambda: itertools.accumulate([None, 2, 3], operator.eq, initial=None),
    "accumulate from five": lambda: itertools.accumulate([1, 2, 3], operator.mul, initial=5),
    "takewhile": lambda: itertools.takewhile(below, [1, 2, 3, 4, 1]),
    "dropwhile": lambda: itertools.dropwhile(below, [1, 2, 3, 4, 1]),
    "filterfalse": lambda: itertools.filterfalse(below, [1, 2, 3, 4, 6]),
    "starmap": lambda: itertools.starmap(pow, [(2, 3), (3, 2), (4, 1)]),
    "compress": lambda: itertools.compress("abcdef", [1, 0, 1, 1, 0, 1]),
    "zip_longest": lambda: itertools.zip_longest("ab", [1, 2, 3, 4], (), fillvalue="none"),
    "zip_longest of nothing": lambda: itertools.zip_longest(),
    "chain": lambda: itertools.chain([1, 2], "ab", (5,)),
    "chain of a generator": lambda: itertools.chain.from_iterable(range(n) for n in (2, 0, 3)),
    "until": lambda: iter([4, 3, 2, 1].pop, 3),
}


@pytest.mark.parametrize("made", ITERATORS.values(), ids=ITERATORS)
@pytest.mark.parametrize("taken", [0, 2, 20])
def test_what_it_is_and_what_is_left(made, taken):
    def asked(x):
        iterator = made()
        first = list(itertools.islice(iterator, taken))
        hint = operator.length_hint(iterator, -1)
        dynacompile.graph_break()
        return x + 1, first, type(iterator).__name__, hint, list(itertools.islice(iterator, 5))

    check(asked, torch.ones(2), **AS_IN_EAGER)


OF_ITERTOOLS = {name: made for name, made in ITERATORS.items() if type(made()).__module__ == "itertools" and name != "chain of a generator"}


@pytest.mark.parametrize("made", OF_ITERTOOLS.values(), ids=OF_ITERTOOLS)
@pytest.mark.parametrize("taken", [0, 2, 20])
def test_given_back_by_one_graph(made, taken):
    def gives(x):
        iterator = made()
        first = list(itertools.islice(iterator, taken))
        return x + 1, first, iterator

    def run(fn):
        _, first, iterator = fn(torch.ones(2))
        return first, type(iterator), list(itertools.islice(iterator, 5))

    assert run(dynacompile.compile(gives, fullgraph=True, backend="eager", isolate_recompiles=True)) == run(gives)


def test_groups_are_given_back():
    def gives(x):
        return x + 1, itertools.groupby([1, 1, 2], operator.neg)

    (_, groups), (_, want) = dynacompile.compile(gives, fullgraph=True, backend="eager")(torch.ones(2)), gives(torch.ones(2))
    assert [(key, list(group)) for key, group in groups] == [(key, list(group)) for key, group in want] == [(-1, [1, 1]), (-2, [2])]


def test_a_function_that_raises_leaves_the_iterator_as_pythons():
    def raises(x):
        def add(total, item):
            if item == 2:
                raise ValueError(item)
            return total + item

        iterator, seen = itertools.accumulate([1, 2, 3, 4], add), []
        for _ in range(5):
            try:
                seen.append(next(iterator, "end"))
            except ValueError as error:
                seen.append(error.args)
        return x + 1, seen

    check(raises, torch.ones(2), options={"backend": "eager"})


def shrinks(x, numbers):
    backward, forward = reversed(numbers), iter(numbers)
    seen = [next(backward), next(forward), operator.length_hint(backward)]
    numbers[1:] = []
    return x, seen, operator.length_hint(backward), operator.length_hint(forward), list(backward), list(forward)


def grows_after_the_end(x, numbers):
    forward, backward = iter(numbers), reversed(numbers)
    seen = [list(forward), list(backward)]
    numbers += [7, 8]
    return x, seen, list(forward), list(backward), operator.length_hint(forward)


def handed_out(x, numbers):
    numbers.append(9)
    forward, backward = iter(numbers), reversed(numbers)
    for _ in range(4):
        next(forward)
    return x, [list(i) for i in (forward, backward)]


@pytest.mark.parametrize("fn", [shrinks, grows_after_the_end, handed_out])
def test_changes_of_a_list(fn):
    alike(fn, [3, 1, 2])


def test_an_iterator_in_a_result_goes_by_what_the_frame_has_changed():
    def changed(x, numbers, names):
        numbers.append(9)
        names.popitem()
        forward = iter(numbers)
        for _ in range(4):
            next(forward)
        return x, [forward, reversed(numbers)], (iter(names), names.items())

    def run(fn):
        _, listed, named = fn(torch.ones(2), [3, 1, 2, 4], {"a": 1, "b": 2})
        return [list(part) for part in (*listed, *named)]

    assert run(dynacompile.compile(changed, backend="eager")) == run(changed) == [[9], [9, 4, 2, 1, 3], ["a"], [("a", 1)]]


def entry_comes_back(x):
    d = {0: 0}
    try:
        for _ in d:
            del d[0]
            d[0] = 0
    except RuntimeError as error:
        return x + 1, str(error)
    return x, d


def view_of_a_user_s_class(x):
    d = MyDict(a=1)
    view, iterator = d.items(), iter(d)
    dynacompile.graph_break()
    next(iterator)
    d["b"] = 2
    try:
        return x, list(view), list(iterator)
    except RuntimeError as error:
        return x, list(view), str(error)


@pytest.mark.parametrize("fn", [entry_comes_back, view_of_a_user_s_class])
def test_changes_of_a_dict(fn):
    check(fn, torch.ones(2), **AS_IN_EAGER)


def sinks(x):
    owner = Items(2)
    iterator = iter(owner)
    first = list(iterator)
    owner.n = 5
    return x, first, list(iterator)


def takes_what_it_skips(x):
    rest = iter(range(10))
    return x, list(itertools.islice(rest, 3, 3)), list(itertools.islice(rest, 1, 4, 5)), list(rest)


def keys_as_groups_are_asked_for(x):
    log = []

    def key(n):
        log.append(n)
        return n // 2

    groups = [(k, group) for k, group in itertools.groupby([0, 1, 2, 3, 4], key)]
    late = [list(group) for _, group in groups]
    log.append("again")
    for k, group in itertools.groupby(range(4), key):
        log.append((k, next(group)))
    return x, late, log


def goes_on_after_an_error(x):
    def check_one(n):
        if n == 1:
            raise KeyError(n)
        return True

    iterator = itertools.takewhile(check_one, [0, 1, 2])
    seen = [next(iterator)]
    try:
        next(iterator)
    except KeyError as error:
        seen.append(error.args)
    return x, seen, list(iterator)


def refused_when_it_is_made(x):
    seen = []
    for make in (lambda: itertools.cycle(5), lambda: itertools.count("a"), lambda: itertools.combinations("abc", -2), lambda: itertools.takewhile(bool, 3)):
        try:
            seen.append(make())
        except (TypeError, ValueError) as error:
            seen.append(str(error))
    return x, seen


def removed_meanwhile(x):
    d = deque([0, 1])

    class Clears:
        def __eq__(self, other):
            d.clear()
            return True

    try:
        d.remove(Clears())
    except IndexError as error:
        return x + 1, str(error)
    return x, d


def copied(x):
    d = deque([3, 1, 2])
    iterators = [reversed([1, 2, 3]), itertools.product("ab", [1]), iter((1, 2, 3))]
    for iterator in iterators:
        next(iterator)
    return x, [list(copy.copy(iterator)) for iterator in iterators], list(reversed(d))


def copied_sums(x):
    """A copy shares what is taken from, and has the initial value and the total itself."""
    made = [itertools.accumulate([1, 2, 3], operator.mul, initial=4), itertools.accumulate([1, 2, 3]), itertools.accumulate([None, 2], lambda a, b: (a, b))]
    for iterator in made[1:]:
        next(iterator)
    return x, made, [copy.copy(iterator) for iterator in made]


def taken(result):
    x, iterators, copies = result
    return x, [list(iterator) for iterator in iterators], [list(iterator) for iterator in copies]


def test_copies_of_sums():
    run = dynacompile.compile(copied_sums, backend="eager", isolate_recompiles=True)
    for _ in range(2):
        assert repr(taken(run(torch.ones(2)))) == repr(taken(copied_sums(torch.ones(2))))


@pytest.mark.parametrize(
    "fn", [sinks, takes_what_it_skips, keys_as_groups_are_asked_for, goes_on_after_an_error, refused_when_it_is_made, removed_meanwhile, copied]
)
def test_as_in_eager(fn):
    alike(fn)
