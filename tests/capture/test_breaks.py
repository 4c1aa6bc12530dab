"""Graph breaks: the graph before, the construct as Python, the graph after; and what falls back to Python as a whole."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch

import dynacompile.markers as markers
from dynacompile.capture.breaks import BREAKS
from dynacompile.cpython import RUNNING
from dynacompile.errors import Unsupported
from tests.capture.driver import check, run

LOGGER = logging.getLogger(__name__)


def vector():
    return (torch.arange(4.0),)


@markers.disable
def plain(x):
    return x + 10


@torch.compiler.disable
def torch_plain(x):
    return x + 20


def prints(x):
    y = x + 1
    print("between")
    return y * 2


def prints_twice(x):
    x = x + 1
    print("one")
    x = x * 2
    print("two", 2)
    return x - 1


def asked(x):
    y = x * 2
    markers.graph_break("for a test")
    return y + x


def calls_disabled(x):
    return plain(x * 2) * 3


def calls_torch_disabled(x):
    y = torch_plain(x * 2)
    return y * 3


def item(x):
    n = (x * 2).sum().item()
    return x + n


def branch(x):
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def branch_assigns(x):
    if x.sum() > 0:
        y = x + 1
    else:
        y = x - 1
    return y * 2


def boolean_operator(x):
    y = x + 1
    return (y.sum() > 0) and y or x


def logs(x):
    y = x * 2
    LOGGER.debug("value")
    return y + 1


def warns(x):
    y = x + 1
    with_warning(y)
    return y * 2


def with_warning(y):
    warnings.warn("careful", stacklevel=1)


def callee_breaks(x):
    y = x + 1
    z = prints(y)
    return z + y


def stack_is_kept(x):
    return (x + 1) * noisy(x * 2) + x


def noisy(x):
    print("noise")
    return x


def locals_live(x, k=2):
    a, b, c = x + 1, [x * 2], {"k": k}
    d = b
    print(len(d))
    b.append(a)
    c["x"] = d
    return a, b, c, d


def closure_lives(x):
    n = 1

    def bump():
        nonlocal n
        n += 1
        return n

    bump()
    y = x + n
    print("closure")
    bump()
    return y + n, bump()


def param_in_cell(x, k):
    def add(t):
        return t + k

    y = add(x)
    print("cell")
    k = k + 5
    return add(y)


def fails(x):
    y = x + 1
    return y @ torch.ones(3)


def key_error(x):
    y = x + 1
    return y + {"a": 1}["b"]


def caught(x):
    y = x + 1
    try:
        y = y @ torch.ones(3)
    except RuntimeError:
        y = y * 5
    return y - 1


def loop_breaks(x):
    y = x * 2
    for i in range(3):
        y = y + i
        print(i)
    return y * 3


def zip_loop_breaks(x):
    scales = [x, x * 2]
    for i, (a, b) in enumerate(zip(scales, (1, 2))):
        x = x * a + b
        print(i, b)
    return x - 1, scales


def long_loop_breaks(x):
    x = x + 1
    for i in range(100):
        x = x + i
        print(i)
    return x


def while_breaks(x):
    x = x + 1
    n = 0
    while n < 3:
        print(n)
        n += 1
    return x


def nulls_on_the_stack(x):
    return x * 2 + float((x + 1).sum().item()) * x


def comprehension_breaks(x):
    y = x * 2
    parts = [noisy(y + i) for i in range(2)]
    return parts[0] + parts[1]


def no_grad_block(x):
    w = torch.ones(4, requires_grad=True)
    y = x * w
    with torch.no_grad():
        z = y * 2
        print("inside")
        z = z + 1
    return y, z, torch.is_grad_enabled()


def keyword_call(x):
    y = x + 1
    print("a", end="|\n", sep="-")
    return y


def random_state(x):
    torch.manual_seed(3)
    return x + torch.rand(4)


def mutates_then_breaks(x, items):
    items.append(x + 1)
    print(len(items))
    items.append(x + 2)
    return items[-1]


def iterators_live(x):
    it = iter([1, 2, 3])
    first = next(it)
    pairs = zip([1, 2], "ab")
    next(pairs)
    y = x + first
    print("live")
    return y + next(it), list(pairs), next(it)


def generator_argument(x, g):
    y = x + 1
    for v in g:
        y = y + v
    return y


def method_break(x):
    y = (x + 1).tolist()
    return x * y[1]


def unpack_unknown(x):
    a, b = frozenset_like(x)
    return a + b


def frozenset_like(x):
    print("pair")
    return x, x * 2


def break_before_anything(x):
    print("first")
    return x + 1


def data_dependent_shape(x):
    y = x + 1
    z = torch.nonzero(y)
    return z.sum() + y


def import_inside(x):
    import math  # noqa: PLC0415
    from math import pi  # noqa: PLC0415

    return x * math.floor(pi)


PROGRAMS = [  # function, arguments, graphs, codes of the breaks
    (prints, vector, 2, ["print"]),
    (prints_twice, vector, 3, ["print", "print"]),
    (asked, vector, 2, ["asked"]),
    (calls_disabled, vector, 2, ["disabled"]),
    (calls_torch_disabled, vector, 2, ["disabled"]),
    (item, vector, 1, []),
    (branch, vector, 1, []),
    (branch_assigns, vector, 1, []),
    (boolean_operator, vector, 1, ["data-dependent-branch"]),
    (logs, vector, 1, []),
    (warns, vector, 1, []),
    (callee_breaks, vector, 2, ["print"]),
    (stack_is_kept, vector, 2, ["print"]),
    (locals_live, vector, 1, ["print"]),
    (closure_lives, vector, 2, ["print"]),
    (param_in_cell, lambda: (torch.arange(4.0), 3), 2, ["print"]),
    (fails, vector, 1, ["op-failed"]),
    (key_error, vector, 1, ["would-raise"]),
    (caught, vector, 2, ["op-failed"]),
    (loop_breaks, vector, 4, ["print"] * 3),
    (zip_loop_breaks, vector, 3, ["print"] * 2),
    (long_loop_breaks, vector, 100, ["print"] * 100),  # the driver keeps no entries
    (while_breaks, vector, 1, ["print"]),
    (comprehension_breaks, vector, 2 if RUNNING.name == "3.11" else 3, None),
    (nulls_on_the_stack, vector, 1, []),
    (no_grad_block, vector, 2, ["print"]),
    (keyword_call, vector, 1, ["print"]),
    (random_state, vector, 1, []),
    (mutates_then_breaks, lambda: (torch.arange(4.0), [0]), 2, ["print"]),
    (iterators_live, vector, 2, None),
    (generator_argument, lambda: (torch.arange(4.0), iter({1: 0, 2: 0})), 3, ["unknown-object", "in-loop", "in-loop"]),
    (method_break, vector, 1, []),
    (unpack_unknown, vector, 1, ["print"]),
    (break_before_anything, vector, 1, ["print"]),
    (data_dependent_shape, vector, 2, ["data-dependent-shape"]),
    (import_inside, vector, 1, []),
]


@pytest.mark.parametrize("fn,make,graphs,codes", PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_break(fn, make, graphs, codes, capsys):
    driver = check(make, fn, graphs)
    if codes is not None:
        assert [c.break_.code for c in driver.captured if c.break_] == codes
    halves = capsys.readouterr().out
    assert halves[: len(halves) // 2] == halves[len(halves) // 2 :]


def test_breaks_name_the_place_and_a_hint():
    _, driver = run(callee_breaks, torch.arange(4.0))
    found = driver.captured[0].break_
    assert [s.function for s in found.stack] == ["callee_breaks", "prints"]
    assert "print" in found.reason and found.hint


@pytest.mark.parametrize("fn", [prints, boolean_operator, callee_breaks, long_loop_breaks])
def test_fullgraph_raises_the_break(fn):
    with pytest.raises(Unsupported) as raised:
        run(fn, torch.arange(4.0), fullgraph=True)
    assert raised.value.code in BREAKS and raised.value.site and raised.value.hint


def test_a_loop_of_python_alone_makes_no_graph():
    def only_python(x):
        while x:
            print(x)
            x -= 1
        return x

    got, driver = run(only_python, 3)
    assert got == 0 and driver.graphs == 0 and not driver.skipped


def test_resume_functions_are_shared_by_recompiles():
    _, driver = run(prints, torch.arange(4.0))
    first = driver.captured[0].resumes
    driver(prints, torch.arange(5.0))
    assert driver.captured[2].resumes[0] is first[0]


def test_generators_are_refused_as_frames():
    def numbers(x):
        yield x

    driver = run(lambda: 0)[1]
    assert next(driver(numbers, 3)) == 3
    assert driver.skipped[0].code == "frame-kind"


def test_codes_in_use_are_rows():
    for row in BREAKS.values():
        assert row.reason.format("detail")


def test_what_is_deepspeeds_runs_as_python():
    """Its hooks talk to other processes, and count: followed, they would make an entry for each call."""
    namespace = {"__name__": "deepspeed.runtime.hooks", "calls": []}
    exec("def hook(x):\n    calls.append(len(calls))\n    return x * 2\n", namespace)
    hook = namespace["hook"]
    got, driver = run(lambda x: hook(x + 1) - 1, torch.ones(2))
    assert got.tolist() == [3.0, 3.0] and namespace["calls"] == [0] and driver.graphs == 2
    assert [c.break_.code for c in driver.captured if c.break_ is not None] == ["collective"]
