"""torch's and CPython's private names stand in `dynacompile.private` alone, each with its row, and a missing one is refused by name."""

from __future__ import annotations

import ast
import re
import sys
import types
from pathlib import Path

import pytest

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.private import of_python, of_torch
from dynacompile.private.rows import Names

ROOT = Path(dynacompile.__file__).parent
PUBLIC = {"torch._check", "torch._check_is_size"}  # documented, underscore and all
ELSEWHERE = {"interop.py"}  # which hands graphs to the rival


def is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def dotted(node: ast.AST) -> str:
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names_in(tree: ast.AST):
    """Private names of torch and of the standard library that a file reads, with their lines."""
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Attribute):
            found = [dotted(node)]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        for name in found:
            root, *parts = name.split(".")
            if (root == "torch" or root in sys.stdlib_module_names) and any(map(is_private, parts)) and name not in PUBLIC:
                yield node.lineno, name


def sources():
    for folder in ("dynacompile", "callbacks"):
        base = ROOT if folder == "dynacompile" else ROOT.parent / folder
        yield from (p for p in sorted(base.rglob("*.py")) if p.parent.name != "private" and p.name not in ELSEWHERE)


def test_private_names_are_read_through_the_adapter():
    allowed = {"sys._getframe", "sys._current_frames"}  # which CPython documents
    found = [f"{p}:{line} {name}" for p in sources() for line, name in names_in(ast.parse(p.read_text())) if name not in allowed]
    assert not found, found


def test_the_search_sees_a_private_name():
    text = "import torch\nfrom torch._guards import Source\nfrom threading import _active\ntorch._C._x(torch._check)\n"
    assert {name for _, name in names_in(ast.parse(text))} >= {"torch._guards.Source", "threading._active", "torch._C._x"}


@pytest.mark.parametrize("module", [of_torch, of_python], ids=lambda m: m.__name__.rpartition(".")[2])
def test_each_row_is_there_and_is_used(module):
    assert module.NAMES.missing() == [] and module.NAMES.failure() == ""
    for alias, row in module.NAMES.rows.items():
        assert row.what_for and row.paths, alias
    words = {word for p in sources() for word in re.findall(r"\w+", p.read_text())}
    dynamic = re.compile(r"(get_\w+_sdp_enabled|set_sdp_use_\w+)$")
    unused = [alias for alias in module.NAMES.rows if alias not in words and not dynamic.match(alias)]
    assert not unused, unused


def example() -> Names:
    names = Names("torch", "2.99.0")
    names.add("settings in guards", gone="torch._C._gone_for_good")
    names.add("a part", "attention in a graph", also_gone="torch._C._also_gone", GoneClass="torch._nowhere.Gone")
    names.add("old", "old graphs", until="2.13", left_out="torch._C._left_out")
    names.add("moved", moved=("torch._C._not_here", "torch._C._set_grad_enabled"))
    return names


def test_a_missing_name_is_refused_by_name():
    names = example()
    assert names.failure() == "torch 2.99.0 has no torch._C._gone_for_good (settings in guards), and the compiler needs it"
    assert [alias for alias, _ in names.missing()] == ["gone", "also_gone", "GoneClass"]
    for use in (lambda v: v(), lambda v: v.attribute, lambda v: v.__enter__()):
        with pytest.raises(Unsupported, match=r"torch 2.99.0 has no torch._C._also_gone \(a part\), and attention in a graph needs it"):
            use(names.get("also_gone"))
    missing = names.get("GoneClass")
    assert isinstance(missing, type) and not isinstance(1, missing)
    with pytest.raises(Unsupported, match="torch._nowhere.Gone"):
        missing()
    assert isinstance(names.get("moved"), types.BuiltinFunctionType)


def test_a_name_without_a_row_is_no_attribute():
    assert not hasattr(of_torch, "no_such_row")
    with pytest.raises(AttributeError, match="no_such_row"):
        of_torch.NAMES.get("no_such_row")
    with pytest.raises(ValueError, match="two rows for refs"):
        of_torch.NAMES.add("again", refs="torch._refs")
