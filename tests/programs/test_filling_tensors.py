"""`masked_fill` by a tensor without dimensions whose value the filled type does not hold: eager's error, in every backend."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled
from dynacompile.ir.loops import Extern
from dynacompile.lower import lower
from dynacompile.ops.checks import is_held
from tests.lower.tracing import ENV, trace
from tests.scenarios import attempt

VALUES = [300, -1, -255, -256, -130, 70000, 2**24 + 1, 2**40, 1e10, 1e300, 2.5, float("inf"), -float("inf"), float("nan"), True, 1 + 2j]
MASK = torch.tensor([True, False, True])


def assert_same(have, want):
    torch.testing.assert_close(have, want, rtol=0, atol=0, equal_nan=True)


def filled(x, mask, value):
    return x.masked_fill(mask, value)


@pytest.mark.parametrize("backend", [{"backend": "aot_eager"}, {"options": {"reference": True}}])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.float32, torch.bool, torch.int64], ids=str)
def test_values_of_other_types(backend, dtype):
    compiled = dynacompile.compile(filled, dynamic=False, recompile_limit=100, **backend)
    for value in VALUES:
        of = torch.float64 if value == 1e300 else None
        given = torch.tensor([1, 0, 1]).to(dtype), MASK, torch.tensor(value, dtype=of)
        want, have = attempt(filled, *given), attempt(compiled, *given)
        if isinstance(want, Exception):
            assert (type(have), str(have)) == (type(want), str(want)), value
        else:
            assert_same(have, want)


def test_the_error_comes_within_the_clause_around_it():
    def caught(x, mask, value):
        try:
            return x.masked_fill(mask, value)
        except RuntimeError:
            return x + 1

    compiled = dynacompile.compile(caught, options={"reference": True})
    for value in (7, 300, 8, -300):
        given = torch.tensor([1, 0, 1], dtype=torch.int8), MASK, torch.tensor(value)
        assert_same(compiled(*given), caught(*given))


def test_the_error_comes_where_nothing_uses_the_result():
    def unused(x, mask, value):
        x.masked_fill(mask, value)
        return x + 1

    compiled = dynacompile.compile(unused, options={"reference": True})
    given = torch.tensor([1, 0, 1], dtype=torch.int8), MASK
    assert_same(compiled(*given, torch.tensor(7)), unused(*given, torch.tensor(7)))
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(*given, torch.tensor(300))


def test_what_is_written_after_it_is_not_written():
    def writes(x, mask, value, log):
        y = x.masked_fill(mask, value)
        log.add_(1)
        return y

    compiled = dynacompile.compile(writes, options={"reference": True})
    log = torch.zeros(3)
    compiled(torch.ones(3, dtype=torch.float16), MASK, torch.tensor(2.0), log)
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(torch.ones(3, dtype=torch.float16), MASK, torch.tensor(1e10), log)
    assert log.tolist() == [1, 1, 1]


def test_known_values_are_held_or_not():
    held = [is_held(dtype, torch.float32, value) for dtype in (torch.bfloat16, torch.float16, torch.int8) for value in (float("-inf"), -1e9, -128.0)]
    assert held == [True, True, True, True, False, True, False, False, True]


def test_types_that_hold_each_number_of_another():
    assert is_held(torch.float32, torch.int64) and is_held(torch.int32, torch.int16) and is_held(torch.bool, torch.float64) and is_held(torch.uint8, torch.bool)
    assert not is_held(torch.float16, torch.int32) and not is_held(torch.bfloat16, torch.float32) and not is_held(torch.int64, torch.float32)


def test_one_entry_serves_values_that_fit_and_those_that_do_not():
    seen = []
    end = dynacompile.subscribe(lambda event: seen.append(event) if isinstance(event, Compiled) else None)
    compiled = dynacompile.compile(filled, options={"reference": True})
    for value in (1, 300, 2):
        attempt(compiled, torch.ones(3, dtype=torch.int8), MASK, torch.tensor(value))
    end()
    assert len(seen) == 1


@pytest.mark.parametrize(("known", "calls"), [("torch.tensor(-1e9)", 0), ("torch.full((), -float('inf'))", 0), ("x.float().min()", 1)])
def test_values_that_are_known_need_no_check(known, calls):
    scope = {"torch": torch}
    exec(f"def program(x, mask): return x.masked_fill(mask, {known})", scope)
    steps = lower(trace(scope["program"], [torch.zeros(3, dtype=torch.bfloat16), MASK], decompose=False), ENV).steps
    assert sum(isinstance(step, Extern) and step.op is torch.ops.aten.masked_fill.Tensor for step in steps) == calls
