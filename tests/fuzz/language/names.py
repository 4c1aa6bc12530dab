"""Statements about names and objects, as templates of `wider.py`: attributes and `__dict__`s, descriptors and special methods, functions and classes as
objects, the standard library's functions that polyfills stand for, copies, weak references, context variables, numbers and texts read from tensors.
"""

from __future__ import annotations

from tests.fuzz.language.scope import Statement
from tests.fuzz.language.wider import from_family

DICTS_OF_OBJECTS = (
    """
N1 = Box(<int>, <ints>)
vars(N1)['extra'] = <int>
~
N1.__dict__.update(n=<int>, late=<small>)
N2 = [N1.n, N1.extra, N1.__dict__.pop('late'), N1.__dict__.get('late', <int>), len(vars(N1))]
N3 = ' '.join(vars(N1))
del N1.__dict__['extra']
~
N2.append(hasattr(N1, 'extra'))
-> N2 ints, N3 str, N1 box""",
    """
N1 = Box(<int>)
N2 = N1.__dict__
N2.setdefault('made', <int>)
N3 = N2 | {'other': <int>}
~
N1.n += N3['other'] + N1.made
N4 = [N2['n'], len(N3), N2 is N1.__dict__, 'made' in N2, N2 == vars(N1)]
-> N4 ints, N1 box""",
    """
GBOX.__dict__['n'] = <int>
~
N1 = [GBOX.n, GBOX.__dict__['n'], *(k in GBOX.__dict__ for k in ('n', 'zz', 'items'))]
try:
    N1.append(vars(GBOX)[<word>])
except KeyError as error:
    N1.append(len(error.args))
-> N1 ints""",
    """
N1 = Box(<int>)
N1.__dict__ = {'n': <int>, 'items': [], 't': None}
~
N1.late = N1.n + 1
N2 = [N1.n, N1.late, N1.total(), len(N1.__dict__)]
N3 = N1.__dict__.popitem()[0]
-> N2 ints, N3 str""",
)
DESCRIPTORS = (
    """
class N1:
    def __set_name__(self, owner, name):
        self.name = name
    def __get__(self, owner, cls=None):
        return 7 if owner is None else owner.__dict__.get(self.name, 1) * 2
    def __set__(self, owner, value):
        owner.__dict__[self.name] = value + 1
    def __delete__(self, owner):
        LOG.append(owner.__dict__.pop(self.name, None))
class N2:
    d = N1()
    def __getattr__(self, name):
        return len(name)
N3 = N2()
N4 = [N3.d, N2.d, N3.missing]
N3.d = <int>
~
N4.append(N3.d)
N3.__dict__['d'] = <int>
N4 += [N3.d, getattr(N3, 'e', 5)]
del N3.d
N4.append('d' in vars(N3))
-> N4 ints""",
    """
class N1:
    def __init__(self):
        object.__setattr__(self, 'set', [])
    def __setattr__(self, name, value):
        self.set.append(len(name))
        super().__setattr__(name, value)
    def __getattribute__(self, name):
        found = object.__getattribute__(self, name)
        return found * 2 if type(found) is int else found
    def __delattr__(self, name):
        self.set.append(-1)
        object.__delattr__(self, name)
N2 = N1()
N2.abc = <int>
~
N2.de = N2.abc
del N2.abc
N3 = [*N2.set, N2.de, hasattr(N2, 'abc'), N2.__dict__['de']]
-> N3 ints""",
    """
class N1:
    def __init__(self, n):
        self.n = n
    def __add__(self, other):
        return self.n + 1 if isinstance(other, int) else NotImplemented
    def __radd__(self, other):
        return other * 2
    def __eq__(self, other):
        return isinstance(other, N1) and self.n % 3 == other.n % 3
    def __hash__(self):
        return self.n % 3
    def __getitem__(self, key):
        return self.n + key
    def __contains__(self, item):
        return item == self.n
    def __len__(self):
        return 2
    def __call__(self, a, *rest, b=1):
        return a + b + len(rest) + self.n
N2, N3 = N1(<int>), N1(<int>)
~
N4 = [N2 + 1, 3 + N2, N2 == N3, N2 != N3, N2[2], 4 in N2, len(N2), N2(1, 2, b=3), len({N2, N3}), bool(N2), N2.__add__(1), N2.__len__()]
try:
    N2 + 'a'
except TypeError as error:
    LOG.append(str(error))
-> N4 ints""",
    """
N1 = <int>
N2 = [N1.__add__(2), (5).__radd__(N1), N1.__lt__(3), (<ints>).__len__(), [1, 2].__contains__(N1), (2).__eq__(N1), N1.__bool__(), abs(N1.__neg__())]
~
N3 = 'ab'.__add__('c') + str((1, 2).__getitem__(0)) + repr(N1.__add__('x'))
-> N2 ints, N3 str""",
)
FUNCTIONS_AS_OBJECTS = (
    """
def N1(a, b=<int>, *, c: int = 3) -> int:
    'what it does'
    return a + b + c
N1.mark = <int>
~
N1.__dict__['other'] = 4
N2 = [N1(1), N1.mark, N1.other, len(N1.__defaults__), N1.__kwdefaults__['c'], len(N1.__dict__), hasattr(N1, 'zz'), N1.__code__.co_argcount]
N3 = f'{N1.__name__} {N1.__doc__} {N1.__module__ is None} {sorted(N1.__annotations__)} {type(N1).__name__}'
N1.__name__ = <word>
N1.__defaults__ = (9,)
~
N2.append(N1(2))
N3 += N1.__name__
-> N2 ints, N3 str, N1 call""",
    """
def N1(f):
    @functools.wraps(f)
    def inner(q):
        return f(q) + 1
    inner.depth = getattr(f, 'depth', 0) + 1
    return inner
@N1
@N1
def N2(q):
    'inside'
    return q * 2
~
N3 = [N2(<int>), N2.depth, N2.__wrapped__.depth, N2.__wrapped__.__wrapped__(3)]
N4 = N2.__name__ + N2.__doc__
-> N3 ints, N4 str, N2 call""",
    """
N1 = Box(<int>)
N2 = N1.total
~
N3 = [N2(), N2.__self__ is N1, N2.__func__ is Box.total, N2 == N1.total, len(Box.__mro__), Box.__bases__ == (object,), 'made' in Box.__dict__]
N4 = f'{N2.__name__} {Box.__name__} {Box.__module__} {N1.__class__.__qualname__} {type(N2).__name__} {type(Box) is type}'
-> N3 ints, N4 str""",
    """
globals()['GINT'] = <int>
~
N1 = [GINT, globals()['GINT'], 'GINT' in globals(), globals().get('nowhere', 5)]
-> N1 ints""",
    """
N1 = [name for name in dir(Box(<int>)) if not name.startswith('_')]
N2 = [len(N1), len(Worse.__subclasses__()), Wrong.__subclasses__() == [Worse], id(N1) == id(N1), id(N1) == id([])]
~
N3 = ' '.join(N1)
-> N2 ints, N3 str""",
)
LIBRARIES = (
    """
N1 = list(<ints>) + [3, 1]
heapq.heapify(N1)
heapq.heappush(N1, <int>)
~
N2 = [heapq.heappop(N1), heapq.heappushpop(N1, <int>), heapq.heapreplace(N1, <int>), *heapq.nsmallest(2, N1), *heapq.nlargest(2, N1)]
N3 = [heapq.heappop(N1) for _ in range(len(N1))]
-> N2 ints, N3 ints""",
    """
N1 = sorted(<ints>)
N2 = [bisect.bisect(N1, <int>), bisect.bisect_left(N1, <int>), bisect.bisect_right([-q for q in N1], 0, key=lambda q: -q)]
~
bisect.insort(N1, <int>)
bisect.insort_left(N1, <int>, key=lambda q: q)
-> N1 ints, N2 ints""",
    """
class N1:
    def __init__(self, n):
        self.n = n
    def __lt__(self, other):
        LOG.append((self.n, other.n))
        if self.n == 4:
            raise Wrong('not ordered', self.n)
        return self.n < other.n
N2 = []
try:
    for q in <ints>:
        heapq.heappush(N2, N1(q))
    ~
    N2.sort(key=lambda p: -p.n)
    bisect.insort(N2, N1(<int>))
except Wrong as error:
    LOG.append(error.number)
N3 = [p.n for p in N2]
-> N3 ints""",
    """
N1 = Box(<int>, [1, <ints>])
N2, N3 = copy.copy(N1), copy.deepcopy(N1)
N3.items[1].append(<int>)
N2.n += 1
~
N4 = [N1.n, N2.n, N3.n, N2.items is N1.items, N3.items is N1.items, len(N1.items[1]), len(N3.items[1])]
-> N4 ints, N3 box""",
    """
class N1:
    def __init__(self, n):
        self.n = n
    def __getstate__(self):
        return {'n': self.n + 1}
    def __setstate__(self, state):
        self.n = state['n'] * 2
class N2(N1):
    def __reduce__(self):
        return N2, (self.n + 5,)
N3 = [copy.copy(N1(<int>)).n, copy.deepcopy([N1(<int>)])[0].n, copy.copy(N2(1)).n, copy.deepcopy(N2(<int>)).n]
~
N4 = copy.deepcopy({'a': N3, 'b': (N3, [N3])})
N3 += [N4['a'] is N4['b'][0], N4['b'][1][0] is N4['a'], copy.copy(Slotted(<int>)).size, copy.deepcopy(Slotted(4)).area]
-> N3 ints""",
    """
N1 = Box(<int>)
N2 = weakref.ref(N1)
~
N3 = [N2() is N1, N2().n, weakref.ref(N1) == N2]
N4 = weakref.ref(GBOX)
N3 += [N4().n, N4() is GBOX]
-> N3 ints""",
    """
N1 = VARIABLE.set(<int>)
~
N2 = [VARIABLE.get(), UNSET.get(<int>)]
VARIABLE.reset(N1)
N2 += [VARIABLE.get(), THREADS.kept, getattr(THREADS, 'missing', 4)]
THREADS.kept = <int>
~
try:
    UNSET.get()
except LookupError:
    N2.append(THREADS.kept)
-> N2 ints""",
    """
N1 = dataclasses.replace(Point(<int>, <int>), x=<int>)
N2 = [*dataclasses.astuple(N1)[:2], dataclasses.asdict(N1)['x'], len(dataclasses.fields(Point)), Color(2).value, Color['RED'] is Color.RED, len(Color)]
~
N3 = f'{N1} {[c.name for c in Color]} {list(inspect.signature(Point).parameters)} {inspect.isfunction(Point.norm)} {inspect.isclass(Point)}'
-> N2 ints, N3 str""",
)
NUMBERS_OF_TENSORS = (
    """
N1 = <tensor>.detach().double().sum()
N2 = N1.item()
N3 = N2 * 0.5 - N2
~
N4 = (N1 * N2).sum() + N3
LOG.append(f'{N2:.3e} {N3!r}')
-> N4 scalar""",
    """
N1 = <tensor>.detach()
if not torch.isfinite(N1).all():
    raise Wrong(f'bad {N1.sum()}', 1)
assert (N1 < 1000).all(), f'large {N1.max().item()}'
~
torch._check(bool((N1 > -1000).all()), lambda: f'small {N1}')
N2 = N1 * 2
-> N2 tensor""",
    """
N1 = <tensor>.detach()
N2 = [int((N1 > 0).sum()), bool((N1 > 5).any()), (N1[0] > 0).tolist()]
~
LOG.append(N2)
N3 = N1[N1 > 0].sum()
-> N3 scalar""",
    """
N1 = <tensor>.detach()
if (N1 > <small>).all():
    N2 = N1 * 2
else:
    N2 = N1 - 1
~
N3 = str(N2.shape) + f'{len(N2)}'
-> N2 tensor, N3 str""",
    """
N1 = <tensor>.detach().clone()
N2 = f'{N1.sum().item():.2f}'
N1.add_(1)
~
LOG.append(N2)
N3 = N1 * N1.max().item()
-> N3 tensor""",
)
FAMILIES = (DICTS_OF_OBJECTS, DESCRIPTORS, FUNCTIONS_AS_OBJECTS, LIBRARIES, NUMBERS_OF_TENSORS)
HEAD = """\
import bisect, contextvars, copy, enum, heapq, inspect, threading, weakref
VARIABLE, UNSET = contextvars.ContextVar('VARIABLE', default=2), contextvars.ContextVar('UNSET')
THREADS = threading.local()
THREADS.kept = 3
Color = enum.Enum('Color', 'RED BLUE')
"""
NAMES: list[tuple[float, Statement]] = [(1.6, from_family(templates)) for templates in FAMILIES]
