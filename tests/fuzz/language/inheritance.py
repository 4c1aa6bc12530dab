"""Statements over classes that inherit, dataclasses, enums, subclasses of containers, generators of objects, and what Python says of misuse, as templates of
`wider.py`."""

from __future__ import annotations

INHERITANCE = (
    """
N1 = Diamond(<int>, m=<int>)
N2 = [N1.left, N1.right, *N1.both, len(N1.told()), len(Diamond.__mro__), isinstance(N1, Right), issubclass(Diamond, Root)]
~
N3 = Diamond.made(2)
N2 += [len(Diamond.kept), len(Root.kept), N3.right, *[len(q.__name__) for q in type(N1).__mro__]]
LOG.append(N1.told())
try:
    Diamond(1, q=2)
except TypeError as error:
    LOG.append(str(error))
-> N2 ints""",
    """
GDIAMOND.left += <int>
N1 = [*GDIAMOND.both, len(GDIAMOND.told()), super(Diamond, GDIAMOND).told()[0] == 'left', Root.told(GDIAMOND)[0] == 'Diamond']
~
Right.right = property(lambda self: 9, lambda self, value: None)
N1 += [*GDIAMOND.both, Diamond(1, m=4).right]
del Right.right
N1 += [*Diamond(1, m=4).both]
-> N1 ints""",
    """
N1 = Square(<int>)
N2 = [N1.area(), N1.double(), N1.sides, isinstance(N1, Shape), isinstance(N1, HasArea), isinstance(3, HasArea), isinstance([], Sized), issubclass(int, Sized)]
~
try:
    Shape()
except TypeError as error:
    N2.append(len(str(error)) > 10)
class N3(Square):
    sides = property(lambda self: self.n)
N2 += [N3(<small>).double(), len(Shape.__abstractmethods__), Shape.register(list) is list, isinstance([], Shape)]
-> N2 ints""",
    """
class N1:
    made = []
    def __init_subclass__(cls, /, tag='none', **kwargs):
        cls.made.append((cls.__name__, tag))
    def __class_getitem__(cls, item):
        return cls, item
    @staticmethod
    def plain(q, *, by=2):
        return q * by
    @classmethod
    def of(cls, q):
        return cls.__name__, cls.plain(q)
class N2(N1, tag=<word>):
    plain = staticmethod(lambda q, by=3: q + by)
~
N3 = [N1.of(<int>)[1], N2.of(<int>)[1], N2().plain(1), N2.plain(2, by=<int>), len(N1.made), N1[int][1] is int]
N4 = N1.made[0][0] + N2.of(1)[0]
-> N3 ints, N4 str""",
)
DATACLASSES = (
    """
N1 = Data(<int>, seed=<int>)
N2 = [N1.x, N1.y, N1.total, N1 == Data(1, 2), N1 != N1, len(dataclasses.fields(N1)), dataclasses.is_dataclass(N1), Data.count]
N1.tags.append(<int>)
~
N3 = dataclasses.replace(N1, x=<int>, seed=1) if False else Data(*dataclasses.astuple(N1)[:2])
N2 += [N3.total, len(N3.tags), *dataclasses.asdict(N1)['tags'], N3.tags is N1.tags]
N4 = f'{N1} {N3!r} {DeepData(1)}'
try:
    Data()
except TypeError as error:
    LOG.append(str(error))
try:
    Data(1, 2, 3, 4, 5, 6)
except TypeError as error:
    LOG.append(str(error))
-> N2 ints, N4 str""",
    """
N1, N2 = SlotData(a=<int>), SlotData(a=<int>, b=<word>)
N3 = [N1 < N2, N1 == N2, N1 >= N2, max(N1, N2).a, hasattr(N1, '__dict__'), sorted([N2, N1])[0].a, len(SlotData.__slots__)]
~
N1.a = <int>
try:
    N1.c = 2
except AttributeError as error:
    LOG.append(str(error))
try:
    SlotData(1)
except TypeError as error:
    LOG.append(str(error))
N3 += [N1.a, dataclasses.replace(N1, a=5).a, copy.copy(N1).a]
N4 = repr(N1)
-> N3 ints, N4 str""",
    """
N1 = Frozen(<int>, <tensor>)
N2 = N1.moved(<int>)
~
N3 = N2.t * N2.n + N1.t
N4 = [N2.n, N2.t is N1.t, hash(Frozen(1)) == hash(Frozen(1)), Frozen(1) == Frozen(1), Frozen(2) in {Frozen(2): 1}]
try:
    N1.n = 3
except dataclasses.FrozenInstanceError as error:
    LOG.append(str(error))
try:
    del N1.n
except AttributeError as error:
    LOG.append(type(error).__name__)
-> N3 tensor, N4 ints""",
    """
GDATA.x += <int>
GDATA.tags.append(<int>)
N1 = [GDATA.x, GDATA.total, len(GDATA.tags), GDATA == Data(1, tags=[5]), Data.count]
~
match GDATA:
    case Data(x=1, y=q):
        N1.append(q)
    case Data(p, q):
        N1 += [p, q]
del GDATA.tags[1:]
N1.append(GDATA.__match_args__ == ('x', 'y', 'tags', 'seed'))
-> N1 ints""",
    """
N1 = Level(1 if <int> % 2 else 5)
N2 = [N1, N1.value, N1 + 1, N1.next, N1 < 3, Level.HIGH > N1, Level['LOW'], N1 is Level.LOW, len(Level), N1 in (1, 2), [3, 4, 5, 6, 7, 8][N1]]
~
N3 = f'{N1!r} {N1.name} {Name.A} {Name("b").name} {Name("none").value} {[q.name for q in Level]}' + Name.A + str(Name.A == 'a')
N2 = [int(q) for q in N2]
try:
    Level(7)
except ValueError as error:
    LOG.append(str(error))
match N1:
    case Level.LOW:
        N2.append(100)
    case Level.HIGH:
        N2.append(200)
-> N2 ints, N3 str""",
    """
N1 = Perm.R | Perm.X
N2 = [Perm.R in N1, Perm.W in N1, bool(N1 & Perm.W), (N1 ^ Perm.R) is Perm.X, (~N1 & Perm.RW) is Perm.W, N1.value, Perm.RW.value, len(list(Perm))]
~
N1 |= Perm.W
N2 += [N1.value, Perm(3) is Perm.RW, N1 == Perm(7)]
-> N2 ints""",
)
SEQUENCES = (
    """
N1 = Triple(<int>, <int>, 3)
N2 = [N1.first, N1[0][1], len(N1), *N1, *N1[1:], 3 in N1, N1 == (1, 2, 3), N1.index(3), N1.count(3), sum(N1), isinstance(N1, tuple)]
~
p, *q = N1
N2 += [p, len(q), (N1 + (4,))[-1], (N1 * 2)[-1], N1 < (9,), *[r for r in N1], *sorted(N1)]
N3 = f'{N1} {type(N1[1:]).__name__} {type(N1 + ()).__name__}'
-> N2 ints, N3 str""",
    """
N1 = Named(<int>)
N2 = [N1.a, N1.b, N1.total(), *N1, N1[0], len(N1), N1 == (1, 2), N1._replace(b=<int>).b, *N1._asdict().values(), N1._fields == ('a', 'b')]
~
p, q = N1
N2 += [p, q, Named._make([3, 4]).total(), Named(b=1, a=2).a, N1 < Named(5), max(N1, Named(0)).a]
N3 = repr(N1)
try:
    N1.a = 4
except AttributeError as error:
    LOG.append(str(error))
try:
    Named()
except TypeError as error:
    LOG.append(str(error))
match N1:
    case Named(a=1):
        N2.append(1)
    case (p, 2):
        N2.append(p)
-> N2 ints, N3 str""",
    """
N1 = Few(<ints>)
N1.add(<int>)
N2 = [len(N1), 'all' in N1, 3 in N1, N1 == set(N1), isinstance(N1 | {1}, Few), len(N1 & {1, 2}), len(N1 - {1}), N1 >= {1}]
~
N1.update([7, 8])
N1 |= {9}
N1.discard(7)
N2 += [len(N1), *sorted(N1), type(N1.copy()).__name__ == 'Few', 9 in N1]
-> N2 ints""",
    """
N1, N2 = Counts(<ints>), Times(int, a=<int>)
N2['b'] += <int>
N1.update('ab')
~
N3 = [N1['no'], N1['a'], N1.get('no', 4), len(N1), N2['a'], N2['b'], N2['c'], len(N2), *N1.values(), sum(N2.values()), 'd' in N2]
LOG.append([type(N1 + N1).__name__, dict(N2), N1.most_common(1)[0][1]])
-> N3 ints""",
    """
N1 = Nodes(<int>, Nodes(2, Nodes(<int>)), Nodes(3))
N2 = [*N1, sum(N1), max(N1), 3 in N1, *[p * 10 + q for p, q in N1.walk()]]
~
N3 = N1.walk()
next(N3)
N2 += [*N3.send(<int>), N1.n]
with N1.marked(5) as N4:
    N2.append(N4.n)
    ~
N2 += [N1.n, len(list(N3))]
N3.close()
-> N2 ints""",
    """
N1 = list(GNODES)
with GNODES.marked(<int>):
    N1 += [*GNODES]
    ~
GNODES.children[0].n = <int>
N1 += [q for p, q in GNODES.walk() if p]
for N2 in GNODES.walk():
    N1.append(N2[0])
    if N2[1] == 3:
        break
-> N1 ints""",
    """
N1 = Copied(<int>, [1, Copied(2), [<int>]])
N2, N3 = copy.copy(N1), copy.deepcopy(N1)
~
N3.inner[2].append(4)
N4 = [N2.n, N3.n, N2.inner is N1.inner, N3.inner[1].n, len(N1.inner[2]), copy.deepcopy((N1, N1))[0].n, copy.copy((1, N1))[1] is N1]
-> N4 ints""",
)
OPERATORS_OF_TENSORS = (
    """
N1 = Scale(<int>)
N2 = N1 * <tensor>
N3 = <tensor> * N1
~
N4 = <tensor> + N1
N5 = (N1 @ N4).sum() + N1[N3]
for q in ('N2 - N1', 'N1 + N2', 'N2 / N1'):
    try:
        LOG.append(eval(q, {'N1': N1, 'N2': N2}) is None)
    except TypeError as error:
        LOG.append(type(error).__name__)
LOG.append([N1 < 3, N1[2]])
-> N2 tensor, N3 tensor, N4 tensor, N5 scalar""",
    """
N1 = {'a': <tensor>, 'n': <int>}
class N2:
    def __init__(self, **names):
        self.__dict__.update(names)
    def __getattr__(self, name):
        return self.__dict__[name[:-1]] * 2 if name.endswith('2') else 0
    def __setattr__(self, name, value):
        self.__dict__[name] = value + 1
N3 = N2(**N1)
N4 = N3.a2 + N3.n2
~
N3.a = N4
N3.n += 1
N5 = N3.a * N3.n + N3.zz
-> N4 tensor, N5 tensor""",
)
MISUSE = tuple(
    f"""
N1 = {made}
N2 = []
for N3 in ({", ".join(f"lambda: {use}" for use in uses)}):
    try:
        N2.append(repr(N3()))
    except Exception as error:
        N2.append(f'{{type(error).__name__}} {{error}}')
~
LOG.append(N2)
N4 = len(N2)
-> N4 int"""
    for made, uses in (
        (
            "Held(<int>)",
            ("N1()", "N1[0]", "len(N1)", "iter(N1)", "N1 + 1", "-N1", "N1 < N1", "N1.nothing", "int(N1)", "1 in N1", "next(N1)", "[1][N1]", "{**N1}", "[*N1]"),
        ),
        ("Odd(<int>)", ("bool(N1)", "len(N1)", "iter(N1)", "hash(N1)", "str(N1)", "range(N1)", "2 in N1", "N1 == 3", "[1, 2][N1]", "f'{N1}'", "N1 != 4")),
        ("Odd(None)", ("bool(N1)", "len(N1)", "list(N1)", "hash(N1)", "str(N1)", "range(N1)", "2 in N1", "N1 == 3", "not N1", "sum(N1)", "{N1}")),
        ("Odd('text')", ("bool(N1)", "len(N1)", "list(N1)", "hash(N1)", "str(N1)", "range(N1)", "2 in N1", "N1 == 3", "any(N1)", "dict(N1)", "sorted(N1)")),
        (
            "<int>",
            (
                "N1()",
                "N1[0]",
                "len(N1)",
                "iter(N1)",
                "N1 + 'a'",
                "N1 < 'a'",
                "N1.nothing",
                "'a' in N1",
                "[*N1]",
                "N1 @ 2",
                "{}[N1]",
                "[][N1]",
                "N1 // 0",
                "'a' % N1",
            ),
        ),
        (
            "<str>",
            (
                "N1()",
                "N1['a']",
                "N1 + 1",
                "N1 < 1",
                "N1.nothing",
                "1 in N1",
                "-N1",
                "int(N1)",
                "N1 * 'a'",
                "N1.join([1])",
                "N1[99]",
                "'{} {}'.format(N1)",
                "N1 % 3",
            ),
        ),
        (
            "<ints>",
            (
                "N1()",
                "N1['a']",
                "N1 + 1",
                "N1 < 1",
                "N1.nothing",
                "-N1",
                "hash(N1)",
                "N1[99]",
                "N1.index(99)",
                "N1.remove(99)",
                "[].pop()",
                "N1 - N1",
                "{N1: 1}",
            ),
        ),
        (
            "<counts>",
            (
                "N1()",
                "N1['no']",
                "N1 + N1",
                "N1 < N1",
                "N1.nothing",
                "hash(N1)",
                "N1.pop('no')",
                "{}.popitem()",
                "N1[[]]",
                "N1 | 3",
                "dict([1])",
                "dict(1)",
                "max({})",
            ),
        ),
        ("<tuple>", ("N1()", "N1['a']", "N1 + [1]", "N1 < 1", "N1.nothing", "N1[99]", "N1.index(99)", "hash((N1, []))", "max(())", "N1 * N1", "sum(('a',))")),
        ("None", ("N1()", "N1[0]", "len(N1)", "iter(N1)", "N1 + 1", "N1 < N1", "N1.nothing", "1 in N1", "int(N1)", "abs(N1)", "sum(N1)", "sorted([1, N1])")),
        (
            "spread",
            (
                "N1()",
                "N1(1, 2, a=3)",
                "N1(b=2)",
                "N1(1, *3)",
                "N1(1, **3)",
                "N1(1, **{1: 2})",
                "N1[0]",
                "N1.nothing",
                "N1 + 1",
                "keyword_only()",
                "keyword_only(1)",
                "Box()",
                "Data(z=1)",
            ),
        ),
        (
            "[1, 2, 3]",
            (
                "next(N1)",
                "int('a')",
                "float('b')",
                "chr(-1)",
                "ord('ab')",
                "range(1, 2, 0)",
                "round('a')",
                "divmod(1, 0)",
                "list(zip(N1, [1], strict=True))",
                "isinstance(1, 2)",
                "getattr(N1, 1)",
            ),
        ),
    )
)
CLASSES = (INHERITANCE, DATACLASSES, SEQUENCES, OPERATORS_OF_TENSORS, MISUSE)
