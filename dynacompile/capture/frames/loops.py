"""One loop whose rounds are followed once where they are alike: what is known of it while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from dynacompile.capture.frames.interpreter import Taking
from dynacompile.capture.frames.repeats import leaves
from dynacompile.capture.frames.repetition import Round
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.values.base import IteratorValue, Value


class Loop:
    """One loop of one frame, while it runs. rounds: those that were followed, by how their items look. followed: the last round was, and is not among them.

    appended, read: the lists that rounds append to, and those that they read items of. taking: what empties the generator whose loop it is, meanwhile."""

    def __init__(self, iterator: IteratorValue, taking: Taking | None):
        self.iterator, self.taking = iterator, taking
        self.rounds: dict[tuple, list[Round]] = {}
        self.kept = self.failures = self.begun = 0
        self.followed = False
        self.appended: dict[int, Value] = {}
        self.read: dict[int, Value] = {}

    def add(self, item: Value, made: Round, read: Mapping[int, Value]) -> bool:
        """Keeps a round; False where rounds read what others append."""
        self.appended |= {id(append.target): append.target for append in made.appends}
        self.read |= read
        self.rounds.setdefault(looks(item), []).append(made)
        self.kept += 1
        self.followed = False
        return self.appended.keys().isdisjoint(self.read)

    def forget(self) -> None:
        """A round did what is not known: others may have become different ones."""
        self.rounds.clear()
        self.kept = 0
        self.failures += 1


def looks(item: Value) -> tuple:
    """Differs for items whose rounds differ, as far as that is seen at once."""
    if type(item) is TensorValue:
        return item.appearance()
    return tuple(leaf.appearance() if isinstance(leaf, TensorValue) else type(leaf) for leaf in leaves(item))
