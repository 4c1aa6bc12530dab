"""Random guard programs over random worlds: the native machine and its Python twin answer alike, before and after random changes.

    python -m tests.guards.machine_fuzz --programs 200000 --seed 0

A program has a few guards whose sources walk from the roots of a frame through whatever is there; most hold when they are made. Then facts of the
world change, and change back: each time both must agree on whether all guards hold, the guard that the machine stopped at must be one that the twin finds,
and what the twin says of it must name two different values.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dynacompile.guards.evaluate import MISSING, FrameValues, evaluate
from dynacompile.guards.program import compile_guards, described, failures
from dynacompile.ir.captured import Guard, TensorFacts
from dynacompile.ir.guard_facts import Disjoint, Flag, Match, Presence, ShapeFacts, function_facts, global_state, identity, module_facts, tensor_facts
from dynacompile.ir.shapes import Quantity
from dynacompile.ir.source import (
    Attr,
    Builtin,
    ClosureCell,
    Constant,
    DefaultArg,
    DictAttr,
    Free,
    Global,
    Item,
    Local,
    Registered,
    Source,
    TypeOf,
    ValueAt,
)

NAN = float("nan")
CONSTANTS = (
    0,
    1,
    True,
    False,
    1.0,
    0.0,
    -0.0,
    NAN,
    2,
    None,
    "a",
    "b",
    b"a",
    10**30,
    -1,
    1 + 0j,
    complex(0.0, -0.0),
    (1, 2),
    (1, True),
    slice(1, 2),
    range(3),
    ...,
)
CONSTANTS += (torch.float32, torch.float64, torch.strided, torch.device("cpu"), torch.Size((2, 3)), (2, (3.0, "x")))
NAMES = ("a", "b", "c")
KEYS = ("a", "b", 1, True, 2, None, (1, 2), 2.5)
Rng = random.Random


class Box:
    shared = 7

    def method(self) -> int:
        return 1

    @property
    def computed(self) -> int:
        raise AssertionError("a guard ran a property")

    def __getattr__(self, name: str) -> object:
        raise AssertionError("a guard ran __getattr__")


class OtherBox(Box):
    shared = 8


class Slotted:
    __slots__ = ("a", "b")


class Loud:
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError("a guard ran __eq__")

    def __len__(self) -> int:
        raise AssertionError("a guard ran __len__")

    def __bool__(self) -> bool:
        raise AssertionError("a guard ran __bool__")


class IntSubclass(int):
    pass


class ListSubclass(list):
    pass


class DictSubclass(dict):
    pass


class TensorSubclass(torch.Tensor):
    pass


def made_function(n: Any, k: Any) -> types.FunctionType:
    def inner(a: Any = 1, *, b: Any = 2) -> Any:
        return n, k

    inner.__defaults__ = (k,)
    inner.__kwdefaults__ = {"b": n}
    return inner  # type: ignore[return-value]


def a_tensor(rng: Rng) -> torch.Tensor:
    memory = torch.zeros(24)
    made: torch.Tensor = rng.choice(
        (
            lambda: torch.zeros(rng.randint(0, 3), rng.randint(1, 3)),
            lambda: torch.zeros(2, 3).t(),
            lambda: memory[: rng.randint(1, 20)],
            lambda: memory[::2],
            lambda: torch.zeros(3, dtype=rng.choice((torch.float64, torch.int64, torch.bool, torch.complex64))),
            lambda: torch.zeros(2, dtype=torch.complex64).conj(),
            lambda: torch.nn.Parameter(torch.zeros(2)),
            lambda: torch.zeros(2, requires_grad=True),
            lambda: torch.tensor(1.0),
            lambda: torch.zeros(2, 3).to_sparse(),
            lambda: torch.empty(2, 3, device="meta"),
            lambda: torch.zeros(2).as_subclass(TensorSubclass),
        )
    )()
    return made


def a_box(rng: Rng, depth: int) -> Any:
    box = rng.choice((Box, OtherBox))()
    for name in rng.sample(NAMES, rng.randint(0, 3)):
        box.__dict__[name] = a_value(rng, depth - 1)
    return box


def a_slotted(rng: Rng, depth: int) -> Slotted:
    made = Slotted()
    made.a = a_value(rng, depth - 1)
    return made


def a_module(rng: Rng, depth: int) -> torch.nn.Module:
    made: torch.nn.Module = (
        torch.nn.Sequential(torch.nn.Linear(1, 2, bias=rng.random() < 0.5), torch.nn.ReLU()) if rng.random() < 0.5 else torch.nn.BatchNorm1d(2)
    )
    made.a = a_value(rng, 0)
    return made


def a_value(rng: Rng, depth: int = 3) -> Any:
    if depth <= 0 or rng.random() < 0.25:
        return rng.choice(CONSTANTS)
    return rng.choice(MAKERS)(rng, depth)


def several(rng: Rng, depth: int) -> list[Any]:
    return [a_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]


def a_dict(rng: Rng, depth: int) -> dict[Any, Any]:
    return rng.choice((dict, dict, dict, OrderedDict, DictSubclass))((key, a_value(rng, depth - 1)) for key in rng.sample(KEYS, rng.randint(0, 4)))


MAKERS: tuple[Callable[[Rng, int], Any], ...] = (
    lambda rng, depth: a_tensor(rng),
    lambda rng, depth: a_tensor(rng),
    a_box,
    a_box,
    a_box,
    a_slotted,
    a_module,
    several,
    several,
    lambda rng, depth: tuple(several(rng, depth)),
    lambda rng, depth: ListSubclass(several(rng, depth)),
    a_dict,
    a_dict,
    lambda rng, depth: set(rng.sample(("a", 1, 2, None, b"b", 2.5), rng.randint(0, 4))),
    lambda rng, depth: frozenset(rng.sample(("a", 1, 2), rng.randint(0, 3))),
    lambda rng, depth: deque([1, 2], maxlen=3),
    lambda rng, depth: made_function(a_value(rng, depth - 1), a_value(rng, 0)),
    lambda rng, depth: rng.choice((Box, OtherBox, int, len, Box.method, Loud(), IntSubclass(2), a_box(rng, 0).method)),
)


@dataclass
class World:
    rng: Rng
    slots: list[Any] = field(default_factory=list)
    cells: tuple[types.CellType, ...] = ()
    globals: dict[str, Any] = field(default_factory=dict)
    builtins: dict[str, Any] = field(default_factory=dict)
    modes: list[str] = field(default_factory=list)
    setting: int = 0
    steps: dict[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.slots = [a_value(self.rng) for _ in range(3)]
        if self.rng.random() < 0.2:
            self.slots[2] = self.slots[0]
        self.cells = tuple(types.CellType(a_value(self.rng)) for _ in range(2))
        self.globals = {"g": a_value(self.rng), "h": a_value(self.rng)}
        self.builtins = {"len": len, "abs": abs}

    def frame(self) -> FrameValues:
        return FrameValues(tuple(self.slots), self.cells, self.globals, self.builtins)

    def roots(self) -> list[Source]:
        return [
            *(Local("xyz"[i], i) for i in range(3)),
            *(Free(f"free{i}", i) for i in range(2)),
            Global("g"),
            Global("h"),
            Builtin("len"),
            Constant(self.slots[0], "held"),
        ]

    def source(self) -> tuple[Source, Any]:
        """A path to a value that is there, or, rarely, one that leads nowhere."""
        source = self.rng.choice(self.roots())
        value = evaluate(source, self.frame())
        for _ in range(self.rng.randint(0, 4)):
            options = list(steps_from(source, value))
            if not options:
                break
            source = self.rng.choice(options)
            value = evaluate(source, self.frame())
            if value is MISSING:
                break
        return source, value

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for mode in self.modes:
                stack.enter_context(MODES[mode]())
            yield


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "off": torch._C.DisableTorchFunctionSubclass,
}


def steps_from(source: Source, value: Any) -> Iterator[Source]:
    yield TypeOf(source)
    for name in ("a", "shared", "method", "nothing"):
        yield Attr(source, name)
    if isinstance(value, torch.Tensor):
        yield from (Attr(source, name) for name in ("requires_grad", "dtype", "grad"))
    own = types.MappingProxyType(vars(value)) if isinstance(value, (Box, torch.nn.Module)) else {}
    yield from (DictAttr(source, name) for name in own)
    if own:
        yield Attr(source, "__dict__")
        yield DictAttr(source, "missing")
    for table in ("_parameters", "_buffers", "_modules"):
        yield from (Registered(source, table, name) for name in own.get(table, ()))
    if isinstance(value, (list, tuple, deque)):
        yield from (Item(source, i) for i in range(len(value) + 1))
    if isinstance(value, dict):
        yield from (Item(source, key) for key in value if type(key) in (str, int, bool, float, tuple, type(None)))
        yield from (ValueAt(source, place) for place in range(len(value) + 1))
    if isinstance(value, types.FunctionType):
        yield from (ClosureCell(source, "n", 0), ClosureCell(source, "k", 1), DefaultArg(source, 0), DefaultArg(source, "b"), DefaultArg(source, 1))


def tensor_guard(world: World, value: Any) -> TensorFacts | None:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    facts = tensor_facts(value)
    loose = tuple(None if world.rng.random() < 0.3 else n for n in facts.sizes)
    return replace(facts, sizes=loose, strides=world.rng.choice((None, facts.strides)))


def shape_guard(world: World) -> ShapeFacts | None:
    quantities = []
    for _ in range(3):
        source, value = world.source()
        if isinstance(value, torch.Tensor) and value.dim() and value.layout is torch.strided:
            quantities.append(Quantity(source, world.rng.choice(("size", "stride")), world.rng.randrange(value.dim())))
        elif type(value) is int and abs(value) < 2**40:
            quantities.append(Quantity(source, "value"))
    if not quantities:
        return None
    left: Any = ("quantity", 0)
    for i in range(1, len(quantities)):
        left = (world.rng.choice(("add", "mul", "max", "min", "floordiv", "mod")), left, ("quantity", i))
    return ShapeFacts(tuple(quantities), (world.rng.choice(("eq", "ge", "lt", "ne")), left, ("constant", world.rng.randint(-1, 6))))


def own_payload(kind: str, world: World, value: Any) -> Any:
    """What a guard of that kind on that value may expect, or MISSING."""
    rng = world.rng
    match kind:
        case "TENSOR_MATCH":
            facts = tensor_guard(world, value)
            return MISSING if facts is None else facts
        case "EQUALS":
            return value if any(value is c for c in CONSTANTS) or type(value) in (int, float, str, bool) else MISSING
        case "TYPE":
            return type(value)
        case "ID":
            return identity(value)
        case "NONE":
            return None
        case "HASATTR":
            return Presence(rng.choice(("a", "b", "shared", "weight", "real")), rng.random() < 0.5)
        case "DICT_KEYS":
            return tuple(value) if isinstance(value, dict) and all(type(k) in (str, int, bool, float, tuple, type(None)) for k in value) else MISSING
        case "DICT_CONTAINS":
            key = rng.choice(KEYS)
            return Presence(key, dict.__contains__(value, key)) if isinstance(value, dict) else Presence(key, rng.random() < 0.5)
        case "LENGTH":
            return len(value) if isinstance(value, (list, tuple, dict, set, frozenset, str, bytes)) else rng.randint(0, 3)
        case "SET":
            plain = type(value) in (set, frozenset) and all(type(v) in (str, int, bytes, type(None)) for v in value)
            return frozenset(value) if plain else MISSING
        case "SET_ORDER":
            plain = type(value) in (set, frozenset) and all(type(v) in (str, int, bytes, type(None)) for v in value)
            return tuple(value) if plain else MISSING
        case "FUNCTION":
            return function_facts(value) if isinstance(value, types.FunctionType) else MISSING
        case "MODULE":
            return module_facts(value) if isinstance(value, torch.nn.Module) and "_parameters" in vars(value) else MISSING
    return MISSING


UNARY = ("TENSOR_MATCH", "EQUALS", "TYPE", "ID", "NONE", "HASATTR", "DICT_KEYS", "DICT_CONTAINS", "LENGTH", "SET", "SET_ORDER", "FUNCTION", "MODULE")


def a_guard(world: World) -> Guard | None:
    rng = world.rng
    source, value = world.source()
    relation = rng.random()
    if relation < 0.03:
        return Guard("DUPLICATE_INPUT", source, world.source()[0])
    if relation < 0.06:
        return Guard("NOT_ALIASED", None, tuple(dict.fromkeys((source, *(world.source()[0] for _ in range(rng.randint(1, 3)))))))  # capture names none twice
    if relation < 0.09:
        return Guard("DISJOINT", None, Disjoint((source,), (world.source()[0], world.source()[0])))
    if relation < 0.13:
        facts = shape_guard(world)
        return None if facts is None else Guard("SHAPE", None, facts)
    if relation < 0.16:
        return Guard("GLOBAL_STATE", None, global_state())
    if relation < 0.17:
        wanted = type(value)
        fixed = wanted in (int, str, bytes, float, tuple, frozenset) and rng.random() < 0.7
        return None if value is MISSING else Guard("MATCH", source, Match(wanted.__name__, lambda found: type(found) is wanted, fixed))
    if relation < 0.19:
        return Guard("FLAG", None, Flag("the setting", lambda: world.setting, world.setting))
    kind = rng.choice(UNARY)
    if value is MISSING:
        return Guard(rng.choice(("TYPE", "NONE")), source, int)
    if kind == "ID" and evaluate(source, world.frame()) is not value:  # made anew by each reading
        return None
    other = evaluate(world.source()[0], world.frame()) if kind != "ID" and rng.random() < 0.1 else value
    expected = own_payload(kind, world, value if other is MISSING else other)
    return None if expected is MISSING else Guard(kind, source, expected)


# --- changes ---


def mutable(world: World, guards: list[Guard]) -> Any:
    """An object on the path of a guard, or on any other."""
    sources = [g.source for g in guards if g.source is not None]
    if not sources or world.rng.random() < 0.2:
        return world.source()[1]
    return evaluate(world.rng.choice(list(world.rng.choice(sources).steps())), world.frame())


def change(world: World, guards: list[Guard]) -> None:
    rng = world.rng
    value, new = mutable(world, guards), a_value(rng, 2)
    dice = rng.random()
    if dice < 0.15:
        world.slots[rng.randrange(3)] = rng.choice((new, new, world.slots[rng.randrange(3)]))
    elif dice < 0.2:
        rng.choice(world.cells).cell_contents = new
    elif dice < 0.25:
        world.globals[rng.choice(("g", "h"))] = new
    elif dice < 0.28:
        world.globals.update(len=new) if "len" not in world.globals else world.globals.pop("len")
    elif dice < 0.33:
        name = rng.choice(sorted(MODES))
        world.modes = [m for m in world.modes if m != name] if name in world.modes else [*world.modes, name]
    elif dice < 0.35:
        world.setting = rng.randint(0, 1)
    else:
        change_object(rng, value, new)


def change_object(rng: Rng, value: Any, new: Any) -> None:
    match value:
        case torch.nn.Module() if "_parameters" in vars(value):
            change_module(rng, value, new)
        case Box() if type(value) in (Box, OtherBox):
            rng.choice(
                (
                    lambda: value.__dict__.__setitem__(rng.choice(NAMES), new),
                    lambda: value.__dict__.pop("a", None),
                    lambda: swap_class(value),
                    lambda: new_dict(value),
                )
            )()
        case Slotted():
            value.b = new
        case list():
            rng.choice((lambda: value.append(new), lambda: value.clear(), lambda: list.reverse(value), lambda: value.insert(0, new)))()
        case dict() if not any(isinstance(k, str) and k.startswith("_") for k in value):
            rng.choice((lambda: value.__setitem__(rng.choice(KEYS), new), lambda: value.pop(rng.choice(KEYS), None), lambda: reorder(value)))()
        case deque():
            rng.choice((lambda: value.append(new), value.clear, value.rotate, lambda: value.appendleft(new)))()
        case set():
            value.symmetric_difference_update({rng.choice(("a", 1, 2, None, True))})
        case types.FunctionType() if value.__closure__ and len(value.__closure__) == 2:
            rng.choice(
                (
                    lambda: setattr(value, "__defaults__", (new,)),
                    lambda: setattr(value, "__kwdefaults__", {"b": new}),
                    lambda: value.__kwdefaults__.__setitem__("b", new) if value.__kwdefaults__ else None,
                    lambda: setattr(value.__closure__[0], "cell_contents", new),
                    lambda: setattr(value, "__code__", value.__code__.replace()),
                    lambda: setattr(value, "__defaults__", None),
                )
            )()
        case torch.Tensor() if (
            value.layout is torch.strided and value.is_leaf and value.is_floating_point() and type(value) is not TensorSubclass and not value.is_inference()
        ):
            rng.choice((lambda: value.requires_grad_(not value.requires_grad), lambda: setattr(value, "data", value.new_zeros(rng.randint(0, 3), 2))))()
        case type() if issubclass(value, Box):
            value.shared = rng.choice(CONSTANTS)


def swap_class(box: Any) -> None:
    box.__class__ = OtherBox if type(box) is Box else Box


def new_dict(box: Any) -> None:
    box.__dict__ = dict(box.__dict__)


def reorder(table: dict[Any, Any]) -> None:
    for key in list(table)[:1]:
        table[key] = table.pop(key)


def change_module(rng: Rng, module: torch.nn.Module, new: Any) -> None:
    rng.choice(
        (
            lambda: vars(module).__setitem__("training", not module.training),
            lambda: vars(module).__setitem__("a", new),
            lambda: vars(module).pop("forward", None) or vars(module).__setitem__("forward", len),
            lambda: module._modules.__setitem__(rng.choice(("0", "more")), torch.nn.ReLU()),
            lambda: module._modules.pop("more", None),
            lambda: module._forward_hooks.__setitem__(1, print) if not module._forward_hooks else module._forward_hooks.clear(),
            lambda: module._parameters.__setitem__(rng.choice(("weight", "other")), None),
            lambda: module._buffers.__setitem__("running_mean", torch.zeros(rng.randint(1, 3))),
            lambda: set_dtype(module),
        )
    )()


def set_dtype(module: torch.nn.Module) -> None:
    if all(
        isinstance(v, (torch.Tensor, torch.nn.Module, type(None)))
        for m in module.modules()
        for t in (m._parameters, m._buffers, m._modules)
        for v in t.values()
    ):
        module.double()


# --- the comparison ---


@dataclass
class Report:
    programs: int = 0
    checks: int = 0
    held: int = 0
    wrong: list[str] = field(default_factory=list)


def compare(world: World, program: Any, guards: list[Guard], report: Report) -> None:
    with world.scope():
        frame = world.frame()
        held = program.check(frame.slots, frame.closure, frame.globals, frame.builtins)
        found = failures(guards, frame)
    report.checks += 1
    report.held += held
    texts = [f"{f.guard.kind} {f.text}" for f in found]
    if held is bool(found):
        stopped = "" if held else f" at {described(guards[program.last_failed])}"
        report.wrong.append(f"the machine: {'holds' if held else 'fails' + stopped}, the twin: {texts or 'holds'}; guards {[described(g) for g in guards]}")
    elif found and not any(guards[program.last_failed] is f.guard for f in found):
        report.wrong.append(f"the machine stopped at {described(guards[program.last_failed])}, the twin at {texts}")
    for f in found:
        if f.was == f.now:
            report.wrong.append(f"{f.guard.kind} fails, and says nothing: {f.text}")


def run_program(seed: float, report: Report, changes: int) -> None:
    world = World(random.Random(seed))
    made = [a_guard(world) for _ in range(world.rng.randint(1, 8))]
    guards = [g for g in made if g is not None and (world.rng.random() < 0.03 or not failures([g], world.frame()))]
    program = compile_guards(guards)
    report.programs += 1
    for _ in range(2):  # the second time with what the first one recorded
        compare(world, program, guards, report)
    for _ in range(changes):
        change(world, guards)
        for _ in range(2):
            compare(world, program, guards, report)


def fuzz(programs: int, seed: int, changes: int = 4) -> Report:
    report = Report()
    rng = random.Random(seed)
    while report.programs < programs and len(report.wrong) < 5:
        start = rng.random()
        before = len(report.wrong)
        run_program(start, report, changes)
        report.wrong[before:] = [f"world {start!r}: {text}" for text in report.wrong[before:]]
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    report = fuzz(args.programs, args.seed)
    seconds = time.perf_counter() - start
    print(f"{report.programs} programs, {report.checks} checks of which {report.held} held, {len(report.wrong)} wrong, {seconds:.0f} s")
    print("\n".join(report.wrong))
    sys.exit(bool(report.wrong))


if __name__ == "__main__":
    main()
