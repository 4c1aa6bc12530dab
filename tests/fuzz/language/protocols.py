"""Statements over the protocols of containers, calls and managers, as templates of `wider.py`."""

from __future__ import annotations

CONTAINERS = (
    """
N1 = Bag(*<ints>, 4)
N2 = [len(N1), 4 in N1, 77 in N1, N1[-1], N1[:2].items, N1[0, -1], bool(N1), bool(Bag()), *N1]
~
N1[0] = <int>
del N1[-1]
N3 = [*N1, *[q for q in reversed(N1) if q != 'end']]
N4 = f'{N1} {N1:>3} {N1!s} {Bag[int]} {Bag[1, 2]} {"{:x}".format(N1)} {str(N1)}'
p, *q = Bag(1, <int>, 3)
N3 += [p, len(q), sum(N1), len(list(zip(N1, N1))), max(Bag(1, 2)), *map(abs, N1), *sorted(Bag(3, 1))]
LOG.append([list(enumerate(N1)), tuple(N1), dict.fromkeys(N1), N2])
-> N3 ints, N4 str""",
    """
GBAG[0] = <int>
GBAG.items += [<int>]
N1 = [len(GBAG), *GBAG, GBAG[-1], <int> in GBAG]
~
del GBAG.items[2:]
N1 += [len(GBAG), 1 if GBAG else 0, *(q for q in reversed(GBAG) if q != 'end')]
try:
    GBAG[5]
except IndexError as error:
    LOG.append(str(error))
-> N1 ints""",
    """
N1 = OldStyle(<int> % 5)
N2 = [*N1, 4 in N1, 5 in N1, sum(N1), *(q + p for q, p in zip(N1, N1))]
~
try:
    len(N1)
except TypeError as error:
    LOG.append(str(error))
for N3 in N1:
    N2.append(N3)
N4 = iter(N1)
N2 += [next(N4, -1), next(N4, -2), *N4]
-> N2 ints""",
    """
N1 = Stepper(<int> % 6)
N2 = [next(N1, -1), *itertools.islice(N1, 2)]
~
N3 = list(N1)
N2 += [N1.n, next(N1, -5), len(N3), 3 in Stepper(5), sum(Stepper(4)), max(Stepper(3)), *Stepper(2), *dict.fromkeys(Stepper(3))]
try:
    next(N1)
except StopIteration as error:
    N2.append(error.value)
a, b = Stepper(2)
try:
    a, b = Stepper(3)
except ValueError as error:
    LOG.append(str(error))
-> N2 ints, N3 ints""",
    """
N1 = Func(<int>)
N2 = [N1(), N1(1, 2), N1(q=<int>), callable(N1), callable(Held()), *map(N1, <ints>), functools.partial(N1, 1, z=2)(y=<int>)]
~
N3 = Func.calls
N1.__call__ = lambda *args: 'own'
N2.append(N1(5))
N2 += [sorted(<ints>, key=N1) == sorted(<ints>), N1.__call__(1) == 'own']
-> N2 ints, N3 int, N1 call""",
    """
N1 = WithMeta(<int>)
N2 = [N1.n, len(WithMeta), 'WithMeta' in WithMeta, WithMeta.shown, len(WithMeta.nothing), type(WithMeta).__name__ == 'Meta', isinstance(WithMeta, Meta)]
~
class N3(WithMeta):
    made = 10
N4 = N3()
N2 += [len(N3), WithMeta.made, N3.shown, issubclass(N3, WithMeta), isinstance(N4, WithMeta)]
LOG.append(N3.xyz)
-> N2 ints""",
    """
N1 = []
class N2:
    def __init_subclass__(cls, tag=0, **kwargs):
        super().__init_subclass__(**kwargs)
        N1.append((cls.__name__, tag))
    def __new__(cls, n, *rest):
        return super().__new__(cls) if n >= 0 else n
    def __init__(self, n):
        self.n = n
    def __del__(self):
        pass
class N3(N2, tag=<int>):
    def __init__(self, n, m=0):
        super().__init__(n + m)
~
N4 = [N3(3, 4).n, N2(<int> % 5).n, N2(-1), N3.__mro__.index(object), super(N3, N3(1)).__init__(4) is None]
LOG.append(N1)
-> N4 ints""",
)
MANAGERS = (
    """
N1 = []
with Managed('a') as N2, Managed('b', True):
    N1.append(<int>)
    ~
    raise Wrong('inside', <int>)
N1.append(2)
try:
    with Managed('c', 0):
        raise KeyError('again')
except KeyError as error:
    N1.append(len(error.args))
-> N1 ints, N2 str""",
    """
with contextlib.ExitStack() as N1:
    N2 = [len(N1.enter_context(Managed(q))) for q in ('a', 'bb')]
    N1.callback(LOG.append, 'called')
    N1.push(Managed('pushed', True))
    ~
    N3 = <int>
    if N3 % 2:
        raise Wrong('in the stack', N3)
N2.append(<int>)
-> N2 ints, N3 int""",
    """
@Decorating()
def N1(q):
    ~
    return q + <int>
@noted('deco')
def N2(q):
    return q * 2
N3 = [N1(1), N2(<int>), N1(3)]
with contextlib.closing(paired(<ints> + [1, 2])) as N4:
    N3.append(next(N4))
~
with contextlib.suppress(IndexError), contextlib.nullcontext(3) as N5:
    N3.append(N5)
    N3.append([][2])
-> N3 ints""",
    """
@contextlib.contextmanager
def N1(n):
    try:
        yield n * 2
    except Wrong as error:
        LOG.append(f'{error} {error.number}')
        if n % 2:
            raise KeyError(n) from error
    else:
        LOG.append('no error')
    finally:
        LOG.append('finally')
N2 = []
for q in (<int>, 1, 2):
    try:
        with N1(q) as N3:
            N2.append(N3)
            ~
            if q:
                raise Wrong('raised', q)
    except KeyError as error:
        N2.append(error.args[0])
        LOG.append(chain_of(error))
-> N2 ints""",
)
