"""What a frame sets and then deletes is gone afterwards, whether another call finds it there or not; what it deletes and then sets comes last."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynacompile


class Box:
    pass


class Slots:
    __slots__ = ("x",)


def attribute(x: torch.Tensor, box: Any) -> torch.Tensor:
    box.x = 1
    y = x + box.x
    del box.x
    return y


def moved(x: torch.Tensor, box: Any) -> torch.Tensor:
    del box.x
    y = x + 1
    box.last, box.x = 2, 3
    return y


def set_deleted_and_set(x: torch.Tensor, box: Any) -> torch.Tensor:
    box.x = 0
    del box.x
    box.last = 1
    box.x = 3
    return x + box.x


def item(x: torch.Tensor, table: dict[str, int]) -> torch.Tensor:
    table["x"] = 1
    y = x + table["x"]
    del table["x"]
    return y


def global_name(x: torch.Tensor, box: Any) -> torch.Tensor:
    global NAME
    NAME = 1
    y = x + NAME
    del NAME
    return y


def deleted_global(x: torch.Tensor, box: Any) -> torch.Tensor:
    global NAME
    del NAME
    NAME = 2
    return x + NAME


def state(made: Any) -> object:
    if isinstance(made, Slots):
        return getattr(made, "x", "nothing")
    shown = made if isinstance(made, dict) else vars(made)
    return list(shown.items()), globals().get("NAME", "nothing")


def outcomes(function: Callable, make: Callable[[], Any], there: tuple[bool, ...]) -> list[object]:
    """What is left after calls that find a value there, or do not."""
    found = []
    for present in there:
        made = make()
        globals().pop("NAME", None)
        if present:
            globals()["NAME"] = 7
            made.update(x=7) if isinstance(made, dict) else setattr(made, "x", 7)
        if not isinstance(made, Slots):
            made.update(y=8) if isinstance(made, dict) else setattr(made, "y", 8)
        try:
            result = function(torch.ones(2), made).tolist()
        except (AttributeError, KeyError, NameError) as error:
            result = repr(error)
        found.append((result, state(made)))
    globals().pop("NAME", None)
    return found


@pytest.mark.parametrize("there", [(False, True, False), (True, False, True)])
@pytest.mark.parametrize(
    ("function", "make"),
    [(attribute, Box), (attribute, Slots), (moved, Box), (set_deleted_and_set, Box), (item, dict), (global_name, Box), (deleted_global, Box)],
)
def test_what_is_left(function, make, there):
    assert outcomes(dynacompile.compile(function, backend="eager"), make, there) == outcomes(function, make, there)


@pytest.mark.parametrize("there", [(False, True, False), (True, False, True)])
def test_a_cell_of_an_enclosing_function(there):
    def results(compiled: bool) -> list[tuple[list[float], bool]]:
        cell = 0

        def program(x: torch.Tensor) -> torch.Tensor:
            nonlocal cell
            cell = 1
            y = x + cell
            del cell
            return y

        call, found = dynacompile.compile(program, backend="eager") if compiled else program, []
        for present in there:
            if present:
                cell = 5
            made = call(torch.ones(2)).tolist()
            try:
                found.append((made, bool(cell)))
            except NameError:
                found.append((made, False))
        return found

    assert results(True) == results(False)


@pytest.mark.parametrize("make", [lambda: collections.Counter("aab"), lambda: 4, lambda: None, lambda: (1, 2), lambda: "text", lambda: {"a": 1}])
def test_items_of_what_has_none(make):
    """A Counter takes no offence at the deletion of what it has not; numbers, None and texts have no items at all."""

    def program(x: torch.Tensor, values: Any, log: list[str]) -> torch.Tensor:
        try:
            del values["b"]
            log.append("deleted")
        except (TypeError, KeyError) as error:
            log.append(repr(error))
        try:
            values["b"] = 1
            log.append("stored")
        except TypeError as error:
            log.append(repr(error))
        return x + 1

    logs: tuple[list[str], list[str]] = ([], [])
    compiled, values = dynacompile.compile(program, backend="eager"), (make(), make())
    assert torch.equal(compiled(torch.ones(2), values[0], logs[0]), program(torch.ones(2), values[1], logs[1]))
    assert logs[0] == logs[1] and values[0] == values[1]


def test_a_cell_that_is_empty_in_some_rounds_of_a_loop():
    """The resume function of the loop finds the cell empty in the first round and set in the others, and in the next call it is empty again."""

    def program(x: torch.Tensor, log: list[object]) -> torch.Tensor:
        for k in range(3):
            dynacompile.graph_break()
            value = k
            read = lambda: value  # noqa: B023, E731
            del value
            try:
                log.append(read())
            except NameError as error:
                log.append(type(error).__name__)
            value = 5
        return x + 1

    compiled, logs = dynacompile.compile(program, backend="eager"), ([], [])
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2), logs[0]), program(torch.ones(2), logs[1]))
        assert logs[0] == logs[1]
