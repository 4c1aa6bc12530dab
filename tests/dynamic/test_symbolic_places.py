"""Tensors that are read and written at places that symbolic ints name: one entry serves all places, as the rows of a ring buffer."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from tests.checking import assert_same
from tests.dynamic.varying import check_varying

PLACES = (2, 3, 5, 4)
READS = {
    "row": lambda x, i: x[i] * 2,
    "negative": lambda x, i: x[-i] * 2,
    "column": lambda x, i: x[:, i % 3].exp(),
    "two ints": lambda x, i: x[i, i % 3] + 1,
    "a known int": lambda x, i: x[i, -1] + x[0, i % 3],
    "a new dimension": lambda x, i: x[None, i, None, 1:].sin(),
    "the last dimensions": lambda x, i: x[..., i % 3] + x[i, ...].sum(),
    "a slice": lambda x, i: x[i, i % 2 :: 2].sum() + x[i - 1 : i + 1].sum(),
    "a view": lambda x, i: x[i],
}
WRITES = {
    "row": lambda x, v, i: x.__setitem__(i, v),
    "one element": lambda x, v, i: x.__setitem__((i, 1), 3.0),
    "column": lambda x, v, i: x.__setitem__((slice(None), i % 3), v[0]),
    "rows before": lambda x, v, i: x.__setitem__((slice(None, i), i % 3), v[1]),
    "leading ones": lambda x, v, i: x.__setitem__(i, v[None, None]),
    "from itself": lambda x, v, i: x.__setitem__(i, x[i - 1]),
    "in place": lambda x, v, i: x[i].mul_(v),
    "another type": lambda x, v, i: x.__setitem__((..., i, slice(None)), v.double()),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_reads(name, backend):
    check_varying(READS[name], [(torch.randn(6, 4, requires_grad=True), i) for i in PLACES], entries=2, backend=backend)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_writes(name, backend):
    def fn(x, v, i):
        y = x * 2
        WRITES[name](y, v, i)
        WRITES[name](x.detach(), v.detach(), i)
        return y

    calls = [(torch.randn(6, 4, requires_grad=True), torch.randn(4, requires_grad=True), i) for i in PLACES]
    check_varying(fn, calls, entries=2, backend=backend)


def test_a_ring_buffer_that_counts_its_place():
    class Ring(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(4, 3))
            self.place = 0

        def forward(self, x):
            self.rows[self.place] = x
            self.place = (self.place + 1) % 4
            return self.rows.sum(0) + self.rows[self.place]

    ours, eagers, events = Ring(), Ring(), []
    compiled = dynacompile.compile(ours, backend="eager", isolate_recompiles=True)
    end = dynacompile.subscribe(lambda e: events.append(e) if isinstance(e, dynacompile.events.Compiled) else None)
    for x in torch.randn(10, 3):
        assert torch.equal(compiled(x), eagers(x)) and torch.equal(ours.rows, eagers.rows) and ours.place == eagers.place
    end()
    assert len(events) == 1


OUTSIDE = {
    "subscript": lambda x, i: x[i] * 2,
    "select": lambda x, i: torch.select(x, 0, i) * 2,
    "a method, the other dimension": lambda x, i: x.select(-1, i - 2) * 2 if i > 0 else x.select(-1, i + 2) * 2,
    "select_scatter": lambda x, i: torch.select_scatter(x, x[0], 0, i) * 2,
    "a write": lambda x, i: x.clone().__setitem__(i, 1.0),
}


@pytest.mark.parametrize("varies", [True, False], ids=["symbols", "constants"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_is_read_or_written_outside(name, varies):
    """Kernels look at no place again."""
    fn, x = OUTSIDE[name], torch.randn(4, 2)
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=varies, options={"reference": True})
    for i in (2, 3, -4):
        assert_same("result", compiled(x, i), fn(x, i), None, None)
    for i in (4, -5, 100):
        for call in (fn, compiled):
            with pytest.raises(IndexError):
                call(x, i)


def test_a_place_outside_is_an_error_as_in_eager():
    compiled = dynacompile.compile(lambda x, i: x[i], backend="eager", isolate_recompiles=True, dynamic=True)
    x = torch.randn(4, 2)
    assert torch.equal(compiled(x, 3), x[3]) and torch.equal(compiled(x, -4), x[-4])
    for i in (4, -5):
        with pytest.raises(IndexError, match=f"index {i} is out of bounds for dimension 0 with size 4"):
            compiled(x, i)
    with pytest.raises((IndexError, Unsupported), match="out of"):
        dynacompile.compile(lambda x, i: x[i], backend="eager", dynamic=True, fullgraph=True)(x, 7)
