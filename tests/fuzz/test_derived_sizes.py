"""A slice of the programs over computed sizes; `python -m tests.fuzz.derived_sizes FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.derived_sizes import Program, check_program, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 16, 8))
def test_results_and_gradients(first):
    counts: Counter = Counter()
    for seed in range(first, first + 8):
        check_program(generate(seed), counts)
    assert counts["calls"] > counts["errors"]


@pytest.mark.filterwarnings("ignore")
def test_where_the_int_is_read_from_a_tensor():
    for seed in (100008, 100026, 100064, 100114):
        check_program(generate(seed), Counter(), "aot_eager")


@pytest.mark.filterwarnings("ignore")
def test_where_numbers_are_keys():
    for seed in (200004, 200017, 250003, 250016):
        check_program(generate(seed), Counter())


@pytest.mark.filterwarnings("ignore")
def test_places_that_ints_name():
    for seed in (300003, 300010, 300014, 300017):
        check_program(generate(seed), Counter(), "aot_eager")


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_listed_numbers():
    for seed in (400001, 400005, 400012, 450004, 450009):
        check_program(generate(seed), Counter(), "aot_eager")


def test_programs_are_what_they_were():
    assert generate(7) == generate(7)


X, Y = ((3, 4), (3, 4)), ((2, 4), (5, 4))
FOUND = {
    "sizes of gradients between outputs": ("t = x.cumsum(-1)", "t, torch.maximum(x, t)", (((3, 1, 4), (1,), 1), ((4, 2, 5), (1,), 1))),
    "a reshaped output of an output": ("t = x * 2; u = t.reshape(len(y), -1)", "u - u, u, t", (((5, 6, 6), (4,), 2), ((8, 4, 4), (2,), 1))),
    "a quotient that is 1, as a factory's size": ("n = len(x) // 2", "x.new_ones(n, 4) * x[:n] + y", ((*X, 1), (*Y, 1), ((2, 4), (2, 4), 1))),
    "a quotient that is 1, of what is selected": ("n = len(x) // len(y)", "torch.where(y > 0, x[:n], y) + x[:n]", ((*X, 1), ((4, 4), (3, 4), 1))),
    "a remainder of 0": ("z = x[: len(x) % 2]", "z.softmax(0) * z.sum_to_size(len(z), 1), z.new_ones(z.shape)", (((2, 4), (1, 4), 1), ((3, 4), (3, 4), 1))),
    "strides beyond a tensor": ("t = torch.arange(len(y)) * 1.0", "t.as_strided((k,), (1,)), x * 2", (((2,), (3,), 2), ((2,), (2,), 3), ((2,), (3,), 3))),
    "a count of repetitions that may be negative": ("n = len(y) - min(len(y), k)", "y.sin().repeat(2, n, 1)", (((6,), (8, 6), 4), ((6,), (9, 6), 3))),
    "a norm of nothing": ("t = x.new_full((-(-len(y) // 2) - len(x),), -1.0)", "F.layer_norm(t, t.shape), x + 1", (((2,), (8,), 1), ((4,), (8,), 1))),
    "a product of one element along the dimension": ("t = x.cumprod(-1)", "t.exp(), x.logcumsumexp(1)", (((6, 1), (1, 3), 4), ((5, 1), (1, 3), 4))),
    "no repetitions of a row": ("t = y.repeat_interleave(k, -1)", "t[..., 0:], x + 1", (((1,), (1,), 4), ((8,), (8,), 0))),
    "a square of an int that becomes 0": ("t = torch.zeros(k, k)", "t, x + 1", (((2,), (2,), 4), ((2,), (2,), 0))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["reference", pytest.param("default", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FOUND)
def test_found(name, backend):
    statements, results, calls = FOUND[name]
    check_program(Program(0, f"def program(x, y, k):\n    {statements}\n    return {results},\n", calls, True, False), Counter(), backend)
