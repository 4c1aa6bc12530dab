"""Conditions on sizes, strides and ints: the native machine and its Python twin answer alike."""

from __future__ import annotations

import math
import random

import pytest
import torch

from dynacompile import native
from dynacompile.guards.evaluate import FrameValues
from dynacompile.guards.program import compile_gather, compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.expressions import Quantity, evaluated, formula, number
from dynacompile.ir.guard_facts import ShapeFacts
from dynacompile.ir.source import Local

X, Y, N = Local("x", 0), Local("y", 1), Local("n", 2)
QUANTITIES = (Quantity(X, "size", 0), Quantity(X, "size", 1), Quantity(X, "stride", 0), Quantity(Y, "size", 0), Quantity(N, "value"))
BINARY = ("add", "mul", "floordiv", "mod", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "and", "or")


def holds(expression, values, quantities=QUANTITIES):
    guard = Guard("SHAPE", None, ShapeFacts(quantities, expression))
    native = compile_guards([guard]).check(values, None, {}, {})
    explained = failures([guard], FrameValues(values))
    assert native is not bool(explained), (expression, [f.text for f in explained])
    return native


def some_expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return ("quantity", rng.randrange(len(QUANTITIES))) if rng.random() < 0.6 else ("constant", rng.randint(-3, 9))
    if rng.random() < 0.1:
        return ("not", some_expression(rng, depth - 1))
    return (rng.choice(BINARY), some_expression(rng, depth - 1), some_expression(rng, depth - 1))


def test_random_expressions():
    rng = random.Random(0)
    held = 0
    for _ in range(2000):
        expression = some_expression(rng, 4)
        values = (torch.empty(rng.randint(0, 9), rng.randint(0, 9)), torch.empty(rng.randint(0, 9)), rng.randint(-9, 9))
        numbers = [q.read(values[q.source.slot]) for q in QUANTITIES]
        try:
            wanted = bool(evaluated(expression, numbers))
        except ArithmeticError:
            wanted = False
        assert holds(expression, values) is wanted, (expression, numbers)
        held += wanted
    assert 500 < held < 1800


F = Local("f", 3)
WITH_FLOATS = (*QUANTITIES, Quantity(F, "real"))
OF_TWO = ("add", "sub", "mul", "truediv", "max", "min", "eq", "ne", "lt", "le", "gt", "ge", "same")
OF_ONE = ("neg", "abs", "finite", "tofloat", "trunc", "floor", "ceil", "round", "sqrt", "exp", "log", "sin", "cos", "tanh", "not")


def some_float(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        chosen = rng.random()
        return ("quantity", rng.randrange(4, 6)) if chosen < 0.6 else number(rng.randint(-3, 9) if chosen < 0.8 else rng.uniform(-3, 3))
    if rng.random() < 0.3:
        return (rng.choice(OF_ONE), some_float(rng, depth - 1))
    return (rng.choice(OF_TWO), some_float(rng, depth - 1), some_float(rng, depth - 1))


def test_random_expressions_of_floats():
    rng = random.Random(0)
    held = 0
    for _ in range(3000):
        expression = (rng.choice(("lt", "le", "eq", "ne")), some_float(rng, 4), some_float(rng, 3))
        values = (torch.empty(2, 3), torch.empty(1), rng.randint(-9, 9), rng.choice((0.0, -0.0, 0.5, rng.uniform(-9, 9), rng.uniform(-1e9, 1e9))))
        numbers = [q.read(values[q.source.slot]) for q in WITH_FLOATS]
        try:
            wanted = bool(evaluated(expression, numbers))
        except (ArithmeticError, ValueError):
            continue  # Python raises: capture relies on a finite result beside
        assert holds(expression, values, WITH_FLOATS) is wanted, (expression, numbers)
        held += wanted
    assert 500 < held < 2500


def test_floats_are_compared_bit_by_bit():
    zero = ("same", ("quantity", 5), number(0.0))
    values = (torch.empty(2, 3), torch.empty(1), 1)
    assert holds(zero, (*values, 0.0), WITH_FLOATS) and not holds(zero, (*values, -0.0), WITH_FLOATS)
    assert not holds(zero, (*values, 0), WITH_FLOATS)
    nan = ("same", ("quantity", 5), number(math.nan))
    assert holds(nan, (*values, math.nan), WITH_FLOATS) and not holds(nan, (*values, 1.0), WITH_FLOATS)


def test_graph_inputs_are_computed_as_python_does():
    f, n = Quantity(Local("f", 0), "real"), Quantity(Local("n", 1), "value")
    formulas = [formula("mul", formula("add", f, 0.1), n), formula("trunc", formula("pow", f, 2)), formula("truediv", n, 3), formula("neg", f)]
    gather = compile_gather([f.source, n.source], formulas, lambda *given: given)
    for a, b in ((0.1, 3), (2.7, -7), (-1e5, 2**40)):
        assert gather(a, b) == ((a + 0.1) * b, int(a**2), b / 3, -a)
    with pytest.raises(RuntimeError, match="can't be loaded"):
        gather("text", 1)


@pytest.mark.parametrize(
    ("x", "n", "wanted"), [(torch.empty(4, 4), 4, True), (torch.empty(4), 4, False), (4, 4, False), (None, 4, False), (torch.empty(4, 4), True, False)]
)
def test_other_objects_fail(x, n, wanted):
    expression = ("eq", ("quantity", 1), ("quantity", 4))
    assert holds(expression, (x, torch.empty(1), n)) is wanted


def test_numbers_that_no_word_holds_fail():
    assert not holds(("ge", ("quantity", 4), ("constant", 0)), (torch.empty(1, 1), torch.empty(1), 2**70))
    square = ("mul", ("quantity", 4), ("quantity", 4))
    guard = Guard("SHAPE", None, ShapeFacts(QUANTITIES, ("ge", square, ("constant", 0))))
    assert not compile_guards([guard]).check((torch.empty(1, 1), torch.empty(1), 2**40), None, {}, {})


@pytest.mark.parametrize("program", [(), (0,), (4,), (0, 1, 0, 2), (1, 9, 0), (99,), (1, 0, -1), (3, -1), (0, 1, 0, 2, 4, 4)])
def test_malformed_programs_are_refused(program):
    tree = [("slot", -1, 0)]
    with pytest.raises(ValueError, match="postfix"):
        native.core().GuardProgram(tree, [], [("shape", (0,), 0, 0, program)])


def test_text():
    facts = ShapeFacts(QUANTITIES, ("eq", ("mod", ("add", ("quantity", 0), ("constant", 1)), ("constant", 8)), ("constant", 0)))
    assert facts.text() == "(x.size(0) + 1) % 8 == 0"
    guard = Guard("SHAPE", None, facts)
    assert failures([guard], FrameValues((torch.empty(8, 1), torch.empty(1), 1)))[0].text.startswith("(x.size(0) + 1) % 8 == 0: True -> False (x.size(0) = 8,")
