"""Whatever changes in an object tree after a guard held is seen, with and without dict version tags, and forgotten when it is undone."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Callable
from contextlib import contextmanager

import pytest
import torch

from dynacompile import native, selftest
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import function_facts, module_facts, tensor_facts
from dynacompile.ir.source import Attr, DictAttr, Item, Local, Registered, TypeOf

SELF = Local("self", 0)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)])
        self.scale = 2
        self.options = {"a": 1, "b": 2}
        self.order = [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Other(Net):
    pass


def structure(module: torch.nn.Module, source) -> list[Guard]:
    guards = [Guard("MODULE", source, module_facts(module))]
    for table in ("_parameters", "_buffers"):
        guards += [Guard("TENSOR_MATCH", Registered(source, table, n), tensor_facts(t)) for n, t in module.__dict__[table].items()]
    for name, child in module._modules.items():
        guards += structure(child, Registered(source, "_modules", name))
    return guards


def guards_of(net: Net) -> list[Guard]:
    options, order = DictAttr(SELF, "options"), DictAttr(SELF, "order")
    return [
        *structure(net, SELF),
        Guard("EQUALS", DictAttr(SELF, "scale"), 2),
        Guard("DICT_KEYS", options, ("a", "b")),
        Guard("EQUALS", Item(options, "a"), 1),
        Guard("LENGTH", order, 2),
        Guard("EQUALS", Item(order, 1), 2),
        Guard("FUNCTION", Attr(TypeOf(SELF), "forward"), function_facts(Net.forward)),
    ]


@contextmanager
def attribute(owner, name, value):
    before = owner.__dict__[name]
    setattr(owner, name, value)
    yield
    setattr(owner, name, before)


@contextmanager
def item(table, key, value):
    before = table[key]
    table[key] = value
    yield
    table[key] = before


@contextmanager
def deleted(net, name):
    before = net.__dict__.pop(name)
    yield
    net.__dict__[name] = before


@contextmanager
def new_class(net):
    net.__class__ = Other
    yield
    net.__class__ = Net


@contextmanager
def new_dict(net):
    before = net.__dict__
    net.__dict__ = {**before, "scale": 3}
    yield
    net.__dict__ = before


@contextmanager
def reordered(net):
    a = net.options.pop("a")
    net.options["a"] = a
    yield
    b = net.options.pop("b")
    net.options["b"] = b


@contextmanager
def appended(net):
    net.order.append(3)
    yield
    net.order.pop()


@contextmanager
def hooked(module, register):
    handle = getattr(module, register)(lambda *a: None)
    yield
    handle.remove()


@contextmanager
def evaluating(module):
    module.eval()
    yield
    module.train()


@contextmanager
def new_data(net):
    weight = net.layers[0].weight
    before = weight.data
    weight.data = torch.zeros(3, 2)
    yield
    weight.data = before


@contextmanager
def frozen(net):
    net.layers[0].bias.requires_grad_(False)
    yield
    net.layers[0].bias.requires_grad_(True)


@contextmanager
def doubled(net):
    net.layers[1].double()
    yield
    net.layers[1].float()


@contextmanager
def without_bias(net):
    before = net.layers[0].bias
    net.layers[0].bias = None
    yield
    net.layers[0].bias = before


@contextmanager
def added_buffer(net):
    net.layers[0].register_buffer("extra", torch.zeros(1))
    yield
    del net.layers[0].extra


@contextmanager
def patched_class(net):
    before = Net.forward
    Net.forward = lambda self, x: x + 1
    yield
    Net.forward = before


@contextmanager
def patched_code(net):
    before = Net.forward.__code__
    Net.forward.__code__ = (lambda self, x: x).__code__
    yield
    Net.forward.__code__ = before


@contextmanager
def own_forward(net):
    net.layers[0].forward = lambda x: x
    yield
    del net.layers[0].forward


CHANGES: dict[str, Callable] = {
    "attribute": lambda net: attribute(net, "scale", 3),
    "attribute, bool for int": lambda net: attribute(net, "options", {"a": True, "b": 2}),
    "deleted attribute": lambda net: deleted(net, "scale"),
    "__class__": new_class,
    "__dict__": new_dict,
    "dict item": lambda net: item(net.options, "a", 5),
    "dict order": reordered,
    "list item": lambda net: item(net.order, 1, 7),
    "list length": appended,
    "forward hook": lambda net: hooked(net.layers[1], "register_forward_hook"),
    "forward pre-hook": lambda net: hooked(net, "register_forward_pre_hook"),
    "backward hook": lambda net: hooked(net.layers[0], "register_full_backward_hook"),
    "training flag": lambda net: evaluating(net.layers[1]),
    ".data =": new_data,
    "requires_grad_": frozen,
    "double()": doubled,
    "parameter to None": without_bias,
    "new buffer": added_buffer,
    "method of the class": patched_class,
    "code of the method": patched_code,
    "forward on the instance": own_forward,
    "replaced module": lambda net: item(net.layers._modules, "1", torch.nn.Identity()),
    "replaced buffer": lambda net: item(net.layers[1]._buffers, "running_mean", torch.zeros(5)),
}


@pytest.fixture(params=["watchers", "tags", "walk"])
def tags(request):
    """Of the ways to see changes those that this CPython has: in 3.11 dicts are not watched, and in 3.13.0 attributes that are set reach neither."""
    core = native.core()
    seen = {"watchers": selftest.changes_are_visible(core.dict_epoch), "tags": selftest.changes_are_visible(core.dict_tag), "walk": True}
    if not seen[request.param] and sys.version_info >= (3, 12):
        pytest.skip(f"changes of attributes are not seen by {request.param}")
    core.use_dict_watchers(request.param == "watchers")
    core.use_dict_tags(request.param != "walk")
    yield request.param != "walk"
    core.use_dict_tags(seen["tags"])
    core.use_dict_watchers(seen["watchers"])


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change, tags):
    net = Net()
    guards = guards_of(net)
    program = compile_guards(guards)
    for _ in range(3):  # the second time with what the first one recorded
        assert program.check((net,), None, {}, {}) and not failures(guards, {"self": net})
        with CHANGES[change](net):
            for _ in range(2):
                assert not program.check((net,), None, {}, {})
            explained = failures(guards, {"self": net})
            assert explained and program.last_failed in [guards.index(f.guard) for f in explained]
    assert program.check((net,), None, {}, {})


def test_random_changes_agree_with_the_twin(tags):
    chosen = random.Random(1)
    net = Net()
    guards = guards_of(net)
    program = compile_guards(guards)
    for _ in range(40):
        names = chosen.sample(
            sorted(CHANGES.keys() - {"__dict__", "__class__", "method of the class", "code of the method", "replaced module"}), chosen.randrange(3)
        )
        opened = [CHANGES[name](net) for name in names]
        for context in opened:
            context.__enter__()
        assert program.check((net,), None, {}, {}) is (not failures(guards, {"self": net})), names
        for context in reversed(opened):
            context.__exit__(None, None, None)


def test_objects_that_come_and_go(tags):
    """One program, many objects, some at addresses of freed ones."""
    guards = guards_of(Net())
    program = compile_guards(guards)
    for i in range(60):
        net = Net()
        if i % 3 == 0:
            net.layers[0].eval()
        if i % 5 == 0:
            net.scale = 4
        for _ in range(2):
            assert program.check((net,), None, {}, {}) is (i % 3 != 0 and i % 5 != 0)
        del net
        gc.collect(0)


def test_a_dict_that_keeps_changing_is_walked(tags):
    net = Net()
    program = compile_guards(guards_of(net))
    for step in range(300):
        net.step = step
        assert program.check((net,), None, {}, {})
    net.scale = 9
    assert not program.check((net,), None, {}, {})


def test_guards_keep_nothing_alive():
    net = Net()
    thing = torch.nn.Linear(1, 1)
    program = compile_guards([*guards_of(net), Guard("ID", Local("y", 1), thing)])
    assert program.check((net, thing), None, {}, {})
    gone = weakref.ref(net), weakref.ref(thing), weakref.ref(thing.weight)
    del net, thing
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert not program.check((Net(), torch.nn.Linear(1, 1)), None, {}, {})
