"""Samples of every guard kind: a payload, values that it holds for, and values that it does not. A kind without a row here fails the tests."""

from __future__ import annotations

import math
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from dynacompile.ir.guard_facts import Match, ModuleFacts, Presence, function_facts, identity, module_facts, tensor_facts


@dataclass(frozen=True)
class Sample:
    expected: object
    holds: tuple
    fails: tuple


class Color(Enum):
    RED = 1
    BLUE = 2


class Loud:
    """Every comparison or lookup of it is an error: guards must not run a user's code."""

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a guard ran __eq__")

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise AssertionError("a guard ran __len__")

    def __bool__(self) -> bool:
        raise AssertionError("a guard ran __bool__")

    def __getattr__(self, name: str) -> object:
        raise AssertionError("a guard ran __getattr__")


class IntSubclass(int):
    pass


class ListSubclass(list):
    def __len__(self) -> int:
        raise AssertionError("a guard ran __len__")


class OrderedSubclass(OrderedDict):
    def __getitem__(self, key: object) -> object:
        raise AssertionError("a guard ran __getitem__")

    def keys(self) -> Any:
        raise AssertionError("a guard ran keys()")


class Reversed(OrderedDict):
    def __iter__(self) -> Any:
        return reversed(list(super().__iter__()))


class TensorSubclass(torch.Tensor):
    pass


def double(x: int) -> int:
    return x * 2


def triple(x: int) -> int:
    return x * 3


def tensors() -> list[Sample]:
    x = torch.randn(4, 3)
    leaf = torch.randn(4, 3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.randn(4, 3))
    return [
        Sample(
            tensor_facts(x),
            (x, torch.zeros(4, 3), torch.randn(9)[:0].new_zeros(4, 3)),
            (
                x.t(),
                x.double(),
                leaf,
                leaf * 2,
                parameter,
                torch.randn(4, 4),
                torch.randn(4, 3, 1),
                torch.randn(3, 4).t(),
                x.to_sparse(),
                x.as_subclass(TensorSubclass),
                torch.empty(4, 3, device="meta"),
                1,
                None,
                Loud(),
            ),
        ),
        Sample(tensor_facts(leaf), (leaf, leaf * 2), (x, leaf.detach(), parameter)),
        Sample(tensor_facts(parameter), (parameter,), (leaf, x)),
        Sample(
            tensor_facts(torch.randn(2, 2, dtype=torch.complex64)),
            (torch.zeros(2, 2, dtype=torch.complex64),),
            (torch.zeros(2, 2, dtype=torch.complex64).conj(), torch.zeros(2, 2)),
        ),
        Sample(tensor_facts(torch.tensor(1.0)), (torch.tensor(2.0),), (torch.tensor([1.0]), torch.tensor(1))),
    ]


def constants() -> list[Sample]:
    nan = float("nan")
    other = Loud()
    return [
        Sample(1, (1,), (True, 1.0, 2, IntSubclass(1), "1", None, other)),
        Sample(True, (True,), (1, False, other)),
        Sample(10**30, (10**30,), (10**30 + 1, 1e30)),
        Sample(0.0, (0.0,), (-0.0, 0, False, nan)),
        Sample(-0.0, (-0.0,), (0.0,)),
        Sample(nan, (nan, float("nan")), (0.0, math.inf)),
        Sample(1 + 0j, (1 + 0j,), (complex(1, -0.0), 1.0, 1)),
        Sample("a", ("a", "".join(["a"])), ("b", b"a", other)),
        Sample(b"ab", (b"ab",), (b"ac", "ab")),
        Sample(None, (None,), (0, False, other)),
        Sample((1, (2.0, "x")), ((1, (2.0, "x")),), ((1, (2, "x")), (True, (2.0, "x")), (1,), [1, (2.0, "x")])),
        Sample(slice(1, None, 2), (slice(1, None, 2),), (slice(1, None), slice(True, None, 2))),
        Sample(range(3), (range(3),), (range(0, 3, 2), range(4), [0, 1, 2])),
        Sample(torch.Size([2, 3]), (torch.Size([2, 3]),), ((2, 3), torch.Size([2, 4]))),
        Sample(torch.float32, (torch.float32,), (torch.float64, None)),
        Sample((torch.float32, torch.strided), ((torch.float32, torch.strided),), ((torch.float64, torch.strided),)),
        Sample(torch.device("cpu"), (torch.device("cpu"),), (torch.device("cuda:1"), "cpu")),
        Sample(Color.RED, (Color.RED,), (Color.BLUE, 1)),
        Sample(Ellipsis, (Ellipsis,), (None,)),
    ]


def functions() -> list[Sample]:
    elsewhere = types.FunctionType(double.__code__, {"__name__": "elsewhere"})
    twin = types.FunctionType(double.__code__, double.__globals__, closure=None)
    return [
        Sample(double, (double, twin), (triple, elsewhere, len, None, Loud())),
        Sample(function_facts(double), (double,), (triple,)),
        Sample(function_facts(elsewhere), (elsewhere,), (double, triple)),
    ]


def modules() -> list[Sample]:
    linear = torch.nn.Linear(2, 2)
    hooked = torch.nn.Linear(2, 2)
    hooked.register_forward_pre_hook(lambda module, args: None)
    own = torch.nn.Linear(2, 2)
    own.forward = lambda x: x  # type: ignore[method-assign]
    nested = torch.nn.Sequential(torch.nn.ReLU())
    read = ModuleFacts(torch.nn.Linear, training=True, lacks=(("__dict__", "weight"), ("_buffers", "weight")))
    hidden = torch.nn.Linear(2, 2)
    hidden.__dict__["weight"] = None
    return [
        Sample(read, (linear, hooked, own), (torch.nn.Linear(2, 2).eval(), hidden, nested)),
        Sample(ModuleFacts(torch.nn.Linear), (linear, hooked, own, hidden, torch.nn.Linear(2, 2).eval()), (nested, None, Loud())),
        Sample(module_facts(linear), (linear, torch.nn.Linear(3, 3)), (torch.nn.Linear(2, 2).eval(), hooked, own, torch.nn.ReLU(), nested, None, Loud())),
        Sample(
            module_facts(nested), (nested, torch.nn.Sequential(torch.nn.GELU())), (torch.nn.Sequential(), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU()))
        ),
    ]


def identities() -> list[Sample]:
    thing, other, items = Loud(), Loud(), [1]
    return [
        Sample(identity(thing), (thing,), (other, None)),
        Sample(thing, (thing,), (other,)),
        Sample(items, (items,), ([1],)),
        Sample(double, (double,), (triple,)),
        Sample(len, (len,), (abs,)),
    ]


SAMPLES: Mapping[str, Callable[[], list[Sample]]] = {
    "TENSOR_MATCH": tensors,
    "EQUALS": constants,
    "TYPE": lambda: [Sample(int, (1, 2), (True, 1.0, IntSubclass(1))), Sample(Loud, (Loud(),), (1, None)), Sample(list, ([],), (ListSubclass(), ()))],
    "ID": identities,
    "NONE": lambda: [Sample(None, (None,), (0, False, Loud()))],
    "HASATTR": lambda: [
        Sample(Presence("real"), (1, 1.0), ("a", None, Loud())),
        Sample(Presence("weight", False), (torch.nn.Linear(1, 1), 1, Loud()), (types.SimpleNamespace(weight=1),)),
        Sample(Presence("bit_length"), (1, int), (str, [])),
    ],
    "DICT_KEYS": lambda: [
        Sample(
            ("a", "b"),
            ({"a": 1, "b": 2}, {"a": Loud(), "b": 0}, OrderedDict(a=1, b=2), OrderedSubclass(a=1, b=2)),
            (OrderedSubclass(b=2, a=1), Reversed(a=1, b=2), {"b": 2, "a": 1}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, ["a", "b"], Loud()),
        ),
        Sample((1, True), (), ({1: 0},)),
        Sample((1,), ({1: 0},), ({True: 0}, {1.0: 0})),
    ],
    "DICT_CONTAINS": lambda: [
        Sample(Presence("a"), ({"a": None}, {"b": 1, "a": 2}), ({}, {"A": 1}, [], Loud())),
        Sample(Presence(3, False), ({}, {"3": 1}), ({3: 1}, 3)),
    ],
    "LENGTH": lambda: [
        Sample(
            2,
            ([1, 2], (1, 2), {"a": 1, "b": 2}, {1, 2}, frozenset({1, 2}), "ab", b"ab", deque([1, 2]), range(2), ListSubclass([1, 2])),
            ([1], (), 2, None, Loud()),
        ),
    ],
    "SET": lambda: [
        Sample(
            frozenset({1, "a", None, b"b"}),
            ({1, "a", None, b"b"}, frozenset({1, "a", None, b"b"})),
            ({1, "a", None}, {True, "a", None, b"b"}, [1, "a", None, b"b"], {1, "a", None, "b"}),
        ),
        Sample(frozenset(), (set(), frozenset()), ({1}, (), Loud())),
        Sample(frozenset({len, int.__add__, "a"}), ({len, int.__add__, "a"},), ({len, int.__sub__, "a"}, {len, "a"}, {abs, int.__add__, "a"})),
    ],
    "SET_ORDER": lambda: [
        Sample((1, 33), ({1, 33}, frozenset([1, 33])), ({33, 1}, {1}, {1, 33, 97}, [1, 33], {True, 33}, None)),
        Sample((), (set(), frozenset()), ({1}, (), Loud())),
        Sample((len,), ({len},), ({abs}, {"len"})),
    ],
    "MATCH": lambda: [
        Sample(Match("an even number", lambda value: isinstance(value, int) and value % 2 == 0), (2, 4, 2), (1, "a", None)),
        Sample(Match("a list that is not empty", lambda value: isinstance(value, list) and bool(value), False), ([1],), ([], 1)),
    ],
    "FUNCTION": functions,
    "MODULE": modules,
    "DUPLICATE_INPUT": list,  # relations between sources and
    "NOT_ALIASED": list,  # the process' state have tests
    "DISJOINT": list,  # of their own in test_relations
    "GLOBAL_STATE": list,  # and test_state
    "FLAG": list,
    "NAMESPACES": list,
    "SHAPE": list,  # tests/dynamic/test_guards
}
