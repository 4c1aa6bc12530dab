"""Cycles of imports: how many files have to be read together to understand one of them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST = 5  # files of one cycle


def modules(root: Path) -> dict[str, str]:
    """The source of each module of the compiler, by its name."""
    paths = sorted((root / "dynacompile").rglob("*.py"))
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path.read_text() for path in paths}


def imported(text: str) -> set[str]:
    """Every name that may be a module which the text imports: those under TYPE_CHECKING, which annotations need, and those in functions, too."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def cycles(texts: dict[str, str]) -> list[list[str]]:
    """The strongly connected sets of more than one module, the largest first."""
    needs = {name: imported(text) & texts.keys() - {name} for name, text in texts.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        work = [start]
        while work:
            fresh = needs[work.pop()] - seen
            seen |= fresh
            work.extend(fresh)
        return seen

    reach = {name: reached(name) for name in texts}
    sets = {frozenset(other for other in reach[name] if name in reach[other]) for name in texts if name in reach[name]}
    return sorted(map(sorted, sets), key=len, reverse=True)


def test_no_cycle_of_imports_is_larger_than_five_files():
    found = cycles(modules(ROOT))
    assert not found or len(found[0]) <= MOST, f"{len(found[0])} files import each other: {', '.join(found[0])}"


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("from a.b import f", id="at the top"),
        pytest.param("from a import b", id="of a module by its package"),
        pytest.param("import a.b as b", id="by a name"),
        pytest.param("if TYPE_CHECKING:\n    from a.b import T", id="for annotations alone"),
        pytest.param("def g():\n    from a.b import f", id="in a function"),
    ],
)
def test_an_import_that_closes_a_cycle_is_found(imports):
    assert cycles({"a.b": "from a.c import g", "a.c": imports, "a.d": "from a.b import f"}) == [["a.b", "a.c"]]
