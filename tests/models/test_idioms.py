"""What model libraries write around their tensors: one graph each."""

import collections
import functools
import math
import typing

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.checking import check

CAPTURE = {"backend": "eager"}
ASKED = []
KINDS = ["full", "sliding", "chunked", "full"]


@functools.lru_cache
def is_available(name):
    ASKED.append(name)
    return len(name) > 2


@functools.lru_cache
def scaled(x):
    return x * 2


class Instantiator(collections.OrderedDict):
    def __getitem__(self, key):
        cls, arguments = super().__getitem__(key)
        return cls(**arguments)


class Output(collections.OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


ACTIVATIONS = Instantiator(relu=(nn.ReLU, {}), leaky=(nn.LeakyReLU, {"negative_slope": 0.2}))


def made_modules(x):
    return nn.Softmax(dim=-1)(nn.MaxPool1d(2, stride=1)(x)), nn.functional.pad(x, (1, 1)).sum() + nn.MSELoss()(x, x * 2)


def cached_function(x):
    return x + 1 if is_available("flash") and not is_available("no") else x - 1


def cached_with_tensor(x):
    return scaled(x) + 1


VALIDATORS = {typing.Union: len, int: abs, made_modules: 3}


def class_keys(x):
    origin = typing.get_origin(int | str)
    found = VALIDATORS.get(typing.Union, None)
    return x * VALIDATORS[int](-3) + len(typing.get_args(int | str)) + (found is len) + (origin in VALIDATORS) + VALIDATORS[made_modules]


def own_getitem(x):
    return ACTIVATIONS["leaky"](x) + ("relu" in ACTIVATIONS)


def output_in(out):
    return out[0] + out["b"] + len(out)


def set_of_strings(x):
    return {kind: x * i for i, kind in enumerate(set(KINDS))}


def dropped_iterator(x, layers):
    class_of = next(iter(layers.named_parameters()))[0]
    return x + len(class_of)


def products(x):
    return x.reshape(math.prod(x.shape[:1]), math.prod([x.shape[1], 1], start=1)) * math.prod([])


CASES = {
    "modules made in the frame": (made_modules, torch.randn(2, 6)),
    "cached function": (cached_function, torch.randn(3)),
    "dict keyed by classes": (class_keys, torch.randn(3)),
    "dict with a __getitem__ of its own": (own_getitem, torch.randn(3)),
    "set of strings": (set_of_strings, torch.randn(3)),
    "dropped generator": (dropped_iterator, torch.randn(3), nn.Linear(2, 2)),
    "products": (products, torch.randn(3, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph(name):
    is_available("flash"), is_available("no")
    check(*CASES[name], options=CAPTURE)


def test_a_cached_function_of_a_tensor_is_left_to_python():
    """It is remembered by the identity of the tensor, which no guard looks up in a cache."""
    check(cached_with_tensor, torch.randn(3), graphs=2, breaks=1, options=CAPTURE)


def test_output_object():
    dynacompile.reset()
    compiled, events = dynacompile.compile(output_in, **CAPTURE), []
    end = dynacompile.subscribe(events.append)
    for size in (2, 2, 5):
        out = Output(a=torch.randn(size), b=torch.randn(size))
        assert torch.equal(compiled(out), output_in(out))
    end()
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]


def test_cached_function_runs_once():
    ASKED.clear()
    is_available.cache_clear()
    check(cached_function, torch.randn(3), options=CAPTURE)
    assert ASKED == ["flash", "no"]


def test_made_module_that_outlives_the_graph():
    """Each call makes its own."""

    def make(x):
        softmax = nn.Softmax(dim=-1)
        return softmax(x), softmax

    (_, first), (_, second) = run_twice(make)
    assert type(first) is nn.Softmax and first.dim == -1 and first is not second


def test_module_made_before_a_break():
    def broken(x):
        softmax = nn.Softmax(dim=-1)
        print(end="")
        return softmax(x)

    check(broken, torch.randn(2, 3), options=CAPTURE, graphs=None, breaks=None)


def run_twice(fn):
    dynacompile.reset()
    compiled, x = dynacompile.compile(fn, **CAPTURE), torch.randn(2, 3)
    return compiled(x), compiled(x)


def test_key_of_a_class_changes():
    table = {int: 2, float: 3}

    def read(x):
        return x * table[int]

    dynacompile.reset()
    compiled, x = dynacompile.compile(read, **CAPTURE), torch.ones(2)
    assert compiled(x).tolist() == [2, 2]
    table[int] = 5
    assert compiled(x).tolist() == [5, 5]
    table[str] = 1
    assert compiled(x).tolist() == [5, 5]


def test_output_object_passed_in():
    """As an encoder's output is passed to each step of a decoder: one entry for all steps."""

    def step(output, x):
        return x + output[0] * len(output) + sum(output.values())

    events = []
    end = dynacompile.subscribe(events.append)
    compiled, output = dynacompile.compile(step, backend="eager", isolate_recompiles=True), Output(a=torch.ones(3), b=torch.zeros(3))
    for _ in range(3):
        assert torch.equal(compiled(output, torch.ones(3)), step(output, torch.ones(3)))
    end()
    assert sum(isinstance(e, Compiled) for e in events) == 1


class Aggregation(nn.Module):
    """As libraries of graphs sum over edges: the number of rows is read from the places, and an error names it."""

    def forward(self, x, places, rows=None):
        if rows is None:
            rows = int(places.max()) + 1 if places.numel() > 0 else 0
        size = x.size()[:0] + (rows,) + x.size()[1:]
        try:
            return x.new_zeros(size).scatter_add_(0, places.view(-1, 1).expand_as(x), x)
        except (IndexError, RuntimeError) as error:
            if rows <= int(places.max()):
                raise ValueError(f"invalid number of rows: {rows}") from error
            raise


def test_sums_over_edges_are_one_graph():
    module, x = Aggregation(), torch.randn(5, 3, requires_grad=True)
    for places in (torch.tensor([0, 1, 2, 1, 0]), torch.tensor([0, 6, 2, 1, 0])):
        check(module, x, places, options=CAPTURE)
        check(module, x, places, kwargs={"rows": 8}, options=CAPTURE)
    compiled = dynacompile.compile(module, isolate_recompiles=True, **CAPTURE)
    for run in (compiled, module):
        with pytest.raises(ValueError, match="invalid number of rows: 1"):
            run(x, torch.tensor([0, 1, 2, 1, 0]), 1)


def test_a_size_joined_with_a_number_that_changes_has_one_entry():
    def joined(x, n):
        return x.new_zeros((n,) + x.size()[1:]) + 1, x.size()[:1] + (n,)

    compiled = dynacompile.compile(joined, isolate_recompiles=True, **CAPTURE)
    for n in (3, 4, 5, 6):
        got, want = compiled(torch.ones(2, 4), n), joined(torch.ones(2, 4), n)
        assert torch.equal(got[0], want[0]) and got[1] == want[1] and type(got[1]) is type(want[1])
    assert len(dynacompile.cache_entries(compiled)) == 2
