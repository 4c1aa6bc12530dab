"""Small programs that once differed from eager; most were found, and made small, by `python -m tests.fuzz.language --shrink`."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke
from tests.fuzz.language.observe import difference
from tests.fuzz.language.programs import HEAD, Program

PROGRAMS = {
    "a handler inside of a loop breaks in a resume function": """
        def program(x, i):
            for s in 'ab':
                try:
                    box = GBOX + i
                    opaque(1)
                    assert i, s
                except Exception as error:
                    repr(error)
            return x + 1
        def calls():
            yield program, (torch.ones(2), 0)
        """,
    "an exception's own __init__ calls BaseException's": """
        def program(x):
            try:
                raise Wrong('text', 3)
            except Wrong as error:
                LOG.append(repr(error))
                return str(error), error.number, x + 1
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a dict changes its size while it is iterated": """
        def program(x):
            for key in GDICT:
                GDICT.popitem()
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a dict changes its size in the middle": """
        def program(x, d):
            try:
                for key, value in d.items():
                    d[key + 'x'] = value
            except RuntimeError as error:
                return str(error), d, x + 1
        def calls():
            yield program, (torch.ones(2), {'a': 1})
        """,
    "items of a dict show values that changed meanwhile": """
        def program(x, d):
            out = []
            for key, value in d.items():
                d['b'] = value + 5
                out.append((key, value))
            return out, x + 1
        def calls():
            yield program, (torch.ones(2), {'a': 1, 'b': 2, 'c': 3})
        """,
    "a loop leaves a generator inside of a finally block": """
        def program(x):
            for i in paired([1, 2, 3]):
                break
            LOG.append('after')
            return x + i
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a return leaves a generator inside of a finally block": """
        def program(x):
            for i in paired([1, 2, 3]):
                if i > 2:
                    return x + i
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a generator is dropped inside of a finally block": """
        def program(x):
            g = paired([1, 2, 3])
            return x + next(g)
        def calls():
            yield program, (torch.ones(2),)
        """,
    "sets changed in place": """
        def program(x, a, b):
            a -= {1}
            b &= {3, 4}
            return a, b, x + 1
        def calls():
            yield program, (torch.ones(2), {1, 2}, {3, 5})
        """,
    "a set and a list have no union": """
        def program(x):
            try:
                return {1} | [2]
            except TypeError as error:
                return str(error), x + 1
        def calls():
            yield program, (torch.ones(2),)
        """,
    "an operation that fails at run time leaves gradients on": """
        def program(x):
            with Noting('a'), torch.no_grad():
                return model(x)
        def calls():
            yield program, (torch.ones(2, 3).double(),)
        """,
    "an operation that fails at run time comes after effects": """
        def program(x):
            model.calls += 1
            GLIST.append(5)
            return model.layers[0](x)
        def calls():
            yield program, (torch.ones(2, 3).double(),)
        """,
    "a write to memory that is read": """
        def program(x):
            GLIST.append(5)
            x[:] += x[0]
            return x
        def calls():
            yield program, (torch.ones(1, 3).repeat(1, 2),)
        """,
    "one float in two variables at a branch": """
        def program(x, n):
            a = b = 0.5 if n else 2.0
            if x.sum() > 3:
                return a, b
            return b, a, x + 1
        def calls():
            yield program, (torch.ones(2), 1)
            yield program, (torch.ones(9), 1)
            yield program, (torch.ones(2), 0)
        """,
    "subscripts of what has none": """
        def program(x, n):
            try:
                return n[0]
            except TypeError as error:
                return str(error), x + 1
        def calls():
            yield program, (torch.ones(2), 3)
            yield program, (torch.ones(2), None)
        """,
    "an element of what has none": """
        def program(x, n):
            try:
                return 1 in n
            except TypeError as error:
                return str(error), x + 1
        def calls():
            yield program, (torch.ones(2), 3)
        """,
    "a key that can't be called": """
        def program(x, xs):
            try:
                xs.sort(key=3)
            except TypeError as error:
                return str(error), x + 1
        def calls():
            yield program, (torch.ones(2), [2, 1])
        """,
    "a loop that is left after a break ends its generator": """
        def program(x):
            for i in paired([1, 2, 3]):
                dynacompile.graph_break()
                x = x * 2
                LOG.append(i)
                break
            LOG.append('after')
            return x
        def calls():
            yield program, (torch.ones(2),)
            yield program, (torch.ones(2),)
        """,
    "an exception leaves a loop over a generator after a break": """
        def program(x):
            try:
                for i in paired([1, 2, 3]):
                    opaque(i)
                    assert i < 2, x.shape
            except AssertionError:
                LOG.append('caught')
            with Noting('a', ValueError):
                for i in paired([1, 2, 3]):
                    x = x + 1
                    dynacompile.graph_break()
                    raise ValueError(i)
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "an exception leaves a frame in a loop over a generator": """
        def inner(x, n):
            for i in paired([1, 2, 3]):
                dynacompile.graph_break()
                x = x * 2
                failing(n)
            return x
        def program(x, n):
            try:
                x = inner(x, n)
            except KeyError as error:
                LOG.append(str(error))
            dynacompile.graph_break()
            return x + 1
        def calls():
            yield program, (torch.ones(2), 2)
            yield program, (torch.ones(2), 1)
            yield program, (torch.ones(2), 0)
        """,
    "a return leaves a loop over a generator after a break": """
        def inner(x):
            for i in paired([1, 2, 3]):
                opaque(i)
                for j in range(2):
                    if i + j == 4:
                        return x + i
        def program(x):
            x = inner(x)
            LOG.append('after')
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a variable lets go of a generator after a break": """
        def program(x):
            g = paired([1, 2, 3])
            next(g)
            dynacompile.graph_break()
            x = x + 1
            g = None
            LOG.append('after')
            dynacompile.graph_break()
            return x * 2
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a dict grows before a loop over it that breaks": """
        def program(x):
            GDICT['two'] = 4
            for key in GDICT:
                opaque(key)
                x = x + 1
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a list grows before a loop over it that breaks": """
        def program(x):
            xs = GLIST
            xs.extend([5, 6, 7])
            for i in iter(xs):
                if i > 5:
                    opaque(i)
                x = x + i
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a closure's variable is deleted before a break": """
        def program(x, n):
            i, j = divmod(n, 4)
            xs = {j for k in range(3)}
            del j
            dynacompile.graph_break()
            return xs, x + i
        def calls():
            yield program, (torch.ones(2), 1)
        """,
    "a class with __eq__ and no __ne__": """
        def program(x, n):
            return Box(n) != GBOX, GBOX != Box(n), Box(n) == GBOX, Box(n) != 4, x + 1
        def calls():
            yield program, (torch.ones(2), 3)
            yield program, (torch.ones(2), 4)
        """,
    "map of nothing": """
        def program(x):
            try:
                y = map(1)
            except TypeError as error:
                return str(error), x + 1
            return x
        def calls():
            yield program, (torch.ones(2),)
        """,
    "a StopIteration leaves a block whose manager is a generator": """
        def told(body):
            try:
                body()
            except BaseException as error:
                LOG.append((str(error), type(error), error.__cause__, error.__cause__ is error.__context__))
        def left():
            with noted('key', 4) as i, Noting('second'):
                next(count_up(0))
        def thrown():
            generator = count_up(3)
            next(generator)
            generator.throw(StopIteration(3))
        def not_begun():
            count_up(3).throw(StopIteration(3))
        def program(x):
            told(left)
            told(thrown)
            told(not_begun)
            with noted('key'):
                raise StopIteration(x + 1)
        def calls():
            yield program, (torch.ones(2),)
        """,
    "the proxy of a class's dict is equal to another": """
        class Own:
            def method(self): pass
        class Other: pass
        def program(x):
            return x + 1, Own.__dict__ == vars(Own), Own.__dict__ != vars(Own), vars(Own) == dict(vars(Own)), vars(Own) == vars(Other)
        def calls():
            yield program, (torch.ones(2),)
        """,
    "an object's __dict__ after a break is its own": """
        class Own:
            def __init__(self, value):
                self.value = value
        def program(x):
            own = Own(x)
            names = own.__dict__
            dynacompile.graph_break()
            own.value = 5
            return x + 1, names['value'], names is own.__dict__
        def calls():
            yield program, (torch.ones(2),)
        """,
    "dicts of several kinds are merged": """
        def program(x, c):
            kinds = {'a': 1}, collections.OrderedDict(b=1), collections.Counter('ab'), collections.defaultdict(list, a=3)
            out = []
            for left in kinds:
                for right in kinds:
                    out.append(left | right)
                    changed = before = left.copy()
                    changed |= right
                    out.append((before, changed))
            before = c
            c += collections.Counter('aabc')
            c -= collections.Counter('b')
            c |= {'z': 3, 'a': 1}
            c &= collections.Counter('aaabcdefz')
            return x + 1, out, c is before, +c, -c
        def calls():
            yield program, (torch.ones(2), collections.Counter('ccab'))
        """,
    "an exception ends a generator's block from a handler's end": """
        def program(x):
            try:
                for i in paired([1]):
                    try:
                        raise IndexError
                    finally:
                        LOG.append(i)
            finally:
                LOG.append('end')
        def calls():
            yield program, (torch.ones(2),)
        """,
    "the last end of a handler breaks": """
        def program(x, xs):
            try:
                for i in count_up(2, 1):
                    try:
                        xs.remove(7)
                    finally:
                        LOG.append(GBOX(i))
            except Exception as error:
                return type(error), x + 1
        def calls():
            yield program, (torch.ones(2), [1])
        """,
    "a dict is given keys that it has or has not": """
        def program(x, d):
            d |= {q: q for q in (1, 2)}
            d['b'] = x
            d['a'] = 3
            return d, x + 1
        def calls():
            yield program, (torch.ones(2), {'a': 1, True: 4})
            yield program, (torch.ones(2), {'b': 1})
            yield program, (torch.ones(2), {})
        """,
    "a symbolic tensor is written from its own memory": """
        def program(x):
            GBOX.n = GBOX.n * 2
            x += x[0, 1]
        def calls():
            yield program, (torch.ones(1, 3),)
            yield program, (torch.ones(3, 3),)
            yield program, (torch.ones(4, 3),)
        """,
    "list() asks objects for their length": """
        class Counted:
            def __init__(self, n):
                self.n = n
            def __len__(self):
                LOG.append('length')
                if self.n is None:
                    raise TypeError('none')
                return self.n
            def __length_hint__(self):
                LOG.append('hint')
                return 3
            def __getitem__(self, i):
                return [4, 3][i]
        class Iterated(Counted):
            def __iter__(self):
                LOG.append('iter')
                return iter([4, 3])
        def program(x, n):
            for cls in Counted, Iterated:
                xs = cls(n)
                for make in list, tuple, sorted, [].extend, set, lambda q: spread(*q), lambda q: [*q, 1], lambda q: list(iter(q)), lambda q: [*map(str, q)]:
                    try:
                        LOG.append(make(xs))
                    except Exception as error:
                        LOG.append(str(error))
            return x + 1
        def calls():
            for n in (2, None, 'text', -1, 7):
                yield program, (torch.ones(2), n)
        """,
    "operators that assign": """
        def program(x, n, s, xs, d):
            out = []
            for op in ('a', None, [1], (1,), {1}, {2: 3}, 2, xs, d):
                for other in (n, s):
                    for assign in (adds, subtracts, multiplies, raises_to, shifts, unites):
                        try:
                            out.append((op, assign(op, other)))
                        except Exception as error:
                            out.append((type(error), str(error)))
            return out, x + 1
        def adds(v, o):
            v += o
            return v
        def subtracts(v, o):
            v -= o
            return v
        def multiplies(v, o):
            v *= o
            return v
        def raises_to(v, o):
            v **= o
            return v
        def shifts(v, o):
            v <<= o
            return v
        def unites(v, o):
            v |= o
            return v
        def calls():
            yield program, (torch.ones(2), 2, 'b', [1, 2], collections.deque([1, 2], 3))
            yield program, (torch.ones(2), 0, [3], [1, 2], collections.deque([1, 2], 3))
        """,
    "a caller handles an exception": """
        def inner(x):
            try:
                try:
                    {}['two']
                except KeyError:
                    int('a')
            except ValueError as error:
                LOG.append(chain_of(error))
                LOG.append(error)
                opaque(1)
                return x + 1
        def program(x):
            try:
                [][3]
            except IndexError:
                inner(x)
        def calls():
            yield inner, (torch.ones(2),)
            yield program, (torch.ones(2),)
            yield (lambda x: program(x)), (torch.ones(2),)
        """,
}


def program_of(text: str) -> Program:
    lines = [line[8:] for line in text.strip("\n").splitlines()]
    return Program(0, HEAD + "model = Net()\n" + "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name):
    assert difference(program_of(PROGRAMS[name])) is None


def test_an_exception_that_leaves_has_its_context():
    def program(x):
        try:
            {}["two"]
        except KeyError:
            raise ValueError(x.sum() * 0) from None

    compiled = dynacompile.compile(program, backend="eager")
    for run in (program, compiled):
        with pytest.raises(ValueError) as found:
            try:
                [][3]
            except IndexError:
                run(torch.ones(2))
        key = found.value.__context__
        assert type(key) is KeyError and type(key.__context__) is IndexError
    assert "raise" in dynacompile.decompile(compiled)


WRONG = """n[0] ; n.foo ; n() ; n + 'a' ; [*n] ; xs[9] ; xs['a'] ; {**n} ; xs.foo ; -'a' ; n < 'a' ; 'a' in n ; xs() ; None[0] ; n[0:1] ; iter(n) ; len(n)
[1, 2].index(7) ; {}['q'] ; max([]) ; min(()) ; int('x') ; float('y') ; xs.pop(77) ; [].pop() ; {}.popitem() ; next(iter([])) ; xs.remove(44)
'a'.index('b') ; (1, 2).index(5) ; n @ n ; ~'a' ; (1, 2)[5] ; range(3)[7] ; 'abc'[9] ; [1] * 'a' ; sum(['a']) ; abs('a') ; sorted([1, 'a']) ; {[]: 1}
{1}.add([]) ; set([[]]) ; xs.insert(1) ; xs.append() ; dict([1]) ; dict([(1, 2, 3)]) ; zip(1) ; list(zip([1], [2, 3], strict=True)) ; enumerate(3)
reversed(3) ; chr(-1) ; ord('ab') ; divmod(1, 0) ; 1 % 0 ; 1 // 0 ; 1.0 / 0 ; isinstance(1, 1) ; getattr(n, 'zz') ; setattr(n, 'zz', 1)
torch.ones(2)[5] ; torch.ones(2) + torch.ones(3) ; x.view(99) ; torch.cat([]) ; x.sum(dim=7) ; '%d' % 'a' ; '{}'.format() ; f'{n:zz}' ; ','.join([1])
undefined_name ; xs[1:2:0] ; xs[None] ; xs[1.5] ; n[...] ; next(n) ; xs + (1,) ; {} | 1 ; {1} | [1] ; {1} - 1 ; any(3) ; str(1, 2) ; len(1, 2)
bool(1, 2) ; list(1) ; tuple(n) ; set(n) ; dict(1) ; spread() ; spread(1, a=2) ; keyword_only(1) ; Box() ; Wrong() ; Point() ; Pair(1) ; GBOX.missing
BigBox(1).absent ; GBOX[99] ; GBOX < 1 ; -GBOX ; [a for a, b in xs] ; lambda: (yield) if n() else 0 ; (lambda a: a)() ; x.foo"""


@pytest.mark.parametrize("text", [part.strip() for line in WRONG.splitlines() for part in line.split(" ; ")])
def test_errors_are_python_s(text):
    """The message and type of what a wrong expression raises, and that capture itself does not fail on it."""
    body = f"    try:\n        y = {text}\n    except Exception as error:\n        return type(error).__name__, str(error), x + 1\n    return x + 2\n"
    source = f"{HEAD}def program(x, n, xs):\n{body}def calls():\n    yield program, (torch.ones(2), 3, [1, 2])\n"
    assert difference(Program(0, source)) is None


def test_a_bug_of_capture_is_python_s(monkeypatch):
    """An internal error leaves the frame to Python, and says so; under `verify` it is raised."""

    def wrong(*args: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr("dynacompile.capture.entry.finish_return", wrong)
    dynacompile.reset()
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    with pytest.warns(RuntimeWarning, match="capture itself failed"):
        assert dynacompile.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
    end()
    assert [e.reason for e in events if isinstance(e, FrameSkipped)][0].startswith("[internal]")
    assert not any(isinstance(e, GraphBroke) for e in events)
    with pytest.raises(KeyError, match="inside"):
        dynacompile.compile(lambda x: x + 1, backend="eager", options={"verify": True})(torch.ones(2))
