"""Why guards do not hold, where an object refuses what it is asked, or a signal handler raises meanwhile."""

import pytest
import torch

import dynacompile
from dynacompile.guards import program
from dynacompile.ir.captured import Guard


def guard_on_x() -> Guard:
    return Guard("TYPE", dynacompile.ir.source.Local("x", 0), int)


def test_what_an_object_refuses_to_tell_is_a_failure(monkeypatch):
    def refuse(guard, value, frame):
        raise RuntimeError("has no strides")

    monkeypatch.setattr(program, "differences", refuse)
    (failure,) = program.failures([guard_on_x()], {"x": torch.ones(1)})
    assert "RuntimeError: has no strides" in str(failure)


def test_what_a_signal_handler_raises_goes_to_the_program(monkeypatch):
    original, calls = program.differences, []

    def interrupted(guard, value, frame):
        calls.append(guard)
        if len(calls) == 1:
            raise ValueError("of a handler")
        return original(guard, value, frame)

    monkeypatch.setattr(program, "differences", interrupted)
    with pytest.raises(ValueError, match="of a handler"):
        program.failures([guard_on_x()], {"x": 3})
