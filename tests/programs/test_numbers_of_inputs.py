"""Ints that buffers and arguments hold, where Python needs them: bounds of slices, sizes, loops, indices of lists. Guards tell them, up to a few entries."""

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, GraphBroke
from tests.checking import assert_same, check


class Fields(nn.Module):
    """Normalizes fields of channels, whose places are in buffers, as escnn does."""

    def __init__(self):
        super().__init__()
        for n, place in enumerate(((0, 4), (4, 6))):
            self.register_buffer(f"places_{n}", torch.tensor(place))
            setattr(self, f"norm_{n}", nn.BatchNorm1d(2))

    def forward(self, x):
        out = torch.empty_like(x)
        for n in range(2):
            places, norm = getattr(self, f"places_{n}"), getattr(self, f"norm_{n}")
            part = x[:, places[0] : places[1]].view(len(x), 2, -1)
            out[:, places[0] : places[1]] = norm(part).view(len(x), -1)
        return out


class Sizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sizes", torch.tensor([2, 3], dtype=torch.int32))
        self.weight = nn.Parameter(torch.arange(6.0))

    def forward(self, x):
        return x @ self.weight.reshape(self.sizes[0], self.sizes[1])


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.tensor(3))
        self.layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
        self.register_buffer("order", torch.tensor([1, 0, 1]))

    def forward(self, x):
        for step in range(int(self.count)):
            x = self.layers[self.order[step].item()](x)
        return [x, *self.layers][0] * "ab".count("a")


MODULES = pytest.mark.parametrize(
    "module,x", [(Fields(), torch.randn(3, 6)), (Sizes(), torch.randn(4, 2)), (Steps(), torch.randn(4, 2))], ids=lambda v: type(v).__name__
)


@MODULES
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_numbers_of_buffers(module, x, backend):
    torch.manual_seed(0)
    check(module, x.requires_grad_(), options={"backend": backend}, rtol=1e-5, atol=1e-6)


@MODULES
def test_a_whole_graph_may_be_demanded(module, x):
    check(module, x, options={"backend": "eager", "fullgraph": True})


def test_a_buffer_that_changes_is_another_entry_up_to_a_few():
    module, x, events = Steps(), torch.randn(4, 2), []
    compiled = dynacompile.compile(module, isolate_recompiles=True, backend="eager")
    end, kinds = dynacompile.subscribe(events.append), []
    for count in (3, 2, 3, 1, 0, *2 * (7, 3, 5, 4, 6)):
        module.order = torch.tensor([1, 0, 1, 1, 0, 0, 1])
        module.count.fill_(count)
        before = len(events)
        assert_same("result", compiled(x), module(x), None, None)
        kinds.append({type(e) for e in events[before:] if isinstance(e, (Compiled, GraphBroke))})
    end()
    assert kinds[:5] == [{Compiled}, {Compiled}, set(), {Compiled}, {Compiled}]
    assert GraphBroke in kinds[5]
    assert kinds[-5:] == [set()] * 5


def written_before(x, places):
    places.add_(1)
    return x[places[0] : places[1]] * 2


def of_a_computed_tensor(x, places):
    ends = places.cumsum(0) + 1
    return [x[: ends[0]].view(-1, 1) + 1, x[: int(ends[1])].reshape(-1, 1)]


def of_two_inputs(x, places):
    return x[: places[0] + x.int()[1]].view(-1, 1) + 1


def of_a_float(x, places):
    return x.new_zeros(int(x[1]), 2).view(2, -1) + 1


def raises_outside(x, places):
    return x.view(places[1], places[0])


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("program", [written_before, of_a_computed_tensor, of_two_inputs, of_a_float, raises_outside])
def test_other_numbers_are_as_in_eager(program, backend):
    compiled = dynacompile.compile(program, isolate_recompiles=True, backend=backend)
    for pair in ([1, 3], [2, 4], [1, 3], [0, 2], [1, 1], [2, 2], [1, 4]):
        told = []
        for f in (compiled, program):
            x, places = torch.arange(6.0).requires_grad_(), torch.tensor(pair)
            try:
                result = f(x, places)
                parts = result if isinstance(result, list) else [result]
                sum(part.sum() for part in parts).backward()
            except (RuntimeError, IndexError) as error:
                result = type(error)
            told.append((result, x.grad, places))
        assert_same(f"{pair}", *told, None, None)


def test_one_graph_with_a_symbol_stays_one():
    def program(x, length):
        return x[: length.item()] * 2

    compiled, events = dynacompile.compile(program, isolate_recompiles=True, backend="eager"), []
    end = dynacompile.subscribe(events.append)
    for n in (2, 3, 4, 5, 1):
        assert_same("result", compiled(torch.arange(6.0), torch.tensor(n)), torch.arange(6.0)[:n] * 2, None, None)
    end()
    assert sum(isinstance(e, Compiled) for e in events) <= 2
