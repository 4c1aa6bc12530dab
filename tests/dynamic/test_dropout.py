"""Dropout of symbolic sizes draws as eager's: nothing where nothing or all is dropped."""

import pytest
import torch
from torch.nn import functional as F

import dynacompile

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
