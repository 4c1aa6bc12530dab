"""Which blocks of the compiler no test runs.

    python scripts/untested.py tests/capture -n 2 -m "not further"      # arguments of pytest; without any, the whole suite
    python scripts/untested.py --only "dynacompile/capture/*" tests     # shows these files

A block that no test runs is dead, or wrong until somebody has looked. Coverage tools don't measure a compiler that runs beside tracers and refuses to compile
under one, so each block's first statement here sets a byte of a file that all processes share, those of forks and kernels' builders too. Tests that compile
functions of dynacompile's own may fail meanwhile, since these then write to that file; what they ran counts all the same. Some files are followed by capture
and not run (`capture/polyfills`), and are left out.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import importlib.machinery
import importlib.util
import marshal
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "UNTESTED_FOLDER"
HITS = "__untested_hits__"
FOLLOWED = "dynacompile.capture.polyfills"


def marked(text: str, path: str) -> tuple[ast.Module, list[int]]:
    """The module with a statement in front of each block that sets the block's byte, and the blocks' lines."""
    tree, lines = ast.parse(text, path), list[int]()
    for node in list(ast.walk(tree)):
        for body in blocks(node):
            line, place = body[0].lineno, 0
            if is_text(body[0]):
                place = 1
            while place < len(body) and isinstance(body[place], (ast.Global, ast.Nonlocal)):
                place += 1
            note = ast.parse(f"{HITS}[{len(lines)}] = 1").body[0]
            for part in ast.walk(note):
                ast.copy_location(part, body[0])
            body.insert(place, note)
            lines.append(line)
    return ast.fix_missing_locations(tree), lines


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.For, ast.While, ast.If, ast.ExceptHandler, ast.match_case)):
        yield node.body
    if isinstance(node, (ast.For, ast.While)) and node.orelse:
        yield node.orelse
    if isinstance(node, ast.If) and node.orelse and not isinstance(node.orelse[0], ast.If):
        yield node.orelse


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its blocks marked. What is compiled is kept beside the bytes, since a suite starts many processes."""

    def exec_module(self, module: ModuleType) -> None:
        folder, status = Path(os.environ[FOLDER]), os.stat(self.path)
        kept = folder / f"{self.name}-{sys.version_info[1]}-{status.st_mtime_ns}.code"
        if not kept.exists():
            tree, lines = marked(Path(self.path).read_text(), self.path)
            made = folder / f"{kept.name}.{os.getpid()}"
            made.write_bytes(marshal.dumps((len(lines), compile(tree, self.path, "exec", dont_inherit=True))))
            made.replace(kept)
        count, code = marshal.loads(kept.read_bytes())
        module.__dict__[HITS] = shared_bytes(folder / f"{self.name}.hits", count)
        exec(code, module.__dict__)


def shared_bytes(path: Path, count: int) -> Any:
    if not count:
        return bytearray()
    with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        file.truncate(count)
        return mmap.mmap(file.fileno(), count)


class Finder:
    """Finds our modules as Python would, and has them loaded by Loader."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("dynacompile.") or name.startswith(FOLLOWED):
            return None
        for other in sys.meta_path:
            found = None if other is self else other.find_spec(name, path, target)
            if found is not None:
                if type(found.loader) is importlib.machinery.SourceFileLoader and found.origin:
                    found.loader = Loader(name, found.origin)
                return found
        return None


def report(folder: Path, only: str) -> Iterator[str]:
    """By file, the blocks that were not run: the line, and what stands there."""
    total = missed = 0
    for path in sorted((ROOT / "dynacompile").rglob("*.py")):
        shown = str(path.relative_to(ROOT))
        name = shown.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        text = path.read_text()
        lines = marked(text, shown)[1]
        hits = folder / f"{name}.hits"
        if not hits.exists() or not fnmatch.fnmatch(shown, only):
            continue
        run = hits.read_bytes()
        left = sorted(line for line, hit in zip(lines, run, strict=True) if not hit)
        total, missed = total + len(lines), missed + len(left)
        if left:
            yield f"{shown}: {len(left)} of {len(lines)}"
            rows = text.splitlines()
            yield from (f"  {line}: {rows[line - 2].strip()}  =>  {rows[line - 1].strip()}" for line in left)
    yield f"{missed} of {total} blocks are not run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="glob over files of the compiler")
    given, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as made:
        start = "import importlib.util\n"
        start += f"spec = importlib.util.spec_from_file_location('untested', {str(Path(__file__).resolve())!r})\n"
        start += "untested = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(untested)\nuntested.sys.meta_path.insert(0, untested.Finder())\n"
        Path(made, "sitecustomize.py").write_text(start)
        paths = os.pathsep.join(filter(None, (made, os.environ.get("PYTHONPATH"))))
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *rest], cwd=ROOT, env={**os.environ, "PYTHONPATH": paths, FOLDER: made})
        print("\n".join(report(Path(made), given.only)))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
