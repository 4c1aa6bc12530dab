"""Keys of dicts and elements of sets: which types make one graph, and which object is found in later calls."""

from __future__ import annotations

import enum

import numpy as np
import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, Event, Recompiled


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Number(enum.IntEnum):
    ONE = 1


class Thing:
    def method(self):
        return 1


def plain(x):
    return x


KNOWN = {
    "frozenset": (frozenset((1,)), frozenset((2,))),
    "enum": (Color.RED, Color.BLUE),
    "int enum": (Number.ONE, 2),
    "dtype": (torch.float32, torch.float64),
    "device": (torch.device("cpu"), torch.device("meta")),
    "size": (torch.Size((1,)), torch.Size((2,))),
    "complex": (1j, 2j),
    "tuple": ((1, frozenset((1,))), (2, Color.RED)),
    "tuple of functions": ((len, 1), (plain, 1)),
    "class": (int, Thing),
    "function": (plain, len),
}


def get(x, table, members, key):
    return x * table.get(key, 7)


def contains(x, table, members, key):
    return x * 2 if key in table else x * 3


def is_member(x, table, members, key):
    return x * 2 if key in members else x * 3


def rounds(x, table, members, key):
    return x * sum(2 if k == key else 5 for k in table)


def stored(x, table, members, key):
    table[key] = 4
    return x * len(table)


@pytest.mark.parametrize("question", [get, contains, is_member, rounds, stored])
@pytest.mark.parametrize("kind", KNOWN)
def test_constant_keys_make_one_graph(kind, question):
    """Whatever of the table changes between calls."""
    first, second = KNOWN[kind]
    compiled = dynacompile.compile(question, backend="eager", fullgraph=True, isolate_recompiles=True)
    x = torch.ones(2)
    for keys, key in (((first,), first), ((first,), second), ((), first), ((first, second), second), ((second,), first)):
        want, got = (f(x, {k: i + 1 for i, k in enumerate(keys)}, set(keys), key) for f in (question, compiled))
        assert torch.equal(want, got), (keys, key)


def asks(question, *stories):
    """Calls with these arguments one after the other give what eager gives."""
    compiled = dynacompile.compile(question, backend="eager", isolate_recompiles=True)
    for args in stories:
        assert torch.equal(question(torch.ones(2), *args), compiled(torch.ones(2), *args)), args


def maker():
    return lambda x: x


OBJECTS = {
    "object": (Thing(), Thing()),
    "module": (torch.nn.Identity(), torch.nn.Identity()),
    "parameter": (torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))),
    "closure": (maker(), maker()),
    "method": (Thing().method, Thing().method),
    "list": ([1], [1]),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_two_objects_that_become_one(kind):
    first, second = OBJECTS[kind]
    asks(lambda x, a, b: x * 2 if a is b else x * 3, (first, second), (first, first), (second, first))
    if kind != "list":
        asks(lambda x, a, b: x * len({a, b}), (first, second), (first, first), (second, first))
        asks(lambda x, a, b: x * {a: 2}.get(b, 3), (first, second), (first, first), (second, first))
        asks(lambda x, a, b: x * len({id(a), id(b)}), (first, second), (first, first), (second, first))


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):
        return x * 2 if self.first.weight is self.second.weight else x * 3


def test_weights_that_become_tied():
    module = Tied()
    compiled = dynacompile.compile(module, backend="eager", isolate_recompiles=True)
    for weight in (module.second.weight, module.first.weight, torch.nn.Parameter(torch.ones(2, 2))):
        module.second.weight = weight
        assert torch.equal(compiled(torch.ones(2)), module(torch.ones(2)))


def test_methods_of_one_object_are_one_key():
    thing = Thing()
    asks(lambda x: x * len({thing.method, thing.method}), ())
    asks(lambda x, y: x * len({x.sin, y.sin, x.cos}), (torch.ones(2),))


def test_sets_equal_frozen_sets():
    asks(lambda x, a, b: x * 2 if a == b else x * 3, ({1}, frozenset((1,))), (frozenset((1,)), {2}), ({1}, {1}))


def test_a_nan_is_found_as_the_object_that_it_is():
    nan, other = float("nan"), float("nan")
    asks(lambda x, k: x * {nan: 2}.get(k, 3), (nan,), (other,))
    asks(lambda x, k: x * 2 if k in (nan, 5) else x * 3, (nan,), (other,))


def test_ids_beside_numbers():
    thing, other = Thing(), Thing()
    asks(lambda x, a, n: x * 2 if id(a) == n else x * 3, (thing, id(other)), (thing, id(thing)), (other, id(other)))
    asks(lambda x, a, n: x * 2 if id(a) in {n} else x * 3, (thing, id(other)), (thing, id(thing)), (other, id(other)))


@pytest.mark.parametrize("objects", [(np.int64(3), np.int64(0), None, 0), (np.bool_(True), np.bool_(False), 1, [])])
def test_truth_of_objects_that_capture_does_not_know(objects):
    asks(lambda x, k: x * (2 if k else 5), *((k,) for k in objects))
    asks(lambda x, k: x * (2 if k == 3 else 5), *((k,) for k in objects))
    asks(lambda x, k: x * (2 if callable(k) else 5), *((k,) for k in objects))
    asks(lambda x, k: x * (2 if isinstance(k, np.int64) else 5), *((k,) for k in objects))


def test_an_array_is_replaced_by_another_object():
    """What a guard computes of an array is not there for others: a recompile, and no AttributeError."""
    asks(lambda x, k: x * (2 if k is None else 5), (np.ones(2),), (range(3),), (None,), (np.ones(2),))


def test_arrays_of_several_dimensions_are_no_numbers():
    compiled = dynacompile.compile(lambda x, k: x * int(k), backend="eager")
    assert torch.equal(compiled(torch.ones(2), np.array(3)), torch.full((2,), 3.0))
    for call in (compiled, lambda x, k: x * int(k)):
        with pytest.raises((TypeError, ValueError)):
            call(torch.ones(2), np.ones((2, 2)))


def test_tensors_and_numbers_of_numpy_are_compared():
    """They once were unequal without a look, as a tensor and a text are."""
    asks(lambda x, k: (x == k).float(), (np.float64(1),), (np.float64(0),), (np.int64(1),))
    asks(lambda x, k: (k != x).float(), (np.float32(1),), (np.float32(0),))
    asks(lambda x, k: x * (2 if x == k else 3), ("text",), (None,), (torch.float32,), ({},))


def test_what_does_not_equal_itself():
    asks(lambda x, k: x * (2 if k == k else 3), (np.float64("nan"),), (float("nan"),), (np.float64(1),))


def test_new_tensor_of_a_number_that_varies_has_its_sign():
    compiled = dynacompile.compile(lambda x, k: x.new_tensor(k), backend="eager", isolate_recompiles=True)
    for number in (2.5, 3.5, -0.0, 0.0):
        assert torch.equal(torch.signbit(compiled(torch.ones(1), number)), torch.signbit(torch.tensor(number)))


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "set", "int", "tensor", "slice"])
def test_objects_have_no_attributes_of_metaclasses(kind):
    value = {"list": [], "tuple": (), "dict": {}, "set": set(), "int": 3, "tensor": torch.ones(1), "slice": slice(3)}[kind]
    asks(lambda x, k: x * len(getattr(k, "__name__", "abc")) * (2 if hasattr(k, "mro") else 3), (value,))


def test_the_class_of_numbers_that_vary():
    asks(lambda x, k: x * (2 if k.__class__ is int else 3), (5,), (6,), (7,), (2.5,), (3.5,))


class Never(type):
    def __bool__(cls):
        return False


class Nothing(metaclass=Never):
    pass


def test_classes_that_their_metaclass_makes_false():
    asks(lambda x, k: x * (2 if k else 3), (Nothing,), (Thing,), (Color,))


def test_the_larger_of_a_truth_value_and_a_number_that_varies():
    compiled = dynacompile.compile(lambda x, k: (x, max(True, k), min(k, False)), backend="eager", isolate_recompiles=True)
    for number in (5, -3, 1, 0):
        _, *got = compiled(torch.ones(1), number)
        assert [repr(value) for value in got] == [repr(max(True, number)), repr(min(number, False))]


def test_frozen_sets_that_are_made_anew_in_each_call_are_known_again():
    compiled = dynacompile.compile(rounds, backend="eager", isolate_recompiles=True)
    events: list[Event] = []
    end = dynacompile.subscribe(events.append)
    for _ in range(3):
        compiled(torch.ones(2), {frozenset(("a", 1)): 1}, set(), 2)
    end()
    assert sum(isinstance(event, Compiled) for event in events) == 1 and not any(isinstance(event, Recompiled) for event in events)


def test_which_of_equal_keys_a_loop_comes_by():
    """Capture makes a key of parts anew, so it does not know which object the dict has."""
    table: dict = {}
    wanted: list = [None]

    def program(x):
        count = 0
        for key in table:
            if key is wanted[0]:
                count += 1
        return x + 0, count

    keys = [(n, n + 1) for n in range(4)]
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    for held, asked in (((3, 1), 2), ((2, 3), 3), ((2, 3), 2), ((2,), 2), ((3,), 2)):
        table.clear()
        table.update({keys[n]: 0 for n in held})
        for wanted[0] in (keys[asked], (asked, asked + 1)):
            assert compiled(torch.ones(1))[1] == program(torch.ones(1))[1], (held, asked)


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_are_found_by_value(dynamic):
    """A number above 256 is another object in each call, and in what capture computes of it."""
    table = {1000: 2.0, 2000: 3.0, 3000: 4.0, 2.5: 5.0, 3.5: 6.0}
    members = {1000, 2.5}

    def program(x, n):
        y = x * table[n] if n in table else x + n
        return y.sin() if n in members else table.get(n, 0.0) + y

    compiles: list[Event] = []
    end = dynacompile.subscribe(lambda event: compiles.append(event) if isinstance(event, Compiled) else None)
    options = {"fallback": "none", "verify": True}
    compiled = dynacompile.compile(program, backend="eager", dynamic=dynamic, isolate_recompiles=True, options=options)
    texts = ["1000", "2000", "3000", "1000", "5000", "2.5", "3.5"]
    try:
        for text in texts * 3:
            n = eval(text, {})
            torch.testing.assert_close(compiled(torch.ones(2), n), program(torch.ones(2), n), rtol=0, atol=0)
    finally:
        end()
    assert len(compiles) <= len(set(texts)), "as many entries as numbers at most"


@pytest.mark.parametrize("sizes", [(3, 4), (3, 3), (1, 1)], ids=["other sizes", "same sizes", "one element"])
def test_numbers_that_vary_under_tensors_as_keys(sizes):
    """An optimizer's numbers, one for each parameter: which others are alike is found out by the paths to them, whose keys are tensors."""

    def step(params, state):
        for p in params:
            mine = state[p]
            mine["weight"] = 1.0 + 0.9 * mine["weight"]
            p.data.mul_(1.0 - 1.0 / mine["weight"])
        return [p.data.clone() for p in params]

    found = []
    for call in (step, dynacompile.compile(step, backend="eager", isolate_recompiles=True)):
        params = [torch.nn.Parameter(torch.arange(1.0, n + 1)) for n in sizes]
        state = {p: {"weight": 0.5 + n} for n, p in enumerate(params)}
        found.append([[p.tolist() for p in call(params, state)] + [s["weight"] for s in state.values()] for _ in range(5)])
    assert found[0] == found[1]
