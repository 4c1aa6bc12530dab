"""Every source: loaded natively and in Python alike; changes at any step of a path are seen."""

from __future__ import annotations

import builtins
import sys
import types

import pytest
import torch

from dynacompile.guards.evaluate import MISSING, FrameValues, evaluate
from dynacompile.guards.program import compile_gather, compile_guards
from dynacompile.guards.tree import STEPS
from dynacompile.ir.captured import Guard
from dynacompile.ir.expressions import Formula
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
    ItemOf,
    Local,
    Made,
    Registered,
    Source,
    TypeOf,
)

X = Local("x", 0)
KEY = torch.zeros(1)


class Slotted:
    __slots__ = ("a",)


class Thing:
    shared = 7

    def __init__(self) -> None:
        self.a = 1
        self._parameters = {"p": 2}

    @property
    def computed(self) -> int:
        raise AssertionError("a guard ran a property")

    def __getattr__(self, name: str) -> object:
        raise AssertionError("a guard ran __getattr__")

    @staticmethod
    def static() -> None:
        pass


def with_closure(n: int = 1, *, k: int = 2) -> types.FunctionType:
    def inner(a: object = "d", *, b: object = "kd") -> object:
        return n, k

    return inner  # type: ignore[return-value]


def cases() -> dict[str, tuple[Source, object, object]]:
    """source, the value in slot 0, what the source leads to."""
    thing, slotted, function = Thing(), Slotted(), with_closure()
    slotted.a = 5
    return {
        "Local": (X, thing, thing),
        "Constant": (Constant(thing, "thing"), None, thing),
        "Attr slot": (Attr(X, "a"), slotted, 5),
        "Attr class": (Attr(X, "shared"), thing, 7),
        "Attr of class": (Attr(X, "shared"), Thing, 7),
        "Attr own": (Attr(X, "a"), thing, 1),
        "Attr static": (Attr(X, "static"), thing, Thing.static),
        "Attr of module": (Attr(X, "Thing"), types.SimpleNamespace(Thing=Thing), Thing),
        "Attr property": (Attr(X, "computed"), thing, MISSING),
        "Attr none": (Attr(X, "nothing"), thing, MISSING),
        "DictAttr": (DictAttr(X, "a"), thing, 1),
        "DictAttr class": (DictAttr(X, "shared"), thing, MISSING),
        "DictAttr no dict": (DictAttr(X, "a"), 3, MISSING),
        "Registered": (Registered(X, "_parameters", "p"), thing, 2),
        "Registered none": (Registered(X, "_parameters", "q"), thing, MISSING),
        "Item list": (Item(X, 1), [4, 5], 5),
        "Item tuple": (Item(X, 1), (4, 5), 5),
        "Item beyond": (Item(X, 2), (4, 5), MISSING),
        "Item dict": (Item(X, "k"), {"k": 6}, 6),
        "Item dict int": (Item(X, 1), {1: 6}, 6),
        "ItemOf": (ItemOf(X, KEY), {torch.ones(1): 5, KEY: 7}, 7),
        "ItemOf missing": (ItemOf(X, KEY), {torch.ones(1): 5}, MISSING),
        "Item none": (Item(X, "k"), 5, MISSING),
        "TypeOf": (TypeOf(X), thing, Thing),
        "ClosureCell": (ClosureCell(X, "k", 0), function, 2),
        "ClosureCell beyond": (ClosureCell(X, "z", 4), function, MISSING),
        "ClosureCell none": (ClosureCell(X, "k", 0), len, MISSING),
        "DefaultArg": (DefaultArg(X, 0), function, "d"),
        "DefaultArg keyword": (DefaultArg(X, "b"), function, "kd"),
        "DefaultArg none": (DefaultArg(X, 3), function, MISSING),
    }


@pytest.mark.parametrize("name", cases())
def test_steps(name):
    source, value, wanted = cases()[name]
    assert evaluate(source, FrameValues((value,))) is wanted or name == "Constant"
    guard = Guard("ID", source, wanted)
    loads = compile_guards([guard]).check((value,), None, {}, {})
    assert loads is (wanted is not MISSING)
    if wanted is not MISSING and not isinstance(source, Local):
        assert compile_gather([X], [source], lambda *values: values)(value) == (wanted,)


def test_roots():
    cell = types.CellType(3)
    globals_, builtins_ = {"g": 4}, {"len": len}
    frame = FrameValues((), (cell,), globals_, builtins_)
    for source, wanted in ((Free("f", 0), 3), (Global("g"), 4), (Builtin("len"), len)):
        assert evaluate(source, frame) is wanted
        program = compile_guards([Guard("ID", source, wanted)])
        assert program.check((), (cell,), globals_, builtins_)
    hidden = compile_guards([Guard("ID", Builtin("len"), len)])
    assert not hidden.check((), None, {"len": len}, {"len": len})
    assert evaluate(Builtin("len"), FrameValues((), None, {"len": 1}, vars(builtins))) is MISSING
    cell.cell_contents = 9
    assert not compile_guards([Guard("EQUALS", Free("f", 0), 3)]).check((), (cell,), {}, {})


def test_every_source_has_steps():
    found = {kind for base in Source.__subclasses__() for kind in (base, *base.__subclasses__())}
    kinds = {kind for kind in found if getattr(sys.modules[kind.__module__], kind.__name__) is kind}  # not those that others with slots were made of
    assert set(STEPS) == kinds - {Formula, Made}  # computed of sources, each with its steps; made by residual code, so that no guard reads it


def test_changes_along_a_path_are_seen():
    function = with_closure()
    guards = [
        Guard("FUNCTION", X, function),
        Guard("EQUALS", ClosureCell(X, "k", 0), 2),
        Guard("EQUALS", DefaultArg(X, 0), "d"),
        Guard("EQUALS", DefaultArg(X, "b"), "kd"),
    ]
    program = compile_guards(guards)

    def seen() -> bool:
        return not program.check((function,), None, {}, {})

    assert not seen()
    function.__closure__[0].cell_contents = 3
    assert seen() and program.last_failed == 1
    function.__closure__[0].cell_contents = 2
    function.__defaults__ = ("other",)
    assert seen() and program.last_failed == 2
    function.__defaults__ = None
    assert seen()
    function.__defaults__ = ("d",)
    function.__kwdefaults__ = {"b": 1}
    assert seen() and program.last_failed == 3
    function.__kwdefaults__ = {"b": "kd"}
    assert not seen()
    code = function.__code__
    function.__code__ = code.replace(co_name="other")
    assert seen() and program.last_failed == 0
    function.__code__ = code
    assert not seen()


def test_gather_of_roots_is_the_target():
    target = print
    assert compile_gather([X], [X], target) is target


def test_gather_order_and_errors():
    y = Local("y", 1)
    gather = compile_gather([X, y], [Item(y, 0), X, Item(X, "k")], lambda *values: values)
    assert gather({"k": 1}, [2]) == (2, {"k": 1}, 1)
    with pytest.raises(TypeError, match="takes 2"):
        gather({"k": 1})
    with pytest.raises(RuntimeError, match="can't be loaded"):
        gather({}, [2])
    with pytest.raises(ValueError, match="not among the roots"):
        compile_gather([X], [Item(Local("z", 2), 0)], print)


def test_whether_a_tensor_is_a_leaf_is_what_its_getter_says():
    leaf = torch.ones(3, requires_grad=True)
    inside = torch.nn.Parameter(torch.ones(3))
    view = inside[:2]
    base = (leaf * 1).detach()
    history_later = base[:1]
    base.mul_(leaf[:1])  # makes the view part of a history, which only its getter finds out
    tensors = [torch.ones(2), leaf, leaf * 2, inside, view, view.detach(), leaf.view(3, 1), history_later, base]
    with torch.no_grad():
        tensors += [leaf.view(-1), inside[0], leaf * 2]
    with torch.inference_mode():
        tensors.append(torch.ones(1))
    for tensor in tensors:
        for wanted in (True, False):
            guards = compile_guards([Guard("EQUALS", Attr(X, "is_leaf"), wanted)])
            assert guards.check((tensor,), None, {}, {}) == (tensor.is_leaf is wanted), (tensor, wanted)
