"""Whole programs: `generate(seed)` gives the text of one, with the calls to make of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fuzz.language.conditions import CONDITIONS
from tests.fuzz.language.expressions import LEAVES, expression
from tests.fuzz.language.forms import FORMS
from tests.fuzz.language.functions import ROWS, SIMPLE, function
from tests.fuzz.language.more import generated_class
from tests.fuzz.language.names import HEAD as HEAD_OF_NAMES
from tests.fuzz.language.names import NAMES
from tests.fuzz.language.objects import CHANGES, OBJECTS
from tests.fuzz.language.objects import HEAD as HEAD_OF_OBJECTS
from tests.fuzz.language.scope import BOOL, CALL, INT, INTS, MAP, TENSOR, TYPES, Scope, body
from tests.fuzz.language.wider import WIDER

WIDER_FROM = 100_000  # seeds from here on have more kinds of statements; the programs of earlier ones stay what they were
NAMES_FROM = 1_000_000  # and from here on those of `names.py`
OBJECTS_FROM = 2_000_000  # and those of `objects.py`
SHORT_FROM = 3_000_000  # and from here on programs are short, of these alone
CONDITIONS_FROM = 3_100_000  # and of those of `conditions.py`
HEAD = """\
import collections, contextlib, dataclasses, functools
import torch
import dynacompile
from library import *

GLIST = [1]
GDICT = {'a': 1}
GBOX = Box(3)
GINT = 4
"""


@dataclass
class Program:
    """source: text that defines calls(), a generator of (callable, args, kwargs)."""

    seed: int
    source: str


def argument(g: Scope, kind: str, batch: int, grad: bool) -> str:
    """Text of an argument for a parameter of type `kind`."""
    if kind == TENSOR:
        made = g.pick.choice((f"torch.randn({batch}, 3", f"torch.rand({batch}, 3", f"torch.full(({batch}, 3), 0.5", f"torch.randn({batch}, 3"))
        if grad and g.chance(0.7):
            return f"{made}, requires_grad=True)"
        layout = g.pick.choice(("", "", "", ".t().contiguous().t()", ".repeat(1, 2)[:, ::2]", ".double()"))
        return made + ")" + layout
    depth = g.pick.choice((0, 1))
    return LEAVES[kind](g, 0) if depth == 0 or kind in (CALL, MAP) else expression(g, kind, 1)


def calls(g: Scope, target: str, kinds: tuple[str, ...], grad: bool) -> None:
    """def calls(): the story of the program."""
    g.line("def calls():")
    with g.block():
        g.line("global GINT")
        batch = g.pick.choice((2, 2, 1, 3))
        values = [argument(g, k, batch, grad) for k in kinds]
        kept: dict[int, str] = {}
        for number in range(g.pick.randint(2, 5)):
            if number:
                if g.chance(0.2):
                    batch = g.pick.choice((2, 3, 4))
                    values = [argument(g, k, batch, grad) if k == TENSOR else v for k, v in zip(kinds, values, strict=True)]
                for i, kind in enumerate(kinds):
                    if g.chance(0.35):
                        values[i] = argument(g, kind, batch, grad)
            names = []
            for i, kind in enumerate(kinds):
                same = [j for j in range(i) if kinds[j] == kind]
                if i in kept and g.chance(0.3):
                    names.append(kept[i])
                elif same and g.chance(0.15):
                    names.append(names[g.pick.choice(same)])
                else:
                    kept[i] = f"a{number}_{i}"
                    g.line(f"{kept[i]} = {values[i]}")
                    names.append(kept[i])
            if number and g.seed >= OBJECTS_FROM and g.chance(0.4):
                g.line(g.pick.choice(CHANGES))
            if number and g.chance(0.15):
                g.line(g.pick.choice(("GLIST.append(5)", "GBOX.n += 1", "GDICT['zz'] = 9", "GINT += 1", "model.train(not model.training)")))
            g.line(f"yield {target}, ({''.join(n + ', ' for n in names)})")


def generate(seed: int) -> Program:
    rows, head = [*ROWS], HEAD
    for first, more, names in ((WIDER_FROM, WIDER, ""), (NAMES_FROM, NAMES, HEAD_OF_NAMES), (OBJECTS_FROM, OBJECTS, HEAD_OF_OBJECTS)):
        if seed >= first:
            rows, head = [*rows, *more], head + names
    short = OBJECTS if seed < CONDITIONS_FROM else [*OBJECTS, *CONDITIONS]
    g = Scope(seed, rows if seed < SHORT_FROM else short, SIMPLE, FORMS)
    pick = g.pick
    g.lines = head.splitlines()
    g.line(f"model = {pick.choice(('Net()', 'Net(2)', 'Net()', 'Chatty()'))}{pick.choice(('', '.eval()', ''))}")
    if seed >= SHORT_FROM:
        return short_program(g)
    g.modules = ("model",) if g.chance(0.5) else ()
    for kind, name in ((INTS, "GLIST"), (INT, "GINT"), (INT, "GBOX.n"), ("counts", "GDICT"), ("box", "GBOX")):
        g.declare(name, kind, own=False)
    for number in range(pick.choice((0, 0, 1, 2))):
        generated_class(g, f"Own{number}", pick.choice(("Box", "BigBox", "SlotBox", *(f"Own{i}" for i in range(number)))))
        g.classes.append(f"Own{number}")
    for number in range(pick.choice((0, 1, 1, 2, 2, 3))):
        function(g, f"part{number}", pick.randint(3, 9))
    is_module = g.chance(0.15)
    kinds = (TENSOR, INT, *(pick.choice(TYPES) for _ in range(pick.randint(0, 4))))
    names = [g.fresh(k) for k in kinds]
    if is_module:
        g.line("class Whole(Net):")
        g.indent += 1
    g.line(f"def {'forward' if is_module else 'program'}({', '.join(['self'] * is_module + names)}):")
    g.budget = pick.choice((6, 10, 14, 20, 30))
    with g.function(""):
        for name, kind in zip(names, kinds, strict=True):
            g.declare(name, kind)
        if is_module:
            g.line("self.calls += 1")
            g.declare("self.calls", INT)
            g.declare("self.seen", "scalar")
            g.declare("self.history", INTS)
            g.declare("self.cache", "counts")
            g.modules = (*g.modules, "self.layers[0]")
        elif g.chance(0.15):
            g.line("global GINT")
            g.own.add("GINT")
        g.returns = ""
        body(g, g.budget)
        end(g)
    if is_module:
        g.indent -= 1
        g.line("whole = Whole()")
    g.line("")
    calls(g, "whole" if is_module else "program", kinds, g.chance(0.5))
    return Program(seed, "\n".join(g.lines) + "\n")


def short_program(g: Scope) -> Program:
    """One to three statements, called a few times, with changes between."""
    for kind, name in ((INTS, "GLIST"), (INT, "GINT"), (INT, "GBOX.n"), ("counts", "GDICT"), ("box", "GBOX")):
        g.declare(name, kind, own=False)
    kinds = (TENSOR, INT)
    names = [g.fresh(kind) for kind in kinds]
    g.line(f"def program({', '.join(names)}):")
    with g.function(""):
        for name, kind in zip(names, kinds, strict=True):
            g.declare(name, kind)
        body(g, g.pick.choice((1, 1, 2, 3)))
        g.line(f"return {{'kept': [{', '.join(n for t in TYPES for n in g.readable[t] if n in g.own)}]}}")
    g.line("")
    calls(g, "program", kinds, g.chance(0.3))
    return Program(g.seed, "\n".join(g.lines) + "\n")


def end(g: Scope) -> None:
    """return: a structure of variables, some twice."""
    found = [n for t in TYPES if t not in (CALL, MAP) for n in g.readable[t] if not n.startswith(("G", "self"))]
    functions = [n for n in (*g.readable[CALL], *g.readable[MAP]) if n in g.own]
    taken = g.pick.sample(found, min(len(found), g.pick.randint(2, 8)))
    if g.chance(0.3):
        taken.append(g.pick.choice(taken))
    if functions and g.chance(0.3):
        taken.append(g.pick.choice(functions))
    extra = expression(g, g.pick.choice((TENSOR, TENSOR, INT, BOOL)), 2)
    way = g.pick.randrange(4)
    if way == 0:
        g.line(f"return {{'out': {extra}, 'kept': [{', '.join(taken)}]}}")
    elif way == 1:
        g.line(f"return [{', '.join(taken)}, {extra}]")
    else:
        g.line(f"return ({', '.join(taken)}, {extra})")
