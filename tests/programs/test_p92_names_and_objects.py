"""`__dict__`s, attributes of functions, methods and classes, special methods that are called by name, globals(), dir(), id()."""

from __future__ import annotations

import functools
import operator
import sys
import types

import pytest
import torch

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager"}


class Plain:
    kind = "plain"

    def __init__(self):
        self.a, self.b = 1, 2


class Sub(Plain):
    pass


class SubSub(Sub):
    pass


class Slotted:
    __slots__ = ("s", "__dict__")

    def __init__(self):
        self.s, self.t = 1, 2


PLAIN = Plain()
SLOT = Slotted()
COUNT = 3


def vars_read(x):
    o = Plain()
    d = vars(o)
    return x + 1, d["a"], d.get("b"), d.get("z", 7), len(d), list(d), list(d.items()), "a" in d, "z" in d, dict(d), sorted(d.values())


def vars_write(x):
    o = Plain()
    d = o.__dict__
    d["c"] = 5
    d.update(a=9)
    d.setdefault("e", 4)
    p = d.pop("b")
    q = d.pop("zz", None)
    del d["e"]
    return x * o.a + o.c, p, q, list(d), vars(o) == {"a": 9, "c": 5}, d | {"k": 1}


def vars_popitem(x):
    o = Plain()
    k = o.__dict__.popitem()
    c = o.__dict__.copy()
    o.__dict__.clear()
    return x + 1, k, c, hasattr(o, "a"), len(vars(o))


def vars_clear_attr(x):
    o = Plain()
    o.__dict__.clear()
    try:
        o.a  # noqa: B018
    except AttributeError as e:
        return x + 1, str(e)


def vars_keyerror(x):
    o = Plain()
    try:
        o.__dict__["q"]
    except KeyError as e:
        return x + 2, e.args


def dict_replaced(x):
    o = Plain()
    o.__dict__ = {"a": 4, "w": 5}
    return x * o.a + o.w, hasattr(o, "b"), vars(o)


def slots_vars(x):
    o = Slotted()
    return x + o.s, vars(o), list(vars(o))


def f0(a, b=2, *, c=3) -> int:
    "doc"
    return a


f0.tag = 5


def fattrs(x):
    return (
        x + 1,
        type(f0) is types.FunctionType,
        f0.__class__ is types.FunctionType,
        f0.__module__,
        f0.__name__,
        f0.__qualname__,
        f0.__doc__,
        f0.__defaults__,
        f0.__kwdefaults__,
        f0.__annotations__,
        f0.tag,
        f0.__dict__,
        f0.__code__.co_name,
        f0.__closure__,
        hasattr(f0, "zz"),
        getattr(f0, "zz", 1),
        callable(f0.__call__),
    )


def fmade(x):
    def g(a, b=2, *, c: int = 3) -> float:
        "inner"
        return a * b + c

    g.mark = 1
    vars(g)["other"] = 2
    r = (g.__name__, g.__qualname__, g.__module__, g.__doc__, g.__defaults__, g.__kwdefaults__, g.__annotations__, g.__dict__, g.mark, g.other)
    g.__name__ = "h"
    g.__defaults__ = (5,)
    return g(x), r, g.__name__, type(g).__name__


def fglobals(x):
    return x * f0.__globals__["COUNT"], globals()["COUNT"], "COUNT" in globals(), globals().get("nope", 1)


def gset(x):
    globals()["MADE"] = 5
    return x * MADE  # noqa: F821


def methods(x):
    o = Plain()
    m = o.__init__
    return (
        x + 1,
        m.__self__ is o,
        m.__func__ is Plain.__init__,
        m.__name__,
        type(m) is types.MethodType,
        m.__class__.__name__,
        Plain.__init__.__qualname__,
        m.__module__,
    )


def cls_attrs(x):
    return (
        x + 1,
        Plain.__name__,
        Plain.__module__,
        Plain.__qualname__,
        Plain.__mro__,
        Plain.__bases__,
        Plain.__base__,
        Plain.__dict__["kind"],
        "kind" in Plain.__dict__,
        Plain.__class__,
        Plain.__doc__,
        vars(Plain).get("zz"),
        Plain.__weakrefoffset__,
        Plain.__basicsize__,
    )


def subclasses(x):
    return x + len(Plain.__subclasses__()), [c.__name__ for c in Plain.__subclasses__()], Sub.__subclasses__() == [SubSub]


def mod_attrs(x):
    return x + 1, torch.__name__, torch.nn.__name__, hasattr(torch, "nope"), types.__name__, operator.__doc__ is not None, sys.modules is not None


def wraps_(x):
    def deco(f):
        @functools.wraps(f)
        def inner(*a):
            return f(*a) * 2

        inner.k = 1
        return inner

    g = deco(f0)
    return g(x), g.__name__, g.__wrapped__ is f0, g.__doc__, g.tag, g.k, g.__annotations__


def dunders(x):
    return (
        x + 1,
        (3).__add__(4),
        (3).__radd__(4),
        "ab".__len__(),
        [1, 2].__contains__(2),
        (1, 2).__eq__((1, 2)),
        (3).__add__("q"),
        [1].__getitem__(0),
        {1: 2}.__getitem__(1),
        (2.5).__mul__(2),
        "a".__eq__("a"),
        object.__eq__(PLAIN, PLAIN),
        (1).__bool__(),
        [3].__iter__().__next__(),
    )


def obj_setattr(x):
    o = Plain()
    object.__setattr__(o, "a", 7)
    o.__setattr__("b", 8)
    object.__delattr__(o, "b")
    return x * o.a, object.__getattribute__(o, "a"), o.__getattribute__("a"), hasattr(o, "b")


def dir_(x):
    o = Plain()
    return x + 1, [n for n in dir(o) if not n.startswith("__")], [n for n in dir(Sub) if not n.startswith("__")]


def ids(x):
    o = Plain()
    p = o
    return x + 1, id(o) == id(p), id(o) == id(x), {id(o): 1}[id(p)]


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {}
CASES = [
    *(
        (fn, 1, 0)
        for fn in (
            vars_read,
            vars_write,
            vars_popitem,
            vars_clear_attr,
            vars_keyerror,
            dict_replaced,
            slots_vars,
            fattrs,
            fmade,
            fglobals,
            gset,
            methods,
            cls_attrs,
            subclasses,
            mod_attrs,
            wraps_,
            dunders,
            obj_setattr,
            dir_,
            ids,
        )
    ),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)


class Beside:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, owner, cls=None):
        return 7 if owner is None else owner.__dict__.get(self.name, 1) * 2

    def __set__(self, owner, value):
        owner.__dict__[self.name] = value + 1


class Hides:
    d = Beside()


def test_what_a_descriptor_hides_is_read_from_the_dict():
    """Also where it is an int that became a symbol, which residual code reads."""

    def read(x, owner):
        return x + owner.d, owner.d, owner.__dict__["d"]

    compiled = dynacompile.compile(read, backend="eager", isolate_recompiles=True)
    for n in (3, 4, 5, 8):
        made = Hides()
        made.d = n
        got, want = compiled(torch.ones(2), made), read(torch.ones(2), made)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]


def test_equal_methods():
    def compare(x):
        made = Plain()
        kept, items = made.__init__, [1]
        return (
            x + 1,
            kept == made.__init__,
            kept != made.__init__,
            Plain().__init__ == kept,
            kept == 3,
            items.append == items.append,
            items.append == [1].append,
        )

    check(compare, arg(), options=EAGER)
