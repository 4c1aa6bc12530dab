"""Every kind: the native machine and its Python twin answer alike, and as the samples say."""

from __future__ import annotations

import pytest

from dynacompile.guards.evaluate import FrameValues
from dynacompile.guards.kinds import KINDS
from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import identity
from dynacompile.ir.source import Local
from tests.guards.samples import SAMPLES, Loud

X = Local("x", 0)


def test_every_kind_has_samples():
    assert set(SAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_samples(kind):
    for sample in SAMPLES[kind]():
        guard = Guard(kind, X, sample.expected)
        program = compile_guards([guard])
        for values, wanted in ((sample.holds, True), (sample.fails, False)):
            for value in values:
                assert program.check((value,), None, {}, {}) is wanted, (sample.expected, type(value))
                explained = failures([guard], FrameValues((value,)))
                assert (not explained) is wanted, (sample.expected, type(value), [f.text for f in explained])
                assert all(f.was != f.now for f in explained), [f.text for f in explained]


def test_missing_values_fail():
    program = compile_guards([Guard("NONE", Local("x", 3))])
    assert not program.check((None,), None, {}, {})
    assert program.last_failed == 0
    assert failures([Guard("NONE", Local("x", 3))], FrameValues((None,)))[0].text == "x: present -> missing"


def test_nothing_succeeds_a_dead_object():
    """Once the object is gone, None, which its weak reference then gives, does not hold in its place."""
    thing = Loud()
    guard = Guard("ID", X, identity(thing))
    program = compile_guards([guard])
    assert program.check((thing,), None, {}, {})
    del thing
    for value in (None, Loud()):
        assert not program.check((value,), None, {}, {})
        assert [f.subject for f in failures([guard], FrameValues((value,)))] == ["x"]
    with pytest.raises(ValueError, match="is gone"):
        compile_guards([guard])
    assert compile_guards([Guard("ID", X, identity(None))]).check((None,), None, {}, {})


def test_classes_of_one_name_are_told_apart():
    first, second = (type("Thing", (), {}) for _ in range(2))
    assert [f.text for f in failures([Guard("TYPE", X, first)], FrameValues((second(),)))] == ["type(x): Thing -> another Thing"]


def test_unknown_payloads_are_refused():
    with pytest.raises(ValueError, match="can't compare"):
        compile_guards([Guard("EQUALS", X, [1])])
    with pytest.raises(KeyError):
        compile_guards([Guard("NO_SUCH_KIND", X)])
