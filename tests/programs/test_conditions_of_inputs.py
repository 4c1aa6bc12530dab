"""Branches on what an input decides: each answer has an entry, no graph breaks, and a condition that is asked at many places is asked once."""

from __future__ import annotations

import operator

import pytest
import torch

import dynacompile
from dynacompile import events
from dynacompile.capture.tensors.entry_conditions import Condition, Step


def graph_of_longformer(x, mask):
    """As longformer's: a mask of numbers is made of one of ints, parts of it are stored anew, and a number that is read from it decides in each layer."""
    rows = torch.arange(len(mask))[:, None]
    wide = torch.where(mask.bool()[rows, torch.arange(mask.shape[1])], 0.0, -1e9)
    inner = wide[:, :]
    inner[mask == 2] = 1e9
    is_global = (inner > 0).flatten().any().item()
    for _ in range(4):
        x = x.sin()
        if is_global:
            x = x + inner.clamp(0, 1)
    return x


def asked_twice(x, mask):
    found = (mask > 0).any()
    if found:
        x = x + 1
    mask = mask + 1
    if found:
        x = x * 2
    return x, mask


def stored_between(x, mask):
    """The two questions are about other numbers."""
    own = mask.clone()
    if (own > 2).any():
        x = x + 1
    own[0] = 9
    if (own > 2).any():
        x = x * 2
    return x


def stored_after(x, mask):
    own = mask.clone()
    is_large = (own > 2).any().item()
    own[0] = 9
    return x + 1 if is_large else x + own


def changed_otherwise(x, mask):
    own = mask.clone()
    own[0] = 9
    own.mul_(-1)
    return x + 1 if (own > 2).any().item() else x - 1


def at_places(x, mask):
    """A place of the mask may lie outside, as eager says where the program comes to it."""
    return x + 1 if x.new_zeros(5, dtype=torch.bool)[mask.long()].any().item() else x - 1


WHOLE = {graph_of_longformer: 2, asked_twice: 2, stored_between: 2}  # entries for masks with and without numbers above 2
MASKS = (torch.tensor([[1, 1, 0], [1, 0, 1]]), torch.tensor([[1, 2, 3], [1, 1, 0]]), torch.tensor([[0, 0, 0], [0, 0, 0]]), torch.tensor([[1, 2, 3], [0, 1, 0]]))


@pytest.mark.parametrize("function", [*WHOLE, stored_after, changed_otherwise, at_places], ids=lambda f: f.__name__)
def test_results_are_eagers_for_every_answer(function):
    compiled = dynacompile.compile(function, fullgraph=function in WHOLE)
    for mask in (*MASKS, *MASKS[::-1]):
        x = torch.randn(mask.shape)
        mine, theirs = compiled(x, mask.clone()), function(x, mask.clone())
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("function", WHOLE, ids=lambda f: f.__name__)
def test_an_entry_for_each_answer_and_no_break(function):
    told = []
    end = dynacompile.subscribe(lambda e: told.append(e) if isinstance(e, (events.Compiled, events.GraphBroke)) else None)
    compiled = dynacompile.compile(function, fullgraph=True, dynamic=False)
    for _ in range(2):
        for mask in MASKS:
            compiled(torch.randn(mask.shape), mask.clone())
    end()
    assert [type(e) for e in told] == [events.Compiled] * WHOLE[function]


def test_a_place_outside_is_eagers_error():
    compiled = dynacompile.compile(at_places)
    x = torch.randn(2)
    torch.testing.assert_close(compiled(x, torch.tensor([1, 4])), x - 1)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 7]))
    torch.testing.assert_close(compiled(x, torch.tensor([0, 2])), x - 1)


def stored_into_a_conversion(x, mask):
    """Of a mask of bools, the conversion gives the mask itself."""
    x = x + mask
    own = mask.to(torch.bool)
    own[0] = True
    return x * 2 if own.all() else x * 3


def test_a_question_about_another_type_writes_nothing():
    """An entry is asked of each call, also where its other guards fail: what it stores is stored into no tensor of the caller."""
    compiled = dynacompile.compile(stored_into_a_conversion, dynamic=False)
    x = torch.zeros(3)
    for mask in (torch.tensor([0, 1, 1]), torch.tensor([False, True, True]), torch.tensor([0, 0, 1]), torch.tensor([False, False, True])):
        mine, theirs = mask.clone(), mask.clone()
        torch.testing.assert_close(compiled(x, mine), stored_into_a_conversion(x, theirs))
        assert torch.equal(mine, theirs)


def test_a_condition_that_stores_leaves_what_it_is_asked_about():
    converts = ("call_method", "to", (Step(0), torch.bool), {})
    steps = [converts, ("call_function", operator.setitem, (Step(1), 0, True), {}), ("call_method", "all", (Step(1),), {})]
    given = torch.tensor([False, True, True])
    assert Condition(steps)(given) is True and given.tolist() == [False, True, True]
    assert Condition(steps)(torch.tensor([False]).expand(3)) is None


def of_many_inputs(x, *flags):
    for i, flag in enumerate(flags):
        if (flag > 0).all():
            x = x + x.new_full((64,), i).sum()
    return x * 2


def test_one_frame_asks_many_inputs():
    """As ranges of many quantizers, all of which have another answer from the second call on."""
    compiled = dynacompile.compile(of_many_inputs, fullgraph=True, isolate_recompiles=True)
    for value in (1, -1, -2, 3, -1):
        x, flags = torch.randn(3), [torch.full((2,), value) for _ in range(20)]
        torch.testing.assert_close(compiled(x, *flags), of_many_inputs(x, *flags))
    assert len(dynacompile.cache_entries(compiled)) == 2


def test_answers_make_a_bounded_number_of_entries():
    """After four, the frame is left where a condition is asked, and serves all answers."""
    broke = []
    end = dynacompile.subscribe(lambda e: broke.append(e) if isinstance(e, events.GraphBroke) else None)
    compiled = dynacompile.compile(of_many_inputs, isolate_recompiles=True)
    for k in range(16):
        x, flags = torch.randn(3), [torch.full((2,), 1 if k >> i & 1 else -1) for i in range(4)]
        torch.testing.assert_close(compiled(x, *flags), of_many_inputs(x, *flags))
        assert bool(broke) == (k >= 4)
    end()


class Looked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Embedding(5, 3)

    def forward(self, x, places):
        y = x.exp()
        if y.min() < 0.5:
            raise ValueError("small")
        kept = (places != 1).int().cumsum(1) * 2 - 1
        return self.rows(kept.clamp(min=0)) * y.sum() + self.rows.weight[places, places].sum()


def test_rows_that_an_input_names_are_looked_up_after_a_statement_that_raises():
    """A guard asks whether the places are there, since what is outside may only be found after the statement."""
    torch.manual_seed(0)  # sums of some weights cancel
    module = Looked()
    compiled = dynacompile.compile(module, isolate_recompiles=True)
    big, small = torch.ones(3), -torch.ones(3)
    inside, outside = torch.tensor([[0, 1, 2], [1, 1, 1]]), torch.tensor([[0, 2, 3], [0, 0, 9]])
    for x, places in ((big, inside), (small, inside), (big, outside), (small, outside), (big, inside), (big, inside * 2)):
        told = []
        for run in (compiled, module):
            try:
                told.append(run(x, places))
            except (ValueError, IndexError) as error:
                told.append((type(error), str(error)))
        assert torch.allclose(*told) if isinstance(told[1], torch.Tensor) else told[0] == told[1], (told, places)
    first = dynacompile.compile(Looked(), fullgraph=True, isolate_recompiles=True)
    first(big, inside)
    assert len(dynacompile.cache_entries(first)) == 1


class Positions(torch.nn.Module):
    """As embeddings of the places of words in a document, with the error that a library makes of torch's."""

    def __init__(self):
        super().__init__()
        self.table = torch.zeros(300, 300)
        self.across, self.down = torch.nn.Embedding(10, 3), torch.nn.Embedding(8, 3)

    def forward(self, boxes):
        self.table += 1  # so large that no call starts again as Python
        try:
            sides = [self.across(boxes[..., 0]), self.down(boxes[..., 1]), self.across(boxes[..., 2]), self.down.weight[boxes[..., 3]]]
        except IndexError as error:
            raise IndexError("coordinates are from 0 to 7") from error
        return sum(sides)


def test_rows_that_are_looked_up_in_a_clause_are_asked_by_guards():
    module = Positions()
    compiled = dynacompile.compile(module, isolate_recompiles=True)
    broke = []
    end = dynacompile.subscribe(lambda e: broke.append(e) if isinstance(e, events.GraphBroke) else None)
    inside = torch.arange(8).view(2, 4)
    for boxes in (inside, inside.flip(0) % 7, inside + 5, inside - 1, inside):
        told = []
        for run in (compiled, module):
            try:
                told.append(run(boxes))
            except IndexError as error:
                told.append((str(error), str(error.__cause__)))
        assert torch.allclose(*told) if isinstance(told[1], torch.Tensor) else told[0] == told[1], (told, boxes)
    end()
    assert broke[0].code == "caught-error" and len(dynacompile.cache_entries(compiled)) > 1  # of the calls with boxes outside
    whole = dynacompile.compile(Positions(), fullgraph=True, isolate_recompiles=True)
    whole(inside)
    assert len(dynacompile.cache_entries(whole)) == 1
