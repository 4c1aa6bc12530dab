"""Tensors that are read and written at places that other tensors hold: queues of keys, banks of memory, pointers that go round."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, GraphBroke
from tests.scenarios import check_same


class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("queue", torch.zeros(3, 8))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def enqueue(self, keys):
        raise NotImplementedError

    def forward(self, x):
        y = x * 2
        self.enqueue(y.detach())
        return y @ self.queue


class Slices(Queue):
    """As momentum contrast keeps its keys."""

    @torch.no_grad()
    def enqueue(self, keys):
        count = keys.shape[0]
        place = int(self.place)
        assert self.queue.shape[1] % count == 0
        self.queue[:, place : place + count] = keys.T
        self.place[0] = (place + count) % self.queue.shape[1]


class Columns(Queue):
    def enqueue(self, keys):
        place = self.place.item()
        self.queue[:, place] = keys[0]
        self.queue[1, place] = 5.0
        self.place[0] = (place + 1) % 8


class Reads(Queue):
    def enqueue(self, keys):
        place = int(self.place)
        self.queue[0, place] = keys[0].sum()
        self.read = self.queue[1, place] + self.queue[:, -place - 1].sum() + self.queue[None, 0, place]
        self.queue[1, place] = self.read
        self.place += 3
        self.place %= 8


class Several(Queue):
    """At a place and at several others, which gives a copy."""

    def enqueue(self, keys):
        place, rows = int(self.place), torch.tensor([0, 2])
        self.queue[rows, place] = keys[0, :2]
        self.read = self.queue[rows, place].sum() + self.queue[1:, place].sum() + self.queue[rows, place].shape[0]
        self.queue[0, place] = self.read
        self.place[0] = (place + 3) % 8


class Backwards(Queue):
    """Places before zero, and quotients of them."""

    def enqueue(self, keys):
        place = int(self.place) - 3
        self.queue[:, place % 8] = keys[0]
        self.queue[:, place] = keys[1]
        self.queue[0, place // 2] = 1.0
        self.place[0] = (place + 4) % 5


class Beyond(Queue):
    """At its end, a slice is shorter, and an index is none."""

    def enqueue(self, keys):
        place = int(self.place)
        self.queue[:, place : place + 1] = 3.0
        if self.queue.shape[1] == 8:
            self.queue[:, place] = keys[0]
        self.place += 4


def outcome(module, x):
    try:
        return module(x)
    except (IndexError, RuntimeError) as error:
        return type(error).__name__, str(error)[:40]


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("cls", [Slices, Columns, Reads, Several, Backwards, Beyond])
def test_queues(cls, backend, fullgraph):
    if fullgraph and cls in (Reads, Several) and backend != "eager":
        pytest.skip("a view of what the graph writes is an input of a part of the graph, which is refused by name")
    torch.manual_seed(0)
    eager, ours = cls(), cls()
    compiled = dynacompile.compile(ours, backend=backend, fullgraph=fullgraph, isolate_recompiles=True, inplace=False)
    for _ in range(5):
        x = torch.randn(2, 3, requires_grad=True)
        want, got = outcome(eager, x), outcome(compiled, x)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))
        else:
            assert got == want
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))


def test_a_queue_is_one_graph_without_a_break():
    events = []
    end = dynacompile.subscribe(events.append)
    module = dynacompile.compile(Slices(), isolate_recompiles=True)
    for _ in range(5):
        module(torch.randn(2, 3))
    end()
    assert not [e for e in events if isinstance(e, GraphBroke)] and len([e for e in events if isinstance(e, Compiled) and e.ops]) == 1


def with_history(bank, place, x):
    kept = bank * 1
    kept[int(place)] = x * 2
    kept[int(place) :] = x.sum()
    return kept.sum(0)


def of_a_leaf(bank, place, x):
    bank[int(place)] = x
    return bank * 2


@pytest.mark.parametrize("fn", [with_history, of_a_leaf])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_gradients_go_through_what_is_written(fn, backend):
    def story(wrap):
        run = wrap(fn)
        for place in (0, 2, 3):
            x, bank = torch.ones(3, requires_grad=True), torch.arange(12.0).reshape(4, 3).requires_grad_(fn is with_history)
            out = run(bank, torch.tensor(place), x)
            out.sum().backward()
            yield out, x.grad, bank.is_leaf and bank.grad

    check_same(story, backend=backend, least=None)
