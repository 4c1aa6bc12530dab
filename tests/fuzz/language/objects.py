"""Statements over objects, as templates of `wider.py`: descriptors, properties, attribute hooks, slots, operators with their reflected and in-place forms,
comparison and hashing, dicts of attributes; with those of `protocols.py`, and the libraries that capture follows as Python.

The classes of `object_library.py` have objects that live from call to call, so that guards must see what `CHANGES` changes between.
"""

from __future__ import annotations

from tests.fuzz.language.inheritance import CLASSES
from tests.fuzz.language.libraries import LIBRARIES
from tests.fuzz.language.protocols import CONTAINERS, MANAGERS
from tests.fuzz.language.scope import Statement
from tests.fuzz.language.wider import from_family

HEAD = """\
import itertools, math, operator, random
from objects import *
"""
CHANGES = (
    "GHELD.n += 1",
    "GHELD.d = 7",
    "GHELD.__dict__.pop('sum', None)",
    "GDEEP.level_note = 1",
    "Held.level = 8",
    "Held.extra = property(lambda self: self.n + 50)",
    "del Deep.__getattr__",
    "Deep.half = 4",
    "GGUARDED.values['a'] = 9",
    "GSLOTS.a = 6",
    "GSLOTS.b = 5",
    "GNUM.n = 2",
    "SubNum.__radd__ = Num.__radd__",
    "Num.__add__ = lambda self, other: 77",
    "GBAG.items.append(3)",
    "Bag.__len__ = lambda self: 1",
    "GMAPPED['late'] = 4",
    "GHELD.__class__ = Deep",
    "Doubled.__get__ = lambda self, owner, cls=None: 6",
    "Func.__call__ = lambda self, *args: 3",
    "Truth.__bool__ = lambda self: False",
    "Managed.__exit__ = lambda self, *args: True",
)
DESCRIPTORS = (
    """
N1 = Held(<int>)
N2 = [N1.d, N1.small]
N1.d = <int>
~
N2 += [N1.d, N1.sum, N1.sum, N1.product, N1.product, N1.half, 'sum' in vars(N1)]
N1.half = <int>
del N1.sum
~
N2 += [N1.n, N1.sum, N1.product]
try:
    N1.small = <int>
except ValueError as error:
    LOG.append(str(error))
-> N2 ints""",
    """
GHELD.d = <int>
N1 = [GHELD.d, GHELD.e, GHELD.sum, GHELD.level, GHELD.half]
~
del GHELD.d
GHELD.half = <small>
N1 += [GHELD.d, GHELD.n, getattr(GHELD, 'extra', -1), Held.level]
try:
    del GHELD.d
except AttributeError as error:
    LOG.append(error.args)
-> N1 ints""",
    """
N1 = Deep(<int>)
N2 = [N1.d, N1.e, N1.level, N1.half, len(N1.xyz), hasattr(N1, 'none'), hasattr(N1, 'x')]
N1.half = <int>
N1.e = <int>
~
N2 += [N1.n, N1.e, Deep.e, N1.__dict__.get('e', 0)]
try:
    N1.level = 2
except AttributeError as error:
    LOG.append(type(error).__name__)
try:
    N1.failing
except AttributeError as error:
    LOG.append(str(error))
-> N2 ints""",
    """
N1 = Held(2)
try:
    N1.tensor
except AttributeError as error:
    LOG.append(str(error))
N1.tensor = <tensor>
~
N2 = N1.tensor + N1.half
N3 = hasattr(Held(), 'tensor')
del N1.half
N1.tensor = N2
N4 = N1.tensor + (1 if N3 else 2)
-> N2 tensor, N4 tensor""",
    """
class N1:
    def __init__(self, first):
        self.first = first
    def __get__(self, owner, cls=None):
        LOG.append((owner is None, cls.__name__))
        return self.first
class N2:
    a = N1(<int>)
    b = N1('b')
    def __init__(self):
        self.__dict__['a'] = 'own'
class N3(N2):
    b = N1(3)
N4 = [N2.a, N2().a, N3().b, N3.b, N2().b]
~
N2.a = <int>
N4 += [N3().a, N3.a]
setattr(N3, 'c', N1(<int>))
N4.append(N3().c)
-> N3 call""",
    """
N1 = [Held.d is Held.__dict__['d'], Held.__dict__['d'].name, type(Held.half).__name__, Held.half.fget(GHELD), Deep.small, Held.d.__get__(GHELD, Held)]
~
Held.d.__set__(GHELD, <int>)
N2 = [GHELD.d, object.__getattribute__(GHELD, 'd'), getattr(GHELD, <word>, 4), Held.half.__get__(GHELD), callable(Held.half)]
object.__setattr__(GHELD, 'plain', <int>)
N2 += [GHELD.plain, GHELD.__getattribute__('n')]
object.__delattr__(GHELD, 'plain')
-> N2 ints""",
)
ATTRIBUTES = (
    """
N1 = Guarded(a=<int>, z=2)
N1.b = <int>
N2 = [N1.a, N1.b, getattr(N1, 'c', 5), hasattr(N1, 'z'), len(N1.asked)]
~
del N1.z
try:
    N1.z
except AttributeError as error:
    N2.append(len(str(error)))
try:
    N1.fixed = 1
except AttributeError as error:
    LOG.append(str(error))
N3 = ' '.join(N1.asked)
-> N2 ints, N3 str""",
    """
GGUARDED.a += <int>
~
N1 = [GGUARDED.a, GGUARDED.b, len(GGUARDED.values), getattr(GGUARDED, <word>, -1)]
setattr(GGUARDED, <word>, <int>)
GGUARDED.asked.clear()
~
N1 += sorted(q for q in GGUARDED.values.values())
-> N1 ints""",
    """
N1 = [GDEEP.xa, GDEEP.level, hasattr(GDEEP, 'y'), GDEEP.e]
try:
    N1.append(GDEEP.nothing)
except AttributeError as error:
    N1.append(str(error))
~
GDEEP.xa = <int>
N2 = [GDEEP.xa, GDEEP.half]
del GDEEP.xa
N3 = GDEEP.xa
-> N2 ints, N3 str""",
    """
class N1:
    count = 0
    def __setattr__(self, name, value):
        type(self).count += 1
        super().__setattr__(name, (name, value) if isinstance(value, int) else value)
    def __getattr__(self, name):
        self.made = name
        return self.made
N2 = N1()
N2.a = <int>
~
N3 = [N2.a[1], N1.count, len(N2.bcd), 'made' in N2.__dict__, N1.count]
N4 = N2.made
-> N3 ints, N4 str""",
    """
N1 = Slots(<int>)
N2 = [N1.a, N1.kind, hasattr(N1, 'b'), hasattr(N1, '__dict__')]
N1.b = <int>
~
N2 += [N1.b, Slots.b.__get__(N1), getattr(N1, 'a')]
del N1.a
for N3 in ('a', 'new', 'kind'):
    try:
        N2.append(getattr(N1, N3))
        setattr(N1, N3, 3)
    except AttributeError as error:
        LOG.append(str(error))
-> N2 ints""",
    """
N1 = MoreSlots(<int>)
N1.c, N1.d = <tensor>, <int>
~
N2 = [N1.d, N1._d, N1.a]
N3 = N1.c * 2
GSLOTS.b = <int>
GSLOTS.d = GSLOTS.b + GSLOTS.a
~
N2 += [GSLOTS.d, hasattr(GSLOTS, 'c')]
N4 = OpenSlots(1)
N4.extra = <int>
N2 += [len(vars(N4)), N4.extra, sorted(N4.__dict__) == ['extra']]
del GSLOTS.b
-> N2 ints, N3 tensor""",
)
ARITHMETIC = (
    """
N1, N2 = Num(<int>), SubNum(<int>)
N3 = [(N1 + N2).n, (N2 + N1).n, (N1 - N2).n, (N2 - N1).n, (1 + N1).n, (N1 + 1).n, (N2 - 2).n, (3 - N2).n, (N1 * N2).n, (True + N2).n]
~
N4 = [type(q).__name__ for q in (N1 + N2, N2 + N1, N1 + PlainSub(1), PlainSub(1) + N1, sum([N1, N2]))]
for q in ('a', None, 1.5):
    try:
        N1 + q
    except TypeError as error:
        LOG.append(str(error))
    try:
        q - N2
    except TypeError as error:
        LOG.append(str(error))
-> N3 ints""",
    """
N1 = N2 = SubNum(<int>)
N1 += <small>
~
N3 = [N1 is N2, N1.n]
N1 *= 3
N3 += [N1 is N2, N1.n, N2.n]
N1 -= 4
LOG.append(N1)
N4 = N2
N4 += N2
N4 //= 2
~
N3 += [N4.n, N2.n]
N4 = Num(<int>)
N4 += 1
N4 **= 2
N3.append(N4.n)
-> N3 ints""",
    """
N1 = Num(<int>)
N2 = [N1 // 3, -N1, +N1, N1 << 2, 6 & N1, N1 ^ 5, pow(N1, 2), pow(N1, 3, 5), N1 ** 2]
N3 = [q.n for q in N2]
N3 += [~N1, abs(N1), round(N1), len(round(N1, 2)), int(N1), N1 @ 4, *divmod(N1, 7), *divmod(9, Num(4)), [4, 5, 6][N1], (1, 2, 3)[Num(1)]]
~
N4 = f'{float(N1)} {complex(N1)} {math.trunc(N1)} {math.floor(N1)} {hex(N1)} {list(range(N1))} {operator.index(N1)}'
try:
    N1 / 2
except TypeError as error:
    N4 += str(error)
try:
    5 << N1
except TypeError as error:
    N4 += str(error)
-> N3 ints, N4 str""",
    """
GNUM += <small>
~
N1 = [GNUM.n, (GNUM + GNUM).n, (2 + GNUM).n, (GNUM - Num(1)).n, (Num(1) - GNUM).n]
N2 = GNUM
N2 += 1
N1 += [N2 is GNUM, GNUM.n]
-> N1 ints""".replace("GNUM += <small>", "GNUM.n += <small>"),
    """
N1 = Num(<int>) * <tensor>
~
N2 = SubNum(2) * N1
try:
    N2 = N2 * Num(3)
except (TypeError, AttributeError) as error:
    LOG.append(type(error).__name__)
-> N1 tensor, N2 tensor""",
    """
N1, N2 = Text(<word>), Whole(<int>)
N3 = [N1 + 'b', 'c' + N1, N1 + N1, N1 % 3, N1 * 2, N1.upper(), f'{N1}', N1 == str(N1), type(N1[0]).__name__, len(N1)]
~
N4 = [N2 + 1, 1 + N2, N2 + N2, N2 - 1, -N2, N2 == 3, hash(N2) == hash(int(N2)), N2 in [0, 1, 2], [0, 1, 2, 3, 4].count(N2), bool(N2), int(N2)]
LOG.append(N3)
LOG.append(f'{N2} {N2!r} {type(N4[0]).__name__} {type(N4[3]).__name__}')
N5 = {N2: 1}.get(int(N2), 5)
-> N5 int""",
    """
N1 = Listed(<ints>)
N1.append(<int>)
N1 += [1]
~
N2 = [len(N1), N1[-1][1], *N1, *N1[:1], sum(N1), max(N1), N1.count(1), N1 == list(N1), isinstance(N1, list), bool(N1)]
N1[0] = <int>
N3 = N1 + [4]
LOG.append([type(N3).__name__, N1.index(1), sorted(N1), N1.copy() == N1, str(N1), [*reversed(N1)]])
LOG.append(N2)
N4 = [q for q in N1]
-> N4 ints""",
    """
N1 = Mapped(a=<int>, hidden=2)
N1['b'] = <int>
N2 = [N1['a'], N1['b'], N1['zzz'], N1.get('yy', 7), 'hidden' in N1, 'a' in N1, len(N1), N1 == {'a': 1}]
~
N1.update(c=<int>)
N1.setdefault('d', <int>)
N2 += [N1['c'], N1['d'], N1.pop('hidden'), *N1.values(), sum(1 for q in N1 if q in N1)]
N3 = N1 | {'e': 5}
LOG.append([type(N3).__name__, *N3.items(), *map(str, N1), dict(N1), {**N1}])
GMAPPED[<word>] = <int>
N2 += [GMAPPED['a'], GMAPPED['none'], len(GMAPPED)]
-> N2 ints, N1 counts""",
)
COMPARISONS = (
    """
N1 = [Key(q) for q in <ints>] + [Key(3), Key(1), Key(3)]
N2 = [min(N1).n, max(N1).n, N1.index(Key(3)), N1.count(Key(1)), Key(9) in N1, N1[0] == N1[-1], N1[0] != 3, Key(1) == Key(1), N1[0] > N1[1], N1 == N1[:]]
~
N3 = [q.n for q in sorted(N1)] + [q.n for q in sorted(N1, reverse=True)]
N4 = {q: q.n for q in N1}
N2 += [len(N4), len(set(N1)), N4.get(Key(3), -1), N4.get(Key(77), -1), N4.pop(Key(1)), Key(1) in N4, *N4.values(), Key(3) in {Key(3)}]
try:
    N1[0] < 3
except TypeError as error:
    LOG.append(str(error))
try:
    N1[0] >= N1[1]
except TypeError as error:
    LOG.append(str(error))
N1.remove(Key(3))
LOG.append(N1)
-> N2 ints, N3 ints""",
    """
N1, N2 = Ordered(<int>, 2), Ordered(<int>, 1)
N3 = [N1 < N2, N1 <= N2, N1 > N2, N1 >= N2, N1 == N2, N1 != N2, N1 <= N1, max(N1, N2).parts[0], len({N1, N2, Ordered(1, 2)})]
~
try:
    N1 < 1
except TypeError as error:
    LOG.append(str(error))
N3 += [N1 == 1, sorted([N1, N2, Ordered(0)])[0].parts[0], hash(N1) == hash(Ordered(*N1.parts))]
-> N3 ints""",
    """
N1, N2 = Key(<int>), Above(<int>)
N3 = [N1 < N2, N2 > N1, (N1 == N2) is N1, (N2 == N1) is N1, (N2 == 5), N2 in [0], N2 != 0, N2 is N2]
~
try:
    {N2}
except TypeError as error:
    LOG.append(str(error))
try:
    LOG.append(max(N1, N2).n)
except TypeError as error:
    LOG.append(str(error))
N4 = [q.n for q in sorted([N2, N1, Key(2)], key=lambda q: q.n)]
-> N4 ints""",
    """
N1 = sorted(<ints> + [4, 1], key=functools.cmp_to_key(lambda p, q: (p % 3 > q % 3) - (p % 3 < q % 3)))
N2 = max(<ints> + [0], key=lambda q: -abs(q)), min([(2, 'a'), (1, 'z')], default=None), max([], default=<int>)
~
N3 = [operator.lt(1, 2), operator.attrgetter('n')(GHELD), *operator.itemgetter(0, -1)(N1), operator.methodcaller('count', 1)(N1), operator.contains(N1, 4)]
N3 += [operator.add(1, <int>), operator.neg(3), operator.truth([]), operator.concat([1], [2])[1], operator.countOf(N1, 4), operator.indexOf(N1, 4)]
operator.setitem(N1, 0, <int>)
operator.delitem(N1, 1)
N4 = operator.iadd(N1, [5])
LOG.append([N2[0], N2[1:], N4 is N1])
-> N1 ints, N3 ints""",
    """
N1 = [Truth(<int>), Truth(0), Truth(2)]
N2 = [q.n for q in N1 if q] + [bool(N1[0]), not N1[1], (N1[1] or N1[2]).n, (N1[0] and N1[2]).n, any(N1), all(N1), len(list(filter(None, N1)))]
~
N3 = 1 if N1[0] else 2
while N1[2]:
    N1[2].n -= 1
N2.append(N1[2].n)
-> N2 ints, N3 int""",
)
DICTS_OF_ATTRIBUTES = (
    """
N1 = Held(<int>)
N2 = N1.__dict__
N3 = [N2.get('n', 0), N2.get('no', 4), 'n' in N2, len(N2), *(len(q) for q in N2), *(1 for q in N2.values()), *(len(q) for q, _ in N2.items())]
N2['late'] = <int>
N2 |= {'n': <int>, 'more': 2}
~
N3 += [N1.late, N1.n, N1.more, N2.pop('late'), N2.pop('late', 6), N2.setdefault('n', 1), N2.setdefault('set', <int>), N1.set, N2 == N1.__dict__]
N4 = N2.copy()
N2.update([('u', 1)], v=<int>)
N3 += [N1.u + N1.v, len(N4), hasattr(N4, 'u'), *reversed(list(N2.values()))[:0]] if False else [N1.u + N1.v, len(N4)]
N5 = ' '.join(reversed(N2)) + ' '.join(N2.keys())
~
N2.clear()
N3 += [hasattr(N1, 'n'), len(vars(N1)), N1.d]
N1.n = <int>
N3.append(vars(N1)['n'])
-> N3 ints, N5 str""",
    """
N1 = vars(GHELD)
N2 = [N1['n'], len(N1), N1 is vars(GHELD), N1 is GHELD.__dict__, *sorted(q for q in N1.values() if isinstance(q, int))]
N1['n'] = <int>
N1[<word>] = <int>
~
N2 += [GHELD.n, getattr(GHELD, 'key', 0), len(list(N1.items())), N1.pop('a', -1), N1.popitem()[0] != '']
for N3 in list(N1):
    if N3 not in ('n', '_t'):
        del N1[N3]
~
N2 += [len(N1), hasattr(GHELD, '_d'), GHELD.d]
GHELD.__dict__.setdefault('_t', None)
GHELD.__dict__.setdefault('n', 2)
-> N2 ints""",
    """
N1, N2 = Held(1), Held(<int>)
N1.__dict__ = N2.__dict__
N1.shared = <int>
~
N3 = [N2.shared, N1.n, N1.__dict__ is N2.__dict__]
N1.__dict__ = dict(N2.__dict__, n=<int>)
N2.n = 0
N3 += [N1.n, vars(N1) == vars(N2), {**vars(N1)}['n'], len(vars(N1) | vars(N2)), len(vars(N1).keys() & {'n'}), len(vars(N1).items() - vars(N2).items())]
~
try:
    N1.__dict__ = 3
except TypeError as error:
    LOG.append(str(error))
del N1.__dict__
N3 += [len(N1.__dict__), N1.d]
-> N3 ints""",
    """
N1 = Held(<int>)
N1.t = <tensor>
for N2, N3 in vars(N1).items():
    LOG.append((N2, type(N3).__name__))
~
N4 = {q: p for q, p in N1.__dict__.items() if not q.startswith('_')}
N5 = N4['t'] + N4['n']
vars(N1)['t'] = N5 * 2
N6 = N1.t
N1.__dict__.update(vars(Held(3)))
LOG.append([N1.n, sorted(N1.__dict__), dir(N1)[-1]])
-> N5 tensor, N6 tensor""",
    """
N1 = [q for q in vars(Held) if not q.startswith('_')]
N2 = [len(N1), 'n' in vars(Held), Held.__dict__['level'], vars(Held).get('none', 3), type(vars(Held)).__name__ == 'mappingproxy', 'half' in Deep.__dict__]
~
try:
    vars(Held)['level'] = 2
except TypeError as error:
    LOG.append(str(error))
Held.marked = <int>
N2 += [Held.marked, GDEEP.marked, vars(Held)['marked'], len(Held.__dict__) > 3]
del Held.marked
N2.append(hasattr(GHELD, 'marked'))
N3 = [q for q in vars(MoreSlots) if not q.startswith('__')]
LOG.append(N3)
-> N2 ints""",
    """
model.__dict__['noted'] = <int>
N1 = [model.noted, vars(model)['calls'], 'noted' in model.__dict__, 'layers' in vars(model), len(model._modules), 'seen' in model._buffers]
~
N1 += [model.__dict__.pop('noted'), getattr(model, 'noted', -1), len([q for q in vars(model) if q.startswith('_')]) > 3]
model._buffers['mean'] = model.mean + 1
N2 = model.mean.sum()
-> N1 ints, N2 scalar""",
)
FAMILIES = (DESCRIPTORS, ATTRIBUTES, ARITHMETIC, COMPARISONS, CONTAINERS, MANAGERS, DICTS_OF_ATTRIBUTES, LIBRARIES, LIBRARIES, *CLASSES)
OBJECTS: list[tuple[float, Statement]] = [(2.0, from_family(templates)) for templates in FAMILIES]
