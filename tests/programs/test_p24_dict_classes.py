"""User classes that derive from dict, in the style of model outputs, and configuration objects with attribute hooks."""

import collections
import copy
import dataclasses
import inspect
import os

import torch

import dynacompile
from tests.checking import check


class Output(collections.OrderedDict):
    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def __setattr__(self, name, value):
        if name in {f.name for f in dataclasses.fields(self)} and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())


@dataclasses.dataclass
class Hidden(Output):
    last: torch.Tensor = None
    states: tuple = None
    pooled: torch.Tensor = None


class Config:
    attribute_map = {"width": "hidden_size"}

    def __init__(self, **kwargs):
        self.hidden_size = 4
        for name, value in kwargs.items():
            setattr(self, name, value)

    def __getattribute__(self, name):
        if super().__getattribute__("__dict__").get("_special") is not None:
            raise AttributeError(name)
        if name != "attribute_map" and name in super().__getattribute__("attribute_map"):
            name = super().__getattribute__("attribute_map")[name]
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(type(self).attribute_map.get(name, name), value)


class Registry(dict):
    def get(self, key):
        return super().get(key.__class__.__name__) or {}


REGISTRY = Registry(Linear={"a": 2.0})


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def makes_output(x):
    out = Hidden(last=x * 2, pooled=x.sum(0))
    return out.last + out["pooled"] + out[0] + len(out) + ("states" in out)


def returns_output(x):
    return Hidden(last=x * 2, states=(x, x + 1))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config(dropout=0.0)
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        out = self.lin(x) * self.config.width + getattr(self.config, "nothing", 1) * REGISTRY.get(self.lin).get("a", 5)
        return out + self.config.dropout if hasattr(self.config, "dropout") else out


def test_outputs_inside_the_frame():
    check(makes_output, arg())


def test_outputs_that_are_returned():
    dynacompile.reset()
    x = arg()
    want, got = returns_output(x), dynacompile.compile(returns_output, fullgraph=True)(x)
    assert type(got) is Hidden and list(got) == list(want) and list(vars(got)) == list(vars(want))
    assert got.last is got["last"] and torch.equal(got.last, want.last) and got.pooled is None and got.states[0] is x


def test_configuration_with_hooks():
    check(Model(), arg())


def test_configuration_changes_are_seen():
    model = Model()
    compiled = dynacompile.compile(model, fullgraph=True)
    x = arg()
    changes = (
        lambda: None,
        lambda: setattr(model.config, "width", 7),
        lambda: setattr(model.config, "nothing", 3),
        lambda: dict.__setitem__(REGISTRY, "Linear", {"a": 4.0}),
    )
    for change in changes:
        change()
        torch.testing.assert_close(compiled(x), model(x))
    dict.__setitem__(REGISTRY, "Linear", {"a": 2.0})


def reads_environment(x):
    return x * 2 if os.environ.get("SOME_SETTING_OF_A_TEST") == "on" else x * 3


def test_environment(monkeypatch):
    compiled = dynacompile.compile(reads_environment, fullgraph=True)
    x = arg()
    assert torch.equal(compiled(x), reads_environment(x))
    monkeypatch.setenv("SOME_SETTING_OF_A_TEST", "on")
    assert torch.equal(compiled(x), reads_environment(x))


CONFIG = Config(sizes=[1, 2])


def copies_configuration(x):
    config = CONFIG
    mine = copy.deepcopy(config)
    mine.width = 3
    return x * mine.hidden_size + config.hidden_size + len(mine.sizes), mine.sizes is config.sizes


def test_configuration_is_copied():
    check(copies_configuration, arg())


def chunk(hidden, mask):
    return hidden * mask


def counts_parameters(x):
    return chunk(x, 2) * len(inspect.signature(chunk).parameters) + ("mask" in inspect.signature(chunk).parameters)


def test_signature():
    check(counts_parameters, arg())
