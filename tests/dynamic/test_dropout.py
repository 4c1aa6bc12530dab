"""Dropout of symbolic sizes draws as eager's: nothing where nothing or all is dropped."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile
from tests.scenarios import check_same

FORMS = {
    "torch.dropout": lambda x, p: torch.dropout(x, p, True),
    "F.dropout": lambda x, p: F.dropout(x, p),
    "in place": lambda x, p: F.dropout(x * 2, p, inplace=True),
    "of channels": lambda x, p: F.dropout1d(x, p),
    "not in training": lambda x, p: F.dropout(x, p, False),
}


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_numbers_and_the_random_state_are_eagers(form, p):
    def dropped(x):
        return FORMS[form](x, p) + torch.rand(3)

    compiled = dynacompile.compile(dropped, dynamic=True, isolate_recompiles=True, options={"reference": True})
    for rows in (4, 7):
        found = []
        for function in (dropped, compiled):
            torch.manual_seed(rows)
            x = torch.full((2, rows, 3), 3.0, requires_grad=True)
            made = function(x)
            made.sum().backward()
            found.append((made.detach(), x.grad, torch.get_rng_state()))
        for want, got in zip(*found, strict=True):
            assert torch.equal(got, want)


UNDROPPED = {
    "evaluation": lambda x: F.dropout(x, 0.3, False),
    "evaluation, by a function of torch": lambda x: torch.dropout(x, 0.3, train=False),
    "nothing is dropped": lambda x: F.dropout(x, p=0),
    "a module": torch.nn.Dropout(0.5).eval(),
    "in place": lambda x: F.dropout(x, 0.3, False, True),
    "channels": lambda x: F.dropout2d(x, 0.3, False),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", UNDROPPED)
def test_dropout_that_drops_nothing_gives_its_argument(name, dynamic):
    def written(x):
        part = x.flip(0)[:, ::2]
        kept = UNDROPPED[name](part)
        kept.add_(1)
        return kept is part, x.flip(0), part, kept, UNDROPPED[name](x) is x

    def story(wrap):
        run = wrap(written)
        for rows in (2, 3):
            _, whole, part, kept, same = observed = run(torch.ones(rows, 4, 2, 2))
            part.mul_(3)
            yield *observed, same, kept.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()

    check_same(story, dynamic=dynamic)
