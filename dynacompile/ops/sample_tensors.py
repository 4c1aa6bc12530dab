"""Argument sets of ops on whole tensors, by name: geometry, creation, reductions, movement, reads at positions, matmuls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from dynacompile.ops.sampling import Maker, Sample, args, floats_of, sample

TENSORS: dict[str, Callable[[Maker], Iterator[Sample]]] = {}


# views


@sample(TENSORS)
def view(m: Maker) -> Iterator[Sample]:
    x = m.floats(4, 6)
    yield from (args(x, [24]), args(x, [2, 2, 3, 2]), args(x, [8, -1]), args(x[0:1], [6]), args(x[:, :0], [0, 3]))


@sample(TENSORS)
def permute(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), [2, 0, 1])


@sample(TENSORS)
def matrix(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6)), args(m.floats(4)))


@sample(TENSORS)
def transpose(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), 0, -1)


@sample(TENSORS)
def expand(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(1, 3), [4, 3]), args(m.floats(3), [2, 4, -1]))


@sample(TENSORS)
def slice_(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1, 1, 5, 2), args(m.floats(5, 6)[1:], 0, -2))


@sample(TENSORS)
def select(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1, 2), args(m.floats(5, 6), 0, -1))


@sample(TENSORS)
def unsqueeze(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 1), args(m.floats(5), -1))


@sample(TENSORS)
def squeeze(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1))


@sample(TENSORS)
def squeeze_dim(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1), 0)


@sample(TENSORS)
def squeeze_dims(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(1, 5, 1), [0, 2])


@sample(TENSORS)
def as_strided(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(24), [3, 4], [2, 5], 1), args(m.floats(24), [3, 2], [1, 0]))


@sample(TENSORS)
def diagonal(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 5), 1)


@sample(TENSORS)
def unfold(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), 1, 3, 2)


@sample(TENSORS)
def split(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), 3, 1)


@sample(TENSORS)
def split_sizes(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 7), [2, 4, 1], 1)


@sample(TENSORS)
def unbind(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(4, 3), 1)


# creation


@sample(TENSORS)
def full(m: Maker) -> Iterator[Sample]:
    yield from (args([3, 4], 1.5), args([3], 2, dtype=torch.int32), args([], True, dtype=torch.bool), args([3], 0.1, dtype=torch.bfloat16))


@sample(TENSORS)
def full_like(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4).t(), 2), args(m.ints(3), 1.5, dtype=torch.float64))


@sample(TENSORS)
def new_full(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4], 2.5)


@sample(TENSORS)
def zeros_like(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4)), args(m.ints(3), dtype=torch.float32))


@sample(TENSORS)
def sizes(m: Maker) -> Iterator[Sample]:
    yield from (args([3, 4]), args([2], dtype=torch.int64))


@sample(TENSORS)
def new_sizes(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4])


@sample(TENSORS)
def strided(m: Maker) -> Iterator[Sample]:
    yield args([3, 4], [1, 3])


@sample(TENSORS)
def new_strided(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2), [3, 4], [1, 3])


@sample(TENSORS)
def permuted(m: Maker) -> Iterator[Sample]:
    yield args([3, 4], [1, 0])


@sample(TENSORS)
def scalar(m: Maker) -> Iterator[Sample]:
    yield from (args(2.5), args(3, dtype=torch.int64), args(True, dtype=torch.bool))


@sample(TENSORS)
def arange_default(m: Maker) -> Iterator[Sample]:
    yield from (args(7), args(5, dtype=torch.float32), args(2.5))


@sample(TENSORS)
def arange_start(m: Maker) -> Iterator[Sample]:
    yield from (args(2, 7), args(0.5, 4), args(0.5, 4, dtype=torch.int32))


@sample(TENSORS)
def arange_step(m: Maker) -> Iterator[Sample]:
    yield from (args(2, 12, 3), args(9, 2, -2), args(0, 1, 0.1), args(9.5, 2, -1.7, dtype=torch.int64), args(0.5, 9, 1.7, dtype=torch.int16))


@sample(TENSORS)
def eye(m: Maker) -> Iterator[Sample]:
    yield args(4)


@sample(TENSORS)
def eye_m(m: Maker) -> Iterator[Sample]:
    yield args(3, 5, dtype=torch.int64)


@sample(TENSORS)
def iota(m: Maker) -> Iterator[Sample]:
    yield args(5, start=3, step=2, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)


# reductions


@sample(TENSORS)
def sum_all(m: Maker) -> Iterator[Sample]:
    yield from (args(x) for x in floats_of(m))
    yield args(m.floats(4, 6), dtype=torch.float64)


@sample(TENSORS)
def sum_(m: Maker) -> Iterator[Sample]:
    for d in ([0], [1], [-1], [0, 2], [0, 1, 2], []):
        for keepdim in (False, True):
            yield args(m.floats(3, 4, 5), d, keepdim)
    yield args(m.floats(3, 4, 5).permute(2, 0, 1), [1])
    yield args(m.floats(3, 40, dtype=torch.bfloat16), [1])
    yield args(m.floats(3, 4), [1], dtype=torch.float64)
    yield args(m.floats(3, 1, 5), [1])
    yield args(m.floats(3, 4)[0:2, 1:3], None, True)


@sample(TENSORS)
def dim(m: Maker) -> Iterator[Sample]:
    for d in (0, 1, -1):
        yield args(m.floats(3, 4, 5).round(), d)
    yield args(m.floats(3, 4, 5), 1, True)
    yield args(m.floats(3, 4, dtype=torch.bfloat16), 1)
    yield args(m.ints(3, 4), 1)
    yield args(m.bools(3, 4), 0)


@sample(TENSORS)
def dims(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(3, 4, 5), [0, 2]), args(m.floats(3, 4).round(), None, True))


@sample(TENSORS)
def extremum(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4, 5), d) for d in ([1], [0, 2], [-1], []))
    yield args(m.floats(3, 4, 5), [1], True)
    yield args(torch.tensor([[1.0, math.nan], [2.0, 3.0]]), [1])
    yield args(m.ints(3, 4), [1])
    yield args(m.bools(3, 4), [1])


@sample(TENSORS)
def extremum_all(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4)), args(m.ints(3, 4)))


@sample(TENSORS)
def any_all(m: Maker) -> Iterator[Sample]:
    yield from (args(m.bools(3, 4)), args(m.floats(3, 4)), args(m.ints(3, dtype=torch.uint8)), args(m.bools(0)))


@sample(TENSORS)
def argmax(m: Maker) -> Iterator[Sample]:
    yield from (
        args(m.floats(3, 4, 5)),
        args(m.floats(3, 4, 5), 1),
        args(m.floats(3, 4, 5), -1, True),
        args(m.floats(3, 4).t()),
        args(m.ints(4, 5, low=0, high=2), 1),
    )
    yield args(torch.tensor([[1.0, math.nan, math.nan], [2.0, 3.0, 3.0]]), 1)


def scanned(m: Maker) -> Iterator[Sample]:
    """Dimensions and layouts."""
    yield from (args(m.floats(3, 4, 5), d) for d in (0, 1, -1))
    yield from (
        args(m.floats(5, 6).t(), 1),
        args(m.floats(3, 1), 1),
        args(m.floats(0, 3), 0),
        args(m.floats()[...], 0),
        args(m.floats(2, 3).expand(4, 2, 3), 0),
    )
    yield args(torch.tensor([[1.0, math.nan, 2.0, -math.inf], [math.inf, 1.0, 1.0, -math.inf], [-math.inf, -math.inf, 0.0, -0.0]]), 1)
    yield from (args(m.floats(3, 4, dtype=d), 1) for d in (torch.float64, torch.bfloat16))


@sample(TENSORS)
def scan(m: Maker) -> Iterator[Sample]:
    yield from scanned(m)
    yield from (args(m.ints(3, 4, dtype=d), 0) for d in (torch.int64, torch.int32, torch.uint8))
    yield from (args(m.bools(3, 4), 1), args(m.floats(3, 4), 0, dtype=torch.float64), args(m.floats(3, 4), 0, dtype=torch.int64))


@sample(TENSORS)
def scan_floats(m: Maker) -> Iterator[Sample]:
    yield from scanned(m)
    yield args(m.floats(4, 9) * 100, 1)


@sample(TENSORS)
def running_extremum(m: Maker) -> Iterator[Sample]:
    yield from scanned(m)
    yield args(m.floats(4, 9).round(), 1)
    yield from (args(m.ints(3, 4, dtype=d), 0) for d in (torch.int64, torch.int32, torch.uint8))
    yield args(m.bools(3, 4), 1)


@sample(TENSORS)
def running_extremum_backward(m: Maker) -> Iterator[Sample]:
    for x, dim in ((m.floats(4, 9).round(), 1), (m.floats(3, 4, 5), 0), (m.floats(3, 4, 5), 1), (m.floats(3, 1), 1), (m.floats(5, 6).t(), 0)):
        yield args(m.floats(*x.shape), x.cummax(dim).indices, dim)


@sample(TENSORS)
def var(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4, 5)
    yield from (args(x, [1], correction=c, keepdim=k) for c in (0, 1) for k in (False, True))
    yield from (
        args(x),
        args(x, [0, 2]),
        args(m.floats(3, 40, dtype=torch.bfloat16), [1]),
        args(m.floats(3, 4, dtype=torch.float64), [1]),
        args(x.permute(2, 0, 1), [2], correction=0),
    )


# movement


@sample(TENSORS)
def cat(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4)
    yield from (
        args([x, m.floats(3, 2)], 1),
        args([x, x, m.floats(1, 4)]),
        args([x, m.ints(3, 4)], -1),
        args([x, torch.empty(0)], 0),
        args([x[:, :0], x], 1),
        args([x]),
    )
    yield args([m.floats(2, 3)] * 12, 0)


@sample(TENSORS)
def pad(m: Maker) -> Iterator[Sample]:
    x = m.floats(3, 4)
    yield from (args(x, [1, 2]), args(x, [1, 2, 0, 1], 1.5), args(x, [-1, 2], 3.0), args(x, [-1, -1]), args(m.ints(3), [2, 2], 7))


@sample(TENSORS)
def slice_scatter(m: Maker) -> Iterator[Sample]:
    x = m.floats(5, 6)
    yield from (args(x, m.floats(5, 2), 1, 1, 3), args(x, m.floats(3, 6), 0, 2), args(x, m.floats(5, 2), 1, 1, 6, 3), args(x, m.floats(5, 6), 1))


@sample(TENSORS)
def select_scatter(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), m.floats(5), 1, 2), args(m.floats(5, 6), m.floats(6), 0, -1))


@sample(TENSORS)
def flip(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [0]), args(m.floats(3, 4), [0, -1]))


@sample(TENSORS)
def roll(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [1], [1]), args(m.floats(3, 4), [-1, 2], [0, 1]), args(m.floats(3, 4), [3]))


@sample(TENSORS)
def repeat(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), [2, 3]), args(m.floats(3), [2, 2]))


@sample(TENSORS)
def triangle(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 5)), args(m.floats(2, 4, 5), 1), args(m.bools(4, 4), -1))


# reads at positions


@sample(TENSORS)
def index(m: Maker) -> Iterator[Sample]:
    x = m.floats(5, 6, 7)
    i, j = m.ints(3, low=-5, high=5), m.ints(2, 1, low=0, high=6)
    yield from (args(x, [i]), args(x, [None, j]), args(x, [i, j]), args(x, [i, None, m.ints(3, low=0, high=7)]), args(x, [None, i, i]))


@sample(TENSORS)
def gather(m: Maker) -> Iterator[Sample]:
    yield from (
        args(m.floats(5, 6), 1, m.ints(5, 3, low=0, high=6)),
        args(m.floats(5, 6), 0, m.ints(2, 4, low=0, high=5)),
        args(m.floats(5, 6).t(), -1, m.ints(6, 3, low=0, high=5)),
    )


@sample(TENSORS)
def index_select(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(5, 6), 0, m.ints(4, low=0, high=5)), args(m.floats(5, 6), 1, m.ints(4, low=0, high=5, dtype=torch.int32)))


@sample(TENSORS)
def embedding(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(9, 4), m.ints(2, 3, low=0, high=9)), args(m.floats(9, 4, dtype=torch.bfloat16), m.ints(5, low=0, high=9), 2))


@sample(TENSORS)
def index_add(m: Maker) -> Iterator[Sample]:
    yield from (
        args(m.floats(5, 6, 40), 1, m.ints(64, low=0, high=6), m.floats(5, 64, 40)),
        args(m.floats(9), 0, m.ints(1100, low=0, high=9), m.floats(1100), alpha=0.5),
        args(m.ints(9, 40), 0, m.ints(64, low=0, high=9, dtype=torch.int32), m.ints(40, 64).t()),
        args(m.floats(5, 6), 0, m.ints(4, low=0, high=5), m.floats(4, 6)),
    )


@sample(TENSORS)
def scatter_add(m: Maker) -> Iterator[Sample]:
    yield from (
        args(m.floats(9, 50), 0, m.ints(40, 30, low=0, high=9), m.floats(64, 40)),
        args(m.floats(50, 9).t(), 0, m.ints(40, 1, low=0, high=9).expand(40, 50), m.floats(40, 50)),
        args(m.floats(40, 7, dtype=torch.float64), -1, m.ints(40, 33, low=0, high=7), m.floats(40, 33, dtype=torch.float64)),
        args(m.ints(300), 0, m.ints(2000, low=0, high=300), m.ints(2000)),
        args(m.floats(5, 6), 1, m.ints(5, 3, low=0, high=6), m.floats(5, 3)),
    )


@sample(TENSORS)
def scatter_reduce(m: Maker) -> Iterator[Sample]:
    into, places, values = m.floats(9, 50), m.ints(40, 30, low=0, high=9), m.floats(64, 40)
    yield from (args(into, 0, places, values, "sum"), args(into, 0, places, values, "sum", include_self=False), args(into, 0, places, values, "amax"))


@sample(TENSORS)
def index_put(m: Maker) -> Iterator[Sample]:
    x, i, j = m.floats(5, 6, 70), m.ints(30, low=-5, high=5), m.ints(4, 1, low=0, high=6)
    yield from (
        args(x, [i], m.floats(30, 6, 70), True),
        args(x, [None, j], m.floats(70), True),
        args(x, [i, i], m.floats(30, 1), True),
        args(x, [i, None, m.ints(30, low=-70, high=70)], m.floats(30, 6), True),
        args(m.floats(50), [m.ints(2000, low=-50, high=50)], m.floats(2000), True),
        args(x, [i], m.floats(30, 6, 70), False),
    )


@sample(TENSORS)
def embedding_backward(m: Maker) -> Iterator[Sample]:
    grad, places = m.floats(5, 9, 40), m.ints(5, 9, low=0, high=11)
    yield from (args(grad, places, 11, -1, False), args(grad, places, 11, 3, False), args(grad, places, 11, -1, True))


@sample(TENSORS)
def copy_into(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(4, 6), m.floats(6)), args(m.floats(4, 6).t(), m.ints(6, 4)))


# matrices


@sample(TENSORS)
def mm(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(3, 4), m.floats(4, 5)), args(m.floats(4, 3).t(), m.floats(5, 4).t()))


@sample(TENSORS)
def addmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(5), m.floats(3, 4), m.floats(4, 5))


@sample(TENSORS)
def bmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 4), m.floats(2, 4, 5))


@sample(TENSORS)
def baddbmm(m: Maker) -> Iterator[Sample]:
    yield args(m.floats(2, 3, 5), m.floats(2, 3, 4), m.floats(2, 4, 5), beta=0.5)


@sample(TENSORS)
def max_pool(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(2, 3, 8, 9), [3, 3], [2, 2], [1, 1]), args(m.floats(3, 8, 8), [2, 2]))
    yield args(m.floats(1, 2, 11, 12), [3, 2], [2, 3], [1, 1], [2, 1], True)
    yield args(torch.full((1, 1, 4, 4), -torch.inf), [3], [1], [1])
    yield args(torch.tensor([[[[1.0, torch.nan, 2.0], [torch.nan, 3.0, 3.0], [3.0, 0.0, -1.0]]]]), [2], [1])
    yield args(m.floats(2, 4, 8, 8).contiguous(memory_format=torch.channels_last), [3, 3], [2, 2], [1, 1])


@sample(TENSORS)
def avg_pool(m: Maker) -> Iterator[Sample]:
    x = m.floats(2, 3, 8, 9)
    yield from (args(x, [3, 3], [2, 2], [1, 1]), args(x, [2]), args(x, [3, 2], [2, 3], [1, 1], True, False), args(x, [3, 2], [2, 3], [1, 1], True, True))
    yield from (args(x, [3, 3], [2, 2], [1, 1], False, False), args(x, [3, 3], [2, 2], [1, 1], False, True, 5), args(m.floats(3, 9, 9), [2], [2], [0], True))


@sample(TENSORS)
def adaptive_avg_pool(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(2, 3, 8, 9), [4, 3]), args(m.floats(3, 8, 8), [8, 1]), args(m.floats(2, 3, 8, 9), [3, 3]))
    yield args(m.floats(2, 4, 8, 8).contiguous(memory_format=torch.channels_last), [2, 4])


@sample(TENSORS)
def adaptive_max_pool(m: Maker) -> Iterator[Sample]:
    yield from adaptive_avg_pool(m)
    yield args(torch.full((1, 2, 4, 4), -torch.inf), [2, 2])
    yield args(torch.tensor([[[[1.0, torch.nan, 2.0, 3.0], [torch.nan, 3.0, 3.0, 3.0]]]]), [1, 2])


@sample(TENSORS)
def max_pool_backward(m: Maker) -> Iterator[Sample]:
    windows = ((2, 3, 8, 9), [3, 3], [2, 2], [1, 1]), ((2, 2, 11, 12), [3, 2], [2, 3], [1, 1]), ((2, 3, 8, 9), [3], [1], [1])
    for size, *window in (*windows, ((3, 8, 8), [2, 2], [2, 2], [0, 0]), ((1, 1, 7, 7), [2], [3], [0])):
        for last in (False, True) if len(size) == 4 else (False,):
            x = m.floats(*size)
            x = x.contiguous(memory_format=torch.channels_last) if last else x
            out, places = torch.ops.aten.max_pool2d_with_indices(x, *window)
            yield args(m.floats(*out.shape), x, *window, [1, 1], False, places)


@sample(TENSORS)
def avg_pool_backward(m: Maker) -> Iterator[Sample]:
    x = m.floats(2, 3, 8, 9)
    windows = ([3, 3], [2, 2], [1, 1], False, True, None), ([2], [2], [0], False, True, None), ([3, 2], [2, 3], [1, 1], True, True, None)
    for window in (*windows, ([3], [1], [1], False, False, 4)):
        yield args(m.floats(*torch.ops.aten.avg_pool2d(x, *window).shape), x, *window)
    yield args(m.floats(2, 3, 4, 5), x, [3, 3], [2, 2], [1, 1], False, False, None)


@sample(TENSORS)
def adaptive_avg_pool_backward(m: Maker) -> Iterator[Sample]:
    yield from (args(m.floats(2, 3, 4, 3), m.floats(2, 3, 8, 9)), args(m.floats(3, 8, 1), m.floats(3, 8, 8)), args(m.floats(2, 3, 3, 3), m.floats(2, 3, 8, 9)))


@sample(TENSORS)
def adaptive_max_pool_backward(m: Maker) -> Iterator[Sample]:
    for size, results in (((2, 3, 8, 9), [4, 3]), ((3, 8, 8), [8, 1]), ((2, 3, 8, 9), [3, 3])):
        x = m.floats(*size)
        out, places = torch.ops.aten.adaptive_max_pool2d(x, results)
        yield args(m.floats(*out.shape), x, places)
