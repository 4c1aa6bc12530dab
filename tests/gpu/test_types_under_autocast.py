"""Types of results under autocast on a GPU are those of fakes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map

from tests.opdb.test_types_under_autocast import CHUNKS, calls, types, types_of_fakes

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


REFUSED = ("pinverse", "trace", "ldexp", "mvlgamma")
"""Of the operations that capture leaves to Python, those whose rules for fakes know nothing of it."""


def on_gpu(value):
    return value.detach().cuda() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fakes_have_eagers_types(chunk):
    different, compared = {}, 0
    for op, args, kwargs in calls(chunk):
        if op.name.startswith("jiterator") or op.name in REFUSED:  # of the former, torch's own kernels read memory that is none of theirs
            continue
        given = tree_map(on_gpu, (args, kwargs))
        wanted = types(op.op, *given, "cuda")
        for name, found in types_of_fakes(op, args, kwargs, "cuda:0").items() if wanted is not None else ():
            compared += 1
            if found != wanted:
                different[op.name, name] = found, wanted
    assert compared > 50
    assert not different
