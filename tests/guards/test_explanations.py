"""What a user reads when a guard fails."""

from __future__ import annotations

import pytest
import torch

from dynacompile.guards.program import failures
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.guard_facts import Presence, global_state, module_facts, tensor_facts
from dynacompile.ir.source import Attr, DictAttr, Global, Local, Registered

X = Local("x", 0)
SELF = Local("self", 0)


def texts(guard, **values):
    return [f.text for f in failures([guard], values)]


CASES = [
    (Guard("EQUALS", X, 4), 8, ["x: 4 -> 8"]),
    (Guard("EQUALS", X, 1), True, ["x: 1 -> True"]),
    (Guard("EQUALS", X, 0.0), -0.0, ["x: 0.0 -> -0.0"]),
    (Guard("TYPE", X, int), "a", ["type(x): int -> str"]),
    (Guard("NONE", X), 3, ["x: None -> 3"]),
    (Guard("LENGTH", X, 2), [1], ["len(x): 2 -> 1"]),
    (Guard("DICT_KEYS", X, ("a", "b")), {"b": 1, "a": 2}, ["list(x): ('a', 'b') -> ('b', 'a')"]),
    (Guard("DICT_CONTAINS", X, Presence("k")), {}, ["'k' in x: True -> False"]),
    (Guard("HASATTR", X, Presence("real")), "s", ["hasattr(x, 'real'): True -> False"]),
    (Guard("TENSOR_MATCH", X, TensorFacts(torch.Tensor, torch.float32, torch.device("cpu"), False, (4, None), None)), torch.zeros(8, 9), ["x.size(0): 4 -> 8"]),
    (Guard("TENSOR_MATCH", X, tensor_facts(torch.zeros(2))), torch.zeros(2, 2), ["x.dim(): 1 -> 2"]),
    (
        Guard("TENSOR_MATCH", X, tensor_facts(torch.zeros(2))),
        torch.zeros(2, dtype=torch.float64, requires_grad=True),
        ["x.dtype: torch.float32 -> torch.float64", "x.requires_grad: False -> True"],
    ),
]


@pytest.mark.parametrize("guard, value, wanted", CASES, ids=lambda v: v.kind if isinstance(v, Guard) else "")
def test_values(guard, value, wanted):
    assert texts(guard, x=value) == wanted


def test_modules_and_paths():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    guards = [
        Guard("MODULE", SELF, module_facts(module)),
        Guard("TENSOR_MATCH", Registered(Registered(SELF, "_modules", "0"), "_parameters", "bias"), tensor_facts(module[0].bias)),
    ]
    module.eval()
    module[0].bias.requires_grad_(False)
    module.register_forward_hook(lambda *a: None)
    assert [f.text for f in failures(guards, {"self": module})] == [
        "self.training: True -> False",
        "len(self._forward_hooks): 0 -> 1",
        "self[0].bias.requires_grad: True -> False",
    ]


def test_attributes_and_globals():
    class Box:
        pass

    box = Box()
    box.n = 2
    assert texts(Guard("EQUALS", DictAttr(Global("box"), "n"), 1), box=box) == ["box.n: 1 -> 2"]
    assert texts(Guard("EQUALS", Attr(Global("box"), "gone"), 1), box=box) == ["box.gone: present -> missing"]


def test_state():
    guard = Guard("GLOBAL_STATE", None, global_state())
    with torch.no_grad():
        assert [f.text for f in failures([guard], {})] == ["grad mode: on -> off"]
    with torch.autocast("cpu", torch.bfloat16):
        assert [f.text for f in failures([guard], {})] == ["autocast on cpu: off -> torch.bfloat16"]
