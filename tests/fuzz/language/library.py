"""What the random programs may use: classes, context managers, generators and functions, as text that each run executes anew."""

from __future__ import annotations

SOURCE = """
import collections
import contextlib
import dataclasses
import functools

import torch

import dynacompile

LOG = []
STEPS = {"calls": 0}


class Wrong(Exception):
    def __init__(self, text, number=0):
        super().__init__(text)
        self.number = number


class Worse(Wrong):
    pass


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def norm(self):
        return abs(self.x) + abs(self.y)


@dataclasses.dataclass(frozen=True, order=True)
class Version:
    major: int
    minor: int = 0
    total: int = dataclasses.field(init=False, compare=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "total", self.major * 10 + self.minor)


class Slotted:
    __slots__ = ("_size", "changes")

    def __init__(self, size):
        self.changes = 0
        self._size = size

    @property
    def size(self):
        return self._size

    @size.setter
    def size(self, value):
        self.changes += 1
        self._size = value

    @property
    def area(self):
        return self._size * self._size


class Failing:
    def __init__(self, enters, leaves):
        self.enters, self.leaves = enters, leaves

    def __enter__(self):
        if self.enters == 3:
            raise KeyError("on entry")
        return self.enters

    def __exit__(self, cls, value, trace):
        if self.leaves == 5:
            raise Wrong("on exit", 5)
        return self.leaves == 2


class Box:
    made = 0

    def __init__(self, n, items=None, t=None):
        self.n = n
        self.items = items if items is not None else []
        self.t = t

    def total(self):
        return self.n + len(self.items)

    def push(self, value):
        self.items.append(value)
        return self

    def scale(self, x):
        return x * 0.5 if self.t is None else x * 0.5 + self.t

    @property
    def double(self):
        return self.n * 2

    @double.setter
    def double(self, value):
        self.n = value // 2

    @classmethod
    def of(cls, n):
        cls.made += 1
        return cls(n, [n])

    @staticmethod
    def helper(a, b=1):
        return a - b

    def __add__(self, other):
        return type(self)(self.n + (other.n if isinstance(other, Box) else other), self.items)

    def __eq__(self, other):
        return isinstance(other, Box) and self.n == other.n

    __hash__ = None

    def __lt__(self, other):
        return self.n < other.n

    def __len__(self):
        return len(self.items)

    def __bool__(self):
        return True

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __contains__(self, value):
        return value in self.items

    def __iter__(self):
        return iter(self.items)

    def __call__(self, value):
        return value + self.n

    def __repr__(self):
        return f"{type(self).__name__}({self.n}, {self.items})"


class BigBox(Box):
    def __init__(self, n, items=None, t=None):
        super().__init__(n + 1, items, t)
        self.extra = n

    def total(self):
        return super().total() * 2

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(f"no {name}")


class SlotBox(Box):
    __slots__ = ("depth",)

    def __init__(self, n, items=None, t=None):
        super().__init__(n, items, t)
        self.depth = 3

    def total(self):
        return self.n - self.depth

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "n":
            STEPS["calls"] += 1


class Noting:
    def __init__(self, name, swallow=()):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(f"enter {self.name}")
        return self

    def __exit__(self, cls, value, trace):
        LOG.append(f"exit {self.name} {cls.__name__ if cls is not None else None} {value}")
        return cls is not None and issubclass(cls, self.swallow)


@contextlib.contextmanager
def noted(name, amount=0):
    LOG.append(f"begin {name}")
    try:
        yield amount + 1
    finally:
        LOG.append(f"end {name}")


@contextlib.contextmanager
def caught(*classes):
    try:
        yield
    except classes as error:
        LOG.append(f"caught {type(error).__name__}")


def count_up(n, step=1):
    i = 0
    while i < n:
        yield i * step
        i += 1
    return n


def chained(xs):
    yield 0
    last = yield from count_up(len(xs))
    yield last
    yield from xs


def paired(xs):
    try:
        for i, x in enumerate(xs):
            yield i + x
    finally:
        LOG.append("paired ends")


def patient(n):
    got = 0
    try:
        while True:
            try:
                got = yield n + (got or 0)
            except Wrong as error:
                LOG.append(f"patient with {error.number}")
                got = error.number
    finally:
        LOG.append("patient ends")


def chain_of(error):
    out = []
    while error is not None:
        out.append(f"{type(error).__name__} {error.args} {error.__suppress_context__}")
        error = error.__cause__ or error.__context__
    return out


def running():
    total = 0
    while True:
        got = yield total
        if got is None:
            return
        total += got


def factorial(n):
    return 1 if n <= 1 else n * factorial(n - 1)


def spread(a, b=2, *rest, c=3, **more):
    return a + b * 2 + sum(rest) * 3 + c * 5 + sum(more.values())


def keyword_only(*, low, high=9):
    return (low, high)


def apply(function, *args, **kwargs):
    return function(*args, **kwargs)


def traced(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        STEPS["calls"] += 1
        return function(*args, **kwargs)

    return inner


@traced
def decorated(a, b=1):
    return a * 3 - b


@functools.lru_cache(maxsize=None)
def cached(n):
    return n * n + 1


def failing(n):
    if n % 3 == 0:
        raise Wrong(f"failing {n}", n)
    if n % 3 == 1:
        raise KeyError(n)
    return n


def breaking(x):
    y = x * 2
    dynacompile.graph_break()
    return y + 1


def printing(n):
    print("printing", n)
    return n + 1


def counter(start):
    count = start

    def step(by=1):
        nonlocal count
        count += by
        return count

    return step


@dynacompile.disable
def opaque(value, *rest):
    LOG.append(f"opaque {len(rest)}")
    if isinstance(value, list):
        value.append(len(value))
    return value


class Net(torch.nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(depth))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.calls = 0
        self.history = []
        self.cache = {}

    def forward(self, x, scale=1.0):
        self.calls += 1
        self.seen += 1
        self.history.append(self.calls)
        for i, layer in enumerate(self.layers):
            x = torch.tanh(layer(x)) * scale
            if i % 2 == 1:
                x = torch.nn.functional.dropout(x, 0.5, self.training)
        if self.training:
            with torch.no_grad():
                self.mean = self.mean * 0.9 + x.detach().mean(0).to(self.mean.dtype) * 0.1
        self.cache["last"] = self.calls
        return x


class Chatty(Net):
    def forward(self, x, scale=1.0):
        y = super().forward(x, scale)
        print("chatty", self.calls)
        return y + x
"""
