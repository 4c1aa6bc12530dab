"""Input that is unusual: each has a clear outcome, a whole graph, a named break, a skipped frame or an error that says what to do."""

from __future__ import annotations

import asyncio
import builtins
import datetime
import decimal
import functools
import io
import operator
import re
import sys
import threading

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.checking import check


def arg():
    return torch.linspace(-2, 3, 4)


def compiled(fn, **options):
    dynacompile.reset()
    return dynacompile.compile(fn, backend="eager", isolate_recompiles=True, options={"fallback": "none"}, **options)


def outcome(fn, *args):
    """Result, codes of breaks, reasons of skipped frames, ops of each graph."""
    call = compiled(fn)
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        result = call(*args)
    finally:
        end()
    breaks = [e.code for e in events if isinstance(e, GraphBroke)]
    skips = [e.reason for e in events if isinstance(e, FrameSkipped)]
    return result, breaks, skips, [e.ops for e in events if isinstance(e, Compiled)]


def made(source, name, **table):
    exec(source, table)
    return table[name]


def test_thousands_of_operations():
    fn = made("def many(x):\n" + "".join(f"    x = x + {i}\n" for i in range(1500)) + "    return x\n", "many")
    result, breaks, skips, ops = outcome(fn, arg())
    assert torch.equal(result, fn(arg())) and (breaks, skips, ops) == ([], [], [1500])


def test_hundreds_of_variables():
    lines = "".join(f"    v{i} = x + {i}\n" for i in range(300))
    fn = made(f"def wide(x):\n{lines}    return {' + '.join(f'v{i}' for i in range(300))}\n", "wide")
    result, breaks, skips, ops = outcome(fn, arg())
    assert torch.equal(result, fn(arg())) and (breaks, skips, ops) == ([], [], [599])


def long_loop(x):
    for _ in range(20_000):
        x = x
    return x + 1


def counted(x, n):
    return x if n == 0 else counted(x + 1, n - 1)


def endless(x):
    return endless(x + 1)


def test_loops_and_recursion():
    assert outcome(long_loop, arg())[1:] == ([], [], [1])
    assert outcome(counted, arg(), 10)[1:] == ([], [], [10])
    result, breaks, _, _ = outcome(counted, arg(), 130)
    assert torch.equal(result, counted(arg(), 130)) and set(breaks) == {"too-deep"}


def test_endless_recursion_is_pythons_error():
    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        compiled(endless)(arg())
    assert sys.getrecursionlimit() == limit


def test_functions_without_a_source():
    check(eval("lambda x: x * 2"), arg(), options={"backend": "eager"})
    fn = made("def nofile(x):\n    y = x + 1\n    print(end='')\n    return y * q\n", "nofile", q=3)
    result, breaks, skips, _ = outcome(fn, arg())
    assert torch.equal(result, (arg() + 1) * 3) and breaks[0] == "print"  # what stands for stdout may be compiled, too
    with pytest.raises(dynacompile.exc.Unsupported, match="<string>:3"):
        compiled(fn, fullgraph=True)(arg())


NOT_CALLED = {"number": 3, "list": [1], "string": "len"}


@pytest.mark.parametrize("target", NOT_CALLED.values(), ids=NOT_CALLED)
def test_what_is_not_called_is_refused(target):
    with pytest.raises(dynacompile.exc.ConfigError, match="takes what can be called"):
        dynacompile.compile(target)


CALLED = {"len": (len, 1), "torch.add": (torch.add, 2), "operator.add": (operator.add, 2), "partial": (functools.partial(torch.add, 1), 1)}


@pytest.mark.parametrize("target,arguments", CALLED.values(), ids=CALLED)
def test_what_is_called_without_a_python_frame_is_compiled(target, arguments):
    given = [arg() for _ in range(arguments)]
    call = compiled(target, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(call(*given), target(*given))


def first(x):
    return x + 1


def second(x):
    return x * 10


def calls_first(x):
    return first(x)


def test_code_replaced_later():
    call, inner = compiled(calls_first), first.__code__
    try:
        assert torch.equal(call(arg()), arg() + 1)
        first.__code__ = second.__code__
        assert torch.equal(call(arg()), arg() * 10)
        assert torch.equal(compiled(first)(arg()), arg() * 10)
    finally:
        first.__code__ = inner
    assert torch.equal(call(arg()), arg() + 1)


def generates(x):
    yield x + 1
    yield x + 2


async def awaits(x):
    return x + 1


def test_generators_and_coroutines_run_as_python():
    assert [t.tolist() for t in compiled(generates)(arg())] == [t.tolist() for t in generates(arg())]
    assert torch.equal(asyncio.run(compiled(awaits)(arg())), arg() + 1)


def carries(x, thing):
    return x + 1, thing, type(thing).__name__, thing is None


THINGS = (re.compile("a"), threading.Lock(), io.StringIO(), datetime.date(2024, 2, 3), decimal.Decimal("1.5"), bytearray(b"x"), iter([1]), object())


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: type(thing).__name__)
def test_unknown_objects_are_handed_through(thing):
    result, breaks, skips, ops = outcome(carries, arg(), thing)
    assert result[1] is thing and result[2:] == (type(thing).__name__, False) and (breaks, skips, ops) == ([], [], [1])


def uses_decimal(x, d):
    return x * float(d) + x


def uses_pattern(x, p):
    return x + len(p.sub("b", "aaa"))


def uses_stream(x, stream):
    return x * len(stream.getvalue()) + x


def uses_lock(x, lock):
    return x * lock.acquire(blocking=False) + x


@pytest.mark.parametrize("fn, thing", [(uses_stream, io.StringIO("text")), (uses_lock, threading.RLock())])
def test_unknown_objects_break_where_they_are_used(fn, thing):
    result, breaks, skips, _ = outcome(fn, arg(), thing)
    assert torch.equal(result, fn(arg(), thing)) and breaks and not skips


@pytest.mark.parametrize("fn, thing", [(uses_decimal, THINGS[4]), (uses_pattern, THINGS[0])])
def test_immutable_objects_are_constants(fn, thing):
    result, breaks, skips, ops = outcome(fn, arg(), thing)
    assert torch.equal(result, fn(arg(), thing)) and (breaks, skips) == ([], []) and len(ops) == 1


def cyclic(x):
    items = [x]
    items.append(items)
    return items


def deep(x):
    for _ in range(3000):
        x = [x]
    return x


def test_objects_that_cannot_be_made_again_leave_the_frame_to_python():
    result, _, skips, _ = outcome(cyclic, arg())
    assert result[1] is result and "rebuild" in skips[0]
    result, _, skips, _ = outcome(deep, arg())
    for _ in range(3000):
        (result,) = result
    assert torch.equal(result, arg()) and "rebuild" in skips[0]


def reads_locals(x):
    y = x + 1
    return sorted(locals()), y


def reads_locals_after_a_break(x):
    y = x + 1
    print(end="")
    z = 3
    return sorted(locals()), y * z


def evaluates(x):
    z = 4
    return x + eval("z + 1") + z


def evaluates_by_module(x):
    z = 4
    return x + builtins.eval("z + 1") + z


def evaluates_by_an_imported_module(x):
    import builtins as known  # noqa: PLC0415

    z = 4  # noqa: F841
    print(end="")
    return x + known.eval("z + 1")


def validates(x):
    """A method of that name looks at no variables."""
    model = MODEL.train()
    y = model(x) + 1
    print(end="")
    z = MODEL.eval()(x)
    print(end="")
    return y * z, model.training


MODEL = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.0))


def test_a_method_called_eval_leaves_no_frame_to_python():
    x = torch.ones(2, 3)
    result, _, skips, _ = outcome(validates, x)
    torch.testing.assert_close(result, validates(x))
    assert not skips


@pytest.mark.parametrize("fn", [reads_locals, reads_locals_after_a_break, evaluates, evaluates_by_module, evaluates_by_an_imported_module])
def test_frames_that_read_their_variables_run_as_python(fn):
    result, _, skips, _ = outcome(fn, arg())
    want = fn(arg())
    assert result[0] == want[0] if isinstance(want, tuple) else torch.equal(result, want)
    assert "frame-variables" in skips[0]
