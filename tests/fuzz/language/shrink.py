"""Makes a failing program small: drops and simplifies statements while it still differs in the same way."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from tests.fuzz.language.observe import difference
from tests.fuzz.language.programs import Program

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(program: Program, reference: bool = False, tries: int = 1500) -> str:
    """Text of a smaller program with a difference of the same kind."""
    kind = kind_of(difference(program, reference))
    tree = ast.parse(program.source)
    while True:
        for smaller in candidates(tree):
            tries -= 1
            if tries < 0:
                return ast.unparse(tree)
            text = ast.unparse(ast.fix_missing_locations(smaller))
            try:
                told = difference(Program(program.seed, text), reference)
            except SyntaxError:
                continue
            if told and kind_of(told) == kind:
                tree = ast.parse(text)
                break
        else:
            return ast.unparse(tree)


def kind_of(told: str | None) -> str:
    """Where it differs, without numbers and details."""
    if told is None:
        return ""
    if "a bug in dynacompile" in told:
        return re.sub(r"\d+", "", told.partition("(a bug")[0].partition(" at ")[0])[-60:]
    return re.sub(r"call \d+", "call", told).partition(":")[0]


def candidates(tree: ast.Module) -> Iterator[ast.Module]:
    """Trees that are one step smaller, the largest steps first."""
    places = [(node, name, i) for node in ast.walk(tree) for name in BLOCKS if lists(node, name) for i in range(len(getattr(node, name)))]
    places.sort(key=lambda place: -size(getattr(place[0], place[1])[place[2]]))
    for node, name, i in places:
        yield edited(tree, node, name, i, [])
        inner = getattr(node, name)[i]
        if isinstance(inner, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            yield edited(tree, node, name, i, inner.body)
            if getattr(inner, "orelse", None):
                yield edited(tree, node, name, i, inner.orelse)
    for node in list(ast.walk(tree)):
        for name, value in ast.iter_fields(node):
            for i, part in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(part, ast.expr) and not isinstance(part, (ast.Name, ast.Constant)) and isinstance(node, (ast.expr, ast.stmt, ast.keyword)):
                    if isinstance(getattr(part, "ctx", None), ast.Store):
                        continue
                    for simple in [*(c for c in ast.iter_child_nodes(part) if isinstance(c, ast.expr)), ast.Constant(1)]:
                        yield replaced(tree, node, name, i if isinstance(value, list) else None, simple)


def lists(node: ast.AST, name: str) -> bool:
    return isinstance(getattr(node, name, None), list)


def size(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node))


def edited(tree: ast.Module, node: ast.AST, name: str, index: int, by: list[ast.stmt]) -> ast.Module:
    old = getattr(node, name)
    new = [*old[:index], *by, *old[index + 1 :]]
    if not new and name == "body":
        new = [ast.Pass()]
    setattr(node, name, new)
    copied = copy.deepcopy(tree)
    setattr(node, name, old)
    return copied


def replaced(tree: ast.Module, node: ast.AST, name: str, index: int | None, by: ast.expr) -> ast.Module:
    old = getattr(node, name)
    setattr(node, name, by if index is None else [*old[:index], by, *old[index + 1 :]])
    copied = copy.deepcopy(tree)
    setattr(node, name, old)
    return copied
