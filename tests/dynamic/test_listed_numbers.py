"""Tensors made of lists of Python's numbers, of which some vary: one entry serves all calls, after the first."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch

import dynacompile
from tests.dynamic.varying import check_varying

Step = namedtuple("Step", "action reward done")
X = torch.arange(40.0)
LISTS = [([i * 7 % 5, i + 3, i * 3 % 4],) for i in range(7)]
FLAGS = [([i % 2 == 0, i % 3 == 0, i % 5 == 1],) for i in range(7)]
SPECIAL = (math.nan, math.inf, -0.0, 1.5)


def batch(i):
    return ([Step(i * k % 2, i * 0.1 * k, (i + k) % 3 == 0) for k in range(4)],)


def targets(steps):
    actions, done = torch.tensor([s.action for s in steps]), torch.tensor([s.done for s in steps], dtype=torch.float)
    return actions.unsqueeze(1) * torch.tensor([s.reward for s in steps]) + done


def stored(x, places):
    x[:, places] = 5.0
    return x


def appended(numbers, x):
    numbers.append(x.shape[0])
    return torch.tensor(numbers) * 2


PROGRAMS = {
    "ints": (lambda ns: torch.tensor(ns) * 2, LISTS),
    "bools": (lambda ns: torch.tensor(ns).float() + 1, FLAGS),
    "floats": (lambda ns: torch.tensor(ns) * 2, [([i * 0.5, i + 0.3, i / 7],) for i in range(7)]),
    "kinds in one list": (lambda ns: torch.tensor(ns) * 2, [([i, i + 0.3, i % 2 == 0],) for i in range(7)]),
    "lists of lists": (lambda ns: torch.tensor(ns) * 2, [([[i, i * 3 % 7], [i + 2, i * 5 % 3]],) for i in range(7)]),
    "attributes of items": (targets, [batch(i) for i in range(7)]),
    "arguments": (lambda a, b: torch.tensor([a, b]) * 2, [(i % 3, i * 5 % 7) for i in range(1, 7)]),
    "what is computed": (lambda a, b: torch.tensor([a + 1, b * a]) * 2, [(i % 3, i * 5 % 7) for i in range(1, 7)]),
    "sizes": (lambda x: (torch.tensor(x.shape) * 2, torch.tensor([x.size(0) * 0.5, 1])), [(torch.ones(2 + i, 3),) for i in range(6)]),
    "of a type": (lambda ns: torch.as_tensor(ns, dtype=torch.float32) * 2, LISTS),
    "32 bits": (lambda ns: torch.tensor(ns, dtype=torch.int32) * 2, LISTS),
    "of a type of Python's": (lambda ns: (torch.tensor(ns, dtype=int), torch.tensor(ns, dtype=float), torch.tensor(ns, dtype=bool)), LISTS),
    "LongTensor": (lambda ns: torch.LongTensor(ns) * 2, LISTS),
    "new_tensor": (lambda ns: X.new_tensor(ns) * X[:3], LISTS),
    "written": (lambda ns: torch.tensor(ns).mul_(2).add_(1), LISTS),
    "values of a dict": (lambda d: torch.tensor(list(d.values())) * 2, [({"a": i, "b": i % 2, "c": i * 5 % 3},) for i in range(6)]),
    "a list that the frame changes": (appended, [([i, i + 2], torch.ones(2 + i)) for i in range(6)]),
    "subscripts": (lambda ns: (X[ns], X.view(2, 20)[:, ns], X.view(2, 20)[[0, 1, 1], ns]), LISTS),
    "stored at subscripts": (lambda ns: stored(torch.zeros(2, 9), ns), LISTS),
    "read from tensors": (lambda x, a: torch.tensor([[x.mean().item(), a], [1, x.shape[0]]]) * 2, [(torch.arange(3.0 + i), i * 0.5) for i in range(1, 6)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_entries(name):
    fn, calls = PROGRAMS[name]
    check_varying(fn, calls, 2)


@pytest.mark.parametrize("name", ["attributes of items", "what is computed", "read from tensors"])
def test_with_kernels(name):
    fn, calls = PROGRAMS[name]
    check_varying(fn, calls[:3], 2, backend="default")


def test_special_numbers():
    """NaN, the infinities, and the sign of zero."""
    check_varying(lambda ns: 1 / torch.tensor(ns), [([1.0, 2.0],), ([0.5, 3.0],), *(([a, b],) for a in SPECIAL for b in SPECIAL)], 2)


def test_what_does_not_vary_is_a_constant():
    compiled = dynacompile.compile(lambda x, ns: x * torch.tensor(ns), isolate_recompiles=True, backend="eager")
    for n in range(2, 6):
        assert torch.equal(compiled(torch.ones(n, 2), [0.5, 0.25]), torch.tensor([[0.5, 0.25]]).expand(n, 2))
    assert len(dynacompile.cache_entries(compiled)) == 2


def test_numbers_out_of_range_raise_as_in_eager():
    compiled = dynacompile.compile(lambda ns: torch.tensor(ns, dtype=torch.int8) + 1, isolate_recompiles=True, backend="eager")
    assert compiled([1, 2]).tolist() == [2, 3]
    assert compiled([3, 4]).tolist() == [4, 5]
    with pytest.raises(RuntimeError, match="cannot be converted to type int8"):
        compiled([3, 300])
    compiled = dynacompile.compile(lambda ns: torch.tensor(ns) + 1, isolate_recompiles=True, backend="eager")
    for numbers in ([1, 2], [2, 3], [2**40, 3]):
        assert compiled(numbers).tolist() == [n + 1 for n in numbers]
    with pytest.raises((RuntimeError, ValueError), match="[Oo]verflow"):
        compiled([2**70, 3])


@pytest.mark.parametrize("numbers", [lambda a: [2**70, a], lambda a: [a * a * a, 1]], ids=["a constant", "a product"])
def test_what_comes_before_an_int_that_is_too_large_has_happened(numbers):
    def counted(state, a):
        state["calls"] += 1
        return torch.tensor(numbers(a))

    compiled, ours, eagers = dynacompile.compile(counted, isolate_recompiles=True, backend="eager"), {"calls": 0}, {"calls": 0}
    for a in (2, 3, 2**30, 5):
        for call, state in ((compiled, ours), (counted, eagers)):
            try:
                call(state, a)
            except (RuntimeError, ValueError, OverflowError) as error:
                state["error"] = type(error), str(error)
        assert ours == eagers


def test_a_bool_is_guarded_where_it_is_read():
    def program(x, flag, other):
        told = torch.tensor([flag, other])
        return (x + 1 if flag else x - 1), told

    calls = [(torch.ones(2), a, b) for a in (True, False) for b in (True, False, True)]
    check_varying(program, calls, 3)


def test_draws_from_a_generator_with_dynamic_sizes():
    """What residual code makes has constant sizes, whatever is asked of inputs."""

    def program(x, generator):
        return torch.rand(3, 4, generator=generator) + x.sum()

    compiled = dynacompile.compile(program, isolate_recompiles=True, dynamic=True)
    ours, eagers = (torch.Generator().manual_seed(3) for _ in range(2))
    for n in (5, 6):
        torch.testing.assert_close(compiled(torch.ones(n), ours), program(torch.ones(n), eagers))
