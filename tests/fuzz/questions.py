"""Programs that ask questions about a few objects, which change between the calls in exactly what was asked: compiled and eager, call by call.

    python -m tests.fuzz.questions FIRST LAST [--show]

A program is its seed. It has two worlds of the same objects, one for eager and one for what is compiled, as caches, weak containers and hooks keep state
of their own; changes of torch itself, of modules and of the environment concern both. Compared are results, exceptions, what hooks wrote, and the counts
of caches. To add a question, write a line into QUESTIONS, and what may change its answer into CHANGES.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

import dynacompile
from tests.fuzz.seeds import run_seeds

WORLD = """
import abc, collections.abc, dataclasses, enum, functools, os, sys, types, typing, weakref
import torch
import torch.nn.functional as F
from torch import nn

LOG, RULES = [], {"instance": True, "subclass": True, "length": 2, "truth": True, "raises": False}
class Meta(type):
    def __instancecheck__(cls, o):
        LOG.append("instancecheck")
        return RULES["instance"] and hasattr(o, "number")
    def __subclasscheck__(cls, o):
        return RULES["subclass"]
class Hooked(metaclass=Meta): pass
class Abstract(abc.ABC): pass
class Below(Abstract): pass
class Shaped(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return True if any("shape" in base.__dict__ for base in other.__mro__) else NotImplemented
class Protocol(typing.Protocol):
    number: int
class Implements(Protocol):
    number = 3
class Base:
    shared = 3
    def __init__(self, number=1):
        self.number = number
    def method(self, x):
        return x * self.number
    @property
    def doubled(self):
        if RULES["raises"]:
            raise AttributeError("no doubled now")
        return self.number * 2
    @functools.cached_property
    def once(self):
        LOG.append("once")
        return self.number + 0.5
    @functools.lru_cache(maxsize=3)
    def remembered(self, n):
        LOG.append("remembered")
        return torch.rand(n)
    @staticmethod
    def plain(x):
        return x + 1
    @classmethod
    def of_class(cls, x):
        return x * cls.shared
class Thing(Base): pass
class Other(Base):
    shared = 5
class Sized(Base):
    def __len__(self):
        return RULES["length"]
class Truthful(Base):
    def __bool__(self):
        return RULES["truth"]
class Equal(Base):
    def __eq__(self, other):
        return isinstance(other, Base) and self.number == other.number
    def __hash__(self):
        return 7
class Lying(Base):
    told = Thing
    @property
    def __class__(self):
        return self.told
class Wrapper:
    def __init__(self, inner):
        self.__dict__["inner"] = inner
    def __getattr__(self, name):
        return getattr(self.inner, name)
class Slotted:
    __slots__ = ("number", "extra")
    def __init__(self):
        self.number = 4
@dataclasses.dataclass
class Record:
    number: int = 1
    other: float = 2.0
class Color(enum.Enum):
    RED = 1
    BLUE = 2
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)
        self.linear.weight.data.copy_(torch.eye(3) * 2)
        self.act, self.number = nn.Tanh(), 2
    @property
    def ready(self):
        if RULES["raises"]:
            raise AttributeError("not ready")
        return 4
    def forward(self, x):
        return self.act(self.linear(x))
class Sub(nn.Linear): pass
@functools.lru_cache
def cached(n):
    LOG.append("cached")
    return n * RULES["length"]
@functools.lru_cache(maxsize=2)
def noise(n, scale=1):
    LOG.append("noise")
    return torch.rand(n) * scale
@functools.cache
def listed(*numbers):
    return list(numbers)
def helper(x, by=2, *, more=1):
    return x * by + more
def second(x, by=3, *, more=2):
    return x - by - more
KEYED, VALUED, MEMBERS = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), weakref.WeakSet()
TABLE = {"a": 1, "b": 2}
CONFIG = types.ModuleType("config")
CONFIG.value = 1
objects = {"thing": Thing(), "other": Other(2), "sized": Sized(), "truthful": Truthful(), "equal": Equal(), "lying": Lying(), "slotted": Slotted(),
           "record": Record(), "wrapper": Wrapper(Thing(6)), "net": Net(), "sub": Sub(3, 3, bias=False), "implements": Implements(), "int": 3, "list": [1, 2]}
objects["proxy"] = weakref.proxy(objects["thing"])
objects["sub"].weight.data.fill_(0.5)
LASTING = Thing(9)
"""

WORLD_CODE = compile(WORLD, "<world>", "exec", dont_inherit=True)

# expressions over x, o, p (objects), m (a module), k (a constant), and the names of the world
QUESTIONS = (
    *("isinstance(o, Thing)", "isinstance(o, (int, Other))", "isinstance(o, Abstract)", "isinstance(o, Below | int)", "isinstance(o, Hooked)"),
    *("isinstance(o, Shaped)", "isinstance(o, Implements)", "isinstance(o, collections.abc.Sized)", "isinstance(o, collections.abc.Hashable)"),
    *("isinstance(o, collections.abc.Callable)", "isinstance(x, Abstract)", "isinstance(m, Abstract)", "isinstance(o, typing.Union[Thing, int])"),
    *("issubclass(type(o), Base)", "issubclass(type(o), Abstract)", "issubclass(type(o), Hooked)", "issubclass(type(o), Shaped)"),
    *("type(o).__name__", "o.__class__.__name__", "type(o) is type(p)", "o.__class__ is p.__class__", "callable(o)"),
    *("hasattr(o, 'number')", "hasattr(o, 'doubled')", "hasattr(o, 'extra')", "getattr(o, 'doubled', 'none')", "getattr(o, 'extra', 'none')"),
    *("hasattr(m, 'ready')", "getattr(m, 'ready', 'none')", "m.ready", "hasattr(m, 'extra')", "getattr(m, 'extra', 0)"),
    *("o.number", "o.shared", "o.doubled", "o.once", "o.method(x)", "o.plain(x)", "o.of_class(x)", "type(o).shared"),
    *("bool(o)", "'yes' if o else 'no'", "len(o)", "o == p", "o is p", "o in [p]", "o in (p, o)", "o != p", "p in {o: 1}", "hash(o) == hash(p)"),
    *("sorted(vars(o))", "list(vars(o).values())", "'extra' in vars(o)", "'extra' in o.__dict__", "repr(o)[:4]", "str(k)", "f'{k}'", "f'{o}'[:3]"),
    *("m(x)", "m.act(x)", "m.linear(x)", "objects['sub'](x)", "F.linear(x, x.new_ones(3, 3))", "F.relu(x)", "torch.sin(x)", "x.relu()", "x.tanh() + 1"),
    *("x.added() if hasattr(x, 'added') else x", "x * 2 + x", "-x", "F.layer_norm(x, (3,))", "nn.LayerNorm(3, elementwise_affine=False)(x)"),
    *("cached(3)", "x * cached(2) + cached(3)", "noise(3)", "x + noise(3, scale=2)", "noise(3) is noise(3)", "listed(1, 2)", "listed(1, 2) is listed(1, 2)"),
    *("LASTING.remembered(3)", "o.remembered(3)", "x + LASTING.remembered(3)", "tuple(cached.cache_info())"),
    *("LASTING in KEYED", "KEYED.get(LASTING, 0)", "len(KEYED)", "'a' in VALUED", "LASTING in MEMBERS", "len(MEMBERS)", "o in MEMBERS", "list(VALUED)"),
    *("helper(x)", "helper(x, more=3)", "helper(x, 4)", "helper.__name__", "helper.__defaults__", "hasattr(helper, 'extra')"),
    *("k is 'ab'", "k == 'ab'", "k is None", "k is True", "k in ('ab', 1)", "''.join(['a', 'b']) is k", "k is p", "type(k).__name__", "isinstance(k, int)"),
    *("Color.RED.value", "Color(1).name", "len(Color)", "Color.RED is Color['RED']", "[f.name for f in dataclasses.fields(Record)]", "Record().number"),
    *("CONFIG.value", "hasattr(CONFIG, 'extra')", "getattr(CONFIG, 'extra', 0)", "'a' in TABLE", "len(TABLE)", "list(TABLE)", "TABLE.get('c', 0)"),
    *("os.environ.get('DYNACOMPILE_FUZZ', 'none')", "torch.get_default_dtype()", "torch.is_grad_enabled()", "torch.ones(2).dtype"),
    *("torch.backends.cudnn.benchmark", "torch.get_float32_matmul_precision()", "torch.are_deterministic_algorithms_enabled()"),
    *("sorted(dir())", "sorted(locals())[:3]", "sorted(vars())", "'x' in dir()", "isinstance(Color.RED, Color)", "max(o.number, p.number)"),
)
STATEMENTS = (  # all lines but the first with the indent of the program
    """match o:
        case Thing(number=n):
            out.append(n)
        case Other():
            out.append('other')
        case _:
            out.append('none')""",
    """match o:
        case [a, *rest]:
            out.append(a)
        case Abstract():
            out.append('abstract')
        case _:
            out.append('none')""",
    """import fuzz_module
    out.append(fuzz_module.value)""",
    """y = x * 2
    out.append('y' in dir())""",
    """if LASTING not in KEYED:
        KEYED[LASTING] = x.sum()
    out.append(KEYED[LASTING] + x)""",
)

Change = Callable[[dict[str, Any], random.Random], None]
UNDO: list[Callable[[], None]] = []  # of changes of what both worlds share


def rule(name: str, *values: Any) -> Change:
    return lambda w, rng: w["RULES"].__setitem__(name, rng.choice(values))


def class_attribute(cls: str, name: str, *values: Any) -> Change:
    """Sets it, or deletes what was set before."""

    def change(w: dict[str, Any], rng: random.Random) -> None:
        value = rng.choice((None, *values))
        if value is not None:
            setattr(w[cls], name, value)
        elif name in vars(w[cls]):
            delattr(w[cls], name)

    return change


def attribute(name: str, *values: Any) -> Change:
    def change(w: dict[str, Any], rng: random.Random) -> None:
        target = w["objects"][rng.choice(("thing", "other", "sized", "equal", "lying", "slotted", "record", "net"))]
        value = rng.choice((None, *values))
        with contextlib.suppress(AttributeError):
            delattr(target, name) if value is None else setattr(target, name, value)

    return change


def new_class(w: dict[str, Any], rng: random.Random) -> None:
    target = w["objects"][rng.choice(("thing", "other", "sized", "truthful"))]
    object.__setattr__(target, "__class__", w[rng.choice(("Thing", "Other", "Sized", "Truthful", "Equal"))])


def register(w: dict[str, Any], rng: random.Random) -> None:
    w[rng.choice(("Abstract", "Below", "Shaped"))].register(rng.choice((w["Thing"], w["Other"], w["Net"], torch.Tensor, int, w["Record"])))


def weak_entry(w: dict[str, Any], rng: random.Random) -> None:
    key = rng.choice((w["LASTING"], w["objects"]["thing"]))
    match rng.randrange(6):
        case 0:
            w["KEYED"][key] = rng.randrange(3)
        case 1:
            w["KEYED"].pop(key, None)
        case 2:
            w["MEMBERS"].add(key)
        case 3:
            w["MEMBERS"].discard(key)
        case 4:
            w["VALUED"]["a"] = key
        case 5:
            w["VALUED"]["a"] = w["Thing"]()  # gone at once
            gc.collect(0)


def clear_cache(w: dict[str, Any], rng: random.Random) -> None:
    rng.choice((w["cached"], w["noise"], w["listed"], w["Base"].__dict__["remembered"])).cache_clear()


def fill_cache(w: dict[str, Any], rng: random.Random) -> None:
    rng.choice((w["cached"], w["noise"]))(rng.randrange(1, 5))


def change_helper(w: dict[str, Any], rng: random.Random) -> None:
    helper = w["helper"]
    match rng.randrange(5):
        case 0:
            helper.__code__, w["second"].__code__ = w["second"].__code__, helper.__code__
        case 1:
            helper.__defaults__ = (rng.randrange(5),)
        case 2:
            helper.__kwdefaults__ = {"more": rng.randrange(5)}
        case 3:
            helper.extra = 1
        case 4:
            w["helper"], w["second"] = w["second"], helper


def change_config(w: dict[str, Any], rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            w["CONFIG"].value = rng.randrange(3)
        case 1:
            w["CONFIG"].extra = 1
        case 2:
            w["CONFIG"].__dict__.pop("extra", None)
        case 3:
            w["TABLE"].pop("a", None) if "a" in w["TABLE"] else w["TABLE"].update(a=1)


def patch_instance(w: dict[str, Any], rng: random.Random) -> None:
    net = w["objects"]["net"]
    match rng.randrange(4):
        case 0:
            net.__dict__["forward"] = lambda x: x * 5
        case 1:
            net.__dict__.pop("forward", None)
        case 2:
            net.act = rng.choice((torch.nn.ReLU(), torch.nn.Tanh()))
        case 3:
            net.linear.__dict__["forward"] = lambda x: x - 1


CHANGES: dict[str, Change] = {
    "instance rule": rule("instance", True, False),
    "subclass rule": rule("subclass", True, False),
    "length": rule("length", 0, 1, 2),
    "truth": rule("truth", True, False),
    "raises": rule("raises", True, False),
    "register": register,
    "class of an object": new_class,
    "told class": lambda w, rng: setattr(w["Lying"], "told", w[rng.choice(("Thing", "Other", "Record"))]),
    "shared": class_attribute("Thing", "shared", 4, 5),
    "method": class_attribute("Thing", "method", lambda self, x: x - self.number, lambda self, x: x * 0),
    "shape": class_attribute("Thing", "shape", (1,)),
    "call": class_attribute("Thing", "__call__", lambda self: 1),
    "len": class_attribute("Thing", "__len__", lambda self: 0, lambda self: 2),
    "bool": class_attribute("Thing", "__bool__", lambda self: False),
    "eq": class_attribute("Thing", "__eq__", lambda self, other: True),
    "getattr": class_attribute("Thing", "__getattr__", lambda self, name: 11 if name == "extra" else object.__getattribute__(self, name)),
    "repr": class_attribute("Thing", "__repr__", lambda self: "changed"),
    "property": class_attribute("Thing", "doubled", property(lambda self: 41)),
    "extra of a class": class_attribute("Base", "extra", 3, property(lambda self: 8)),
    "forward": class_attribute("Net", "forward", lambda self, x: x * 9),
    "forward of a subclass": class_attribute("Sub", "forward", lambda self, x: x * 7),
    "match args": class_attribute("Thing", "__match_args__", ("number",)),
    "number": attribute("number", 1, 2, 2.5),
    "extra": attribute("extra", 1, 2),
    "weak": weak_entry,
    "clear": clear_cache,
    "fill": fill_cache,
    "helper": change_helper,
    "config": change_config,
    "instance": patch_instance,
}


def patched(holder: Any, name: str, make: Callable[[Any], Any]) -> Callable[[random.Random], None]:
    """Replaces an attribute of torch, or puts torch's own back."""
    original = vars(holder).get(name)

    def undo() -> None:
        if original is not None:
            setattr(holder, name, original)
        elif name in vars(holder):
            delattr(holder, name)

    def change(rng: random.Random) -> None:
        if vars(holder).get(name) is original:
            setattr(holder, name, make(original))
            UNDO.append(undo)
        else:
            undo()

    return change


def setting(read: Callable[[], Any], write: Callable[[Any], None], *values: Any) -> Callable[[random.Random], None]:
    def change(rng: random.Random) -> None:
        before = read()
        UNDO.append(lambda: write(before))
        write(rng.choice(values))

    return change


def set_environment(value: str | None) -> None:
    if value is None:
        os.environ.pop("DYNACOMPILE_FUZZ", None)
    else:
        os.environ["DYNACOMPILE_FUZZ"] = value


def set_module(value: int) -> None:
    sys.modules["fuzz_module"] = types.ModuleType("fuzz_module")
    sys.modules["fuzz_module"].value = value  # type: ignore[attr-defined]


PRECISIONS = (("mkldnn", "matmul"), ("cuda", "matmul"))


def set_precision(rng: random.Random) -> None:
    """Sets what holds for matrix multiplications everywhere, which sets that of each backend, too."""
    before = torch.get_float32_matmul_precision()
    parts = [(*place, torch._C._get_fp32_precision_getter(*place)) for place in PRECISIONS]

    def undo() -> None:
        torch.set_float32_matmul_precision(before)
        for part in parts:
            torch._C._set_fp32_precision_setter(*part)

    UNDO.append(undo)
    torch.set_float32_matmul_precision(rng.choice(("high", "highest")))


ADDRESS = re.compile(" at 0x[0-9a-f]+")
PLAIN_ADD = torch.Tensor.__add__
SHARED: dict[str, Callable[[random.Random], None]] = {
    "F.linear": patched(F, "linear", lambda old: lambda x, w, b=None: old(x, w, b) * 100),
    "F.relu": patched(F, "relu", lambda old: lambda x, inplace=False: old(x) + 1),
    "F.layer_norm": patched(F, "layer_norm", lambda old: lambda *args: old(*args) + 3),
    "torch.layer_norm": patched(torch, "layer_norm", lambda old: lambda *args: old(*args) * 3),
    "torch.sin": patched(torch, "sin", lambda old: lambda x: x * 100),
    "torch.tanh": patched(torch, "tanh", lambda old: lambda x: x * 50),
    "Tanh.forward": patched(torch.nn.Tanh, "forward", lambda old: lambda self, x: x + 10),
    "Linear.forward": patched(torch.nn.Linear, "forward", lambda old: lambda self, x: old(self, x) + 20),
    "Module.__call__": patched(torch.nn.Module, "__call__", lambda old: lambda self, *args: old(self, *args) + 30),
    "Module._call_impl": patched(torch.nn.Module, "_call_impl", lambda old: lambda self, *args: old(self, *args) + 40),
    "Tensor.relu": patched(torch.Tensor, "relu", lambda old: lambda self: self * 60),
    "Tensor.__add__": patched(torch.Tensor, "__add__", lambda old: lambda self, other: PLAIN_ADD(self, other) * 2),
    "Tensor.added": patched(torch.Tensor, "added", lambda old: lambda self: self * 70),
    "environment": setting(lambda: os.environ.get("DYNACOMPILE_FUZZ"), set_environment, "a", "b", None),
    "sys.modules": setting(lambda: sys.modules["fuzz_module"].value, set_module, 1, 2),
    # not by the attribute, which torch's own test utilities forbid anybody to set
    "benchmark": setting(torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark, True, False),
    "precision": set_precision,
    "deterministic": setting(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True, False),
    "default dtype": setting(torch.get_default_dtype, torch.set_default_dtype, torch.float64, torch.float32),
    "gradients": setting(torch.is_grad_enabled, lambda v: torch._C._set_grad_enabled(v), True, False),
}


def source_of(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.12:
            lines.append(rng.choice(STATEMENTS))
            continue
        asked = rng.choice(QUESTIONS)
        if rng.random() < 0.3:
            lines.append(f"try:\n        out.append({asked})\n    except Exception as error:\n        out.append((type(error).__name__, str(error)))")
        elif rng.random() < 0.2:
            lines.append(f"out.append(x * (2 if ({asked}) else 3))" if "x" not in asked else f"out.append({asked})")
        else:
            lines.append(f"out.append({asked})")
    return "def program(x, o, p, m, k):\n    out = [x + 0]\n    " + "\n    ".join(lines) + "\n    return out\n"


def made_world(source: str) -> dict[str, Any]:
    world: dict[str, Any] = {"__name__": "world"}
    exec(WORLD_CODE, world)
    exec(compile(source, "<program>", "exec", dont_inherit=True), world)
    return world


def seen(value: Any) -> Any:
    """What two worlds can be compared by."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.requires_grad, repr(value.detach().tolist()))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(seen, value))
    if isinstance(value, (str, int, float, bool, type(None), torch.dtype)):
        return (type(value).__name__, ADDRESS.sub("", repr(value)))
    return type(value).__name__


def outcome(call: Callable[..., Any], world: dict[str, Any], names: tuple[str, str], k: Any, step: int) -> tuple:
    """What a call gave or raised, what hooks wrote, and what the caches counted."""
    world["LOG"].clear()
    torch.manual_seed(step)
    first, second = (world["objects"][name] for name in names)
    given = world["objects"]["thing"] if k == "p" else k
    try:
        result = seen(call(torch.tensor([[0.5, -1.0, 2.0]]), first, second, world["objects"]["net"], given))
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        result = (type(error).__name__, ADDRESS.sub("", str(error)))
    caches = [tuple(world[name].cache_info()) for name in ("cached", "noise", "listed")] + [tuple(world["Base"].__dict__["remembered"].cache_info())]
    weak = (len(world["KEYED"]), len(world["MEMBERS"]), len(world["VALUED"]))
    return result, tuple(world["LOG"]), caches, weak, repr(torch.get_rng_state().sum())


CONSTANTS = (1, True, None, "ab", "ba", 2.5, "p", 1000)


@contextlib.contextmanager
def shared_state() -> Iterator[None]:
    """What both worlds share is as before afterwards."""
    set_module(1)
    UNDO.clear()
    try:
        yield
    finally:
        with contextlib.ExitStack() as all_of_them:  # also those after one that raises
            all_of_them.callback(sys.modules.pop, "fuzz_module", None)
            for undo in UNDO:
                all_of_them.callback(undo)
            UNDO.clear()


def difference(seed: int) -> str | None:
    """What the program of a seed shows compiled and not in eager, None where nothing differs."""
    rng = random.Random(seed)
    source = source_of(rng)
    worlds = made_world(source), made_world(source)
    names = (rng.choice(sorted(worlds[0]["objects"])), rng.choice(("thing", "other", "equal", "sized")))
    dynacompile.reset()
    options = {"fallback": "none", "accumulated_recompile_limit": 1000, "verify": True}
    compiled = dynacompile.compile(worlds[1]["program"], backend="eager", isolate_recompiles=True, recompile_limit=1000, options=options)
    history: list[str] = []
    k = rng.choice(CONSTANTS)
    with shared_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(rng.randint(3, 6)):
            want = outcome(worlds[0]["program"], worlds[0], names, "".join(["a", "b"]) if k == "ab" and step % 2 else k, step)
            got = outcome(compiled, worlds[1], names, "".join(["a", "b"]) if k == "ab" and step % 2 else k, step)
            if want != got:
                return f"o: {names[0]}, p: {names[1]}, k: {k!r}, after {history}\n{source}    eager {want}\n    ours  {got}"
            for _ in range(rng.randint(0, 2)):
                if rng.random() < 0.7:
                    name = rng.choice(sorted(CHANGES))
                    state = rng.random()
                    for world in worlds:
                        CHANGES[name](world, random.Random(state))
                else:
                    name = rng.choice(sorted(SHARED))
                    SHARED[name](rng)
                history.append(name)
            if rng.random() < 0.1:
                k = rng.choice(CONSTANTS)
    return None


if __name__ == "__main__":
    raise SystemExit(run_seeds(__doc__, difference, lambda seed: source_of(random.Random(seed))))
