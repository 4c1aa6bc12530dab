"""Python's language constructs under capture, against eager."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from tests.capture.driver import check, run


def vectors(*sizes):
    return lambda: tuple(torch.randn(s) if isinstance(s, int) else torch.randn(*s) for s in sizes)


SCALE = 3.0
TABLE = {"a": 1, "b": 2.5}
SIZES = [1, 2, 3]


def straight(x, y):
    return torch.relu(x + y) * 2 - x / (1 + y.abs())


def constants(x):
    k = 3 * 4 - 2**3
    return x * k + SCALE + TABLE["b"] + len(SIZES) + math.sqrt(16)


def branches(x, flag=True):
    if flag and x.shape[0] > 2:
        return x + 1
    return x - 1


def loops(x):
    for i in range(3):
        x = x + i
    for a, b in zip([1, 2], (3, 4)):
        x = x * a + b
    for i, name in enumerate(("p", "q"), start=2):
        x = x + i * len(name)
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
        x = x - n
    else:
        x = x.neg()
    return x


def dict_loop(x):
    total = x
    for key, value in TABLE.items():
        total = total + value * len(key)
    for value in TABLE.values():
        total = total * value
    return total


def fstrings(x):
    name = f"{'tensor':>8}_{x.shape[0]:03d}_{SCALE!r}"
    return x + len(name), name


def comprehensions(x):
    parts = [x * i for i in range(4) if i != 2]
    table = {f"k{i}": p.sum() for i, p in enumerate(parts)}
    kinds = {p.dim() for p in parts}
    return parts, table, kinds, sum(p.sum() for p in parts)


def unpacking(x, y):
    a, *rest, b = [x, y, x + y, x - y]
    (c, d), e = (a, b), rest[0]
    first, *_ = rest
    return a + b + c + d + e + first


def building(x, y):
    left = [x, *[y, x]]
    both = {"a": x, "b": y}
    pair = (*left, y)
    return left, both, pair, {1, 2} | {3}, slice(1, 2).start, x + y


def slicing(x):
    return x[1:], x[..., 0], x[:, None], x[-1], x[::2, 1:3]


def operators(x, y):
    z = x
    z = z + y
    z -= 1
    return -z, +z, x @ y.t() if x.dim() == 2 else x * y, x**2, x // 2, x % 2, 2 - x, 1 / (x.abs() + 1), x < y, x == y, ~(x > 0)


def inner_function(x):
    def scaled(t, by=2, *more, plus=1, **others):
        for m in more:
            t = t + m
        return t * by + plus + others.get("extra", 0)

    return scaled(x), scaled(x, 3), scaled(x, 3, 4, 5, plus=6), scaled(x, extra=7), scaled(t=x, by=1)


def closures(x):
    count = 0

    def bump(t):
        nonlocal count
        count += 1
        return t + count

    x = bump(bump(x))
    add = lambda t, k=count: t + k * count  # noqa: E731
    return add(x), count


def starred(x, *args, scale=1, **kwargs):
    for a in args:
        x = x + a
    return x * scale + sum(kwargs.values())


def call_starred(x):
    values = (1, 2)
    options = {"scale": 2, "z": 5}
    return starred(x, *values, 3, **options)


def partials(x):
    half = functools.partial(torch.mul, other=0.5)
    affine = functools.partial(starred, scale=3)
    return half(x) + affine(x, 1)


def reduced(x):
    return (
        functools.reduce(lambda a, b: a + b, [x, x * 2, x * 3]),
        max([1, 5, 3]),
        min(4, 2),
        sorted([3, 1, 2], reverse=True),
        any(i > 2 for i in SIZES),
        all(SIZES),
    )


def mapped(x):
    return list(map(torch.neg, [x])), tuple(filter(None, [0, 1, 2])), list(reversed([1, 2])), list(itertools.chain([1], (2,)))


def generators(x):
    def pieces(n):
        for i in range(n):
            yield x * i
        yield from (x - 1, x - 2)

    total = x
    for piece in pieces(3):
        total = total + piece
    return total


def strings(x):
    words = "a,b,c".split(",")
    return x + len("-".join(words).upper()), words[0].startswith("a"), "%s-%d" % ("n", 3), "b" in words  # noqa: UP031


def sizes(x):
    n, m = x.shape
    return x.view(m, n), x.reshape(-1).shape, x.size(0) * x.size()[1], x.numel(), x.shape + (1,), list(x.shape), torch.Size([n, m]) == x.shape


def attributes_of_tensors(x):
    return x.dtype, x.device, x.ndim, x.T, x.mT, x.requires_grad, x.is_cuda, x.grad is None, x.is_floating_point(), x.dim(), x.is_contiguous(), x.stride()


def type_tests(x):
    checks = (
        isinstance(x, torch.Tensor),
        isinstance(3, (int, str)),
        isinstance([], list),
        type(x) is torch.Tensor,
        issubclass(bool, int),
        callable(len),
        hasattr(x, "shape"),
        getattr(x, "nothing", 4),
    )
    return x, checks


def identity(x, y):
    z = x
    return z is x, x is y, x is not None, None is None, x in [x], [x][0] is x


def in_place(x, y):
    z = x.clone()
    z.add_(y)
    z += 1
    z[0] = 5
    z[1:].mul_(2)
    return z


def mutates_input(x, y):
    x.mul_(2)
    x[0] = y[1]
    return x, x + y


def returns_inputs(x, y):
    return x, y, x, (x, [y])


def same_objects(x):
    y = x + 1
    items = [y]
    return y, items, items, {"y": y}


def nothing(x):
    return None


def pure_python(a, b):
    return a * 2 + b


def asserts(x):
    assert x.dim() == 1, "needs a vector"
    assert isinstance(x, torch.Tensor)
    return x * 2


def try_block(x):
    try:
        y = x + 1
    except ValueError:
        y = x - 1
    finally:
        y = x * 2
    return y


class Point(NamedTuple):
    x: torch.Tensor
    scale: float = 2.0


def named_tuples(x):
    p = Point(x)
    q = p._replace(scale=3.0)
    a, b = q
    return p, q, p.x * p.scale + a * b, x.max(0), torch.topk(x, 2).values


@dataclasses.dataclass
class Config:
    width: int = 3
    rate: float = 0.5
    names: list = dataclasses.field(default_factory=list)

    @property
    def area(self):
        return self.width * self.width

    def grow(self, by):
        self.width += by
        return self

    @staticmethod
    def double(v):
        return v * 2

    @classmethod
    def default(cls):
        return cls()


def user_objects(x, config):
    y = x * config.rate + config.area + Config.double(config.width) + config.double(1)
    made = Config.default().grow(4)
    return y + made.width, made


def writes_object(x, config):
    config.width = config.width + 1
    config.names.append("n")
    config.extra = x * config.width
    return config.extra + 1


class Base:
    def __init__(self, k):
        self.k = k

    def apply(self, x):
        return x + self.k


class Derived(Base):
    def __init__(self, k):
        super().__init__(k * 2)
        self.more = k

    def apply(self, x):
        return super().apply(x) * self.more

    def __call__(self, x):
        return self.apply(x)

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return self.k + i

    def __add__(self, other):
        return self.k + other

    def __eq__(self, other):
        return isinstance(other, Derived) and other.k == self.k


def classes(x):
    d = Derived(2)
    return d(x) + len(d) + d[3] + (d + 1), d == Derived(2), bool(d), isinstance(d, Base)


def containers_in_place(x, items, table):
    items.append(x + 1)
    items[0] = x
    items += [x * 2]
    table["new"] = x - 1
    table["old"] = 3
    del table["gone"]
    table.setdefault("more", []).append(1)
    return len(items), list(table)


def counters(x):
    seen = collections.defaultdict(list)
    ordered = collections.OrderedDict(a=1)
    for i in range(3):
        seen[i % 2].append(x * i)
    ordered["b"] = x
    return seen, ordered


def conditional_expressions(x, y=None):
    z = x if y is None else y
    w = x.sum() if not (x.shape[0] > 100 or x.dim() > 3) else None
    return z, w, (y or 5), (0 and x)


def chained(x):
    return 0 < x.shape[0] <= 10, "a" < "b" != "c"


def walrus(x):
    if (n := x.shape[0]) > 1:
        return x * n
    return x


def nested_calls(x):
    def outer(a):
        def inner(b):
            return a + b

        return inner

    return outer(x)(x * 2)


def returned_closure(x):
    y = x * 2

    def later(t):
        return t + y

    return later(x)


def functional(x):
    h = F.gelu(x)
    h = F.softmax(h, dim=-1)
    return F.layer_norm(h, h.shape[-1:]), F.dropout(h, 0.5, training=True), F.pad(h, (1, 1)), torch.nn.functional.normalize(h, dim=0)


def torch_functions(x):
    a = torch.zeros(3, dtype=x.dtype, device=x.device)
    b = torch.arange(3) + torch.ones_like(a)
    c = torch.cat([a, b]), torch.stack([a, b]), torch.where(b > 0, a, b), torch.einsum("i,i->", a, b), torch.tensor(3.0), torch.full((2,), 1.5)
    return c, torch.finfo(x.dtype).max, torch.is_tensor(x), x.to(torch.float64), x.split(1), x.unbind(0), torch.randn(2)


def compiling(x):
    return x + (1 if torch.compiler.is_compiling() else 1)


def match_free(x, k=3):
    values = {"one": 1}.get("two", k)
    return x + values


def tuple_math(x):
    return x.view((2,) + (2,) * 1), (1, 2) < (1, 3), (1,) + (2,), [1] * 3, (1, 2) == (1, 2), [x] == [x]


def star_index(x):
    index = (0, slice(None))
    return x[index], x[(slice(0, 1),)]


def varied_numbers(x):
    return x + round(2.6) + abs(-3) + divmod(7, 2)[1] + int("3") + float("0.5") + bool(1) + pow(2, 3), 7 // 2, 1e3, 3j.imag, 0x10


PROGRAMS = [
    (straight, vectors(3, 3)),
    (constants, vectors(3)),
    (branches, vectors(3)),
    (loops, vectors(3)),
    (dict_loop, vectors(2)),
    (fstrings, vectors(3)),
    (comprehensions, vectors(3)),
    (unpacking, vectors(2, 2)),
    (building, vectors(2, 2)),
    (slicing, vectors((4, 4))),
    (operators, vectors((3, 3), (3, 3))),
    (inner_function, vectors(2)),
    (closures, vectors(2)),
    (call_starred, vectors(2)),
    (partials, vectors(2)),
    (reduced, vectors(2)),
    (mapped, vectors(2)),
    (generators, vectors(2)),
    (strings, vectors(2)),
    (sizes, vectors((2, 3))),
    (attributes_of_tensors, vectors((2, 3))),
    (in_place, vectors(3, 3)),
    (mutates_input, vectors(3, 3)),
    (same_objects, vectors(2)),
    (asserts, vectors(2)),
    (try_block, vectors(2)),
    (named_tuples, vectors(3)),
    (user_objects, lambda: (torch.randn(2), Config())),
    (writes_object, lambda: (torch.randn(2), Config())),
    (classes, vectors(2)),
    (containers_in_place, lambda: (torch.randn(2), [1, 2], {"old": 1, "gone": 2})),
    (counters, vectors(2)),
    (conditional_expressions, vectors(2)),
    (walrus, vectors(3)),
    (nested_calls, vectors(2)),
    (returned_closure, vectors(2)),
    (functional, vectors((2, 3))),
    (torch_functions, vectors(3)),
    (compiling, vectors(2)),
    (match_free, vectors(2)),
    (tuple_math, vectors(4)),
    (star_index, vectors((2, 2))),
    (varied_numbers, vectors(2)),
]


@pytest.mark.parametrize("fn,make", PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_one_graph(fn, make):
    driver = check(make, fn, graphs=1)
    assert not driver.skipped
    assert all(c.break_ is None for c in driver.captured)


NO_GRAPH = [
    (returns_inputs, vectors(2, 2)),
    (identity, vectors(2, 2)),
    (type_tests, vectors(2)),
    (nothing, vectors(2)),
    (pure_python, lambda: (3, 4.5)),
    (chained, vectors(3)),
]


@pytest.mark.parametrize("fn,make", NO_GRAPH, ids=[p[0].__name__ for p in NO_GRAPH])
def test_no_graph_is_needed(fn, make):
    driver = check(make, fn, graphs=0)
    assert not driver.skipped


def test_returned_inputs_keep_their_identity():
    x, y = torch.randn(2), torch.randn(2)
    got, _ = run(returns_inputs, x, y)
    assert got[0] is x and got[1] is y and got[3][1][0] is y
    got, _ = run(mutates_input, x, y)
    assert got[0] is x


def test_shared_objects_are_built_once():
    (y, items, again, table), _ = run(same_objects, torch.randn(2))
    assert items is again and items[0] is y and table["y"] is y
