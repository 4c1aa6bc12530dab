"""The classes that the statements of `objects.py` use, and objects of them, as text of a module that each run executes anew."""

from __future__ import annotations

SOURCE = """\
import abc, collections, contextlib, copy, dataclasses, enum, functools, typing
import torch
from library import LOG, STEPS

class Doubled:
    def __set_name__(self, owner, name):
        self.name = '_' + name
    def __get__(self, owner, cls=None):
        return self if owner is None else owner.__dict__.get(self.name, 1) * 2
    def __set__(self, owner, value):
        owner.__dict__[self.name] = value
    def __delete__(self, owner):
        if self.name not in owner.__dict__:
            raise AttributeError(self.name)
        del owner.__dict__[self.name]
class Lazy:
    def __init__(self, function):
        self.function = function
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, owner, cls=None):
        if owner is None:
            return self
        LOG.append(f'lazy {self.name}')
        value = owner.__dict__[self.name] = self.function(owner)
        return value
class Checked:
    def __init__(self, low=-100, high=100):
        self.low, self.high = low, high
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, owner, cls=None):
        return self.low if owner is None else getattr(owner, '_' + self.name, self.high)
    def __set__(self, owner, value):
        if not self.low <= value <= self.high:
            raise ValueError(f'{self.name} is {value}')
        setattr(owner, '_' + self.name, value)
class Held:
    d = Doubled()
    e = Doubled()
    small = Checked(0, 9)
    level = 3
    def __init__(self, n=1):
        self.n = n
        self._t = None
    @Lazy
    def sum(self):
        return self.n + self.d
    @functools.cached_property
    def product(self):
        LOG.append('product')
        return self.n * self.d
    @property
    def half(self):
        return self.n // 2
    @half.setter
    def half(self, value):
        LOG.append(('half', self.n))
        self.n = value * 2
    @half.deleter
    def half(self):
        self.n = 0
    @property
    def tensor(self):
        if self._t is None:
            raise AttributeError('no tensor yet')
        return self._t
    @tensor.setter
    def tensor(self, value):
        self._t = value * self.n
    @property
    def failing(self):
        return self.nowhere
class Deep(Held):
    e = 5
    level = property(lambda self: super().level + self.n)
    @property
    def half(self):
        return super().half + 1
    @half.setter
    def half(self, value):
        Held.half.fset(self, value + 1)
    def __getattr__(self, name):
        if name.startswith('x'):
            return name
        raise AttributeError(f'{type(self).__name__} has no {name}')
class Guarded:
    def __init__(self, **values):
        object.__setattr__(self, 'values', dict(values))
        object.__setattr__(self, 'asked', [])
    def __getattribute__(self, name):
        if not name.startswith('_') and name not in ('asked', 'values'):
            object.__getattribute__(self, 'asked').append(name)
        return object.__getattribute__(self, name)
    def __getattr__(self, name):
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None
    def __setattr__(self, name, value):
        if name == 'fixed':
            raise AttributeError('fixed')
        self.values[name] = value
    def __delattr__(self, name):
        if name not in self.values:
            raise AttributeError(name)
        del self.values[name]
class Slots:
    __slots__ = ('a', 'b', '__weakref__')
    kind = 1
    def __init__(self, a):
        self.a = a
class MoreSlots(Slots):
    __slots__ = ('c', '_d')
    @property
    def d(self):
        return self._d + 1
    @d.setter
    def d(self, value):
        self._d = value
class OpenSlots(Slots):
    pass
class Num:
    def __init__(self, n):
        self.n = n
    def of(self, other):
        return other.n if isinstance(other, Num) else other if isinstance(other, int) else None
    def made(self, name, n):
        LOG.append((name, type(self).__name__))
        return type(self)(n)
    def __add__(self, other):
        return NotImplemented if self.of(other) is None else self.made('add', self.n + self.of(other))
    def __radd__(self, other):
        return NotImplemented if self.of(other) is None else self.made('radd', self.of(other) + self.n)
    def __sub__(self, other):
        return NotImplemented if self.of(other) is None else self.made('sub', self.n - self.of(other))
    def __rsub__(self, other):
        return NotImplemented if self.of(other) is None else self.made('rsub', self.of(other) - self.n)
    def __mul__(self, other):
        return other * self.n if isinstance(other, torch.Tensor) else NotImplemented if self.of(other) is None else self.made('mul', self.n * self.of(other))
    def __rmul__(self, other):
        return self.made('rmul', self.n * self.of(other))
    def __floordiv__(self, other):
        return self.made('floordiv', self.n // self.of(other))
    def __rfloordiv__(self, other):
        return self.made('rfloordiv', other // self.n)
    def __divmod__(self, other):
        return divmod(self.n, self.of(other))
    def __rdivmod__(self, other):
        return divmod(other, self.n)
    def __pow__(self, other, modulo=None):
        return self.made('pow', pow(self.n % 7, self.of(other) % 4, modulo))
    def __lshift__(self, other):
        return self.made('lshift', self.n << self.of(other) % 5)
    def __rand__(self, other):
        return self.made('rand', other & self.n)
    def __xor__(self, other):
        return self.made('xor', self.n ^ self.of(other))
    def __matmul__(self, other):
        return self.n * 10 + self.of(other)
    def __neg__(self):
        return self.made('neg', -self.n)
    def __pos__(self):
        return self
    def __invert__(self):
        return ~self.n
    def __abs__(self):
        return abs(self.n)
    def __round__(self, digits=None):
        return self.n if digits is None else (self.n, digits)
    def __index__(self):
        LOG.append('index')
        return self.n % 3
    def __int__(self):
        return self.n
    def __float__(self):
        return self.n / 2
    def __complex__(self):
        return complex(self.n, 1)
    def __trunc__(self):
        return self.n - 1
    def __floor__(self):
        return self.n - 2
class SubNum(Num):
    def __radd__(self, other):
        return self.made('sub radd', 1000 + self.n)
    def __rsub__(self, other):
        return self.made('sub rsub', 2000 + self.n)
    def __iadd__(self, other):
        LOG.append('iadd')
        self.n += self.of(other)
        return self
    def __imul__(self, other):
        return NotImplemented
    def __isub__(self, other):
        return 'replaced'
class PlainSub(Num):
    pass
class Text(str):
    def __add__(self, other):
        return Text(str.__add__(self, str(other)))
    def __radd__(self, other):
        return f'{other}<{str(self)}'
    def __mod__(self, other):
        return (str(self), other)
class Whole(int):
    def __add__(self, other):
        return Whole(int(self) + int(other) + 100)
    __radd__ = __add__
    def __repr__(self):
        return f'Whole({int(self)})'
    def __eq__(self, other):
        return int(self) % 5 == int(other) % 5
    __hash__ = int.__hash__
class Listed(list):
    def __getitem__(self, index):
        return ('got', list.__getitem__(self, index))
    def append(self, value):
        LOG.append('append')
        super().append(value)
    def __len__(self):
        return super().__len__() + 10
class Mapped(dict):
    def __missing__(self, key):
        LOG.append(f'missing {key}')
        return len(key)
    def __setitem__(self, key, value):
        super().__setitem__(key, value + 1)
    def __contains__(self, key):
        return key != 'hidden' and super().__contains__(key)
class Key:
    def __init__(self, n):
        self.n = n
    def __eq__(self, other):
        STEPS['calls'] += 1
        return self.n == other.n if isinstance(other, Key) else NotImplemented
    def __hash__(self):
        return hash(self.n) % 4
    def __lt__(self, other):
        if not isinstance(other, Key):
            return NotImplemented
        return self.n < other.n
    def __repr__(self):
        return f'K{self.n}'
class Above(Key):
    def __gt__(self, other):
        LOG.append('above')
        return True
    def __eq__(self, other):
        return other
    __hash__ = None
@functools.total_ordering
class Ordered:
    def __init__(self, *parts):
        self.parts = parts
    def __eq__(self, other):
        return self.parts == other.parts if isinstance(other, Ordered) else NotImplemented
    def __lt__(self, other):
        return self.parts < other.parts if isinstance(other, Ordered) else NotImplemented
    def __hash__(self):
        return hash(self.parts)
class Bag:
    def __init__(self, *items):
        self.items = list(items)
    def __len__(self):
        LOG.append('len')
        return len(self.items)
    def __iter__(self):
        LOG.append('iter')
        return iter(self.items)
    def __contains__(self, item):
        LOG.append('contains')
        return any(item is q or item == q for q in self.items)
    def __getitem__(self, index):
        if isinstance(index, slice):
            return Bag(*self.items[index])
        if isinstance(index, tuple):
            return [self.items[q] for q in index]
        return self.items[index]
    def __setitem__(self, index, value):
        self.items[index] = value
    def __delitem__(self, index):
        del self.items[index]
    def __reversed__(self):
        return iter([*self.items[::-1], 'end'])
    def __class_getitem__(cls, key):
        return (cls.__name__, key)
    def __format__(self, form):
        return f'Bag:{form}:{len(self.items)}'
    def __str__(self):
        return 'bag'
class OldStyle:
    def __init__(self, n):
        self.n = n
    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        return index * 2
class Stepper:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return self
    def __next__(self):
        if self.n <= 0:
            raise StopIteration(self.n)
        self.n -= 1
        return self.n
    def __length_hint__(self):
        LOG.append('hint')
        return 2
class Truth:
    def __init__(self, n):
        self.n = n
    def __bool__(self):
        LOG.append(('bool', self.n))
        return self.n > 0
class Func:
    calls = 0
    def __init__(self, n):
        self.n = n
    def __call__(self, *args, **kwargs):
        Func.calls += 1
        return self.n + len(args) + sum(kwargs.values())
class Meta(type):
    def __call__(cls, *args):
        found = super().__call__(*args)
        cls.made += 1
        return found
    def __len__(cls):
        return cls.made
    def __contains__(cls, item):
        return item == cls.__name__
    def __getattr__(cls, name):
        return f'{cls.__name__}.{name}'
    @property
    def shown(cls):
        return cls.made * 2
class WithMeta(metaclass=Meta):
    made = 0
    def __new__(cls, *args):
        LOG.append(('new', len(args)))
        return super().__new__(cls)
    def __init__(self, n=0):
        self.n = n
class Managed:
    def __init__(self, name, result=False):
        self.name, self.result = name, result
    def __enter__(self):
        LOG.append(f'in {self.name}')
        return self.name
    def __exit__(self, cls, value, trace):
        LOG.append(f'out {self.name} {cls and cls.__name__} {value} {trace is None}')
        return self.result
class Decorating(contextlib.ContextDecorator):
    def __enter__(self):
        LOG.append('begins')
        return self
    def __exit__(self, *error):
        LOG.append(f'ends {error[0]}')
        return False
GHELD, GDEEP, GGUARDED, GSLOTS, GNUM, GBAG, GMAPPED = Held(2), Deep(3), Guarded(a=1, b=2), MoreSlots(4), SubNum(5), Bag(1, 2), Mapped(a=1)
class Left:
    def __init__(self, n, **rest):
        LOG.append(f'Left {sorted(rest)}')
        super().__init__(**rest)
        self.left = n
    def told(self):
        return ['left', *super().told()]
class Right:
    def __init__(self, m=0, **rest):
        super().__init__(**rest)
        self.right = m
    def told(self):
        return ['right', *super().told()]
class Root:
    kept = []
    def told(self):
        return [type(self).__name__]
    @classmethod
    def made(cls, *args, **kwargs):
        found = cls(*args, **kwargs)
        cls.kept = [*cls.kept, type(found).__name__]
        return found
class Diamond(Left, Right, Root):
    def told(self):
        return super(Left, self).told() + super().told()
    @property
    def both(self):
        return self.left, self.right
class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def sides(self):
        ...
    @abc.abstractmethod
    def area(self):
        return 1
    def double(self):
        return self.area() * 2 + self.sides
class Square(Shape):
    sides = 4
    def __init__(self, n):
        self.n = n
    def area(self):
        return super().area() + self.n * self.n
@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...
class Sized(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return hasattr(other, '__len__') or NotImplemented
@dataclasses.dataclass
class Data:
    x: int
    y: int = 2
    tags: list = dataclasses.field(default_factory=list)
    seed: dataclasses.InitVar[int] = 3
    total: int = dataclasses.field(init=False, repr=False)
    count: typing.ClassVar[int] = 0
    def __post_init__(self, seed):
        self.total = self.x + self.y + seed
        Data.count += 1
@dataclasses.dataclass(order=True, kw_only=True, slots=True)
class SlotData:
    a: int
    b: str = 'b'
@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    t: torch.Tensor | None = None
    def moved(self, by):
        return dataclasses.replace(self, n=self.n + by)
@dataclasses.dataclass
class DeepData(Data):
    z: list = dataclasses.field(default_factory=lambda: [1])
    def __eq__(self, other):
        return isinstance(other, DeepData) and self.z == other.z
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5
    @property
    def next(self):
        return Level.HIGH if self is Level.LOW else Level.LOW
class Perm(enum.Flag):
    R = enum.auto()
    W = enum.auto()
    X = enum.auto()
    RW = R | W
class Name(str, enum.Enum):
    A = 'a'
    B = 'b'
    @classmethod
    def _missing_(cls, value):
        return cls.A if value == 'none' else None
class Triple(tuple):
    def __new__(cls, *items):
        return super().__new__(cls, items)
    def __getitem__(self, index):
        return ('at', super().__getitem__(index)) if isinstance(index, int) else super().__getitem__(index)
    @property
    def first(self):
        return super().__getitem__(0)
class Named(typing.NamedTuple):
    a: int
    b: int = 2
    def total(self):
        return self.a + self.b
class Few(set):
    def add(self, item):
        LOG.append(f'add {item}')
        super().add(item)
    def __contains__(self, item):
        return item == 'all' or super().__contains__(item)
class Counts(collections.Counter):
    def __missing__(self, key):
        return -1
class Times(collections.defaultdict):
    def __missing__(self, key):
        LOG.append('missing')
        return super().__missing__(key)
class Nodes:
    def __init__(self, n, *children):
        self.n, self.children = n, children
    def __iter__(self):
        yield self.n
        for child in self.children:
            yield from child
    def walk(self, depth=0):
        got = yield depth, self.n
        if got:
            self.n += got
        for child in self.children:
            yield from child.walk(depth + 1)
    @contextlib.contextmanager
    def marked(self, by):
        before, self.n = self.n, self.n + by
        try:
            yield self
        finally:
            self.n = before
class Copied:
    def __init__(self, n, inner=None):
        self.n, self.inner = n, inner
    def __copy__(self):
        LOG.append('copy')
        return Copied(self.n + 1, self.inner)
    def __deepcopy__(self, memo):
        LOG.append('deepcopy')
        return Copied(self.n + 10, copy.deepcopy(self.inner, memo))
class Scale:
    def __init__(self, n):
        self.n = n
    def __mul__(self, other):
        return other * self.n
    def __rmul__(self, other):
        return other * self.n + 1
    def __radd__(self, other):
        return other + self.n
    def __rsub__(self, other):
        return NotImplemented
    def __matmul__(self, other):
        return other.sum(0) * self.n
    def __getitem__(self, index):
        return index.sum() if isinstance(index, torch.Tensor) else index
    def __lt__(self, other):
        return 'less'
class Odd:
    def __init__(self, what):
        self.what = what
    def __bool__(self):
        return self.what
    def __len__(self):
        return self.what
    def __iter__(self):
        return self.what
    def __hash__(self):
        return self.what
    def __index__(self):
        return self.what
    def __str__(self):
        return self.what
    def __contains__(self, item):
        return self.what
    def __eq__(self, other):
        return self.what
GDIAMOND, GDATA, GNODES = Diamond(1, m=2), Data(1, tags=[5]), Nodes(1, Nodes(2), Nodes(3, Nodes(4)))
"""
