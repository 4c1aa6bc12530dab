"""The slice of the random Python programs that runs with the tests; `python -m tests.fuzz.language FIRST LAST` runs any others."""

from __future__ import annotations

import ast

import pytest

from tests.fuzz.language.observe import difference
from tests.fuzz.language.programs import NAMES_FROM, OBJECTS_FROM, SHORT_FROM, WIDER_FROM, Program, generate
from tests.fuzz.language.shrink import shrink

PART = 40
THROUGH_ALL_STAGES = range(0, 120, 15)


@pytest.mark.parametrize(
    ("first", "count"), [(first, PART) for first in range(0, 120, PART)] + [(first, 10) for first in (WIDER_FROM, NAMES_FROM, OBJECTS_FROM, SHORT_FROM)]
)
def test_as_in_eager(first, count):
    for seed in range(first, first + count):
        program = generate(seed)
        told = difference(program, reference=seed in THROUGH_ALL_STAGES)
        assert told is None, f"seed {seed}: {told}\n{program.source}"


def test_programs_are_what_they_were():
    assert generate(7).source == generate(7).source
    assert len({generate(seed).source for seed in range(20)}) == 20


def test_programs_are_python():
    for seed in range(1000, 1100):
        parts = ast.parse(generate(seed).source).body
        assert "calls" in [part.name for part in parts if isinstance(part, ast.FunctionDef)], f"seed {seed}"


def test_a_difference_is_seen():
    """A program that knows whether it is compiled differs, and is made small."""
    source = "import dynacompile\ndef program(x):\n    y = [x, 1]\n    if dynacompile.is_compiling():\n        y.append(2)\n    return y\n"
    program = Program(0, source + "def calls():\n    yield program, (3,)\n    yield program, (4,)\n")
    told = difference(program)
    assert told is not None and told.startswith("call 0, result"), told
    assert len(shrink(program)) < len(program.source)
