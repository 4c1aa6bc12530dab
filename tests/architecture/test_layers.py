"""The structure that DESIGN holds the code to: layers, forbidden internals, stages that chain, sizes."""

import ast
import re
import typing
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import dynacompile
from dynacompile.autograd import differentiate
from dynacompile.build import build
from dynacompile.codegen import generate
from dynacompile.ir.captured import Captured
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.ir.loops import LoopProgram
from dynacompile.ir.schedule import Schedule, Sources
from dynacompile.lower import lower
from dynacompile.runtime import link
from dynacompile.schedule import schedule

ROOT = Path(__file__).resolve().parents[2]
COMPILER = sorted((ROOT / "dynacompile").rglob("*.py"))
FORBIDDEN = re.compile(r"torch\.(_dynamo|_inductor|_functorch\.(aot_autograd|_aot_autograd|partitioners))|torch\.compile\b(?!r)")


def test_import_contracts(monkeypatch, capsys):
    """Layers, exhaustive and with late imports, as pyproject.toml states them."""
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert status == 0, capsys.readouterr().out


pytestmark = pytest.mark.whole


@pytest.mark.parametrize("path", COMPILER, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_forbidden_torch_internals(path):
    if path.name == "interop.py":
        return
    nodes = list(ast.walk(ast.parse(path.read_text())))
    named = [ast.unparse(n).replace("from ", "").replace(" import ", ".") for n in nodes if isinstance(n, (ast.Attribute, ast.Import, ast.ImportFrom))]
    documented = [n for n in nodes if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)) and n.body and isinstance(n.body[0], ast.Expr)]
    docs = {id(n.body[0].value) for n in documented}
    strings = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in docs]
    assert not [name for name in named if FORBIDDEN.search(name)] + [text for text in strings if FORBIDDEN.match(text)]


@pytest.mark.parametrize("path", COMPILER, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_imports_inside_functions(path):
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert not [f"{f.name}:{n.lineno}" for f in functions for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom))]


def stage_types() -> dict[str, tuple]:
    """(what it takes, what it gives) for each stage of a graph's way, from the annotations."""
    told = {}
    for stage in (differentiate, lower, schedule, generate, build, link):
        hints = typing.get_type_hints(stage)
        first = next(name for name in hints if name != "return")
        told[stage.__name__] = (hints[first], hints["return"])
    return told


def test_stages_chain():
    types = stage_types()
    for one, other in (("lower", "schedule"), ("schedule", "generate"), ("generate", "build"), ("build", "link")):
        assert types[one][1] is types[other][0], f"{one} gives {types[one][1]}, {other} takes {types[other][0]}"
    assert types["lower"][0] is types["differentiate"][0]


def test_hand_offs_print_verify_and_digest():
    for hand_off in (Captured, ForwardBackward, LoopProgram, Schedule, Sources):
        for method in ("text", "digest") + (() if hand_off is Sources else ("verify",)):
            assert callable(getattr(hand_off, method)), f"{hand_off.__name__} has no {method}"


def test_public_names_exist():
    for name in dynacompile.__all__:
        assert getattr(dynacompile, name) is not None
