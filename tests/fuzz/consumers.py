"""Programs in which C takes elements from iterators and calls functions of the program, which look at what is filled or sorted meanwhile, change it or raise:
compiled and eager, call by call.

    python -m tests.fuzz.consumers FIRST LAST [--show]

A program is its seed: a container T, a source of elements, one expression that consumes elements or calls a function, and what that function does at one of
them, which changes between the calls. What was not asked for is taken from the source at the end. To add an expression, write a line into ANY (of any
source) or OF_KINDS (of a kind of container); a behaviour of the function, into ACTS; a source, into SOURCES.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

WORLD = """
import bisect, collections, functools, heapq, itertools, math, operator, torch

LOG, AT, N = [], -1, 3
T = {filled}
def act(i): pass
def step(i):
    LOG.append((i, len(T), {looked}))
    if len(LOG) > 60: raise OverflowError('endless')
    if i == AT: act(i)
    return i
def gen(n):
    for i in range(n): yield step(i)
def swapped(a, b): return step(b) + a
class Own:
    def __init__(self, n): self.i, self.n = -1, n
    def __iter__(self): return self
    def __next__(self):
        self.i += 1
        if self.i >= self.n: raise StopIteration
        return step(self.i)
class Items:
    def __init__(self, n): self.n = n
    def __getitem__(self, i):
        if i >= self.n: raise IndexError(i)
        return step(i)
class Key:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return step(self.v) == (o.v if isinstance(o, Key) else o)
    def __lt__(self, o): return step(self.v) < (o.v if isinstance(o, Key) else o)
    def __hash__(self): return hash(self.v)
    def __repr__(self): return f'Key({{self.v}})'
"""
SOURCES = (
    *("gen(N)", "gen(N)", "Own(N)", "Items(N)", "map(step, range(N))", "(step(i) for i in range(N))", "filter(step, range(N))", "itertools.chain([7], gen(N))"),
    *("itertools.islice(gen(9), N)", "iter(range(N))", "(step(1) and k for k in list(T))", "iter([step(0), 1, 2])", "[0, 1, 2]", "T"),
    "itertools.takewhile(lambda i: i < 2, gen(N))",
)
KINDS = {
    "list": ("[3, 1, 2]", "list(T)"),
    "list of keys": ("[Key(3), Key(1), Key(2)]", "[k.v if isinstance(k, Key) else k for k in T]"),
    "deque": ("collections.deque([3, 1, 2])", "list(T)"),
    "short deque": ("collections.deque([3, 1], maxlen=2)", "list(T)"),
    "set": ("{3, 1, 2}", "sorted(T)"),
    "dict": ("{3: 0, 1: 0}", "list(T.items())"),
    "ordered": ("collections.OrderedDict({3: 0, 1: 0})", "list(T.items())"),
    "counter": ("collections.Counter({3: 2, 1: 1})", "list(T.items())"),
}
ANY = """
2 in s; 9 not in s; list(s); tuple(s); sum(s); max(s); min(s, default=5); any(s); all(s); any(v == 1 for v in s); sorted(s); sorted(s, key=step);
len(set(s)); frozenset(s) == frozenset(T); dict.fromkeys(s, 1); list(zip(s, 'ab')); list(zip('ab', s)); list(zip(s, 'ab', strict=True));
list(enumerate(s, 5)); operator.countOf(s, 1); operator.indexOf(s, 1); operator.contains(s, 1); functools.reduce(swapped, s);
functools.reduce(swapped, s, 10); math.prod(s); list(itertools.islice(s, 2)); list(itertools.accumulate(s, swapped));
list(itertools.takewhile(lambda v: v < 1, s)); list(itertools.dropwhile(lambda v: v < 1, s)); heapq.nsmallest(2, s);
list(collections.deque(s, maxlen=2)); dict(collections.Counter(s)); next(iter(s), 'none'); [*s, *T]; {**dict.fromkeys(s)}; ','.join(map(str, s));
max(s, key=step); min(s, key=lambda v: -step(v)); list(map(swapped, s, [1, 2])); list(filter(None, s)); list(itertools.pairwise(s)); bytes(s);
bytearray(s)[:1]; list(reversed(list(s))); {1, 2}.isdisjoint(s); {1, 2}.issuperset(s); {0, 1}.issubset(s); len({1, 2}.union(s));
len({1, 2}.intersection(s, [1])); math.fsum(s); len({1, 5}.difference(s)); len({1, 5}.symmetric_difference(s)); [0, 1] == list(s); dict(zip(s, s));
list(itertools.zip_longest(s, [1])); list(s) < [0, 2]
"""
OF_KINDS = {
    "list": """
        T.extend(s); T.__iadd__(s); T.__setitem__(slice(1, 2), s); T.__init__(s); T.sort(key=step); T.sort(key=lambda v: -step(v), reverse=True);
        T.index(Key(1)); T.count(Key(1)); T.remove(Key(1)); Key(2) in T; T == [Key(3), Key(1), 5]; T.sort(); sorted(T, key=Key); max(T, key=Key);
        bisect.bisect_left(T, Key(2)); T.insert(1, step(1)); T < [Key(3), 0]
    """,
    "deque": """
        T.extend(s); T.extendleft(s); T.__iadd__(s); T.index(Key(1)); T.count(Key(1)); Key(1) in T; T.append(step(1)); T.rotate(step(1));
        T.insert(0, step(1))
    """,
    "set": """
        T.update(s); T.update(s, [8]); T.difference_update(s); T.intersection_update(s); T.symmetric_difference_update(s); T.isdisjoint(s);
        T.issuperset(s); T.issubset(s); T.add(step(1)); len(T.union(s)); len(T.difference(s)); len(T.intersection(s)); T.discard(step(1));
        T.remove(step(1))
    """,
    "dict": """
        T.update(zip(s, 'abc')); T.update((v, len(T)) for v in s); T.update([(1, 2), (step(2), 3)], k=step(1)); T.__ior__((v, v) for v in s);
        T.setdefault(step(1), step(2)); T.pop(step(1), step(2)); T.get(step(1)); T == {3: Key(0), 1: 0}; sorted(T, key=step); max(T, key=step);
        list(map(step, T)); [step(k) for k in T]
    """,
}
OF_KINDS["list of keys"], OF_KINDS["short deque"] = OF_KINDS["list"], OF_KINDS["deque"]
OF_KINDS["ordered"] = OF_KINDS["dict"] + "; T.move_to_end(3); list(reversed(T))"
OF_KINDS["counter"] = OF_KINDS["dict"] + "; T.update(s); T.subtract(s); T.most_common(1)"
ACTS = ("pass", "raise KeyError('act')", "raise StopIteration(i)", "T.clear()", "grow()", "shrink()", "raise ValueError(i, len(T))")
GROWS = {"list": "T.append(9)", "deque": "T.append(9)", "short deque": "T.append(9)", "set": "T.add(9)", "list of keys": "T.append(Key(9))"}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.split(";")]


def drawn(seed: int) -> tuple[random.Random, str, str]:
    """Its random numbers, a kind of container, and a program."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    consumed = rng.choice(lines(ANY if rng.random() < 0.5 else OF_KINDS[kind]))
    filled = f"    global T\n    T = {KINDS[kind][0]}\n" if rng.random() < 0.4 else ""
    source = rng.choice(SOURCES)
    block = f"    try: out.append({consumed})\n    except Exception as e: out.append((type(e).__name__, e.args))\n"
    rest = "    out.append(list(itertools.islice(s, 20)) if hasattr(s, '__next__') else None)\n"
    return rng, kind, f"def program(x):\n{filled}    out = [x + 1]\n    s = {source}\n{block}{rest}    return out\n"


def source_of(seed: int) -> str:
    _, kind, source = drawn(seed)
    return f"{kind}: {source}"


def made_world(kind: str, source: str) -> dict[str, Any]:
    filled, looked = KINDS[kind]
    world: dict[str, Any] = {"__name__": "world"}
    first, rest = WORLD.split("T = {filled}\n")
    functions = rest.format(looked=looked)
    shrinks = "T.pop()" if "list" in kind or "deque" in kind else "T.discard(3)" if kind == "set" else "T.pop(3)"
    grown = f"def grow(): {GROWS.get(kind, 'T[9] = 9')}\ndef shrink(): {shrinks}\n"
    exec(compile(first + functions + grown + f"T = {filled}\n", "<world>", "exec"), world)
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    return world


def outcome(call: Callable[..., Any], world: dict[str, Any]) -> Any:
    world["LOG"].clear()
    try:
        result = repr(call(torch.tensor([0.5, -1.0])))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        result = f"{type(error).__name__}: {error}"
    return result, repr(world["LOG"]), type(world["T"]).__name__, repr(sorted(world["T"]) if isinstance(world["T"], set) else world["T"])


def change(rng: random.Random, kind: str) -> str:
    match rng.randrange(4):
        case 0:
            return f"AT = {rng.randrange(-1, 4)}"
        case 1:
            return f"def act(i):\n    {rng.choice(ACTS)}"
        case 2:
            return f"T = {KINDS[kind][0]}"
        case _:
            return f"N = {rng.randrange(5)}"


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng, kind, source = drawn(seed)
    worlds = made_world(kind, source), made_world(kind, source)
    dynacompile.reset()
    options = {"fallback": "none", "accumulated_recompile_limit": 1000}
    compiled = dynacompile.compile(worlds[1]["program"], backend="eager", isolate_recompiles=True, recompile_limit=1000, options=options)
    history = [f"AT = {rng.randrange(-1, 3)}", f"def act(i):\n    {rng.choice(ACTS)}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(6):
            history += [change(rng, kind)] if turn else []
            for world in worlds:
                for line in history[-1:] if turn else history:
                    exec(line, world)
            want = outcome(worlds[0]["program"], worlds[0])
            got = outcome(compiled, worlds[1])
            if want != got:
                return "\n".join((kind, source, *history, f"    eager {want}", f"    ours  {got}"))
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, source_of))
