"""The order of a set that the frame makes goes by all that was done to it: how large its table grew, and what was taken out."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Recipe(tuple):
    """Names of methods of sets, each with its arguments, by which an empty set becomes the set. A recipe among the arguments stands for its set."""


class Table:
    """A set of constants to which the same is done, so that its order is Python's. recipe: what was done so far."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()
        self.recipe: list[tuple[str, tuple]] = []

    def do(self, name: str, *args: Any) -> Any:
        """keys.name(*args), whose result takes the set's place where it is a set. Arguments may be tables."""
        found = getattr(self.keys, name)(*(arg.keys if isinstance(arg, Table) else arg for arg in args))
        self.recipe.append((name, tuple(Recipe(arg.recipe) if isinstance(arg, Table) else arg for arg in args)))
        if isinstance(found, set):
            self.keys = found
        return found

    def as_now(self) -> Table:
        """What makes the set as it is by now, whatever is done to it later."""
        made = Table()
        made.keys, made.recipe = self.keys, list(self.recipe)
        return made

    def derived(self, name: str, *args: Any) -> Table:
        """The table of the set that a method gives which leaves this one as it is."""
        made = self.as_now()
        made.do(name, *args)
        return made


def replayed(recipe: Recipe) -> set[Any]:
    """A set with the history that the recipe tells."""
    made: set[Any] = set()
    for name, args in recipe:
        found = getattr(made, name)(*(replayed(arg) if isinstance(arg, Recipe) else arg for arg in args))
        made = found if isinstance(found, set) else made
    return made
