"""Programs that ask one question of objects or classes, whose special methods come, go and change between the calls: compiled and eager, call by call.

    python -m tests.fuzz.special_methods FIRST LAST [--show]

A program is its seed: a class, one question, and changes of the methods that Python may look up for its answer, each on the class, on its base, on its
metaclass or on the object. There are two worlds of the same classes, one for eager and one for what is compiled. To add a question, write a line into
QUESTIONS_BY_METHODS with the methods that count; a behaviour of a method, into ANSWERS; a kind of class, into KINDS.
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

WORLD = """
import collections, contextlib, copy, enum, functools, itertools, math, operator, types, torch
from torch import nn

LOG = []
class Meta(type): pass
class Base(metaclass=Meta): pass
{kind}
class Below(A): pass
TABLE, MEMBERS = {{}}, []
"""
KINDS = {
    "plain": "class A(Base): pass\no, p = A(), A()",
    "with attributes": "class A(Base):\n    n = 3\n    def __init__(self, v): self.v = v\no, p = A(1), A(2)",
    "with slots": "class A(Base):\n    __slots__ = ('v',)\no, p = A(), A()",
    "printed": "class A(Base):\n    def __repr__(self): return 'R'\n    def __hash__(self): return 3\no, p = A(), A()",
    "dict": "class A(Base, dict): pass\no, p = A(a=1), A()",
    "list": "class A(Base, list): pass\no, p = A([1, 2]), A()",
    "tuple": "class A(Base, tuple): pass\no, p = A([1, 2]), A()",
    "text": "class A(Base, str): pass\no, p = A('ab'), A()",
    "int": "class A(Base, int): pass\no, p = A(1), A()",
    "float": "class A(Base, float): pass\no, p = A(1.5), A()",
    "set": "class A(Base, set): pass\no, p = A([1]), A()",
    "error": "class A(Base, ValueError): pass\no, p = A(1), A('a')",
    "enum": "class Meta(enum.EnumMeta): pass\nclass Base(enum.Enum, metaclass=Meta): pass\nclass A(Base):\n    X = 1\n    Y = 2\no, p = A.X, A.Y",
    "module": "class A(Base, nn.Module):\n    def forward(self, x): return x + 1\no, p = A(), A()",
}
ANSWERS: dict[str, tuple[str, ...]] = {
    "__bool__": ("lambda s: True", "lambda s: False", "lambda s: 1"),
    "__len__": ("lambda s: 0", "lambda s: 2", "lambda s: -1", "lambda s: True", "lambda s: 1.5"),
    "__str__": ("lambda s: 'str'", "lambda s: 3", "object.__str__"),
    "__repr__": ("lambda s: 'repr'", "lambda s: None", "object.__repr__"),
    "__format__": ("lambda s, f: 'format' + f", "lambda s, f: 3", "object.__format__"),
    "__index__": ("lambda s: 1", "lambda s: True", "lambda s: 'a'"),
    "__int__": ("lambda s: 7", "lambda s: 1.5"),
    "__float__": ("lambda s: 2.5", "lambda s: 2"),
    "__complex__": ("lambda s: 2j",),
    "__trunc__": ("lambda s: 8",),
    "__round__": ("lambda s, *n: 9",),
    "__floor__": ("lambda s: 4",),
    "__hash__": ("lambda s: 5", "lambda s: 'a'", "object.__hash__"),
    "__eq__": ("lambda s, o: True", "lambda s, o: False", "lambda s, o: NotImplemented", "lambda s, o: 'equal'", "object.__eq__"),
    "__iter__": ("lambda s: iter((1, 2))", "lambda s: 5"),
    "__next__": ("lambda s: 1",),
    "__reversed__": ("lambda s: iter((2, 1))",),
    "__contains__": ("lambda s, v: True", "lambda s, v: 0"),
    "__getitem__": ("lambda s, k: [4, 5][k]", "lambda s, k: 'abc'[k]"),
    "__setitem__": ("lambda s, k, v: LOG.append(k)",),
    "__delitem__": ("lambda s, k: LOG.append(k)",),
    "__missing__": ("lambda s, k: 6",),
    "__call__": ("lambda s, *a: 'called'", "staticmethod(lambda *a: len(a))", "classmethod(lambda *a: len(a))"),
    "__enter__": ("lambda s: 3",),
    "__exit__": ("lambda s, *e: False", "lambda s, *e: True", "lambda s, *e: LOG.append(len(e))"),
    "__getattr__": ("lambda s, n: n if n == 'absent' else object.__getattribute__(s, n)", "lambda s, n: 4 if n[0] != '_' else object.__getattribute__(s, n)"),
    "__getattribute__": ("lambda s, n: 'read' if n == 'absent' else object.__getattribute__(s, n)",),
    "__setattr__": ("lambda s, n, v: LOG.append(n)", "lambda s, n, v: object.__setattr__(s, n, 'set')"),
    "__delattr__": ("lambda s, n: LOG.append(n)",),
    "__instancecheck__": ("lambda s, o: True", "lambda s, o: False", "lambda s, o: [1]"),
    "__subclasscheck__": ("lambda s, o: True", "lambda s, o: False"),
    "__class_getitem__": ("classmethod(lambda s, k: k)",),
    "__new__": ("lambda s, *a: 'made'", "lambda s, *a: object.__new__(s)"),
    "__init__": ("lambda s, *a: LOG.append('init')", "lambda s, *a: 3"),
    "__copy__": ("lambda s: 'copied'",),
    "__deepcopy__": ("lambda s, m: 'deep'",),
    "__dir__": ("lambda s: ['b', 'a']",),
    "__length_hint__": ("lambda s: 3",),
    "__match_args__": ("('v',)", "('n', 'v')", "()", "['v']"),
    "__fspath__": ("lambda s: 'path'",),
    "absent": ("5", "property(lambda s: 6)", "property(lambda s: 1 // 0)", "classmethod(lambda s: 7)", "lambda s: 8"),
    "v": ("10", "property(lambda s: 11)"),
}
for _name in ("lt", "le", "gt", "ge", "ne"):
    ANSWERS[f"__{_name}__"] = ("lambda s, o: True", "lambda s, o: False", "lambda s, o: NotImplemented", "lambda s, o: 'compared'")
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "matmul", "divmod"):
    ANSWERS[f"__{_name}__"] = (f"lambda s, o: '{_name}'", "lambda s, o: NotImplemented")
    ANSWERS[f"__r{_name}__"] = (f"lambda s, o: 'r{_name}'", "lambda s, o: NotImplemented")
    ANSWERS[f"__i{_name}__"] = (f"lambda s, o: 'i{_name}'", "lambda s, o: NotImplemented")
for _name in ("neg", "pos", "invert", "abs"):
    ANSWERS[f"__{_name}__"] = (f"lambda s: '{_name}'",)

TRUTH, NUMBER, ITEMS, TEXT = "__bool__ __len__", "__index__ __int__ __float__ __trunc__", "__iter__ __getitem__ __len__ __next__", "__str__ __repr__ __format__"
READS = "__getattr__ __getattribute__ absent v"
QUESTIONS_BY_METHODS: tuple[tuple[str, str], ...] = (  # the methods that count, and the questions, between semicolons
    (
        TRUTH,
        """
            2 if o else 3; not o; bool(o); (o and 1) == 1; (o or 1) == 1; any([o]); all((o, 1)); len([k for k in (o, p) if k]);
            list(filter(None, [o, p])) == []; operator.truth(o); operator.not_(o); 2 if A else 3; bool(A)
        """,
    ),
    (
        TEXT,
        """
            str(o); repr(o); f'{o}'; f'{o!r}'; f'{o!s}'; f'{o:>3}'; format(o); format(o, 'x'); '%s' % (o,); '%r' % (o,); '{}'.format(o); str([o]);
            repr((o, p)); str({1: o}); f'{o}{p}'; ''.join([str(o)]); ascii(o); str(A); repr(A); f'{A}'
        """,
    ),
    (
        TEXT + " __init__",
        """
            str(ValueError(o)); repr(ValueError(o)); f'{[o]!r}'; types.SimpleNamespace(a=o); len(repr(o)) > 3
        """,
    ),
    (
        NUMBER + " __getitem__",
        """
            int(o); float(o); complex(o); operator.index(o); [1, 2, 3][o]; range(o); hex(o); 'ab' * o
        """,
    ),
    (
        NUMBER + " __complex__",
        """
            [1, 2, 3][o:]; x[o]; x.sum(o); math.sqrt(o); x + 1 if o == 1 else x; list(range(3))[:o]; chr(o)
        """,
    ),
    (
        "__round__ __floor__ __trunc__ __float__ __abs__ __index__",
        """
            round(o); round(o, 1); math.floor(o); math.trunc(o); abs(o)
        """,
    ),
    (
        "__neg__ __index__",
        """
            -o
        """,
    ),
    (
        "__pos__ __index__",
        """
            +o
        """,
    ),
    (
        "__invert__ __index__",
        """
            ~o
        """,
    ),
    (
        "__len__ __length_hint__ __iter__",
        """
            len(o); operator.length_hint(o); len(A); list(o)
        """,
    ),
    (
        "__eq__ __ne__ __hash__",
        """
            o == p; o != p; o == 1; 1 == o; o in [p]; o in (p, 1); [o] == [p]; [o, p].index(p); [p, o].count(o)
        """,
    ),
    (
        "__eq__ __hash__",
        """
            hash(o) == hash(p); hash(o) == 5; len({o, p}); {o: 1}.get(p); o in {p: 1}; {o} == {p}; len({o: 1, p: 2}); A == Below
        """,
    ),
    (
        "__eq__ __hash__ __lt__ __gt__",
        """
            hash((o, 1)) == 3; A in {A: 1}; max(o, p) is o; min([o, p]) is o; sorted([o, p])[0] is o; A < Below
        """,
    ),
    (
        "__lt__ __gt__ __eq__",
        """
            o < p
        """,
    ),
    (
        "__le__ __ge__ __eq__",
        """
            o <= p
        """,
    ),
    (
        "__gt__ __lt__ __eq__",
        """
            o > p
        """,
    ),
    (
        "__ge__ __le__ __eq__",
        """
            o >= p
        """,
    ),
    (
        ITEMS,
        """
            [*o]; list(o); tuple(o); [k for k in o]; dict.fromkeys(o); sum(o); list(zip(o, o)); list(map(str, o)); next(iter(o)); list(enumerate(o));
            sorted(o); max(o); set(o) == {1}; (lambda *a: len(a))(*o); next(o); [*A]; list(itertools.chain(o))
        """,
    ),
    (
        ITEMS + " __contains__ __eq__",
        """
            1 in o; 4 in o; 5 not in o; operator.contains(o, 1); 1 in A; o in A
        """,
    ),
    (
        ITEMS + " __reversed__",
        """
            list(reversed(o))
        """,
    ),
    (
        "__getitem__ __missing__ __class_getitem__",
        """
            o[0]; o[1]; o['z']; o[5]; operator.getitem(o, 0); A[0]; A['X']; o[0:1]
        """,
    ),
    (
        "__call__ __new__ __init__",
        """
            o(1); callable(o); o(); A(); A(1); isinstance(A(), A); list(map(o, [1])); functools.partial(o, 1)()
        """,
    ),
    (
        READS,
        """
            o.absent; getattr(o, 'absent', 9); hasattr(o, 'absent'); getattr(A, 'absent', 9); hasattr(A, 'absent'); A.absent; o.v; A.v;
            getattr(Below, 'absent', 9); operator.attrgetter('absent')(o); callable(getattr(o, 'absent', None)); getattr(o, 'v', 9); o.__dict__
        """,
    ),
    (
        READS + " __dir__",
        """
            type(o).__name__; A.__name__; 'absent' in dir(o); 'absent' in vars(A); A.__dict__.get('absent'); o.__class__ is A
        """,
    ),
    (
        "__instancecheck__ __subclasscheck__",
        """
            isinstance(o, A); isinstance(3, A); isinstance(o, (int, Below)); issubclass(A, Base); issubclass(int, A)
        """,
    ),
    (
        "__copy__ __deepcopy__",
        """
            copy.copy(o) is o; copy.deepcopy(o) is o; copy.deepcopy([o])[0] is o; copy.copy(o)
        """,
    ),
    (
        "__add__ __radd__",
        """
            o + p; o + 1; o + x; 2 + o; 'a' + o; [1] + o
        """,
    ),
    (
        "__mul__ __rmul__",
        """
            o * p; o * 1; o * x; 2 * o; 'a' * o; [1] * o
        """,
    ),
    (
        "__sub__ __rsub__",
        """
            o - p; o - 1; o - x
        """,
    ),
    (
        "__and__ __rand__",
        """
            o & p; o & 1; o & x
        """,
    ),
    (
        "__or__ __ror__",
        """
            o | p; o | 1; o | x; 2 | o; 'a' | o; [1] | o
        """,
    ),
    (
        "__truediv__ __rtruediv__",
        """
            2 / o; 'a' / o; [1] / o
        """,
    ),
    (
        "__floordiv__ __rfloordiv__",
        """
            2 // o; 'a' // o; [1] // o
        """,
    ),
    (
        "__iadd__ __add__ __radd__",
        """
            operator.iadd(o, p)
        """,
    ),
    (
        "__imul__ __mul__ __rmul__",
        """
            operator.imul(o, p)
        """,
    ),
    (
        "__ior__ __or__ __ror__",
        """
            operator.ior(o, p)
        """,
    ),
    (
        "__isub__ __sub__ __rsub__",
        """
            operator.isub(o, p)
        """,
    ),
    (
        "__add__ __radd__ __matmul__ __divmod__ __rdivmod__ __mod__ __pow__",
        """
            sum([o, p]); o @ p; divmod(o, p); divmod(7, o); o % p; o ** 2
        """,
    ),
    (
        "__or__ __ror__ __lt__ __call__",
        """
            A | int; isinstance(o, A | int); A | None
        """,
    ),
)
QUESTIONS = tuple((asked.strip(), names) for names, text in QUESTIONS_BY_METHODS for asked in text.split(";"))
STATEMENTS: tuple[tuple[str, str], ...] = (
    ("with o as k:\n        out.append(k)", "__enter__ __exit__"),
    ("with o:\n        raise KeyError(1)", "__enter__ __exit__"),
    ("o.v = x.shape[0]\n    out.append(getattr(o, 'v', 0))", "__setattr__ __getattr__ __getattribute__ v"),
    ("o.absent = 1\n    out.append(getattr(o, 'absent', 0))\n    del o.absent", "__setattr__ __delattr__ __getattr__ absent"),
    ("o['k'] = 3\n    out.append(len(o))\n    del o['k']", "__setitem__ __delitem__ __len__"),
    ("match o:\n        case A(v): out.append(v)\n        case _: out.append('none')", "__match_args__ __instancecheck__ v __getattr__"),
    ("match o:\n        case A(v=k): out.append(k)\n        case [k, *_]: out.append(k)", "__match_args__ __instancecheck__ v __len__ __getitem__"),
    ("match 3:\n        case A(): out.append('is')\n        case _: out.append('none')", "__instancecheck__ __subclasscheck__"),
    ("match 1:\n        case A.absent: out.append('is')\n        case _: out.append('none')", "absent __eq__ __getattr__"),
    ("try:\n        raise ValueError(1)\n    except A:\n        out.append('caught')", "__instancecheck__ __subclasscheck__"),
    ("try:\n        raise A\n    except Base:\n        out.append('caught')", "__instancecheck__ __subclasscheck__ __new__ __init__ __call__"),
    ("try:\n        raise A(3)\n    except ValueError as e:\n        out.append((str(e), repr(e)))", "__init__ __new__ __str__ __repr__ __subclasscheck__"),
    ("a, *b = o\n    out.append((a, b))", ITEMS),
    ("for k in o:\n        out.append(k)\n        if len(out) > 5: break", ITEMS),
    ("k = o\n    k += 1\n    out.append(k is o)", "__iadd__ __add__ __radd__"),
    ("k = o\n    k |= p\n    out.append(k is o)", "__ior__ __or__ __ror__"),
    ("while o:\n        out.append(1)\n        if len(out) > 3: break", TRUTH),
    ("assert o, 'a'", TRUTH),
    ("class New(A): pass\n    out.append(New.__name__)", "__init_subclass__ __call__ __new__"),
)
ALWAYS_CALLED = frozenset({"__getattribute__", "__getattr__", "__new__", "__init__"})  # with None in their place a class is of no use
OWNERS = ("A", "A", "A", "Base", "Meta", "Meta", "o")


def drawn(seed: int) -> tuple[random.Random, str, str, str]:
    """Its random numbers, a kind of class, a program, and the methods that count."""
    rng = random.Random(seed)
    kind = rng.choice(list(KINDS))
    if rng.random() < 0.15:
        line, names = rng.choice(STATEMENTS)
        body = f"{line}"
    else:
        asked, names = rng.choice(QUESTIONS)
        body = rng.choice(("out.append({q})", "out.append({q})", "out.append(x * 2 if ({q}) else x)")).format(q=asked)
    return rng, kind, f"def program(x):\n    out = [x + 1]\n    {body}\n    return out\n", names


def source_of(seed: int) -> str:
    _, kind, source, _ = drawn(seed)
    return f"{kind}: {source}"


def made_world(kind: str, source: str) -> dict[str, Any]:
    world: dict[str, Any] = {"__name__": "world"}
    exec(compile(WORLD.format(kind=KINDS[kind]).replace("class Below(A): pass", "" if kind == "enum" else "class Below(A): pass"), "<world>", "exec"), world)
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    world.setdefault("Below", int)
    return world


ADDRESS = re.compile(" at 0x[0-9a-f]+")


def seen(value: Any) -> Any:
    """What two worlds can be compared by."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return [type(value).__name__, *map(seen, value)]
    if type(value).__module__ == "world":
        return type(value).__name__
    return ADDRESS.sub("", repr(value))


def outcome(call: Callable[..., Any], world: dict[str, Any]) -> Any:
    world["LOG"].clear()
    try:
        result = seen(call(torch.tensor([0.5, -1.0])))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        result = (type(error).__name__, ADDRESS.sub("", str(error)) if type(error).__module__ == "builtins" else "")
    return result, list(world["LOG"])


def change(rng: random.Random, names: str) -> str:
    """A statement that changes a method that counts. It may raise, as in eager."""
    owner, name = rng.choice(OWNERS), rng.choice(names.split())
    if rng.random() < 0.3 or name not in ANSWERS:
        return f"del {owner}.{name}"
    none = ("None",) if name.startswith("__") and name not in ALWAYS_CALLED else ()
    return f"{owner}.{name} = {rng.choice((*ANSWERS[name], *none))}"


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng, kind, source, names = drawn(seed)
    worlds = made_world(kind, source), made_world(kind, source)
    dynacompile.reset()
    options = {"fallback": "none", "accumulated_recompile_limit": 1000}
    compiled = dynacompile.compile(worlds[1]["program"], backend="eager", isolate_recompiles=True, recompile_limit=1000, options=options)
    history: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(7):
            if turn:
                history.append(change(rng, names))
                for world in worlds:
                    with contextlib.suppress(Exception):  # what can't be changed stays
                        exec(history[-1], world)
            want = outcome(worlds[0]["program"], worlds[0])
            got = outcome(compiled, worlds[1])
            if want != got:
                return "\n".join((KINDS[kind], source, *history, f"    eager {want}", f"    ours  {got}"))
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, source_of))
