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


def changes_what_it_has_made(x):
    y = x.clone()
    assert (x > 0).all(), "not above zero"
    with torch.no_grad():
        y.clamp_(min=0.5).sqrt_()
    z = y * 2
    z += y
    return z


def changes_it_between_two_checks(x):
    y = x * 2
    if (y < 0).any():
        raise ValueError("negative")
    y.sub_(1)
    if (y > 1).any():
        raise ValueError("large")
    y *= 3
    return y


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
        told_by_another_function, in_a_generator, changes_what_it_has_made, changes_it_between_two_checks,
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


ASKED = [caught_here, writes_later, class_of_its_own]
STARTS_AGAIN = [caught_here, class_of_its_own]


@pytest.mark.parametrize("function", ASKED)
def test_what_eager_would_have_done_otherwise_ends_the_graph(function):
    """Guards do not ask tensors with a history. Where nothing of a history is written, the call starts again instead."""
    given = lambda x: x.clone().requires_grad_().clone()  # noqa: E731
    if function in STARTS_AGAIN:
        check_stories(function, given, fullgraph=True)
        return
    with pytest.raises(Unsupported, match="a branch depends on the values"):
        dynacompile.compile(function, fullgraph=True, isolate_recompiles=True)(given(GOOD))
    check_stories(function, given)


@pytest.mark.parametrize("function", [*ASKED, shows_the_tensor])
def test_what_an_input_decides_is_a_guard(function):
    compiled = check_stories(function, torch.clone, fullgraph=function is not class_of_its_own)
    assert len(dynacompile.cache_entries(compiled)) <= 2


def shows_what_it_has_made(x, shown):
    y = x.clone()
    shown.append(y)
    assert (y > 0).all(), "not above zero"
    y.add_(1)
    return y * 2


def shows_a_part_of_it(x, shown):
    y = x * 1
    shown.append(y[1:])
    assert (y > 0).all(), "not above zero"
    y += 1
    return y * 2


def raises_what_it_has_made(x, shown):
    y = x.clone()
    if (y < 0).any():
        raise ValueError("negative", y)
    shown.append(y.add_(1))
    return y * 2


def raises_what_it_has_made_later(x, shown):
    wrong = (x < 0).any()
    y = x.clone()
    if wrong:
        raise ValueError("negative", y)
    shown.append(y.add_(1))
    return y * 2


@pytest.mark.parametrize("function", [raises_what_it_has_made, raises_what_it_has_made_later])
@pytest.mark.parametrize("given", [torch.clone, lambda x: x.clone().requires_grad_().clone()], ids=["asked by guards", "asked by residual code"])
def test_an_error_has_a_tensor_as_it_was(function, given):
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    assert torch.equal(compiled(given(GOOD), []), (GOOD + 1) * 2)
    with pytest.raises(ValueError, match="negative") as caught:
        compiled(given(-GOOD), [])
    assert torch.equal(caught.value.args[1], -GOOD)


def changes_what_it_makes_behind(x):
    if (x < 0).any():
        raise ValueError(f"negative: {x.detach()}")
    y = x.clone()
    y.add_(1)
    return torch.empty(3).fill_(2) * y


def test_what_is_made_behind_it_may_change():
    compiled = check_stories(changes_what_it_makes_behind, lambda x: x.clone().requires_grad_().clone(), fullgraph=True)
    assert len(dynacompile.cache_entries(compiled)) == 1


@pytest.mark.parametrize("function", [shows_what_it_has_made, shows_a_part_of_it])
def test_what_others_see_already_is_not_changed_before_the_error(function):
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    for x in (GOOD, -GOOD, GOOD * 2):
        found, wanted = [], []
        assert same(outcome_in_place(lambda x: compiled(x, found), x), outcome_in_place(lambda x: function(x, wanted), x))  # noqa: B023
        assert len(found) == len(wanted) == 1
        assert torch.equal(found[0], wanted[0])


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


class Ranges(torch.nn.Module):
    """Keeps what it has seen, as quantizers do."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.notes = 0, [], {}
        self.register_buffer("least", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        assert x.isfinite().all() and x.sum() != 9, "not finite"
        self.least = torch.minimum(self.least, x.detach().min())
        self.notes["last"] = x.shape[0]
        return x * 2


class Twice(torch.nn.Module):
    """The second question comes after what the first call changed, and before what the second changes again."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = Ranges(), Ranges(), None
        self.first.seen = self.second.seen = ()

    def one(self, ranges, x):
        y = x * 3
        if y.isnan().any():
            raise ValueError("not a number")
        ranges.least, ranges.notes["last"] = y.detach().amin(0, keepdim=True), [x.shape[0]]
        assert y.max() < 90 and y.min() > -90, "wide"
        ranges.calls = ranges.calls + 1
        self.last = y
        return y

    def forward(self, x):
        return self.one(self.first, self.one(self.second, self.one(self.first, x)))


def story(module, run, inputs):
    """What each call gives or raises, and what the module holds then."""
    told = []
    for x in inputs:
        found = outcome(run, x)
        parts = [p for p in module.modules() if isinstance(p, Ranges)]
        told.append((found, [(p.calls, list(p.seen), {k: str(v) for k, v in p.notes.items()}, p.least.tolist()) for p in parts], getattr(module, "last", None)))
    return told


@pytest.mark.parametrize("kind", [Ranges, Twice])
def test_changes_before_the_question_are_made_and_those_after_it_are_not(kind):
    rows = (GOOD, BAD, GOOD * 3, -GOOD, GOOD * 20, torch.tensor([-4.0, 1.0, 2.0]), GOOD * 5, torch.full((3,), float("inf")), GOOD)
    mine, theirs = kind(), kind()
    compiled = dynacompile.compile(mine, fullgraph=True, isolate_recompiles=True)
    for have, want in zip(story(mine, compiled, rows), story(theirs, theirs, rows), strict=True):
        assert same(have[0], want[0]) and have[1] == want[1]
        assert have[2] is want[2] is None or torch.equal(have[2], want[2])


def shared_by_two(x, box):
    inner = {"x": 1}
    box["inner"] = inner
    y = x * 2
    assert y.min() > 0, "least"
    inner["x"] = 2
    return y


def set_back(x, box):
    before = box["kept"]
    box["kept"] = 5
    y = x * 2
    assert y.min() > 0, "least"
    box["kept"] = before
    return y


def taken_out(x, box):
    box["new"] = 1
    y = x * 2
    assert y.min() > 0, "least"
    del box["new"]
    box["kept"] = y
    return y


def filled_later(x, box):
    box["mask"] = y = x * 2
    assert y.min() > 0, "least"
    y[x > 1] = 0.0
    return y + 1


def a_cell_of_its_own(x, box):
    count = 0

    def read():
        return count

    box["kept"] = 7
    box["read"] = read
    count = 5
    y = x * 2
    assert y.min() > 0, "least"
    count = 6
    return y


def a_function_that_is_returned(x, box):
    count = 0

    def read():
        return count

    count = 5
    y = x * 2
    assert y.min() > 0, "least"
    box["read"] = read
    return y


@pytest.mark.parametrize("function", [a_cell_of_its_own, a_function_that_is_returned, shared_by_two, set_back, taken_out, filled_later])
def test_what_others_see_when_it_raises_is_as_it_was_then(function):
    mine, theirs = {"kept": 3}, {"kept": 3}
    compiled = dynacompile.compile(function, isolate_recompiles=True)
    for x in (GOOD, -GOOD, GOOD * 2, GOOD):
        x = x.clone().requires_grad_().clone()
        assert same(outcome(lambda x: compiled(x, mine), x), outcome(lambda x: function(x, theirs), x))
        held = [
            {key: value.tolist() if isinstance(value, torch.Tensor) else value() if callable(value) else value for key, value in box.items()}
            for box in (mine, theirs)
        ]
        assert held[0] == held[1] and list(held[0]) == list(held[1])


def last_of_a_jump(x):
    if x.detach().exp().min() > 0.5:
        return x * 2
    raise ValueError("small")


def either(x):
    assert x.exp().min() > 2 or x.exp().max() < 1, "between"
    return x * 2


def test_the_statement_may_be_where_the_jump_leads_to():
    for function, whole in ((last_of_a_jump, True), (either, False)):
        compiled = dynacompile.compile(function, fullgraph=whole, isolate_recompiles=True)
        for x in (GOOD, -GOOD, GOOD / 2, -GOOD * 9):
            x = x.clone().requires_grad_().clone()
            assert same(outcome(compiled, x), outcome(function, x))
