"""Recurrent layers over each other under symbolic sizes, where torch's own rules leave out the dropout between them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import dynacompile
from tests.checking import check

LAYERS = {
    "gru": lambda: nn.GRU(3, 4, 2, dropout=0.4),
    "gru both ways, batch first": lambda: nn.GRU(3, 4, 3, dropout=0.4, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(3, 4, 2, dropout=0.4, bias=False),
    "relu": lambda: nn.RNN(3, 4, 2, dropout=0.4, nonlinearity="relu", batch_first=True),
    "lstm": lambda: nn.LSTM(3, 4, 2, dropout=0.4),
    "lstm with projections": lambda: nn.LSTM(3, 4, 2, dropout=0.4, proj_size=2, bidirectional=True),
    "no dropout": lambda: nn.GRU(3, 4, 2),
    "one lstm": lambda: nn.LSTM(3, 4),
    "lstm both ways, batch first": lambda: nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", LAYERS)
def test_draws_results_and_gradients(name, backend):
    layer = LAYERS[name]()
    check(layer, torch.randn(3, 2, 3, requires_grad=True), options={"backend": backend, "dynamic": True}, graphs=None, breaks=None)
    layer.eval()
    check(layer, torch.randn(3, 2, 3, requires_grad=True), options={"backend": backend, "dynamic": True}, graphs=None, breaks=None)


@pytest.mark.parametrize("backend", ["aot_eager", None])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("both_ways", [False, True])
def test_lstms_of_bfloat16_without_gradients(both_ways, bias, backend):
    """Eager takes the CPU's fused layer where the CPU has instructions for it."""
    layer = nn.LSTM(3, 4, 2, bias=bias, bidirectional=both_ways).bfloat16()
    compiled = dynacompile.compile(layer, dynamic=True, **({} if backend is None else {"backend": backend}))
    x = torch.randn(3, 2, 3).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_last_states_have_eagers_shape_at_each_batch(batch):
    layer = nn.LSTM(3, 4)

    def fn(x):
        y, (hidden, cell) = layer(x * 2)
        return y, hidden, cell, hidden.shape, cell.dim()

    compiled = dynacompile.compile(fn, dynamic=True, backend="aot_eager")
    for size in (2, batch):
        x = torch.randn(5, size, 3, requires_grad=True)
        got, want = compiled(x), fn(x)
        torch.testing.assert_close(got[:3], want[:3])
        assert got[3:] == want[3:]


def test_packed_sequences():
    layer, data, sizes = nn.GRU(3, 4, 2, dropout=0.4), torch.randn(5, 3), torch.tensor([2, 2, 1])

    def fn(data):
        return layer(PackedSequence(data * 2, sizes))[0].data

    torch.manual_seed(0)
    want = fn(data)
    torch.manual_seed(0)
    torch.testing.assert_close(dynacompile.compile(fn, dynamic=True, backend="eager")(data), want)
