"""Mutation, aliasing, side effects on Python objects, grad modes, random numbers, exceptions."""

import pytest
import torch

import dynacompile
from tests.checking import check


def inplace_input(x):
    x.add_(1)
    return x * 2


def inplace_view(x):
    x[0].mul_(3)
    x[:, 1] = 7.0
    return x.sum()


def inplace_intermediate(x):
    y = x + 1
    y.mul_(2)
    y[0] = 0
    return y


def returns_input(x):
    return x, x + 1


def returns_view(x):
    return x.view(-1), x.t(), x[1:3]


def returns_same_twice(x):
    y = x + 1
    return y, y, y.view(-1)


def no_grad(x):
    with torch.no_grad():
        y = x * 2
    return x + y, y


def no_grad_decorated(x):
    @torch.no_grad()
    def inner(t):
        return t * 2

    return inner(x) + x


def enable_grad_inside(x):
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 3
        z = y * 2
    return y + z


def detach(x):
    return x.detach() * x, x.detach()


def append_to_argument(items, x):
    items.append(x + 1)
    items[0] = x * 2
    return x


def dict_argument(table, x):
    table["new"] = x * 2
    del table["old"]
    return table["keep"] + x


class Box:
    def __init__(self):
        self.value, self.count = None, 0

    def put(self, x):
        self.value = x
        self.count += 1


def attribute_of_object(x):
    box = Box()
    box.put(x * 2)
    box.put(box.value + 1)
    return box.value * box.count


def noise(x):
    return x + torch.rand_like(x) * torch.rand(x.shape[1], device=x.device)


def dropout(x):
    return torch.nn.functional.dropout(x, 0.3, training=True)


def fails(x):
    return x @ x


def raises(x):
    if x.shape[0] != 4:
        raise ValueError(f"expected 4 rows, got {x.shape[0]}")
    return x


def out_of_range(x):
    return [x][3]


def integers_out(x, n):
    return x * n, n + 1, None, "text", 2.5


def unused_input(x, y):
    return x + 1


def same_tensor_twice(x, y):
    return x * y + x


def arg():
    return torch.linspace(-2, 2, 48).reshape(6, 8)


@pytest.mark.parametrize("fn", [inplace_input, inplace_view, noise])
def test_without_gradients(fn):
    check(fn, arg())


@pytest.mark.parametrize(
    "fn",
    [
        inplace_intermediate,
        returns_input,
        returns_view,
        returns_same_twice,
        no_grad,
        no_grad_decorated,
        enable_grad_inside,
        detach,
        attribute_of_object,
        dropout,
    ],
)
def test_with_gradients(fn):
    check(fn, arg().requires_grad_())


def test_mutates_a_list():
    check(append_to_argument, [torch.zeros(2)], arg(), calls=1)


def test_mutates_a_dict():
    check(dict_argument, {"keep": arg(), "old": 3}, arg(), calls=1)


@pytest.mark.parametrize("fn", [fails, raises, out_of_range])
def test_raises_as_eager_does(fn):
    check(fn, arg(), graphs=None, breaks=None)


def test_constants_out():
    check(integers_out, arg(), 4)


def test_unused_input():
    check(unused_input, arg().requires_grad_(), arg().requires_grad_())


def test_same_tensor_twice():
    t = arg().requires_grad_()
    check(same_tensor_twice, t, t)


def test_int_changes_recompile():
    fn_calls = []

    def scaled(x, n):
        return x * n

    compiled = dynacompile.compile(scaled, isolate_recompiles=True)
    end = dynacompile.subscribe(fn_calls.append)
    try:
        for n in (1, 2, 1, 2):
            assert torch.equal(compiled(arg(), n), arg() * n)
    finally:
        end()
    assert sum(type(e).__name__ == "Recompiled" for e in fn_calls) == 1


BEYOND = (
    lambda t, i: t[i] * 2,
    lambda t, i: torch.nn.functional.embedding(i, t) + 1,
    lambda t, i: t.index_select(0, i),
    lambda t, i: t.gather(0, i[:, None]),
)


@pytest.mark.parametrize("fn", BEYOND)
def test_a_position_beyond_the_end_raises_as_eager_does(fn):
    check(fn, arg(), torch.tensor([1, 17]), graphs=None, breaks=None)
