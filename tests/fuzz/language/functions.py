"""The statements and their weights, and functions made of them."""

from __future__ import annotations

from tests.fuzz.language.compound import attempt, branch, define, emit_break, leave, loop, manage, match, while_loop
from tests.fuzz.language.expressions import expression
from tests.fuzz.language.more import attribute_work, early_return, function_calls, grad_state, module_state, nested_data, tensor_calls, view_write
from tests.fuzz.language.scope import BOOL, COUNTS, FLOAT, INT, INTS, STR, TENSOR, TUPLE, TYPES, Scope, Signature, Statement, body
from tests.fuzz.language.statements import assign, augment, drive, emit, maybe_risky, mutate, outer_write, remove, unpack

SIMPLE: list[tuple[float, Statement]] = [
    (8, assign),
    (3, augment),
    (1.5, unpack),
    (5, mutate),
    (0.3, maybe_risky),
    (1.2, outer_write),
    (0.6, emit_break),
]
ROWS: list[tuple[float, Statement]] = [
    *SIMPLE,
    (3, branch),
    (2.5, loop),
    (1, while_loop),
    (2, attempt),
    (1.5, manage),
    (0.8, leave),
    (0.4, remove),
    (0.8, match),
    (1.2, define),
    (0.8, emit),
    (0.2, drive),
    (0.8, view_write),
    (0.8, module_state),
    (0.8, early_return),
    (0.8, attribute_work),
    (0.6, nested_data),
    (0.5, grad_state),
    (0.8, function_calls),
    (0.8, tensor_calls),
]


def function(g: Scope, name: str, budget: int) -> Signature:
    """A function at the top level of the program."""
    is_generator = g.chance(0.2)
    returns = INT if is_generator else g.pick.choice((INT, INT, TENSOR, TENSOR, INTS, COUNTS, TUPLE, FLOAT, STR))
    positional = tuple(g.pick.choice(TYPES) for _ in range(g.pick.randint(1, 3)))
    keywords = tuple((f"{name}_k{i}", g.pick.choice((INT, FLOAT, BOOL, STR))) for i in range(g.pick.randint(0, 2)))
    s = Signature(name, positional, keywords, g.chance(0.25), g.chance(0.2), returns, is_generator)
    names = [g.fresh(k) for k in positional]
    star, stars = g.fresh(TUPLE), g.fresh(COUNTS)
    parameters = [*names, *([f"*{star}"] if s.star else []), *(f"{n}={expression(g, k, 0)}" for n, k in keywords), *([f"**{stars}"] if s.stars else [])]
    g.line(f"def {name}({', '.join(parameters)}):")
    g.budget, saved = budget, g.budget
    with g.function(returns, is_generator):
        for parameter, kind in [*zip(names, positional, strict=True), *keywords]:
            g.declare(parameter, kind)
        if s.star:
            g.declare(star, TUPLE)
        if s.stars:
            g.declare(stars, COUNTS)
        body(g, g.pick.randint(2, 6))
        if is_generator:
            g.line(f"yield {expression(g, INT, 1)}")
        else:
            g.line(f"return {expression(g, returns, 2)}")
    g.budget = saved
    g.line("")
    g.signatures.append(s)
    return s
