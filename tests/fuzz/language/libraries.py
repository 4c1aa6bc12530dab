"""Statements over the libraries that capture follows as Python, as templates of `wider.py`."""

from __future__ import annotations

LIBRARIES = (
    """
N1 = <counts>
N2 = f'{N1.keys()} {collections.deque(N1)} {set(N1)!r}'
N3 = {1, <int>}
N4 = '%s of {}'.format(N1) % N3 + str(N1.items())
~
N1['late'] = <int>
N3.add(77)
LOG.append(str(len(N3)))
-> N1 counts, N2 str, N4 str""",
    """
N1 = list(heapq.merge(sorted(<ints>), sorted(<ints>), [2, 9]))
N2 = list(heapq.merge([5, 1], sorted(<ints>, reverse=True), key=lambda q: q, reverse=True))
~
N1 += heapq.nsmallest(3, N2, key=lambda q: -q) + heapq.nlargest(2, N1, key=abs) + heapq.nsmallest(1, N1) + heapq.nlargest(1, [])
N3 = [(q % 3, q) for q in <ints>]
heapq.heapify(N3)
while N3:
    N2.append(heapq.heappop(N3)[1])
try:
    heapq.heappop(N3)
except IndexError as error:
    LOG.append(str(error))
-> N1 ints, N2 ints""",
    """
N1 = sorted(<ints> + [2, 4, 4, 8])
N2 = [bisect.bisect_left(N1, 4), bisect.bisect_right(N1, 4), bisect.bisect(N1, <int>, 1), bisect.bisect(N1, <int>, lo=1, hi=3)]
N2.append(bisect.bisect_left(N1, <int>, 0, 2))
~
bisect.insort_right(N1, <int>, lo=0)
try:
    bisect.bisect(N1, 1, -1)
except ValueError as error:
    LOG.append(str(error))
N2 += [bisect.bisect_left([Key(1), Key(5)], Key(3)), bisect.bisect_right(['a', 'b'], <word>)]
-> N1 ints, N2 ints""",
    """
N1 = [*itertools.chain(<ints>, (1,), {2: 0}), *itertools.chain.from_iterable([[1], <ints>])]
N1 += [*itertools.islice(itertools.count(<int>, 3), 2), *itertools.repeat(<int>, 2)]
N2 = [*itertools.accumulate(<ints>), *itertools.accumulate(<ints> + [1], lambda p, q: p * 2 + q, initial=3), *itertools.accumulate(<ints>, max)]
~
N1 += [*itertools.takewhile(lambda q: q < 4, N2), *itertools.dropwhile(lambda q: q < 4, N2)]
N1 += [*itertools.filterfalse(lambda q: q % 2, N2), *itertools.compress(N2, [1, 0, 1])]
N3 = [(p, list(q)) for p, q in itertools.groupby(sorted(<ints>, key=lambda q: q % 3), lambda q: q % 3)]
LOG.append(N3)
LOG.append([*itertools.zip_longest(<ints>, 'ab', fillvalue=-1), *itertools.pairwise(<ints>), *itertools.starmap(pow, [(2, 3), (3, 2)])])
~
p, q = itertools.tee(<ints> + [5])
N1 += [next(p), *q, *p]
-> N1 ints, N2 ints""",
    """
N1 = [p * 10 + q for p, q in itertools.product(range(2), (1, <small>))]
N2 = [*itertools.permutations([1, 2, <small>], 2), *itertools.combinations(<ints>[:3], 2)]
N2 += [*itertools.combinations_with_replacement('ab', 2), *itertools.product('xy', repeat=2)]
~
LOG.append(N2)
N3 = itertools.cycle([1, <int>])
N1 += [next(N3) for _ in range(3)]
N4 = itertools.islice(<ints> + [1, 2, 3], 1, None, 2)
N1 += [next(N4, -1), *N4, len(N2)]
try:
    itertools.islice([1], -1)
except ValueError as error:
    LOG.append(str(error))
-> N1 ints""",
    """
N1 = collections.OrderedDict(a=<int>, b=2, c=<int>)
N1.move_to_end('a')
N1.move_to_end('c', last=False)
N2 = [*N1.values(), N1.popitem()[1], N1.popitem(last=False)[1], N1 == {'b': 2}, N1 == collections.OrderedDict(b=2), len(N1)]
~
N3 = collections.ChainMap({'a': <int>}, {'a': 2, 'b': <int>})
N3['c'] = 4
N2 += [N3['a'], N3['b'], len(N3), 'c' in N3, len(N3.maps[0]), *sorted(N3.values()), N3.new_child({'a': 7})['a'], N3.parents['a'], N3.get('z', 3)]
LOG.append([*N1, *reversed(N1), str(N1), *sorted(N3)])
-> N2 ints""",
    """
N1 = collections.deque(<ints> + [1, 2], maxlen=4)
N1.append(<int>)
N1.appendleft(<int>)
N1.rotate(1)
~
N2 = [*N1, len(N1), N1.maxlen, N1[0], N1.count(1), N1.pop(), N1.popleft(), *reversed(N1), 2 in N1]
N1.extend(<ints>)
N1.extendleft([7, 8])
N1.insert(0, 5) if len(N1) < 4 else N1.clear()
N3 = N1.copy() == N1
N1 += [3]
try:
    N1.remove(99)
except ValueError as error:
    LOG.append(str(error))
LOG.append([N3, N1, N1 < collections.deque([4])])
-> N2 ints""",
    """
N1 = collections.Counter(<ints>)
N1.update([1, 1, 2])
N1.subtract({1: <int>})
N2 = [*N1.values(), N1[77], N1.total(), len(N1), *[q for q, _ in N1.most_common(2)], *(+N1).values(), *(N1 - collections.Counter([1])).values()]
~
N3 = collections.defaultdict(list)
for q in <ints>:
    N3[q % 3].append(q)
N3.get(9)
N4 = collections.defaultdict(lambda: <int>, a=1)
N4['b'] += 1
N2 += [len(N3), *map(len, N3.values()), N4['b'], N4['a'], len(N4), *sorted(N1.elements()), (N1 & N1) == +N1, (N1 | collections.Counter(a=1))['a']]
LOG.append([dict(N3), N3.default_factory is list, collections.Counter('abca').most_common()])
-> N2 ints""",
    """
class N1(collections.UserDict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)
class N2(collections.UserList):
    def total(self):
        return sum(self.data)
N3 = N1(a=<int>)
N3['b'] = <int>
N4 = N2(<ints>)
N4.append(4)
~
N5 = [N3['a'], N3['b'], len(N3), 'a' in N3, N4.total(), *N4, N4[-1], *(N4 + [1]), *N3.values(), N3.get('z', 1), N3.pop('a')]
LOG.append([N3.data, N4[:1].data, N3 == {'b': 2}, sorted(N4)])
-> N5 ints""",
    """
N1 = Held(<int>)
N1.inner = [1, Held(2), {'k': (3, [<int>])}]
N2, N3 = copy.copy(N1), copy.deepcopy(N1)
N3.inner[2]['k'][1].append(5)
N3.inner[1].d = 4
~
N4 = [N2.inner is N1.inner, N3.inner is N1.inner, N3.inner[1] is N1.inner[1], len(N1.inner[2]['k'][1]), len(N3.inner[2]['k'][1]), N3.inner[1].d, N1.inner[1].d]
N5 = copy.deepcopy([N1, N1, (1, 2), <tensor>.detach()])
N4 += [N5[0] is N5[1], N5[2] is N5[2], copy.copy(Bag(1, 2)).items[1], copy.copy({1, 2}) == {2, 1}, copy.copy(Slots(4)).a, copy.deepcopy(GNUM).n]
N6 = N5[3]
-> N4 ints, N6 tensor""",
    """
N1 = functools.reduce(lambda p, q: p * 3 + q, <ints>, <int>)
N2 = functools.partial(spread, <int>, c=<int>)
N3 = functools.partial(N2, 5, c=1)
N4 = [N1 % 1009, N2(1), N3(), N3(2, d=4), N3.args[0], len(N3.keywords), N3.func is spread]
~
try:
    functools.reduce(lambda p, q: p, [])
except TypeError as error:
    LOG.append(str(error))
@functools.singledispatch
def N5(q):
    return 'any'
@N5.register
def _(q: int):
    return f'int {q}'
@N5.register(list)
def _(q):
    return f'list {len(q)}'
N6 = ' '.join([N5(<int>), N5(<ints>), N5(2.5), N5(True)])
-> N4 ints, N6 str""",
    """
class N1:
    def __init__(self, n):
        self.n = n
    def base(self, a, b=0):
        return self.n + a * 10 + b
    add = functools.partialmethod(base, 1)
    @functools.cached_property
    def slow(self):
        LOG.append('slow')
        return self.n * 7
    @staticmethod
    def fixed(q):
        return q + 1
    @classmethod
    def of(cls, q):
        return cls(q + 1)
    @functools.lru_cache(maxsize=2)
    def remembered(self, q):
        LOG.append('asked')
        return q + 1
N2 = N1(<int>)
~
N3 = [N2.add(), N2.add(b=<int>), N2.slow, N2.slow, N2.fixed(1), N1.fixed(2), N1.of(3).n, N2.of(<int>).n, N2.remembered(1), N2.remembered(1), 'slow' in vars(N2)]
N2.slow = 4
N3.append(N2.slow)
N4 = [N1.remembered.cache_info().hits, getattr(N2, 'fixed')(4)]
-> N3 ints, N4 ints""",
    """
N1 = random.Random(<small>)
N2 = [N1.randint(0, 9), N1.randrange(5), N1.choice([1, 2, 3]), N1.getrandbits(4), *N1.sample(range(20), 2), *N1.choices([1, 2], k=2)]
~
N3 = <ints> + [1, 2, 3]
N1.shuffle(N3)
N4 = f'{N1.random():.9f} {N1.uniform(1, 2):.9f} {N1.gauss(0, 1):.9f} {N1.betavariate(1, 2):.6f}'
N1.seed(4)
N2.append(N1.randint(0, 100))
-> N2 ints, N3 ints, N4 str""",
    """
N1 = [random.randint(0, 9), random.randrange(2, 20, 3), random.choice(<ints> + [1])]
N2 = random.random() + random.uniform(-1, 1)
~
N3 = list(range(5))
random.shuffle(N3)
N1 += random.sample(N3, 2)
if random.random() < 0.5:
    N1.append(<int>)
N4 = <tensor> * random.random() + random.gauss(0, 1)
N5 = random.getstate()
p = random.random()
random.setstate(N5)
N1.append(p == random.random())
-> N1 ints, N3 ints, N4 tensor""",
    """
N1 = [math.gcd(<int>, 12), math.floor(<float>), math.ceil(<float>), math.prod(<ints>) % 1009, math.comb(5, 2), math.isqrt(abs(<int>)), math.lcm(4, 6)]
N4 = [math.sqrt(abs(<float>)), math.hypot(3, <float>), math.copysign(1, <float>)]
N2 = ' '.join(f'{q:.6f}' for q in N4)
N2 += f'{math.fsum([0.1] * 3)!r} {math.isclose(0.1 + 0.2, 0.3)}' + str(math.inf > <int>)
~
try:
    math.sqrt(-1)
except ValueError as error:
    LOG.append(str(error))
N3 = math.pi * <tensor> + math.exp(0.5)
-> N1 ints, N2 str, N3 tensor""",
)
