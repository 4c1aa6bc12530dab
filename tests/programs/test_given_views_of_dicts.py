"""Views of dicts that exist before the frame, as arguments and as attributes: they show what the dict holds by then, and changes that the frame makes."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict

import pytest
import torch

from dynacompile.events import Compiled
from tests.scenarios import attempt, check_same


class Named(dict):
    def keys(self):
        return ["none"]


class Ordered(OrderedDict):
    pass


DICTS = {
    "dict": {"a": 1.5, "b": 2},
    "ordered": OrderedDict(b=2, a=1.5),
    "counter": Counter(a=2, b=1),
    "default": defaultdict(list, a=3),
    "of a class": Named(a=4),
    "of an ordered class": Ordered(a=5, c=6),
    "empty": {},
}


def reads(x, keys, values, items):
    told = [key + "!" for key in keys], list(items), dict(zip(keys, values)), sorted(keys), tuple(items)
    return x * len(keys) + sum(values), told, "a" in keys, 2 in values, ("a", 1.5) in items, bool(keys), list(reversed(values)), keys & {"a"}, keys


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("given", DICTS.values(), ids=DICTS)
def test_as_arguments(given, backend):
    def story(wrap):
        run = wrap(reads)
        for _ in range(2):
            keys = dict.keys(given)
            *found, same = run(torch.ones(2), keys, dict.values(given), dict.items(given))
            yield found, same is keys

    check_same(story, backend=backend, fullgraph=True)


def sums(values):
    return sum(value * 2 for value in values)


def test_of_tensors():
    tensors = {"a": torch.ones(2, requires_grad=True), "b": torch.arange(2.0)}

    def story(wrap):
        yield wrap(sums)(tensors.values()).sum()
        yield wrap(lambda pairs: {name: t + 1 for name, t in pairs})(OrderedDict(tensors).items())

    check_same(story, fullgraph=True, least=2)


class Holder:
    def __init__(self):
        self.table = {"a": 1, "b": 2}
        self.names, self.numbers = self.table.keys(), self.table.values()


def changes(x, holder):
    before = list(holder.names)
    holder.table["c"] = 3
    del holder.table["a"]
    return x * sum(holder.numbers), before, list(holder.names), holder.names


def test_of_a_dict_that_the_frame_changes():
    def story(wrap):
        run, holder = wrap(changes), Holder()
        for _ in range(3):
            holder.table["a"] = 7
            x, *told, names = attempt(run, torch.ones(2), holder)
            yield x, told, names is holder.names

    check_same(story, least=None)


def test_of_a_dict_that_changes_between_calls():
    def story(wrap):
        run, holder = wrap(lambda x: (x * sum(holder.numbers), list(holder.names))), Holder()
        yield run(torch.ones(2))
        yield run(torch.ones(2))
        holder.table["d"] = 4
        yield run(torch.ones(2))
        holder.numbers = {"e": 9}.values()
        yield run(torch.ones(2))

    check_same(story)


def test_of_an_object_s_attributes():
    def story(wrap):
        def attributes(x, holder):
            holder.extra = 5
            return x * len(names), sorted(names)

        holder = Holder()
        names = vars(holder).keys()
        run = wrap(attributes)
        yield run(torch.ones(2), holder)
        yield run(torch.ones(2), holder)

    check_same(story, least=None)


def test_one_entry_serves_views_of_like_dicts():
    def story(wrap):
        run = wrap(sums)
        for n in range(3):
            yield run({"a": torch.ones(2) * n, "b": torch.zeros(2)}.values())

    events = check_same(story)
    assert sum(isinstance(e, Compiled) for e in events) == 1


def test_a_dict_that_changes_size_in_a_loop_over_its_view():
    def grows(x, keys, table):
        for key in keys:
            table[key + "x"] = 1
        return x

    def story(wrap):
        table = {"a": 1}
        yield attempt(wrap(grows), torch.ones(2), table.keys(), table)
        yield table

    check_same(story, least=None)
