"""Statements that came later, as templates: closures that write, patterns, unpacking, deletions, managers, chained exceptions, generators that are
driven, views and containers of the standard library, dataclasses, properties, sorting; with graph breaks anywhere in them.

In a template `<int>` is an expression of that type, `<word>` and `<small>` are constants, N1, N2, ... are new variables, a line of `~` may become a
graph break, and the last line, `-> N1 int, N2 ints`, says which variables may be used later.
"""

from __future__ import annotations

import re

from tests.fuzz.language.expressions import expression, small, word
from tests.fuzz.language.scope import INT, STR, TENSOR, Scope, Statement

CLOSURES = (
    """
def N1(step=<small>):
    N2 = <int>
    def bump(by=1):
        nonlocal N2
        ~
        N2 += by
        return N2
    def swap():
        nonlocal N2, step
        N2, step = step, N2
        ~
        return N2 - step
    ~
    bump(2)
    N3 = [bump(q) for q in range(2)]
    return swap() * 100 + bump() + sum(N3) + N2
N4 = N1() + N1(<int>)
-> N4 int""",
    """
N1 = []
for N2 in range(3):
    def N3(q, N2=N2):
        ~
        N1.append(N2 + q)
        return lambda: N1[-1] + N2
    N4 = N3(<int>)()
-> N1 ints""",
    """
N1, N2 = <int>, <tensor>
def N3(x):
    nonlocal N1, N2
    N1 += 1
    ~
    N2 = N2 * 0.5 + x
    def deeper():
        nonlocal N1
        N1 = N1 * 2 % 1009
        ~
        return N2.shape[0]
    return deeper() + N1
N4 = N3(1) - N3(<small>)
-> N1 int, N2 tensor, N4 int""",
    """
def N1(n):
    if n <= 0:
        return []
    ~
    return [n, *N1(n - 1)]
N2 = N1(<int> % 4)
-> N2 ints""",
)
PATTERNS = (
    """
match Point(<int>, <int>):
    case Point(x=0, y=N1) | Point(x=N1, y=0):
        ~
        N2 = N1
    case Point(x=N1, y=N2) if N1 < N2 and <bool>:
        ~
        N2 = N2 - N1
    case Point(N1) if <bool>:
        N2 = N1
    case _:
        N2 = -1
-> N2 int""",
    """
match (<ints>, <counts>):
    case ([], {}):
        N1 = 0
    case ([N2, *N3, N4], {'a': N1, **N5}):
        ~
        N1 = N2 + N4 + len(N3) + N1 * len(N5)
    case ([N1, *_], _) if N1 != 3:
        pass
    case (N2, N3):
        ~
        N1 = len(N2) - len(N3)
-> N1 int""",
    """
match [Box(<int>), Pair(<int>, <str>)]:
    case [BigBox(n=N1), _] | [_, Pair(N1, 'a')]:
        N2 = 1
    case [Box(n=N1, items=[]) as N3, Pair(second=str() as N4)]:
        ~
        N2 = N3.total() + len(N4)
-> N1 int, N2 int""",
    """
N1 = 0
for N2 in (<int>, <str>, None, <tuple>, 2.5, <counts>):
    match N2:
        case bool() | float():
            N1 += 1
        case int(N3) if N3 > 2:
            ~
            N1 += N3
        case str() | None:
            N1 += 100
        case (N3, *_):
            N1 += 1000
        case {'key': N3} | {'zz': N3}:
            ~
            N1 += N3
-> N1 int""",
)
UNPACKING = (
    """
N1, *N2, N3 = [<int>, *<ints>, <int>]
(N4, *N5), *N6 = [N2 or [7], [8], *[N2]]
~
N1 += len(N6) + N4
-> N1 int, N2 ints, N3 int, N5 ints""",
    """
N1 = 0
for N2, *N3 in [(1, 2, 3), (<int>,), [<int>, <int>]]:
    ~
    N1 += N2 * 10 + sum(N3)
-> N1 int, N3 ints""",
    """
N1 = {**<counts>, **{'k': <int>}, 'a': 9}
N2 = [*N1.values(), *(q for q in <ints>), *{3}]
~
N3 = spread(*N2[:2], **{'c': 1, **{k + 'q': v for k, v in N1.items()}})
-> N1 counts, N2 ints, N3 int""",
    """
try:
    N1, N2, *N3 = <ints>
    ~
    N1 += N2
except ValueError as error:
    N1, N3 = len(str(error)), []
-> N1 int, N3 ints""",
)
DELETIONS = (
    """
N1, N2 = [<int>, 1, 2, 3], {'a': <int>, 'b': 2, 'c': 3}
~
del N1[0], N1[-1:], N2['b']
N3 = N2
del N2
~
N4 = len(N1) + sum(N3.values())
-> N1 ints, N3 counts, N4 int""",
    """
N1 = <int>
N2 = lambda: N1 + 1
N3 = N2()
del N1
~
try:
    N3 += N2()
except NameError as error:
    LOG.append(str(error))
N1 = 5
N3 += N2()
-> N1 int, N3 int""",
    """
N1 = <box>
N1.note, N1.other = <int>, <str>
~
del N1.note
N2 = hasattr(N1, 'note') + 2 * hasattr(N1, 'other')
try:
    del N1.note
except AttributeError as error:
    LOG.append(type(error).__name__)
-> N2 int""",
    """
for N1 in range(3):
    N2 = N1
    ~
    if N1 == 1:
        del N2
try:
    N3 = N2
    del N2
    ~
    N3 += N2
except UnboundLocalError as error:
    LOG.append(str(error))
-> N1 int""",
)
MANAGERS = (
    """
with Noting('one') as N1, noted('two', <int>) as N2, Noting('three', (Wrong, KeyError)):
    ~
    if <bool>:
        raise KeyError(<word>)
    ~
    N2 += 1
LOG.append(N1.name)""",
    """
with contextlib.suppress(ZeroDivisionError), Noting(<word>):
    with Noting('inner', ValueError):
        ~
        raise ValueError(<int>)
    LOG.append(7 // (<int> % 2))
    ~
    LOG.append('not reached')""",
    """
try:
    with Noting('outer'), Failing(<small>, <small>) as N1:
        ~
        LOG.append(N1)
        if <bool>:
            raise Wrong('inside', 4)
except (Wrong, KeyError) as error:
    LOG.append(chain_of(error))""",
    """
with contextlib.ExitStack() as N1:
    for N2 in range(2):
        N1.enter_context(noted(str(N2)))
    N1.callback(LOG.append, <int>)
    ~
    N3 = <int>
-> N3 int""",
    """
for N1 in range(3):
    with Noting(str(N1)), contextlib.suppress(Wrong):
        ~
        if N1 == 1:
            continue
        failing(<int>) if <bool> else None
        ~
        if N1 == <small>:
            break
-> N1 int""",
)
EXCEPTIONS = (
    """
try:
    try:
        failing(<int>)
        ~
    except Wrong as error:
        ~
        raise Worse('translated', error.number) from error
    except KeyError as error:
        raise IndexError(<int>)
    else:
        raise ValueError(<int>) from None
except Exception as error:
    ~
    LOG.append(chain_of(error))""",
    """
try:
    try:
        {}[<word>]
    finally:
        ~
        LOG.append('cleaned')
        int(<str>)
except (KeyError, ValueError) as error:
    LOG.append(chain_of(error))
    N1 = error
    ~
else:
    N1 = None
LOG.append(repr(N1))""",
    """
def N1(n):
    for q in range(3):
        try:
            if q == n:
                return q
            ~
            if q > n:
                break
        finally:
            LOG.append(q)
            if q == <small>:
                return -5
    return 100
N2 = N1(<int> % 4) + N1(1)
-> N2 int""",
    """
N1 = []
for N2 in (0, 1, 2):
    try:
        ~
        N1.append(failing(N2 + <small>))
    except Wrong as error:
        N1.append(error.number)
        continue
    except KeyError as error:
        N1.append(error.args[0])
        ~
    else:
        N1.append(50)
    finally:
        N1.append(60)
-> N1 ints""",
    """
try:
    N1 = Wrong(<str>, <int>)
    N1.extra = <int>
    N1.__cause__ = KeyError('because')
    ~
    raise N1
except Wrong as error:
    ~
    LOG.append((chain_of(error), error.extra, error is N1))
    try:
        raise
    except Worse:
        LOG.append('worse')
    except Exception as again:
        LOG.append(again is error)""",
)
GENERATORS = (
    """
N1 = patient(<int>)
N2 = [next(N1), N1.send(<int>)]
~
N2.append(N1.throw(Wrong('thrown', 2)))
N2.append(N1.send(3))
~
N1.close()
N2.append(next(N1, -1))
-> N2 ints""",
    """
N1 = patient(<int>)
try:
    next(N1)
    ~
    N1.throw(ZeroDivisionError)
except ZeroDivisionError as error:
    LOG.append(chain_of(error))
LOG.append(next(N1, 'over'))""",
    """
def N1(n):
    N2 = yield n
    with Noting('in generator'):
        while N2:
            ~
            N2 = yield N2 * 2
    try:
        yield from count_up(2, <small>)
    finally:
        LOG.append('done')
    return n
N3 = N1(<int>)
N4 = [next(N3), N3.send(<small>)]
~
N4.extend(N3)
-> N4 ints""",
    """
N1 = (q * <small> for q in <ints> if q % 2)
N2 = [next(N1, 9)]
~
N2 += list(N1)
for N3, N4 in zip(count_up(3), patient(<small>)):
    ~
    N2.append(N3 + N4)
-> N2 ints""",
    """
N1 = count_up(<int> % 4)
try:
    while True:
        next(N1)
        ~
except StopIteration as error:
    N2 = error.value
-> N2 int""",
    """
for N1 in paired(<ints>):
    ~
    for N2 in paired([1, 2]):
        ~
        if N1 + N2 > <small>:
            break
    else:
        continue
    LOG.append('left')
    break""",
)
CONTAINERS = (
    """
N1 = <counts>
N2 = N1.keys()
N1['new'] = <int>
~
N3 = [len(N2), *sorted(len(q) for q in N2 & {'a', 'new'})]
N4 = [*reversed(N1)][0] + str(('new', 1) in N1.items())
N1['a'] = N1.pop('a', 0)
LOG.append(list(N1.items()))
-> N1 counts, N3 ints, N4 str""",
    """
N1 = collections.OrderedDict(sorted(<counts>.items()), z=<int>)
N1.move_to_end('z', last=<bool>)
~
N2 = list(N1.values())
N1.popitem(last=False)
LOG.append(list(N1))
-> N2 ints""",
    """
N1 = collections.defaultdict(list)
for N2 in <ints>:
    N1[N2 % 3].append(N2)
~
N1[7]
N3 = [len(N1), *N1[0], *(sum(q) for q in N1.values())]
LOG.append(dict(N1))
-> N3 ints""",
    """
N1 = collections.Counter(<str>)
N1.update('aab')
~
N1['b'] -= 1
N2 = [N1['a'], N1['missing'], sum(N1.values()), *(n for _, n in N1.most_common(1))]
-> N2 ints""",
    """
N1 = collections.deque(<ints>, maxlen=4)
N1.append(<int>)
N1.appendleft(1)
~
N1.rotate(<small>)
N2 = [len(N1), N1[0], N1.popleft(), *N1]
-> N2 ints""",
    """
N1 = {}
for N2 in (<word>, <str>, 'b'):
    N1.setdefault(N2, []).append(len(N1))
    ~
N3 = {k: sum(v) for k, v in N1.items()} | <counts>
LOG.append([N3 == dict(reversed(N3.items())), N3.keys() == set(N3), list(N3)])
-> N3 counts""",
    """
N1 = <counts>
N2 = 0
for N3 in list(N1):
    if N3 == <word>:
        del N1[N3]
        ~
    else:
        N2 += N1[N3]
-> N1 counts, N2 int""",
)
CLASSES = (
    """
N1 = Point(<int>, tags=[<int>])
N2 = dataclasses.replace(N1, x=<int>)
~
N1.tags.append(5)
N3 = [N2.norm(), len(N2.tags), N1 == N2, N2.tags is N1.tags]
LOG.append(dataclasses.asdict(N2))
-> N3 ints""",
    """
N1, N2 = Version(<int>, <int>), Version(1)
~
N3 = [N1 < N2, N1 == Version(1), max(N1, N2).major, hash(N2) == hash(Version(1))]
try:
    N1.major = 4
except AttributeError as error:
    LOG.append(type(error).__name__)
LOG.append([N1.total, repr(dataclasses.replace(N2, minor=<small>))])
-> N3 ints""",
    """
N1 = Slotted(<int>)
N1.size = <int>
~
N1.size += 1
N2 = [N1.size, N1.area, N1.changes]
try:
    N1.other = 1
except AttributeError as error:
    LOG.append(str(error))
try:
    N1.area = 1
except AttributeError:
    LOG.append('read only')
-> N2 ints""",
    """
N1 = <box>
N1.double = <int>
N1.double += 2
~
N2 = [N1.double, N1.n, type(N1).double.fget(N1), len(vars(type(N1)))]
-> N2 ints""",
    """
class N1(Box):
    kinds = [<int>]
    def total(self):
        ~
        return super().total() + self.kinds[0]
    @property
    def shown(self):
        return f"{self.n}:{self.kinds}"
    def __eq__(self, other):
        return isinstance(other, N1) and self.n == other.n
N2 = N1(<int>)
N1.kinds.append(N2.total())
~
N3 = [N2.total(), N2 == N1(<int>), N2 != N2, N2 in [N1(N2.n)]]
LOG.append(N2.shown)
-> N3 ints""",
)
SORTING = (
    """
N1 = [Point(q % 3, q) for q in <ints>]
N1.sort(key=lambda p: (p.x, -p.y), reverse=<bool>)
~
N2 = [p.y for p in sorted(N1, key=Point.norm)]
-> N2 ints""",
    """
N1 = sorted(<counts>.items(), key=lambda pair: (-pair[1], pair[0]))
~
N2 = [v for _, v in N1]
N3 = max(<ints>, key=lambda q: (q % 4, q), default=<int>)
-> N2 ints, N3 int""",
    """
N1 = sorted([Box(q) for q in <ints>], reverse=<bool>)
~
N2 = [box.n for box in N1]
N2.sort(key=str)
N3 = sorted(<ints>, key=lambda q: opaque(q) % 3)
-> N2 ints, N3 ints""",
    """
N1 = [(q % 2, str(q)) for q in <ints>]
N2 = [len(b) for a, b in sorted(N1)] + [a for a, b in sorted(N1, key=lambda pair: pair[1])]
~
N3 = list(map(int, sorted({str(q) for q in <ints>})))
-> N2 ints, N3 ints""",
)
FAMILIES = (CLOSURES, PATTERNS, UNPACKING, DELETIONS, MANAGERS, EXCEPTIONS, GENERATORS, CONTAINERS, CLASSES, SORTING)
PLACE = re.compile(r"<(\w+)>")


def breaking_line(g: Scope) -> str:
    """What stands for `~`."""
    if g.chance(0.6):
        return "pass"
    rows = ("dynacompile.graph_break()", f"opaque({expression(g, INT, 0)})", f"print({expression(g, STR, 0)})", f"breaking({expression(g, TENSOR, 0)})")
    return g.pick.choice(rows)


def filled(g: Scope, template: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines of the template, and the variables it leaves, with their types."""
    text, _, left = template.strip("\n").partition("\n-> ")
    names: dict[str, str] = {}
    makers = {"word": word, "small": small}

    def made(match: re.Match[str]) -> str:
        kind = match[1]
        return makers[kind](g) if kind in makers else expression(g, kind, g.pick.choice((0, 1, 1)))

    def named(match: re.Match[str]) -> str:
        if match[0] not in names:
            g.names += 1
            names[match[0]] = f"w{g.names}"
        return names[match[0]]

    def plain(line: str) -> str:
        return PLACE.sub(made, re.sub(r"\bN\d\b", named, line))

    g.no_walrus += 1
    lines = [line.replace("~", breaking_line(g)) if line.strip() == "~" else plain(line) for line in text.split("\n")]
    g.no_walrus -= 1
    return lines, [(names[name], kind) for name, kind in (part.split() for part in left.split(", "))] if left else []


def from_family(templates: tuple[str, ...]) -> Statement:
    def make(g: Scope) -> None:
        if g.is_generator or g.indent > 3:
            return
        lines, left = filled(g, g.pick.choice(templates))
        for line in lines:
            g.line(line)
        for name, kind in left:
            g.declare(name, kind)

    return make


WIDER: list[tuple[float, Statement]] = [(0.8, from_family(templates)) for templates in FAMILIES]
