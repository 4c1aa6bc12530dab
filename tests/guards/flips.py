"""Programs that read random facts of a small world, and flips that change one fact: after each flip the compiled function must give what eager gives.

    python -m tests.guards.flips --flips 50000 --seed 0

A snippet names the facts that it reads, a flip those that it changes, with commas between them: a recompile after a flip
that no snippet reads is over-guarding, and counted.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Compiled

ODD = (0, 1, True, False, 1.0, 0.0, -0.0, math.nan, 2, None, "a", "b", 2.5, -1)
NUMBERS = (0, 1, True, False, 1.0, 0.0, -0.0, math.nan, 2, 2.5, -1)


class IntSubclass(int):
    pass


class ListSubclass(list):
    pass


class Inner:
    def __init__(self) -> None:
        self.value = 1.5


class Thing:
    shared = 3

    def __init__(self) -> None:
        self.number, self.flag, self.inner, self.items = 2, True, Inner(), [1, 2.0]

    @property
    def doubled(self) -> Any:
        return self.number * 2

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.shared

    @staticmethod
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def __bool__(self) -> bool:
        return self.flag is True


class OtherThing(Thing):
    shared = 5

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


class Slotted:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1


SNIPPETS: dict[str, tuple[str, ...]] = {
    "out.append(x.size(0) * x.dim())": ("x.size",),
    "out.append(str(x.dtype))": ("x.dtype",),
    "out.append(x * 2 if x.is_contiguous() else x * 3)": ("x.stride", "x.size", "x.dtype", "x.grad"),
    "out.append(x.requires_grad)": ("x.grad",),
    "out.append(x.sum() + y.sum())": ("x.size", "x.dtype", "x.grad", "x.stride", "alias"),
    "out.append(x is y)": ("alias",),
    "y.mul_(2); out.append(x + 1)": ("x.size", "x.dtype", "x.grad", "x.stride", "alias"),
    "out.append(o.number)": ("o.number", "o.class"),
    "out.append(o.doubled)": ("o.number", "o.class"),
    "out.append(x * 2 if o.flag is True else x * 3)": ("o.flag", "o.class"),
    "out.append(x + o.inner.value)": ("o.inner", "o.class"),
    "out.append(o.apply(x))": ("o.shared", "o.class", "o.apply"),
    "out.append(o.plain(x))": ("o.class", "o.plain"),
    "out.append(len(o.items) + (1 if o.items[0] is True else 0))": ("o.items", "o.class"),
    "out.append(type(o).__name__)": ("o.class",),
    "out.append(isinstance(o, OtherThing))": ("o.class",),
    "out.append('yes' if o else 'no')": ("o.flag", "o.class"),
    "out.append(hasattr(o, 'extra'))": ("o.extra", "o.class"),
    "out.append(getattr(o, 'extra', 'none'))": ("o.extra", "o.class"),
    "out.append(s.value)": ("s.value",),
    "out.append(SCALE)": ("SCALE",),
    "out.append(x * 2 if SCALE == 1 else x * 3)": ("SCALE",),
    "out.append(len(TABLE)); out.append('a' in TABLE)": ("TABLE.keys",),
    "out.append(list(TABLE))": ("TABLE.keys",),
    "out.append(TABLE.get('a', 'gone'))": ("TABLE.keys", "TABLE.a"),
    "out.append([v for v in TABLE.values()])": ("TABLE.keys", "TABLE.a"),
    "out.append(ITEMS[0]); out.append(len(ITEMS))": ("ITEMS",),
    "out.append(type(ITEMS).__name__)": ("ITEMS.type",),
    "out.append(3 in WORDS)": ("WORDS",),
    "out.append(free)": ("free",),
    "out.append(x + 1 if free else x - 1)": ("free",),
    "out.append(helper(x))": ("helper", "helper.code", "helper.default"),
    "out.append(helper(x, by=3))": ("helper", "helper.code"),
    "out.append(keyworded(x))": ("keyworded.default",),
    "out.append(k)": ("k",),
    "out.append(x + 1 if k is None else x + 2)": ("k",),
    "out.append(type(k).__name__)": ("k",),
    "out.append(x * 2 if isinstance(k, bool) else x * 3)": ("k",),
    "out.append(default)": ("default",),
    "out.append(m(x.float()))": ("m", "m.weight", "m.training", "x.size", "x.dtype"),
    "out.append(m.training)": ("m.training",),
    "out.append(m.weight.requires_grad); out.append(str(m.weight.dtype))": ("m.weight",),
    "out.append(m.extra if hasattr(m, 'extra') else 0)": ("m.extra",),
    "out.append(len(list(m.children())))": ("m.children",),
    "out.append(torch.is_grad_enabled())": ("grad",),
    "out.append((x.float() @ x.float().reshape(-1, x.size(0))).dtype)": ("autocast", "x.size", "x.dtype"),
    "out.append(torch.zeros(2).dtype)": ("default dtype",),
    "out.append(torch.is_inference_mode_enabled())": ("inference",),
    "out.append(torch.are_deterministic_algorithms_enabled())": ("deterministic",),
    "out.append(torch.ones(2))": ("default dtype", "function mode"),
    "out.append(kwargs.get('more', 0)); out.append(sorted(kwargs))": ("kwargs",),
    "out.append(len(args)); out.append(args[0] if args else None)": ("args",),
    "out.append(abs(-3) + math.floor(2.5))": ("abs",),
}


class AddOne(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out + 1 if func is torch.ones else out


def first_helper(x: torch.Tensor, by: Any = 2) -> torch.Tensor:
    return x * by


def second_helper(x: torch.Tensor, by: Any = 2) -> torch.Tensor:
    return x - by


def keyworded_of(namespace: dict) -> types.FunctionType:
    def keyworded(x: torch.Tensor, *, by: Any = 4) -> torch.Tensor:
        return x * by

    return types.FunctionType(keyworded.__code__.replace(), namespace, "keyworded", None, None)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 3))
        self.inner = torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * self.weight.sum()) if self.training else x * self.weight.sum()


@dataclass
class World:
    """Everything that a program may read; one function over it, compiled and plain."""

    rng: random.Random
    namespace: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = (2, 3)
    dtype: torch.dtype = torch.float32
    grad: bool = False
    transposed: bool = False
    alias: str = "none"
    k: Any = 1
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    modes: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        thing_class = type("Thing", (Thing,), {k: v for k, v in vars(Thing).items() if k not in ("__dict__", "__weakref__")})
        self.thing_class = thing_class
        self.o, self.s, self.m = thing_class(), Slotted(), Net()
        self.namespace.update(
            torch=torch, math=math, OtherThing=OtherThing, SCALE=1, TABLE={"a": 1, "b": 2.0}, ITEMS=[1, 2, 3], WORDS={1, 3},
            helper=types.FunctionType(first_helper.__code__.replace(), self.namespace, "helper", (2,)),
        )  # fmt: skip
        self.namespace["keyworded"] = keyworded_of(self.namespace)
        self.namespace["keyworded"].__kwdefaults__ = {"by": 4}
        self.chosen = self.rng.sample(sorted(SNIPPETS), self.rng.randint(1, 6))
        body = "\n        ".join(self.chosen)
        source = (
            "def make(free):\n    def f(x, y, o, s, m, k, *args, default=7, **kwargs):\n        out = [x + 0]\n        "
            f"{body}\n        return out\n    def set_free(v):\n        nonlocal free\n        free = v\n    return f, set_free\n"
        )
        exec(compile(source, f"<flips {self.chosen[0]}>", "exec"), self.namespace)
        self.f, self.set_free = self.namespace.pop("make")(2)
        self.reads = frozenset(fact for snippet in self.chosen for fact in SNIPPETS[snippet]) | {
            "grad",
            "inference",
            "autocast",
            "default dtype",
            "deterministic",
        }
        self.reads |= {"function mode", "x.size", "x.dtype", "x.grad", "x.stride"}  # of `x + 0`, and of any graph

    def inputs(self) -> tuple[tuple, dict]:
        count = math.prod(self.shape)
        x = (torch.arange(count, dtype=torch.float64) / 3).to(self.dtype).reshape(self.shape[::-1] if self.transposed else self.shape)
        x = x.t() if self.transposed and x.dim() == 2 else x
        y = torch.full(self.shape, 2.0).to(self.dtype)
        if self.alias == "same":
            y = x
        elif self.alias == "view":
            y = x[:]
        if self.grad and self.dtype.is_floating_point and self.alias == "none":
            x.requires_grad_()
        return (x, y, self.o, self.s, self.m, self.k, *self.args), dict(self.kwargs)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for mode in self.modes.values():
                stack.enter_context(mode())
            yield


Flip = Callable[[World], None]


def put(name: str, values: tuple) -> Flip:
    return lambda w: w.namespace.__setitem__(name, w.rng.choice(values))


def field_of(name: str, values: tuple) -> Flip:
    return lambda w: setattr(w, name, w.rng.choice(values))


def attribute(holder: str, name: str, values: tuple) -> Flip:
    return lambda w: setattr(getattr(w, holder), name, w.rng.choice(values))


@contextlib.contextmanager
def default_dtype() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def toggle(name: str, enter: Callable[[], Any]) -> Flip:
    def flip(w: World) -> None:
        if w.modes.pop(name, None) is None:
            w.modes[name] = enter

    return flip


def new_class(w: World) -> None:
    w.o.__class__ = w.rng.choice((w.thing_class, OtherThing, type("Thing", (w.thing_class,), {})))


def new_dict(w: World) -> None:
    w.o.__dict__ = dict(w.o.__dict__, number=w.rng.choice(ODD))


def extra(holder: str) -> Flip:
    def flip(w: World) -> None:
        target = getattr(w, holder)
        if "extra" in target.__dict__:
            del target.extra
        else:
            target.extra = w.rng.choice(ODD)

    return flip


def patch_class(name: str, values: tuple) -> Flip:
    return lambda w: setattr(w.thing_class, name, w.rng.choice(values))


def shuffle_table(w: World) -> None:
    items = list(w.namespace["TABLE"].items())
    w.rng.shuffle(items)
    w.namespace["TABLE"].clear()
    w.namespace["TABLE"].update(items)


def change_table(w: World) -> None:
    table = w.namespace["TABLE"]
    key = w.rng.choice(("a", "b", "c"))
    if key in table:
        del table[key]
    else:
        table[key] = w.rng.choice(NUMBERS)


def change_items(w: World) -> None:
    items = w.namespace["ITEMS"]
    if isinstance(items, tuple):
        w.namespace["ITEMS"] = items[::-1] + (1,)
    else:
        w.rng.choice((lambda i: i.append(1), lambda i: i.__setitem__(0, w.rng.choice(ODD)), lambda i: i.reverse()))(items)


def new_items(w: World) -> None:
    w.namespace["ITEMS"] = w.rng.choice((list, tuple, ListSubclass))(w.namespace["ITEMS"])


def hook(w: World) -> None:
    if getattr(w, "handle", None) is None:
        w.handle = w.rng.choice(
            (lambda m: m.register_forward_hook(lambda mod, a, o: o + 1), lambda m: m.register_forward_pre_hook(lambda mod, a: (a[0] * 2,)))
        )(w.rng.choice((w.m, w.m.inner)))
    else:
        w.handle.remove()
        w.handle = None


def shadow_number(w: World) -> None:
    """A property of the class comes before the attribute of the object."""
    if "number" in vars(w.thing_class):
        del w.thing_class.number
    else:
        w.thing_class.number = property(lambda self: 41, lambda self, value: self.__dict__.__setitem__("number", value))


def shadow_weight(w: World) -> None:
    """An attribute comes before the parameter of that name."""
    if w.m.__dict__.pop("weight", None) is None:
        w.m.__dict__["weight"] = torch.nn.Parameter(torch.full((3,), 0.25))


def set_data(w: World) -> None:
    w.m.weight.data = w.rng.choice((torch.ones(3), torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, 1)))


def set_abs(w: World) -> None:
    if w.namespace.pop("abs", None) is None:
        w.namespace["abs"] = lambda v: v


FLIPS: dict[str, tuple[str, Flip]] = {
    "x.size": ("x.size", field_of("shape", ((2, 3), (4, 3), (1, 3), (3, 3), (0, 3)))),
    "x.dtype": ("x.dtype", field_of("dtype", (torch.float32, torch.float64, torch.int64, torch.bfloat16))),
    "x.grad": ("x.grad", lambda w: setattr(w, "grad", not w.grad)),
    "x.stride": ("x.stride", lambda w: setattr(w, "transposed", not w.transposed)),
    "alias": ("alias, x.grad", field_of("alias", ("none", "same", "view"))),
    "o.number": ("o.number", attribute("o", "number", (*NUMBERS, IntSubclass(2)))),
    "o.flag": ("o.flag", attribute("o", "flag", ODD)),
    "o.inner": ("o.inner", lambda w: setattr(w.o.inner, "value", w.rng.choice(NUMBERS))),
    "o.inner replaced": ("o.inner", lambda w: setattr(w.o, "inner", Inner())),
    "o.items": ("o.items", lambda w: setattr(w.o, "items", w.rng.choice(([1], [True, 2], (1, 2), [1, 2.0], ListSubclass([1]))))),
    "o.class": ("o.class", new_class),
    "o.dict": ("o.number", new_dict),
    "o.number shadowed": ("o.number", shadow_number),
    "m.weight shadowed": ("m.weight", shadow_weight),
    "o.extra": ("o.extra", extra("o")),
    "o.unread": ("nothing", lambda w: setattr(w.o, "unread", w.rng.random())),
    "o.shared": ("o.shared", patch_class("shared", NUMBERS)),
    "o.apply": ("o.apply", patch_class("apply", (lambda self, x: x * 7, lambda self, x: x / 2, Thing.apply))),
    "o.apply of its own": ("o.apply", lambda w: w.o.__dict__.pop("apply", None) or setattr(w.o, "apply", lambda x: x + 9)),
    "o.plain": ("o.plain", patch_class("plain", (staticmethod(lambda x: x * 7), staticmethod(lambda x: x / 2)))),
    "s.value": ("s.value", attribute("s", "value", ODD)),
    "SCALE": ("SCALE", put("SCALE", (*ODD, IntSubclass(1)))),
    "TABLE.keys": ("TABLE.keys", change_table),
    "TABLE order": ("TABLE.keys", shuffle_table),
    "TABLE.a": ("TABLE.a", lambda w: w.namespace["TABLE"].__setitem__("a", w.rng.choice(NUMBERS)) if "a" in w.namespace["TABLE"] else None),
    "ITEMS": ("ITEMS", change_items),
    "ITEMS.type": ("ITEMS.type", new_items),
    "WORDS": ("WORDS", lambda w: w.namespace["WORDS"].symmetric_difference_update({w.rng.randint(1, 4)})),
    "unread global": ("nothing", put("UNREAD", ODD)),
    "free": ("free", lambda w: w.set_free(w.rng.choice(ODD))),
    "helper": (
        "helper",
        lambda w: w.namespace.__setitem__(
            "helper", types.FunctionType(w.rng.choice((first_helper, second_helper)).__code__.replace(), w.namespace, "helper", (3,))
        ),
    ),
    "helper.code": ("helper.code", lambda w: setattr(w.namespace["helper"], "__code__", w.rng.choice((first_helper, second_helper)).__code__.replace())),
    "helper.default": ("helper.default", lambda w: setattr(w.namespace["helper"], "__defaults__", (w.rng.choice(NUMBERS),))),
    "keyworded.default": ("keyworded.default", lambda w: setattr(w.namespace["keyworded"], "__kwdefaults__", {"by": w.rng.choice(NUMBERS)})),
    "keyworded.default in place": ("keyworded.default", lambda w: w.namespace["keyworded"].__kwdefaults__.__setitem__("by", w.rng.choice(NUMBERS))),
    "k": ("k", field_of("k", (*ODD, IntSubclass(1), (1, 2), (1, True)))),
    "default": ("default", lambda w: setattr(w.f, "__kwdefaults__", {"default": w.rng.choice(ODD)})),
    "args": ("args", field_of("args", ((), (1,), (True,), (1, 2), ("a",)))),
    "kwargs": ("kwargs", field_of("kwargs", ({}, {"more": 1}, {"more": 1, "other": 2}, {"other": 2, "more": True}))),
    "m.training": ("m.training", lambda w: w.m.train(not w.m.training) and None),
    "m.inner.training": ("m", lambda w: w.m.inner.train(not w.m.inner.training) and None),
    "m.weight.grad": ("m.weight", lambda w: setattr(w.m.weight, "requires_grad", not w.m.weight.requires_grad)),
    "m.weight.data": ("m.weight", set_data),
    "m.weight replaced": ("m.weight", lambda w: setattr(w.m, "weight", torch.nn.Parameter(torch.full((3,), w.rng.random())))),
    "m.double": ("m.weight", lambda w: w.rng.choice((w.m.double, w.m.float))() and None),
    "m.inner": ("m", lambda w: setattr(w.m, "inner", w.rng.choice((torch.nn.ReLU, torch.nn.GELU, torch.nn.Identity))())),
    "m.hook": ("m", hook),
    "m.extra": ("m.extra", extra("m")),
    "m.children": ("m.children", lambda w: w.m.add_module(f"more{w.rng.randint(0, 2)}", torch.nn.Identity())),
    "m.forward": ("m", lambda w: w.m.__dict__.pop("forward", None) or setattr(w.m, "forward", lambda x: x - 4)),
    "m replaced": ("m, m.weight, m.training, m.children, m.extra", lambda w: setattr(w, "m", Net())),
    "o replaced": ("o.class", lambda w: setattr(w, "o", w.rng.choice((w.thing_class, OtherThing))())),
    "grad": ("grad", toggle("grad", torch.no_grad)),
    "inference": ("inference", toggle("inference", torch.inference_mode)),
    "autocast": ("autocast", toggle("autocast", lambda: torch.autocast("cpu", torch.bfloat16))),
    "default dtype": ("default dtype", toggle("default dtype", default_dtype)),
    "deterministic": ("deterministic", toggle("deterministic", deterministic)),
    "function mode": ("function mode", toggle("function mode", AddOne)),
    "abs": ("abs", set_abs),
}


@dataclass
class Report:
    flips: int = 0
    programs: int = 0
    compiles: int = 0
    needless: Counter[str] = field(default_factory=Counter)
    misses: list[str] = field(default_factory=list)


def outcome(call: Callable[..., Any], world: World) -> tuple[str, list[Any]]:
    """What a call gave, or raised, and what became of the tensors that it was given."""
    with world.scope():
        args, kwargs = world.inputs()
        try:
            result = call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  (the point is to compare it)
            return f"raised {type(error).__name__}", []
        leaves, spec = pytree.tree_flatten((result, args[0].detach(), args[1].detach()))
        return str(spec), [seen(leaf) for leaf in leaves]


def seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.requires_grad, repr(value.detach().double().tolist()))
    return (type(value).__name__, repr(value))


def run_world(rng: random.Random, report: Report, flips: int) -> None:
    world = World(rng)
    dynacompile.reset()
    compiled = dynacompile.compile(
        world.f,
        backend="eager",
        isolate_recompiles=True,
        recompile_limit=1000,
        options={"fallback": "none", "accumulated_recompile_limit": 1000, "verify": True},
    )
    made: list[Compiled] = []
    end = dynacompile.subscribe(lambda event: made.append(event) if isinstance(event, Compiled) else None)
    try:
        report.programs += 1
        history: list[str] = []
        last = ""
        for step in range(flips + 1):
            before = len(made)
            want, got = outcome(world.f, world), outcome(compiled, world)
            if want != got:
                report.misses.append(f"{world.chosen} after {history}:\n    eager {want}\n    ours  {got}")
                return
            # What the mode's own frame is compiled for, it meets in the first call under the mode and in the second: no flip is the cause.
            anew = [event for event in made[before:] if AddOne.__torch_function__.__qualname__ not in event.frame]
            if history and anew and world.reads.isdisjoint(FLIPS[history[-1]][0].split(", ")) and want[0] == last:
                report.needless[f"{history[-1]}"] += 1
            last = want[0]
            if step == flips:
                break
            name = rng.choice(sorted(FLIPS))
            FLIPS[name][1](world)
            history.append(name)
            report.flips += 1
    finally:
        report.compiles += len(made)
        end()


def fuzz(flips: int, seed: int, each: int = 12) -> Report:
    """Runs worlds of `each` flips until so many flips are done."""
    report = Report()
    rng = random.Random(seed)
    while report.flips < flips and len(report.misses) < 5:
        run_world(random.Random(rng.random()), report, each)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    report = fuzz(args.flips, args.seed)
    seconds = time.perf_counter() - start
    print(f"{report.flips} flips of {report.programs} programs, {report.compiles} compiles, {len(report.misses)} misses, {seconds:.0f} s")
    print(f"compiles after a flip of what is not read: {sum(report.needless.values())} {dict(report.needless.most_common(12))}")
    print("\n".join(report.misses))
    sys.exit(bool(report.misses))


if __name__ == "__main__":
    main()
