"""Storages and addresses that are compared, and writes to inputs that share memory."""

from __future__ import annotations

import pytest
import torch

from dynacompile.events import GraphBroke
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
B = torch.arange(12.0)
WEIGHT = torch.ones(4, requires_grad=True)


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


def frees_its_own(x):
    y = x * 2
    z = y.sum()
    y.untyped_storage().resize_(0)
    return z + x


def frees_an_input(x):
    z = x * 2
    x.untyped_storage().resize_(0)
    return z


def grows(x):
    made = torch.empty(0)
    made.untyped_storage().resize_(64)
    x.untyped_storage().resize_(64)
    return made, made.untyped_storage().nbytes(), len(x.untyped_storage()), torch.arange(3) + 1


def returns_what_it_freed(x):
    y = x * 2
    view, z = y[1:], y + 1
    storage = y.untyped_storage()
    storage.resize_(48).resize_(0)
    return y, view, z, storage.nbytes(), x + 1


def of_the_same_size(x):
    y = x * 2
    y.untyped_storage().resize_(16)
    return y + 1


def used_behind_it(x):
    y = x * 2
    y.untyped_storage().resize_(64)
    return y + 1


def kept_for_gradients(x):
    y = x * 2
    y.untyped_storage().resize_(64)
    return (x * 2) * WEIGHT


def memory(value):
    if not isinstance(value, torch.Tensor):
        return value
    size = value.untyped_storage().nbytes()
    return (value.detach().clone() if size else "freed"), size, tuple(value.shape), value.requires_grad


RESIZING = {frees_its_own: 0, frees_an_input: 0, grows: 0, returns_what_it_freed: 0, of_the_same_size: 0, used_behind_it: 1, kept_for_gradients: 1}


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn,breaks", RESIZING.items(), ids=[fn.__name__ for fn in RESIZING])
def test_storages_that_are_resized(fn, breaks, backend):
    def story(wrap):
        call = wrap(fn)
        for _ in range(2):
            x = arg()
            out = call(x)
            yield [memory(part) for part in (*(out if isinstance(out, tuple) else (out,)), x)]

    events = check_same(story, backend=backend)
    assert [e.code for e in events if isinstance(e, GraphBroke)][:1] == ["after-graph"] * breaks
