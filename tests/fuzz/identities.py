"""Programs that ask which objects are one, by every way that Python has; what was two objects is one in a later call, and the other way round.

    python -m tests.fuzz.identities FIRST LAST [--show]

A program is its seed. Between calls its three objects are drawn anew from a few, of one kind mostly: objects, modules, parameters, tensors, closures, lists,
methods, texts, numbers. It asks by `is`, `==`, `in`, `id`, `index`, `count`, and as keys of sets and dicts, made by the program or kept from before. There
are two worlds of the same objects, one for eager and one for what is compiled. To add a kind, write a line into WORLD's KINDS; a question, into QUESTIONS.
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
import functools, torch, types, weakref
from torch import nn

class Thing:
    def method(self): return 1
    def other(self): return 2
class Equal:
    def __init__(self, n): self.n = n
    def __eq__(self, other): return isinstance(other, Equal)
    __hash__ = None
class Text(str): pass
def plain(x): return x
def second(x): return x
def closure(n):
    def inner(x): return x + n
    return inner
def alike():
    return lambda x: x
things = [Thing(), Thing()]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
net = Net()
KINDS = {
    "object": lambda: [*things, Thing()],
    "module": lambda: [net.first, net.second, nn.Identity(), nn.Identity()],
    "parameter": lambda: [net.first.weight, net.second.weight, net.first.bias],
    "tensor": lambda: [torch.ones(2), torch.ones(2), torch.ones(3)],
    "closure": lambda: [closure(1), closure(1), closure(2), alike(), alike()],
    "function": lambda: [plain, second, len, torch.sin],
    "method": lambda: [things[0].method, things[0].method, things[1].method, things[0].other],
    "of C": lambda: [[].append, "a".join, "a".join, things[0].__init__],
    "list": lambda: [[1], [1], []],
    "dict": lambda: [{}, {}, {1: 2}],
    "set": lambda: [{1}, {1}, frozenset((1,)), frozenset((1,))],
    "tuple": lambda: [(1, [2]), (1, [2]), (1, 2), tuple([1, 2])],
    "text": lambda: ["ab" * 3, "".join(["ab"] * 3), "a", Text("a"), b"ab"],
    "number": lambda: [1, True, 1.0, 1000, int("1000"), 0.0, -0.0, float("nan"), float("nan"), 2j],
    "class": lambda: [Thing, Equal, int, list[int], list[int], int | str],
    "equal": lambda: [Equal(1), Equal(1), Equal(2)],
    "partial": lambda: [functools.partial(max, 1), functools.partial(max, 1)],
    "reference": lambda: [weakref.ref(things[0]), weakref.ref(things[1])],
    "of torch": lambda: [torch.float32, torch.device("cpu"), torch.device("cpu"), torch.Size((2,)), torch.Size((2,)), torch.strided],
    "none": lambda: [None, ..., NotImplemented],
}
POOL = []
TABLE, MEMBERS = {}, set()
"""

NAMES = ("a", "b", "c")
EQUAL = ("number", "text", "tuple", "of torch")  # after a graph break an equal one may stand in the place of another, which id() alone can tell
# {p} and {q} are any of the three objects
QUESTIONS = (
    *("{p} is {q}", "{p} is not {q}", "{p} == {q}", "{p} != {q}", "{p} in ({q}, 5)", "{p} in [{q}]", "[{p}, {q}].index({q})", "[{p}, {q}].count({p})"),
    *(
        "len({{{p}, {q}}})",
        "len({{a, b, c}})",
        "{p} in {{{q}}}",
        "{p} in {{{q}: 1}}",
        "{{{q}: 1}}.get({p}, 2)",
        "len({{{p}: 1, {q}: 2}})",
        "{{{p}: 1, {q}: 2}}[{p}]",
    ),
    *("len(dict.fromkeys((a, b, c)))", "len({{{p}}} | {{{q}}})", "len({{{p}}} & {{{q}}})", "len({{{p}, {q}}} - {{{q}}})", "len({{{p}}} ^ {{{q}}})"),
    *("{{{p}}} == {{{q}}}", "{{{p}: 1}} == {{{q}: 1}}", "{{{p}}} <= {{{q}, c}}", "{{{p}}}.isdisjoint({{{q}}})", "[{p}] == [{q}]", "({p}, 1) == ({q}, 1)"),
    *("id({p}) == id({q})", "id({p}) in (id({q}), 1)", "len({{id({p}), id({q})}})", "id({p}) in {{id({q}): 1}}", "hash({p}) == hash({q})"),
    *(
        "{p} in TABLE",
        "TABLE.get({p}, 7)",
        "len(TABLE)",
        "{p} in MEMBERS",
        "len(MEMBERS)",
        "len(MEMBERS - {{{p}}})",
        "len({{**TABLE, {p}: 1}})",
        "{p} in list(TABLE)",
    ),
    *("len([k for k in TABLE if k is {p}])", "{p} in TABLE.keys()", "len(TABLE.keys() & {{{p}}})", "{p} in {{**TABLE}}", "{p} in MEMBERS | {{{q}}}"),
    *("max((a, b, c).count(k) for k in (a, b, c))", "[k is {p} for k in (a, b, c)]", "len({{k for k in (a, b, c, {p})}})", "any(k is {p} for k in POOL)"),
)
STATEMENTS = (  # what changes a container
    *("made = {{{p}: 1}}; made[{q}] = 2; out.append(len(made))", "made = {{{p}}}; made.add({q}); out.append(len(made))"),
    *("made = {{{p}: 1}}; out.append(made.pop({q}, 3)); out.append(len(made))", "made = {{{p}, c}}; made.discard({q}); out.append(len(made))"),
    *("TABLE[{p}] = 4; out.append(len(TABLE))", "MEMBERS.add({p}); out.append(len(MEMBERS))", "MEMBERS.discard({p}); out.append({q} in MEMBERS)"),
    *("out.append(TABLE.pop({p}, 5)); out.append({q} in TABLE)", "out.append(TABLE.setdefault({p}, 6)); out.append(len(TABLE))"),
    "seen = {{}}\n    for k in (a, b, {p}):\n        seen[k] = seen.get(k, 0) + 1\n    out.append(list(seen.values()))",
    "seen = set()\n    for k in (a, b, {p}):\n        if id(k) not in seen:\n            out.append(1)\n        seen.add(id(k))",
)


def source_of(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(1, 3)):
        p, q = rng.choice(NAMES), rng.choice(NAMES)
        if rng.random() < 0.2:
            line = rng.choice(STATEMENTS).format(p=p, q=q)
        else:
            asked = rng.choice(QUESTIONS).format(p=p, q=q)
            line = f"out.append(x * (2 if ({asked}) else 3))" if rng.random() < 0.3 else f"out.append({asked})"
        lines.append("try:\n        " + line.replace("\n", "\n    ") + "\n    except Exception as error:\n        out.append(type(error).__name__)")
    return "def program(x):\n    out = [x + 0]\n    " + "\n    ".join(lines) + "\n    return out\n"


def kind_names() -> list[str]:
    world: dict[str, Any] = {"__name__": "world"}
    exec(compile(WORLD, "<world>", "exec", dont_inherit=True), world)
    return list(world["KINDS"])


def made_world(source: str, kinds: list[str]) -> dict[str, Any]:
    world: dict[str, Any] = {"__name__": "world"}
    exec(compile(WORLD, "<world>", "exec", dont_inherit=True), world)
    world["KINDS"] = {kind: world["KINDS"][kind]() for kind in kinds}
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    return world


def seen(value: Any) -> Any:
    """What two worlds can be compared by."""
    if isinstance(value, torch.Tensor):
        return ("tensor", repr(value.tolist()))
    return [seen(item) for item in value] if isinstance(value, list) else repr(value)


def outcome(call: Callable[..., Any], drawn: list[tuple[str, int]], kept: list[tuple[str, int]], world: dict[str, Any]) -> Any:
    """What a call gives with these objects as a, b and c, and those in the containers of before."""
    for name, (kind, index) in zip(NAMES, drawn):
        world[name] = world["KINDS"][kind][index]
    world["POOL"][:] = [world["KINDS"][kind][index] for kind, index in kept]
    for container in (world["TABLE"], world["MEMBERS"]):
        container.clear()
    for place, item in enumerate(world["POOL"]):
        try:
            world["TABLE"][item] = place
            world["MEMBERS"].add(item)
        except TypeError:
            continue
    try:
        result = seen(call(torch.tensor([0.5, -1.0])))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        result = (type(error).__name__, str(error))
    return result, len(world["TABLE"]), len(world["MEMBERS"])


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng = random.Random(seed)
    source = source_of(rng)
    names = [name for name in kind_names() if "id(" not in source or name not in EQUAL]
    kinds = [rng.choice(names), *([rng.choice(names)] if rng.random() < 0.3 else [])]
    worlds = made_world(source, kinds), made_world(source, kinds)
    dynacompile.reset()
    options = {"fallback": "none", "accumulated_recompile_limit": 1000}
    compiled = dynacompile.compile(worlds[1]["program"], backend="eager", isolate_recompiles=True, recompile_limit=1000, options=options)
    history: list[str] = []

    def draw() -> tuple[str, int]:
        kind = rng.choice(kinds)
        return kind, rng.randrange(len(worlds[0]["KINDS"][kind]))

    drawn, kept = [draw() for _ in NAMES], [draw() for _ in range(rng.choice((0, 0, 1, 2)))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(rng.randint(3, 6)):
            want = outcome(worlds[0]["program"], drawn, kept, worlds[0])
            got = outcome(compiled, drawn, kept, worlds[1])
            history.append(f"{drawn} {kept}")
            if want != got:
                return "\n".join((*history, source, f"    eager {want}", f"    ours  {got}"))
            if rng.random() < 0.5:  # two become one, or one two
                drawn[rng.randrange(3)] = rng.choice((*drawn, draw()))
            else:
                drawn = [draw() for _ in NAMES]
            if rng.random() < 0.3:
                kept = [draw() for _ in range(rng.choice((0, 1, 2)))]
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, lambda seed: source_of(random.Random(seed))))
