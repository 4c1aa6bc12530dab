"""Calls of methods of built-in types, of built-in functions and of iterators, with right and wrong arguments: compiled and eager, call by call.

    python -m tests.fuzz.method_calls FIRST LAST [--show]

A program is its seed: a receiver T of one of KINDS, which the frame makes or which is there before it, and one to three statements, each with what it gives
or raises: a method of T, called on it, through its class or through a class that it derives from; a function of FUNCTIONS; or an iterator of ITERATORS over T,
which is asked something of ASKED while T changes. Arguments are drawn from VALUES whatever the signature says. What T holds is compared after each call.

To add a type, write a row into KINDS: its methods are found by `dir`; a function or an iterator, a line into FUNCTIONS or ITERATORS.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

WORLD = """
import collections, copy, functools, itertools, math, operator, pickle, torch
from collections import Counter, OrderedDict, defaultdict, deque

class MyList(list): pass
Pair = collections.namedtuple("Pair", "a b", defaults=[2])
class MyPair(Pair): __slots__ = ()
class MyError(ValueError): code = 5
class MyDict(dict): pass
class MyOrdered(OrderedDict): pass
class Items:
    def __init__(self, n): self.n = n
    def __getitem__(self, i):
        if i >= self.n: raise IndexError(i)
        return i
"""
KINDS = {
    "list": ("[3, 1, 2, 1]", list, (list,)),
    "list of a user's class": ("MyList([3, 1, 2])", list, (list,)),
    "tuple": ("(3, 1, 2, 1)", tuple, (tuple,)),
    "named tuple": ("Pair(3, 1)", "Pair", ("Pair", tuple)),
    "named tuple of a user's class": ("MyPair(3)", "MyPair", ("Pair", tuple)),
    "exception": ("MyError(3, 'a')", "MyError", ("ValueError",)),
    "dict": ("{'a': 1, 'b': 2, 'c': 3}", dict, (dict,)),
    "dict of a user's class": ("MyDict(a=1, b=2)", dict, (dict,)),
    "ordered": ("OrderedDict(a=1, b=2, c=3)", "OrderedDict", ("OrderedDict", dict)),
    "ordered of a user's class": ("MyOrdered(a=1, b=2)", "OrderedDict", ("OrderedDict", dict)),
    "defaultdict": ("defaultdict(list, a=1, b=2)", "defaultdict", ("defaultdict", dict)),
    "counter": ("Counter('aab')", "Counter", ("Counter", dict)),
    "set": ("{1, 2, 3}", set, (set,)),
    "frozenset": ("frozenset({1, 2, 3})", frozenset, (frozenset,)),
    "deque": ("deque([3, 1, 2])", "deque", ("deque",)),
    "short deque": ("deque([3, 1, 2], 3)", "deque", ("deque",)),
    "str": ("'a,b a'", str, (str,)),
    "bytes": ("b'a,b a'", bytes, (bytes,)),
    "int": ("5", int, (int,)),
    "float": ("2.5", float, (float,)),
    "range": ("range(1, 6, 2)", range, (range,)),
    "slice": ("slice(1, 4)", slice, (slice,)),
    "items": ("Items(4)", "Items", ("Items",)),
}
LATELY = frozenset("__init_subclass__ __subclasshook__ __class__ __new__ __dir__ __sizeof__ __getattribute__ __hash__ __init__ __class_getitem__".split())
SHOWN_BY_ADDRESS = frozenset("__repr__ __str__ __format__".split())
REDUCED = frozenset({"__reduce__", "__reduce_ex__"})  # of an exception, they tell whether anybody has read its `__dict__`, as guards do
VALUES = (
    *("0", "1", "-1", "2", "9", "1", "0", "None", "True", "1.5", "'a'", "'b'", "','", "''", "[]", "[1, 2]", "[('a', 5)]", "{}", "{'b': 7}", "{1, 2}", "(1,)"),
    *("(3, 1)", "'ab'", "b'a'", "slice(0, 2)", "len", "int", "(i for i in (1, 2))", "iter([4, 5])", "T", "range(2)", "deque([1])", "Counter('ab')", "Items(2)"),
)
KEYWORDS = ("key", "reverse", "default", "x", "last", "maxlen", "start", "iterable", "value", "sep", "strict", "initial")
FUNCTIONS = """
len; sum; max; min; sorted; any; all; list; tuple; set; frozenset; dict; str; bool; int; float; iter; next; reversed; enumerate; zip; map; filter; range; slice;
isinstance; getattr; hasattr; abs; divmod; pow; round; repr; callable; OrderedDict; defaultdict; Counter; deque; functools.reduce; functools.partial;
math.prod; math.sqrt; operator.add; operator.itemgetter; operator.contains; operator.length_hint; operator.countOf; operator.indexOf; operator.is_;
itertools.count; itertools.cycle; itertools.accumulate; itertools.takewhile; itertools.dropwhile; itertools.filterfalse; itertools.starmap; itertools.compress;
itertools.groupby; itertools.zip_longest; itertools.chain; itertools.chain.from_iterable; itertools.islice; itertools.product; itertools.repeat;
itertools.combinations; itertools.combinations_with_replacement; itertools.permutations; itertools.pairwise; itertools.tee; dict.fromkeys; copy.copy; type
"""
ITERATORS = """
iter(T); iter(T); reversed(T); reversed(T); enumerate(T); enumerate(T, 3); zip(T, T); map(repr, T); filter(None, T); iter(T.items()); iter(T.values());
reversed(T.items()); itertools.chain(T, [8]); itertools.islice(T, 3); itertools.islice(iter(T), 1, 3); itertools.islice(iter(T), 3, 3); itertools.cycle(T);
itertools.accumulate(T); itertools.takewhile(bool, T); itertools.dropwhile(bool, T); itertools.filterfalse(bool, T); itertools.compress(T, [1, 0, 1]);
itertools.pairwise(T); itertools.product(T, repeat=2); itertools.product(T, 'ab'); itertools.repeat(T, 3); itertools.repeat(7, -1); itertools.count(2);
itertools.combinations(T, 2); itertools.combinations(T, -1); itertools.permutations(T); itertools.permutations(T, 'a'); itertools.starmap(pow, [(2, 3), T]);
itertools.zip_longest(T, [1]); itertools.combinations_with_replacement(T, 2); iter(T.pop, 1); itertools.tee(T)[0]; iter(range(4)); iter('abc');
itertools.accumulate([1, 2, 3], lambda a, b: a * b, initial=4); itertools.chain.from_iterable([T, 'ab', (1, 2)]); itertools.zip_longest('abc', T, fillvalue=0);
itertools.filterfalse(None, [0, 1, 0, ()]); itertools.takewhile(lambda a: a < 2, [0, 1, 2, 1]); itertools.dropwhile(lambda a: a < 2, [0, 1, 2, 1]);
itertools.compress('abcdef', [1, 0, 1, 0, 1]); itertools.islice('abcdefgh', 1, None, 2); itertools.groupby(T); itertools.count(1, 0.5); itertools.cycle('ab')
"""
ASKED = """
next(i); next(i); next(i, 'end'); list(itertools.islice(i, 2)); list(itertools.islice(i, 20)); list(itertools.islice(i, 3, 3)); 1 in itertools.islice(i, 9);
operator.length_hint(i); type(i).__name__; '_iter' in type(i).__name__ and i.__reduce__(); copy.copy(i); pickle.dumps(i)[:2]; iter(i) is i;
next(i, 1, 2); i.__next__(1); i.__iter__(); hash(x.add_(1)) and list(itertools.islice(i, 2));
i.__length_hint__(); len(i); bool(i); repr(i)[:9]; T.append(5); T.pop(); T.clear(); T.update(b=5); T.update(z=5); T.pop('a'); T.add(9);
T.__setitem__(0, 4); T.__delitem__(0); T.insert(0, 6); T.extend([7, 8]); T.sort(); T.popitem(); T.move_to_end('a'); (T.pop('a'), T.update(a=1))
"""


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.split(";")]


def arguments(rng: random.Random, first: str = "") -> str:
    given = [first] if first else []
    given += [rng.choice(VALUES) for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 2, 3)))]
    if rng.random() < 0.15:
        given.append(f"{rng.choice(KEYWORDS)}={rng.choice(VALUES)}")
    return ", ".join(given)


def method_names(kind: str) -> list[str]:
    world: dict[str, Any] = {}
    exec(WORLD, world)
    return [name for name in dir(eval(KINDS[kind][0], world)) if name not in LATELY and callable(getattr(eval(KINDS[kind][0], world), name))]


def call_of(rng: random.Random, kind: str) -> str:
    name = rng.choice([n for n in NAMES[kind] if not (kind == "items" and n in SHOWN_BY_ADDRESS or kind == "exception" and n in REDUCED)])
    if rng.random() < 0.25 and kind != "items":
        owner = rng.choice(KINDS[kind][2])
        owner = owner if isinstance(owner, str) else owner.__name__
        return f"{owner}.{name}({arguments(rng, 'T')})"
    return f"T.{name}({arguments(rng)})"


def expressions(rng: random.Random, kind: str) -> list[str]:
    which = rng.random()
    if which < 0.4:
        return [call_of(rng, kind) for _ in range(rng.randrange(1, 4))]
    if which < 0.6:
        return [f"{rng.choice(lines(FUNCTIONS))}({arguments(rng, rng.choice(('T', 'T', '')))})" for _ in range(rng.randrange(1, 4))]
    return [f"i := {rng.choice(lines(ITERATORS))}", *(rng.choice(lines(ASKED)) for _ in range(rng.randrange(1, 6)))]


def drawn(seed: int) -> tuple[str, str]:
    """A kind of receiver, and a program."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    body = ["out = [x + 1]", "i = None"]
    if rng.random() < 0.5:
        body.append(f"T = {KINDS[kind][0]}")
    for expression in expressions(rng, kind):
        body += [f"try: out.append(({expression}))", "except Exception as e: out.append((type(e).__name__, e.args))"]
        if rng.random() < 0.5:
            body.append("out.append(copy.copy(T))")
    parameters = "x" if body[2].startswith("T = ") else "x, T"
    return kind, f"def program({parameters}):\n" + "".join(f"    {line}\n" for line in [*body, "return out, T"])


NAMES = {kind: method_names(kind) for kind in KINDS}


def source_of(seed: int) -> str:
    kind, source = drawn(seed)
    return f"{kind}: {source}"


def shown(value: Any, depth: int = 0) -> str:
    """A text that tells types, values and what is left of iterators, and no addresses."""
    if depth > 4:
        return "..."
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"tensor {value.tolist()}"
    if hasattr(value, "__next__"):
        left, end = [], "more"
        for _ in range(12):
            try:
                left.append(shown(next(value), depth + 1))
            except Exception as error:  # noqa: BLE001  (the point is to compare it)
                end = f"{type(error).__name__}{error.args}"
                break
        return f"{name}[{', '.join(left)} {end}]"
    if isinstance(value, (set, frozenset)):
        return f"{name}{[shown(v, depth + 1) for v in value]}"
    if isinstance(value, dict):
        return f"{name}{[(shown(k, depth + 1), shown(v, depth + 1)) for k, v in value.items()]}"
    if hasattr(value, "__iter__") and not isinstance(value, (str, bytes, type)):
        return f"{name}[{', '.join(shown(v, depth + 1) for v in value)}]"
    if isinstance(value, slice):
        return f"slice({', '.join(shown(part, depth + 1) for part in (value.start, value.stop, value.step))})"
    if callable(value) or type(value).__repr__ is object.__repr__:
        return f"{name} {getattr(value, '__qualname__', '')}"
    return repr(value)


def comparable(text: str) -> str:
    """A text without addresses, and without the class in messages that name a method: behind a break that is the object's, in eager the one that defines it."""
    return re.sub(r" at 0x\w+", "", re.sub(r"\b\w+\.(\w+\(\) )", r"\1", text))


def outcome(call: Callable[..., Any], world: dict[str, Any], kind: str) -> str:
    given = () if world["program"].__code__.co_argcount == 1 else (eval(KINDS[kind][0], world),)
    try:
        return comparable(shown(call(torch.tensor([0.5, -1.0]), *given)))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return f"{type(error).__name__}: {error}"


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    kind, source = drawn(seed)
    world: dict[str, Any] = {"__name__": "world"}
    exec(compile(WORLD, "<world>", "exec"), world)
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    dynacompile.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = outcome(world["program"], world, kind)
        compiled = dynacompile.compile(world["program"], backend="eager", options={"fallback": "none"})
        for _ in range(2):
            got = outcome(compiled, world, kind)
            if want != got:
                return "\n".join((kind, source, f"    eager {want}", f"    ours  {got}"))
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, source_of))
