"""Imports inside of functions: what is loaded already has no effect, the rest is loaded as Python does."""

import builtins
import importlib
import itertools
import sys
import types

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, GraphBroke
from tests.scenarios import attempt, check_same

NUMBERS = itertools.count()
FORMS = {
    "a module of the package": "from . import late",
    "two of them": "from . import early, late",
    "by its package's name": "from {package} import late",
    "by its whole name": "import {package}.late as late",
    "a name of the module": "from .late import VALUE as late",
    "what is no module": "from . import missing",
    "what the package makes": "from . import made",
}
CORE = """
def f(x):
    y = x + 1
    {form}
    return y * 2, getattr({result}, "VALUE", {result})
"""


@pytest.mark.parametrize("lazy", [False, True], ids=["", "a package with __getattr__"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_module_that_is_not_loaded_yet(form, lazy, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def made():
        """A package that nobody has imported."""
        package = f"package_{next(NUMBERS)}"
        folder = tmp_path / package
        folder.mkdir()
        asked = "def __getattr__(name):\n    if name == 'made':\n        return 5\n    raise AttributeError(name)\n"
        (folder / "__init__.py").write_text("import torch\n" + asked * lazy)
        (folder / "early.py").write_text("VALUE = 2\n")
        (folder / "late.py").write_text("VALUE = 3\nLOADED = []\n")
        (folder / "core.py").write_text(CORE.format(form=form.format(package=package), result=form.rpartition(" ")[2]))
        importlib.invalidate_caches()
        core = importlib.import_module(f"{package}.core")
        importlib.import_module(f"{package}.early")
        return package, core.f

    def outcome(package, f):
        try:
            y, value = f(torch.ones(2))
        except Exception as error:  # noqa: BLE001 - compared
            return type(error), str(error).replace(package, "package").partition(" (")[0], f"{package}.late" in sys.modules
        return y.tolist(), value, f"{package}.late" in sys.modules

    package, program = made()
    want = [outcome(package, program) for _ in range(2)]
    package, program = made()
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(program, backend="eager", isolate_recompiles=True)
    got = [outcome(package, compiled) for _ in range(2)]
    broke = len([e for e in events if isinstance(e, GraphBroke)])
    got.append(outcome(package, compiled))
    end()
    assert got == [*want, want[-1]]
    if "missing" not in form and "made" not in form:
        assert broke == len([e for e in events if isinstance(e, GraphBroke)]) <= 1


def test_callers_are_captured_again_once_the_module_is_there(tmp_path, monkeypatch):
    package = f"package_{next(NUMBERS)}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / package / "late.py").write_text("VALUE = 3\n")
    (tmp_path / package / "core.py").write_text("def inner(x):\n    from . import late\n    return x * late.VALUE\ndef f(x):\n    return inner(x + 1) + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    core = importlib.import_module(f"{package}.core")
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(lambda x: core.f(x), backend="eager", isolate_recompiles=True)
    for _ in range(3):
        began = len(events)
        assert compiled(torch.ones(2)).tolist() == [7, 7]
    end()
    assert sum(isinstance(e, GraphBroke) for e in events) == 3  # of the frames around the import, in the first call
    assert not [e for e in events[began:] if isinstance(e, Compiled)]
    last = [e for e in events if isinstance(e, Compiled)][-1]
    assert last.ops == 3  # all in one graph


def test_modules_that_are_imported_in_the_frame(monkeypatch):
    def use(x):
        import replaced_module  # noqa: PLC0415

        return x * replaced_module.number

    def story(wrap):
        run = wrap(use)
        for number in (1, 2, 1):
            monkeypatch.setitem(sys.modules, "replaced_module", types.ModuleType("replaced_module"))
            sys.modules["replaced_module"].number = number
            yield run(torch.ones(2))

    check_same(story, backend="eager")


def test_imports_of_what_is_no_module(monkeypatch):
    def use(x):
        import replaced_module  # noqa: PLC0415

        return x * replaced_module.number

    class Counting:
        asked = 0

        def __getattr__(self, name):
            self.asked += 1
            return self.asked

    def story(wrap):
        run, module = wrap(use), types.ModuleType("replaced_module")
        module.number = 3
        for found in (module, Counting(), None, module, Counting()):
            monkeypatch.setitem(sys.modules, "replaced_module", found)
            yield attempt(run, torch.ones(2))

    check_same(story, backend="eager")


def test_an_import_that_the_program_answers_itself(monkeypatch):
    def use(x):
        import replaced_module  # noqa: PLC0415

        return x * replaced_module.number

    def story(wrap):
        run, module = wrap(use), types.ModuleType("replaced_module")
        module.number, ask = 3, builtins.__import__
        monkeypatch.setitem(sys.modules, "replaced_module", module)
        yield run(torch.ones(2))
        with monkeypatch.context() as patched:
            patched.setattr(builtins, "__import__", lambda name, *rest: types.SimpleNamespace(number=7) if name == "replaced_module" else ask(name, *rest))
            found = run(torch.ones(2))
        yield found
        yield run(torch.ones(2))

    check_same(story, backend="eager")


def test_relative_imports_follow_the_package_of_the_code(monkeypatch):
    def story(wrap):
        for package, number in (("one_package", 3), ("other_package", 5)):
            for name in (package, f"{package}.inner"):
                monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
            sys.modules[package].inner = sys.modules[f"{package}.inner"]
            sys.modules[package].inner.number = number
        for statement in ("from . import inner as found", "from .inner import number as found", "from ..inner import number as found"):
            table = {"__name__": "one_package.code", "__builtins__": builtins}
            exec(f"def use(x):\n    {statement}\n    return x * getattr(found, 'number', found)", table)
            run = wrap(table["use"])
            for package in ("one_package", "other_package", "", None, "one_package"):
                table["__package__"] = package
                yield attempt(run, torch.ones(2))

    check_same(story, backend="eager")
