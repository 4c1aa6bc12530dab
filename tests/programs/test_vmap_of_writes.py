"""torch.func.vmap of functions that write their arguments."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

import dynacompile
from tests.checking import check


def adds(y, x):
    return vmap(lambda a, b: a.add_(b))(y, x), y


def sums_of_columns(y, x):
    return vmap(lambda a, b: a.add_(b).sum(), in_dims=(1, 1))(y, x), y


def first_of_each_column(y, x):
    return vmap(lambda a, b: a[0].add_(b[0]), in_dims=(1, 1))(y, x), y


def of_the_frame(y, x):
    z = y * 2
    return vmap(lambda a, b: a.mul_(b).sum())(z, x), z


def with_history(y, x):
    z = x * 2
    return vmap(lambda a, b: a.mul_(b).sum())(z, x), z


def within_another(y, x):
    return vmap(vmap(lambda a, b: a.add_(b)))(y, x), y


def by_stride(y, x):
    def write(a, b):
        if a.stride() == (3,):
            a.add_(b)
        return a * 2

    return vmap(write, in_dims=(1, 1))(y, x), y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("fn", [adds, sums_of_columns, first_of_each_column, of_the_frame, with_history, within_another, by_stride])
def test_vmap_of_a_function_that_writes_its_arguments(fn, backend):
    compiled = dynacompile.compile(fn, fullgraph=True, backend=backend, isolate_recompiles=True)
    for requires_grad in (False, True):
        x = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad and fn is with_history)
        y = torch.ones(2, 3)
        ours, eagers = y.clone(), y.clone()
        got, want = compiled(ours, x), fn(eagers, x)
        assert [part is ours for part in got] == [part is eagers for part in want] and ours._version == eagers._version
        assert [part.stride() for part in got] == [part.stride() for part in want] and torch.equal(ours, eagers)
        torch.testing.assert_close(got, want)
        if want[0].requires_grad:
            (got_x,), (want_x,) = (torch.autograd.grad(out[0].sum() + out[1].sum(), [x]) for out in (got, want))
            torch.testing.assert_close(got_x, want_x)


def test_what_else_vmap_may_write_is_left_to_python():
    def run(y):
        t = y * 2

        def write(a):
            t.add_(1)
            return a + t[0]

        return vmap(write)(y), t

    check(run, torch.ones(2, 3), graphs=None, breaks=None)
