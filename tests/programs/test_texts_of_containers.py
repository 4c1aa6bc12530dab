"""Texts of containers and other objects, as messages of checks have them: they are made where something needs them, and tell what was there when the program
made them."""

import collections
import types

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke

NAMES = {"constant", "reflect", "replicate"}
TABLE = {"a": 1, "b": torch.float32}


class Plain:
    pass


SHOWN = {
    "set": NAMES,
    "frozenset": frozenset(("x", "y")),
    "keys": lambda: TABLE.keys(),
    "items": lambda: TABLE.items(),
    "deque": collections.deque([1, 2]),
    "OrderedDict": collections.OrderedDict(a=1),
    "defaultdict": collections.defaultdict(int, a=1),
    "Counter": collections.Counter("aab"),
    "mappingproxy": types.MappingProxyType({"a": 1}),
    "object": Plain(),
    "list of an object": [Plain()],
}
WAYS = {
    "f-string": lambda value: f"expected one of {value}, not {value!r:>9}",
    "str": str,
    "repr": repr,
    "format": "one of {0} {0!r}".format,
    "percent": lambda value: "one of %s" % value,  # noqa: UP031
    "percent of two": lambda value: "one of %r %s" % (value, 1),  # noqa: UP031
}


def outcome(call, *args):
    try:
        return [part.tolist() if isinstance(part, torch.Tensor) else part for part in call(*args)]
    except Exception as error:  # noqa: BLE001 - compared
        return type(error), str(error)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("value", SHOWN.values(), ids=SHOWN)
def test_of_a_check(value, way):
    """No break where the check holds, and the program's own error where it does not."""

    def checked(x, allowed):
        message = way(allowed() if callable(allowed) else allowed)
        if x.dim() > 1:
            raise ValueError(message)
        return (x * 2,)

    def told(x, allowed):
        return x * 2, way(allowed() if callable(allowed) else allowed)

    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(checked, backend="eager", isolate_recompiles=True)
    assert outcome(compiled, torch.ones(2), value) == outcome(checked, torch.ones(2), value)
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    assert outcome(compiled, torch.ones(2, 2), value) == outcome(checked, torch.ones(2, 2), value)
    compiled = dynacompile.compile(told, backend="eager", isolate_recompiles=True)
    assert outcome(compiled, torch.ones(2), value) == outcome(told, torch.ones(2), value)
    end()


@pytest.mark.parametrize("template", ["{} {}", "{0.size}", "{0[0]}", "{:>9}", "{name}"])
@pytest.mark.parametrize("value", [NAMES, collections.deque([1]), torch.ones(2), {"a": 1}], ids=["set", "deque", "tensor", "dict"])
def test_a_template_that_does_not_take_it(value, template):
    def program(x, given):
        template.format(given)
        return (x + 1,)

    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    assert outcome(compiled, torch.ones(2), value) == outcome(program, torch.ones(2), value)


@pytest.mark.parametrize("template", ["%d", "%s %s", "%", "%(a)s", "no place"])
@pytest.mark.parametrize("value", [NAMES, collections.deque([1]), torch.ones(2), {"a": 1}], ids=["set", "deque", "tensor", "dict"])
def test_a_percent_template_that_does_not_take_it(value, template):
    def program(x, given):
        template % given
        return (x + 1,)

    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    assert outcome(compiled, torch.ones(2), value) == outcome(program, torch.ones(2), value)


def test_a_tensor_of_dimensions_by_a_format():
    def program(x):
        str(f"{x:.2f}")
        return (x + 1,)

    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    for x in (torch.ones(2), torch.ones(())):
        assert outcome(compiled, x) == outcome(program, x)


def test_joined_names():
    def checked(x, allowed):
        message = ", ".join(allowed)
        return (x + 1, message) if x.dim() > 1 else (x + 1,)

    compiled = dynacompile.compile(checked, backend="eager", isolate_recompiles=True, fullgraph=True)
    for x in (torch.ones(2), torch.ones(2, 2)):
        assert outcome(compiled, x, NAMES) == outcome(checked, x, NAMES)


def of_new_set(x, given):
    names = {"a", x.dim()}
    message = f"{names}"
    names.add("later")
    return message, names, x + 1


def of_view(x, given):
    table = {"a": 1}
    message, view = f"{table.keys()}", table.keys()
    table["b"] = 2
    return message, len(view), x + 1


def of_held_list(x, given):
    part = [1]
    queue = collections.deque([part])
    message = f"{queue}"
    part.append(2)
    return message, x + 1


def of_given(x, given):
    message = f"{given}"
    given.add("later")
    return message, x + 1


def of_given_changed_before(x, given):
    given.add("earlier")
    return f"{given}", x + 1


def stored_in_given(x, given):
    keeper = Plain()
    keeper.message = f"{given}"
    given.add("later")
    return keeper.message, x + 1


def of_bound_method(x, given):
    message = f"{given.add}"
    given.add("later")
    return message.partition(" at ")[0], x + 1


@pytest.mark.parametrize(
    "program", [of_new_set, of_view, of_held_list, of_given, of_given_changed_before, stored_in_given, of_bound_method], ids=lambda f: f.__name__
)
def test_of_what_is_changed(program):
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    for _ in range(2):
        mine, theirs = {"one"}, {"one"}
        assert outcome(compiled, torch.ones(2), mine) == outcome(program, torch.ones(2), theirs)
        assert mine == theirs


def test_code_of_a_user_runs_where_the_program_makes_the_text():
    class Loud:
        def __init__(self):
            self.told = []

        def __repr__(self):
            self.told.append(1)
            return "loud"

    def program(x, key):
        str(f"{ {key} }, {collections.deque([key])}")
        return (x + len(key.told),)

    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    for _ in range(2):
        assert outcome(compiled, torch.ones(2), Loud()) == outcome(program, torch.ones(2), Loud())
