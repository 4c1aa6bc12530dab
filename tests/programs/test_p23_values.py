"""Containers, dataclasses, enums, match, generators, iterators, partials, copies and attribute protocols inside the frame."""

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import operator
from typing import NamedTuple

import pytest
import torch

import dynacompile
from tests.checking import check


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


NAMES = {"a", "b"}
FROZEN = frozenset({1, 2, 3})
QUEUE = collections.deque([1, 2, 3], maxlen=5)
COUNTS = collections.Counter("abca")
GROUPS = collections.defaultdict(list, {"x": [1, 2]})
ORDERED = collections.OrderedDict(one=1.0, two=2.0)


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


@dataclasses.dataclass
class Options:
    scale: float = 2.0
    names: list = dataclasses.field(default_factory=list)

    def apply(self, x):
        return x * self.scale + len(self.names)


@dataclasses.dataclass(frozen=True)
class Fixed:
    scale: float
    shift: float = 1.0


class Point(NamedTuple):
    x: float
    y: float = 2.0


class Countdown:
    def __init__(self, start):
        self.left = start

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left


class Bag:
    def __init__(self, *items):
        self.items = list(items)

    def __len__(self):
        return len(self.items)

    def __contains__(self, item):
        return item in self.items

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, value):
        self.items[index] = value

    def __add__(self, other):
        return Bag(*self.items, *other.items)

    def __eq__(self, other):
        return self.items == other.items

    def __lt__(self, other):
        return len(self.items) < len(other.items)

    def __bool__(self):
        return bool(self.items)

    def __call__(self, x):
        return x * self.items[0]


class Proxy:
    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        if name.startswith("missing"):
            raise AttributeError(name)
        return getattr(self.target, name)


class Logged:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        object.__setattr__(self, "last", name)


class Careful:
    def __init__(self):
        self.scale = 2.0

    def __getattribute__(self, name):
        return super().__getattribute__("scale" if name == "alias" else name)


@functools.lru_cache
def cached(n):
    return n * 2


def sets(x):
    known = set(NAMES)
    known.add("c")
    if "a" in NAMES and "z" not in NAMES and 2 in FROZEN:
        x = x * len(known) + len(NAMES)
    return x * len({1, 2} | {2, 3}) - len({1, 2} & {2, 3})


def deques(x):
    q = collections.deque(maxlen=2)
    for i in range(4):
        q.append(x * i)
    q.appendleft(x)
    first = q.popleft()
    return first + q[0] + len(q)


def existing_deque(x):
    y = x + 1
    return y * len(QUEUE) + QUEUE[1]


def counters(x):
    return x * COUNTS["a"] + COUNTS["missing"] + GROUPS["x"][1] + sum(ORDERED.values())


def own_counters(x):
    counts = collections.Counter()
    for c in "hello":
        counts[c] += 1
    groups = collections.defaultdict(list)
    groups["a"].append(x)
    groups["a"].append(x + 1)
    return x * counts["l"] + groups["a"][1]


def data_classes(x):
    options = Options(3.0)
    options.names.append("n")
    other = dataclasses.replace(options, scale=4.0)
    fixed = Fixed(2.0)
    return options.apply(x) + other.apply(x) * fixed.scale + fixed.shift, options.scale


def returns_data_class(x):
    return Fixed(1.0, 2.0).scale * x, Point(x=1.0), Options(2.0).names


def enums(x):
    mode = Mode.FAST
    if mode is Mode.FAST and mode.name == "FAST" and Mode(2) == Mode.SLOW:
        x = x * mode.value
    return x * Level.HIGH + len(list(Mode)) + Mode["SLOW"].value


def matches(x):
    total = x
    for value in (1, "two", (3, 4), {"k": 5}, Point(1.0), [1, 2, 3], None):
        match value:
            case int():
                total = total + value
            case "two":
                total = total * 2
            case Point(x=a, y=b):
                total = total * a - b
            case {"k": k}:
                total = total + k
            case [first, *rest] if len(rest) > 1:
                total = total + first
            case (a, b):
                total = total - a * b
            case _:
                total = total + 0.5
    return total


def generators(x):
    def produce(n):
        for i in range(n):
            yield i * 2
        return 7

    def chain(n):
        last = yield from produce(n)
        yield last

    total = sum(i for i in chain(3) if i != 2)
    pairs = dict((str(i), i) for i in produce(2))  # noqa: C402
    return x * total + pairs["2"] + max(i for i in (1, 4)) + sum(x.sum() for _ in range(2))


def user_iterators(x):
    for i in Countdown(3):
        x = x + i
    first, *rest = Countdown(4)
    return x * first + sum(rest) + list(Countdown(2))[0] + len([i for i in Bag(1, 2)])  # noqa: C416


def iter_tools(x):
    for a, b in itertools.pairwise([1, 2, 3]):
        x = x + a * b
    for a, b in itertools.combinations(range(3), 2):
        x = x - a * b
    for a, b in itertools.zip_longest([1], [2, 3], fillvalue=5):
        x = x + a - b
    for i, _ in zip(itertools.count(2), "ab"):
        x = x * i
    for total in itertools.accumulate([1, 2, 3]):
        x = x + total
    for key, group in itertools.groupby([1, 1, 2]):
        x = x + key * len(list(group))
    for i in itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1]):
        x = x + i
    return x + sum(itertools.starmap(operator.mul, [(1, 2), (3, 4)])) + len(list(itertools.permutations([1, 2, 3])))


def func_tools(x):
    double = functools.partial(torch.mul, other=2)
    shifted = functools.partial(lambda a, b, c: a + b * c, c=3)
    return functools.reduce(lambda a, b: a * b, [1, 2, 3], double(x)) + shifted(x, 2)


def copies(x):
    options = {"a": [1, 2], "b": (3, {"c": 4})}
    shallow, deep = copy.copy(options), copy.deepcopy(options)
    deep["a"].append(3)
    shallow["n"] = 1
    return x * len(options["a"]) + len(deep["a"]) + len(shallow), options, deep


def dunders(x):
    bag = Bag(2, 3)
    both = bag + Bag(4)
    both[0] = 5
    if bag and 3 in bag and bag < both and bag == Bag(2, 3) and bag != both:
        x = both(x) * len(both)
    return x + bag[1] + operator.itemgetter(1)(both) + operator.attrgetter("items")(bag)[0] + operator.methodcaller("__len__")(bag)


def attributes(x):
    proxy = Proxy(Options(3.0))
    logged = Logged()
    logged.value = 2
    setattr(logged, "other", 3)  # noqa: B010
    careful = Careful()
    if hasattr(proxy, "scale") and not hasattr(proxy, "missing_one") and getattr(proxy, "missing_two", 4) == 4 and logged.last == "other":
        x = proxy.apply(x) * logged.value * careful.alias
    return x * getattr(logged, "nothing", 2) * getattr(careful, "nothing", 3)


ONE_GRAPH = [
    sets,
    deques,
    counters,
    own_counters,
    data_classes,
    returns_data_class,
    enums,
    matches,
    generators,
    user_iterators,
    iter_tools,
    func_tools,
    copies,
    dunders,
    attributes,
]


@pytest.mark.parametrize("fn", ONE_GRAPH)
def test_one_graph(fn):
    check(fn, arg())


def test_lru_cache():
    check(lambda x: x * cached(3), arg(), graphs=None, breaks=None)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = torch.nn.ParameterList([torch.ones(4), torch.ones(4) * 2])
        self.table = torch.nn.ParameterDict({"a": torch.ones(4) * 3})
        self.register_buffer("mean", torch.zeros(4))
        self.count = 0
        self.seen = []

    def forward(self, x):
        self.count += 1
        self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
        self.seen.append(tuple(x.shape))
        for scale in self.scales:
            x = x * scale
        for name, value in self.table.items():
            x = x + value * len(name)
        return x * self.scales[1] + self.table["a"] + self.mean


def test_module_state():
    check(Counting(), arg())


def test_changed_containers_are_seen():
    for fn, change, undo in (
        (sets, lambda: NAMES.add("z"), lambda: NAMES.discard("z")),
        (existing_deque, lambda: QUEUE.append(4), QUEUE.pop),
        (counters, lambda: COUNTS.update("a"), lambda: COUNTS.subtract("a")),
    ):
        compiled = dynacompile.compile(fn)
        x = arg()
        for step in (lambda: None, change, undo):
            step()
            torch.testing.assert_close(compiled(x), fn(x))


def set_hooked(x, log, fixed):
    log.scale = 2.0
    dynacompile.graph_break()
    return x * log.scale, dataclasses.replace(fixed, scale=4.0)


def test_attribute_hooks_run_once():
    """What a class's own __setattr__ stored is stored again as it is; the hook does not see it, nor does that of a frozen dataclass."""
    log, fixed = Logged(), Fixed(1.0)
    _, replaced = dynacompile.compile(set_hooked)(arg(), log, fixed)
    assert vars(log) == {"scale": 2.0, "last": "scale"} and replaced == Fixed(4.0)
    assert dynacompile.compile(lambda cls: cls(3.0))(Fixed) == Fixed(3.0)
