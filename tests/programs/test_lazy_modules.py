"""Modules that look attributes up by code: `__getattr__` of a module, and classes of modules that load what is asked for."""

import importlib
import itertools
import sys
from types import ModuleType

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke

NUMBERS = itertools.count()
LAZY = """
import importlib
import sys
import types

class Lazy(types.ModuleType):
    kind = "lazy"

    def __init__(self, name, path):
        super().__init__(name)
        self.__path__, self.objects, self.where, self.asked = [path], {"version": "1.2"}, {"VALUE": "late", "LOADED": "late"}, 0

    @property
    def number(self):
        return 3

    def scaled(self, x):
        return x * self.number

    def __getattr__(self, name):
        if name in self.objects:
            return self.objects[name]
        if name not in self.where:
            raise AttributeError(f"module {self.__name__} has no attribute {name}")
        value = getattr(importlib.import_module("." + self.where[name], self.__name__), name)
        setattr(self, name, value)
        return value

spec = sys.modules[__name__].__spec__
sys.modules[__name__] = Lazy(__name__, __path__[0])
sys.modules[__name__].__spec__ = spec
"""
PLAIN = """
def __getattr__(name):
    if name == "version":
        return "1.2"
    if name == "VALUE":
        from . import late
        globals()["VALUE"] = late.VALUE
        return late.VALUE
    raise AttributeError(name)
kind, number = "plain", 3
def scaled(x):
    return x * 3
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes packages that nobody has imported."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(text):
        name = f"lazy_{next(NUMBERS)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text)
        (tmp_path / name / "late.py").write_text("VALUE = 3\nLOADED = []\n")
        importlib.invalidate_caches()
        importlib.import_module(name)
        return sys.modules[name]

    return make


def kept(module, x):
    return x + 1, module.version, module.kind


def of_class(module, x):
    return module.scaled(x) + module.number


def loaded(module, x):
    return (x + 1) * module.VALUE


def missing(module, x):
    try:
        return x + module.missing
    except AttributeError:
        return x - 1, hasattr(module, "other"), getattr(module, "another", 5), hasattr(module, "version")


def imported(module, x):
    package = importlib.import_module(module.__name__)
    return x + len(package.version), type(package) is type(module), isinstance(package, ModuleType)


def stored(module, x):
    module.steps = getattr(module, "steps", 0) + 1
    return x + 1, module.steps > 0


@pytest.mark.parametrize("text", [LAZY, PLAIN], ids=["a class of modules", "__getattr__ of the module"])
@pytest.mark.parametrize("program", [kept, of_class, loaded, missing, imported, stored], ids=lambda f: f.__name__)
def test_as_in_eager(program, text, package):
    events, found = [], []
    for call in (program, dynacompile.compile(program, backend="eager", isolate_recompiles=True)):
        module = package(text)
        end = dynacompile.subscribe(events.append)
        for _ in range(4):
            began = len(events)
            parts = call(module, torch.ones(2))
            names = {name for name in vars(module) if not name.startswith("__")} - {"objects", "where", "asked", "Lazy"}
            found.append(([p.tolist() if isinstance(p, torch.Tensor) else p for p in (parts if isinstance(parts, tuple) else (parts,))], names))
        end()
    assert found[:4] == found[4:]
    assert not [e for e in events if isinstance(e, FrameSkipped)]
    assert not [e for e in events[began:] if isinstance(e, (Compiled, GraphBroke))]
    if program is not loaded:
        assert not [e for e in events if isinstance(e, GraphBroke)]


def test_what_loading_broke_is_one_graph_later(package):
    def inner(module, x):
        return (x + 1) * module.VALUE

    def outer(module, x):
        return inner(module, x * 2) + 1

    module, events = package(LAZY), []
    compiled = dynacompile.compile(outer, backend="eager", isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    assert [compiled(module, torch.ones(2)).tolist() for _ in range(3)] == [[10, 10]] * 3
    end()
    assert [e.ops for e in events if isinstance(e, Compiled)][-1] == 4


def test_another_value_in_the_module(package):
    module = package(LAZY)
    compiled = dynacompile.compile(lambda x: x + len(module.version), backend="eager", isolate_recompiles=True, fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 3
    module.version = "1.10"
    assert compiled(torch.zeros(1)).item() == 4
    del module.version
    module.objects["version"] = "12"
    assert compiled(torch.zeros(1)).item() == 2
