"""Statements that raise where a tensor is not what they ask for are asked after the graph, wherever that can't be told from eager.

PYTEST_DONT_REWRITE: pytest would write other code for the assert statements of the programs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported


class Refused(Exception):
    def __init__(self, text):
        super().__init__(text)
        REFUSED.append(text)


REFUSED: list[str] = []


GOOD, BAD = torch.ones(3), torch.tensor([float("nan"), 1.0, -1.0])


def finite(x):
    assert torch.isfinite(x).all(), "not finite"
    return x * 2


def without_message(x):
    y = x.exp()
    assert (y > 0).all()
    return y.sum()


def negative(x):
    if (x < 0).any():
        raise ValueError(f"negative, of {x.shape[0]} numbers")
    return x + 1


def several_arguments(x):
    if not torch.isfinite(x).all():
        raise RuntimeError("not finite", 3)
    return x + 1


def class_alone(x):
    if not torch.isfinite(x).all():
        raise ArithmeticError
    return x + 1


def called(x):
    return finite(x * 2) + 1


def two_checks(x):
    assert torch.isfinite(x.sum()), "sum"
    y = x * 2
    assert y.min() > 0, "least"
    return y


def before_attention(x):
    assert torch.isfinite(x).all(), "queries"
    q = x.view(1, 1, 3, 1)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q).cumsum(2).argmax(2)


def a_number_that_is_no_bool(x):
    assert x.sum()
    return x + 1


def holds(condition):
    return bool(condition)


def told_by_another_function(x):
    y = x.detach().clone().mul_(2)
    if not holds((y > 0).all()):
        raise ValueError("not above zero")
    return y + 1


def in_a_generator(x):
    def checked(parts):
        for part in parts:
            if not torch.isfinite(part.sum()):
                raise ValueError("not finite")
            yield part * 2

    return sum(checked([x, x + 1, x * 3]))


def outcome(function: Callable, x: torch.Tensor) -> object:
    try:
        return function(x.clone())
    except Unsupported:
        raise
    except (AssertionError, ValueError, RuntimeError, ArithmeticError, Refused) as error:
        return type(error), error.args


def same(left: object, right: object) -> bool:
    return torch.allclose(left, right, equal_nan=True) if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) else left == right


@pytest.mark.parametrize(
    "function",
    [
        finite, without_message, negative, several_arguments, class_alone, called, two_checks, before_attention, a_number_that_is_no_bool,
        told_by_another_function, in_a_generator,
    ],
)  # fmt: skip
def test_one_graph_that_raises_what_eager_raises(function):
    compiled = dynacompile.compile(function, fullgraph=True, isolate_recompiles=True)
    for x in (GOOD, BAD, GOOD, -GOOD, torch.zeros(3)):
        assert same(outcome(compiled, x), outcome(function, x)), x
    assert len(dynacompile.cache_entries(compiled)) == 1


def test_gradients():
    x = GOOD.clone().requires_grad_()
    dynacompile.compile(called, fullgraph=True, isolate_recompiles=True)(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_the_line_of_the_statement_is_shown():
    with pytest.raises(AssertionError) as caught:
        dynacompile.compile(finite, isolate_recompiles=True)(BAD)
    shown = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert shown.line == 'assert torch.isfinite(x).all(), "not finite"'


def caught_here(x):
    try:
        assert x.min() > 0, "least"
    except AssertionError:
        return x - 1
    return x + 1


def writes_later(x):
    assert x.min() > 0, "least"
    x.add_(1)
    return x * 2


def changed_before(x, log=[]):  # noqa: B006
    log.append(1)
    assert x.min() > 0, "least"
    return x * 2


def shows_the_tensor(x):
    assert x.min() > 0, f"least of {x}"
    return x * 2


def class_of_its_own(x):
    if x.min() < 0:
        raise Refused("negative")
    return x * 2


def ends_an_iteration(x):
    def until_negative(parts):
        for part in parts:
            if part.sum() < 0:
                raise StopIteration("negative")
            yield part * 2

    return sum(until_negative([x * 2, x + 1]))


ASKED = [caught_here, writes_later, changed_before, class_of_its_own]


@pytest.mark.parametrize("function", ASKED)
def test_what_eager_would_have_done_otherwise_ends_the_graph(function):
    """Guards do not ask tensors with a history."""
    with pytest.raises(Unsupported, match="a branch depends on the values"):
        dynacompile.compile(function, fullgraph=True, isolate_recompiles=True)(GOOD.clone().requires_grad_().clone())
    check_stories(function, lambda x: x.clone().requires_grad_().clone())


@pytest.mark.parametrize("function", [*ASKED, shows_the_tensor])
def test_what_an_input_decides_is_a_guard(function):
    compiled = check_stories(function, torch.clone, fullgraph=function is not class_of_its_own)
    assert len(dynacompile.cache_entries(compiled)) <= 2


def test_an_error_that_would_end_an_iteration_is_raised_where_it_is():
    for x in (GOOD, -GOOD):
        compiled = dynacompile.compile(ends_an_iteration, isolate_recompiles=True)
        assert same(outcome(compiled, x), outcome(ends_an_iteration, x))


def check_stories(function, given, **options):
    compiled = dynacompile.compile(function, isolate_recompiles=True, **options)
    for x in (GOOD, -GOOD, GOOD):
        have, want = given(x), given(x)
        found, wanted = (outcome_in_place(f, a) for f, a in ((compiled, have), (function, want)))
        assert same(found, wanted) and torch.equal(have, want)
    return compiled


def outcome_in_place(function: Callable, x: torch.Tensor) -> object:
    try:
        return function(x)
    except (AssertionError, ValueError, RuntimeError, ArithmeticError, Refused) as error:
        return type(error), error.args
