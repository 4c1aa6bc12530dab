"""Python around tensors: branches, loops, containers, calls, closures, strings."""

import functools
from collections import namedtuple

import pytest
import torch

from tests.checking import check

Pair = namedtuple("Pair", "left right")


def branch_on_int(x, n):
    if n > 3:
        return x + n
    elif n == 2:
        return x * n
    return x - n


def branch_on_shape(x):
    return x.sum() if x.shape[0] > 4 else x.mean()


def branch_on_none(x, bias=None):
    return x if bias is None else x + bias


def loop_range(x):
    for i in range(4):
        x = x * 1.5 + i
    return x


def loop_while(x):
    n = 0
    while n < 3:
        x = x.sin()
        n += 1
    return x, n


def loop_zip(xs, ys):
    total = 0
    for i, (a, b) in enumerate(zip(xs, ys)):
        if i == 1:
            continue
        total = total + a * b * i
    return total


def tuples(x):
    a, b = x.chunk(2)
    a, b = b, a
    *rest, last = (a, b, a + b)
    return (rest, last), len(rest)


def dicts(x):
    d = {"a": x, "b": x * 2}
    d["c"] = d["a"] + d["b"]
    return {k: v * 2 for k, v in d.items()}, list(d.keys()), "a" in d


def lists(x):
    out = []
    for i in range(3):
        out.append(x * i)
    out.insert(0, x)
    out[1] = out[1] + 1
    return out, out[-1], out[::2]


def comprehension(x):
    return sum([x * i for i in range(4) if i != 2]), [i**2 for i in range(3)]


def helper(x, *, scale=2.0, shift=0):
    return x * scale + shift


def calls(x):
    return helper(x), helper(x, scale=3.0), helper(x, shift=1), (lambda y: y + 1)(x)


def star(x, *rest, **named):
    for r in rest:
        x = x + r
    return x * named.get("scale", 1)


def star_calls(x, y):
    args = (x, y)
    return star(*args, scale=2), star(*args, *args), star(x, **{"scale": 5})  # noqa: PIE804  (a call with a dict is what it tests)


def closure(x):
    n = 3

    def inner(y):
        nonlocal n
        n += 1
        return y * n

    return inner(x) + inner(x), n


def recursive(x, n=4):
    return x if n == 0 else recursive(x + 1, n - 1)


def strings(x, mode="relu"):
    name = f"{mode}_{x.ndim}d"
    return x.relu() if mode == "relu" else x.tanh(), name.upper()


def partials(x):
    return functools.partial(helper, scale=4.0)(x), functools.reduce(lambda a, b: a + b, [x, x, x])


def named(x):
    p = Pair(x, x + 1)
    return p.left * p.right, p._replace(left=x * 2)


def conditional_expressions(x, flag):
    y = x + 1 if flag and x.dim() == 2 else x - 1
    return y, not flag, flag or 3, 1 < x.shape[0] < 100


def slices(x):
    s = slice(1, None, 2)
    return x[s], x[:, s]


def builtin_functions(x):
    dims = sorted(x.shape, reverse=True)
    tests = any(d > 7 for d in dims), all([d > 1 for d in dims]), isinstance(x, torch.Tensor)  # noqa: C419  (a list, too)
    return x * max(dims) + min(dims), sum(dims), *tests, abs(-3), round(2.6), int(2.9), float(3)


def walrus(x):
    if (n := x.shape[0]) > 2:
        return x * n
    return x


def asserts(x):
    assert x.ndim == 2, "needs a matrix"
    return x + 1


def unpack_nested(x):
    (a, (b, c)), d = (x, (x + 1, x + 2)), x + 3
    return a + b * c - d


def arg(scale=1.0):
    return torch.linspace(-2 * scale, 2 * scale, 48).reshape(6, 8).requires_grad_()


@pytest.mark.parametrize(
    "fn",
    [
        branch_on_shape,
        loop_range,
        loop_while,
        tuples,
        dicts,
        lists,
        comprehension,
        calls,
        closure,
        recursive,
        strings,
        partials,
        named,
        slices,
        builtin_functions,
        walrus,
        asserts,
        unpack_nested,
    ],
)
def test_one_tensor(fn):
    check(fn, arg())


@pytest.mark.parametrize("n", [1, 2, 5])
def test_branch_on_int(n):
    check(branch_on_int, arg(), n)


def test_loop_zip():
    check(loop_zip, [arg(), arg(1.5), arg(2.0)], (arg(), arg(), arg()))


def test_star_calls():
    check(star_calls, arg(), arg(1.5))


@pytest.mark.parametrize("flag", [True, False])
def test_conditional_expressions(flag):
    check(conditional_expressions, arg(), flag)


def test_default_none_and_given():
    check(branch_on_none, arg(), graphs=0)
    check(branch_on_none, arg(), arg(3.0))


def test_keyword_arguments():
    check(helper, arg(), kwargs={"scale": 5.0})
