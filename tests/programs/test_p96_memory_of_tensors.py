"""Storages and addresses that are compared, and writes to inputs that share memory."""

from __future__ import annotations

import pytest
import torch

from tests.checking import check

EAGER = {"backend": "eager"}
B = torch.arange(12.0)


def ptrs(x):
    y = x.view(2, 2)
    z = x + 1
    return (
        z,
        x.data_ptr() == y.data_ptr(),
        x.untyped_storage().data_ptr() == z.untyped_storage().data_ptr(),
        x[1:].data_ptr() == x.data_ptr(),
        x.untyped_storage().nbytes(),
        x.storage_offset(),
        y.is_set_to(x),
    )


def ptr2(x, y):
    if x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr():
        return x + 1
    return x * y


def isst(x):
    return x + 1, isinstance(x, torch.UntypedStorage), isinstance(x.untyped_storage(), torch.UntypedStorage), isinstance(x, torch.TypedStorage)


def inf(x):
    return x + 1, x.is_inference()


def ptr_ret(x):
    return x + 1, x.data_ptr() == 0


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {ptr2: (B[:4], B[4:8])}
CASES = [
    *((fn, 1, 0) for fn in (ptrs, isst, inf, ptr_ret, ptr2)),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)
