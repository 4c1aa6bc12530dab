"""A slice of tests/guards/flips.py: one fact changes between calls, and compiled functions follow as eager ones do."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.guards.flips import fuzz


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_flips(seed):
    report = fuzz(100, seed)
    assert not report.misses, "\n".join(report.misses)
    assert report.flips >= 100 and sum(report.needless.values()) <= 1, report.needless


class IntSubclass(int):
    pass


class TextSubclass(str):
    pass


@pytest.mark.parametrize("text", ["n == 1", "1 == n", "n != 1", "n in (1, 2)", "s == 'a'", "s in ('a', 'b')"])
def test_subclasses_of_int_and_str_compare_by_value(text):
    namespace = {"n": IntSubclass(1), "s": TextSubclass("a")}
    exec(f"def fn(x):\n    return x * 2 if {text} else x * 3\n", namespace)
    x = torch.ones(2)
    run = dynacompile.compile(namespace["fn"], backend="eager", isolate_recompiles=True, fallback="none")
    assert torch.equal(run(x), namespace["fn"](x))
