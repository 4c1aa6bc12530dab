"""Rows of private names: what each is for, in which versions it is, and what is refused without it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from dynacompile.errors import Unsupported

EVERYTHING = ""  # what needs a name that all compiles need: without it, everything runs eagerly


@dataclass(frozen=True)
class Row:
    """One private name. paths: where it is, in the order in which they are tried. needs: what can't be had without it, EVERYTHING for the compiler itself.

    since, until: the first version that has it, and the last; empty where all supported ones have it.
    """

    paths: tuple[str, ...]
    what_for: str
    needs: str
    since: str = ""
    until: str = ""

    def expected_in(self, version: str) -> bool:
        return (not self.since or number(version) >= number(self.since)) and (not self.until or number(version) <= number(self.until))


def number(version: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


class Missing:
    """Stands for a name that this version does not have: whoever uses it is refused by name."""

    __code__ = (lambda: None).__code__  # of modules that ask a function for its code as they are loaded

    def __init__(self, alias: str, row: Row, of: str):
        self.__name__ = alias
        self._refusal = refusal(alias, row, of)

    def _refuse(self) -> NoReturn:
        raise Unsupported("missing-name", self._refusal, HINT)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse()

    def __enter__(self) -> NoReturn:
        self._refuse()

    def __exit__(self, *exception: object) -> None:
        """Only to be a context manager."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


HINT = "docs/versions.md lists the versions that dynacompile is tested with"


def refusal(alias: str, row: Row, of: str) -> str:
    needs = f"{row.needs} needs it" if row.needs else "the compiler needs it"
    return f"{of} has no {row.paths[0]} ({row.what_for}), and {needs}"


def missing_class(alias: str, row: Row, of: str) -> type:
    """A class without instances, for a name that is used in `isinstance` or as a base."""
    stand_in = Missing(alias, row, of)
    return type(alias, (), {"__new__": lambda cls, *args, **kwargs: stand_in(), "__doc__": stand_in._refusal})


class Names:
    """The rows of one adapter module. of: whose names they are, with its version."""

    def __init__(self, of: str, version: str):
        self.of, self.version = f"{of} {version}", version
        self.rows: dict[str, Row] = {}

    def add(self, what_for: str, needs: str = EVERYTHING, since: str = "", until: str = "", **paths: str | tuple[str, ...]) -> None:
        """One row for each name; all have the same purpose. A path is dotted, and may have alternatives."""
        for alias, path in paths.items():
            if alias in self.rows:
                raise ValueError(f"two rows for {alias}")
            self.rows[alias] = Row((path,) if isinstance(path, str) else path, what_for, needs, since, until)

    def get(self, alias: str) -> Any:
        """The object, or what stands for one that is missing."""
        row = self.rows.get(alias)
        if row is None:
            raise AttributeError(f"{alias!r} is no row of {self.of}'s private names")
        for path in row.paths:
            found = resolve(path, load=True)
            if found is not NOT_FOUND:
                return found
        return missing_class(alias, row, self.of) if alias[0].isupper() else Missing(alias, row, self.of)

    def missing(self) -> list[tuple[str, Row]]:
        """Rows whose module is loaded and has not got the name, though this version is expected to have it: the start-up check."""
        wanted = [(alias, row) for alias, row in self.rows.items() if row.expected_in(self.version)]
        return [(alias, row) for alias, row in wanted if all(resolve(path, load=False) is NOT_FOUND for path in row.paths)]

    def failure(self) -> str:
        """Why everything has to run eagerly; empty where nothing that all compiles need is missing."""
        return next((refusal(alias, row, self.of) for alias, row in self.missing() if not row.needs), "")


NOT_FOUND: Any = object()
NOT_LOADED: Any = object()


def resolve(path: str, load: bool) -> Any:
    """What a dotted path leads to; NOT_FOUND where it leads to nothing, NOT_LOADED where that is not known without an import that `load` forbids."""
    parts = path.split(".")
    found: Any = sys.modules.get(parts[0]) or importlib.import_module(parts[0])
    for place, part in enumerate(parts[1:], 2):
        module = ".".join(parts[:place])
        # a package may export a function by the name of one of its modules
        following = sys.modules.get(module, NOT_FOUND) if place < len(parts) else NOT_FOUND
        if following is NOT_FOUND:
            following = getattr(found, part, NOT_FOUND)
        if following is NOT_FOUND and isinstance(found, type(sys)):
            following = sys.modules.get(module, NOT_FOUND)
            if following is NOT_FOUND:
                if not load and hasattr(found, "__path__"):
                    return NOT_FOUND if importlib.util.find_spec(module) is None else NOT_LOADED
                following = imported(module)
        if following is NOT_FOUND:
            return NOT_FOUND
        found = following
    return found


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        return NOT_FOUND


def reader(names: Names, table: dict[str, Any]) -> Callable[[str], Any]:
    """The `__getattr__` of an adapter module: a name is looked up when it is first used."""

    def get(alias: str) -> Any:
        if alias not in names.rows:
            raise AttributeError(alias)
        table[alias] = found = names.get(alias)
        return found

    return get
