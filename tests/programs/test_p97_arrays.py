"""NumPy's arrays: known ones, those over tensors, arguments that are arrays."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch

import dynacompile
from dynacompile import events
from tests.checking import check

EAGER = {"backend": "eager"}


def create(x):
    a = np.arange(4)
    b = np.zeros((2, 2))
    return x + torch.from_numpy(a), torch.from_numpy(b), a


def known(x):
    a = np.arange(6).reshape(2, 3)
    return x + a.sum(), a.shape, a[1, 2], a.T, (a * 2 + 1), a.mean(), a.max(axis=1), a.tolist()


def of_tensor(x):
    a = x.numpy()
    return a + 1, a * a, a.sum(), (a > 0), a[1:3], a[0]


def back(x):
    return torch.from_numpy(x.numpy() * 2) + 1


def nparg(a):
    return torch.from_numpy(a) * 2


def nparg2(a):
    b = a * 2 + 1
    return b, b.sum(), b.dtype, b.shape, np.exp(b), np.where(b > 0, b, 0)


def npwrite(a):
    a[0] = 5
    a += 1
    return torch.from_numpy(a) * 2


def npwrite2(x):
    a = x.numpy()
    a[0] = 5
    return x * 2


def astype(a):
    return a.astype(np.float32) * 2, a.astype(np.int32), a.astype("float64")


def reduce_(a):
    return a.sum(), a.mean(), a.max(), a.min(), a.argmax(), a.std(), a.var(), a.prod(), a.cumsum(), a.all(), a.any()


def reduce_ax(a):
    return a.sum(axis=0), a.mean(axis=1, keepdims=True), a.max(axis=-1), np.argmin(a, axis=0), np.cumsum(a, axis=1), a.std(axis=0), np.sum(a, (0, 1))


def shape_(a):
    return (
        a.reshape(-1),
        a.T,
        a.transpose(1, 0),
        a.ravel(),
        a.flatten(),
        np.concatenate([a, a]),
        np.stack([a, a], 1),
        np.expand_dims(a, 0),
        a.copy(),
        a.squeeze(),
    )


def alias(a):
    b = a.reshape(-1)
    b[0] = 9
    return a * 2


def alias2(a):
    b = a[0]
    b += 5
    return a


def promote(a):
    return a + 1, a + 1.5, a * np.float64(2), a + np.arange(3), np.float32(1) + a, a + True


def scal(a):
    s = a.sum()
    return s * 2, s + 1.5, float(s), int(s), s.dtype, a * s


def branch(a):
    if a.sum() > 100:
        return a - 1
    return a + 1


def iter_(a):
    return [r * 2 for r in a], len(a)


def fancy(a):
    return a[a > 0], a[[0, 1]], a[..., 0], a[None], a[::-1]


def clip(a):
    return np.clip(a, 0, 1), np.maximum(a, 0), np.minimum(a, a + 1), np.abs(a), np.sqrt(np.abs(a))


def err(a):
    return a[100]


def err2(a):
    return a + np.ones((7, 5))


def knownmut(x):
    a = np.zeros(4)
    a[1] = 3
    b = a[1:]
    b[0] = 7
    return x + torch.from_numpy(a), a, b


def tt(x):
    a = np.array([1.0, 2, 3, 4], dtype=np.float32)
    return torch.tensor(a) * x, torch.as_tensor(a) + 1, torch.asarray(a)


def shared(x):
    a = np.zeros(4, dtype=np.float32)
    t = torch.from_numpy(a)
    t.add_(1)
    a[0] = 5
    return x + t, a


def isin(a):
    return isinstance(a, np.ndarray), type(a) is np.ndarray, a.ndim, a.size, a.itemsize, a.nbytes, len(a)


def empty_red(a):
    return a[:0].sum(), a[:0].mean()


f32 = np.array([[0.5, -1, 2], [3, 4, -5]], dtype=np.float32)
i64 = np.arange(6).reshape(2, 3)
f64 = f32.astype(np.float64)
X = torch.tensor([0.5, -1.0, 2.0, 3.0])


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {}
CASES = [
    *((fn, 1, 0) for fn in (create, known, of_tensor, back, npwrite2, knownmut, tt, shared)),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)


ARRAYS = [np.array([[0.5, -1, 2], [3, 4, -5]], dtype=np.float32), np.arange(6).reshape(2, 3)]
OVER_ARRAYS = [nparg, nparg2, npwrite, reduce_, reduce_ax, shape_, alias, alias2, promote, branch, iter_, clip]


@pytest.mark.parametrize("given", ARRAYS, ids=["float32", "int64"])
@pytest.mark.parametrize("fn", OVER_ARRAYS)
def test_over_an_array(fn, given):
    check(fn, given, options=EAGER)


@pytest.mark.parametrize("given", ARRAYS, ids=["float32", "int64"])
@pytest.mark.parametrize("fn", [astype, scal, fancy, err, err2, isin, empty_red])
def test_what_agrees_in_part_breaks(fn, given):
    check(fn, given, graphs=None, breaks=None, options=EAGER)


def test_kernels():
    check(nparg2, ARRAYS[0])
    check(reduce_ax, ARRAYS[0])


def test_errors_of_numpy_that_are_to_be_raised_are_left_to_numpy():
    def root(a):
        return np.sqrt(a)

    compiled = dynacompile.compile(root, backend="eager", isolate_recompiles=True)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(compiled(-ARRAYS[0]), root(-ARRAYS[0]))
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        compiled(-ARRAYS[0])


def at_places(a, i, v):
    a[i] = v
    a[[0, -1]] = a[1:3]
    a[a > 1] = v[:1]
    return a


@pytest.mark.parametrize("kind", ["float64", "float32", "int64", "bool"])
@pytest.mark.parametrize("given", [np.array([0.7, 2.7], "float32"), np.array([3, 0]), np.array([True, False])], ids=["floats", "ints", "bools"])
def test_what_is_written_at_places_is_read_first_and_cast(kind, given):
    compiled = dynacompile.compile(at_places, isolate_recompiles=True, options={"fallback": "none"}, fullgraph=True, **EAGER)
    for places in (np.array([1, 3]), np.array([False, True, True, False])):
        ours, eagers = np.arange(4).astype(kind), np.arange(4).astype(kind)
        np.testing.assert_array_equal(compiled(ours, places, given), at_places(eagers, places, given))
        np.testing.assert_array_equal(ours, eagers)


NO_ARRAYS = {
    "a deque": lambda a: (deque([1.5, 2.5]),),
    "a list of arrays": lambda a: ([a, a],),
    "a tuple of arrays and numbers": lambda a: ((a[0, 0], 2.0),),
    "a view of a dict": lambda a: ({1.5: a}.keys(), a),
    "None": lambda a: (None, a),
    "too few": lambda a: (a,),
    "too many": lambda a: (a, a, a, a),
    "by name": None,
}


FUNCTIONS = [getattr(np, name) for name in "add exp bitwise_and matmul sum std argmax dot cumsum round reshape squeeze stack where clip".split()]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("form", NO_ARRAYS)
def test_what_numpy_makes_an_array_of_or_refuses_is_left_to_numpy(form):
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    for function in FUNCTIONS:

        def call(a, function=function):
            return (a + 1).sum(), function(a=a) if form == "by name" else function(*NO_ARRAYS[form](a))

        told: list = []
        end = dynacompile.subscribe(told.append)
        ours, eagers = (outcome(f, given.copy()) for f in (dynacompile.compile(call, isolate_recompiles=True, **EAGER), call))
        end()
        assert ours[0] == eagers[0], function
        assert ours[1] is eagers[1] is None or np.allclose(ours[1], eagers[1]), function
        assert not [event for event in told if isinstance(event, events.FrameSkipped) and "[internal]" in event.reason], (function, told)


def outcome(function, given):
    try:
        _, found = function(given)
    except (TypeError, ValueError, np.exceptions.AxisError) as error:
        return type(error), 0.0
    return type(found), found if np.asarray(found).dtype.kind in "fib" else None


def copied_from_a_tensor(x):
    a = np.array(((1 - x) / (x.abs() + 1)) ** 2)
    a[0] = 5
    return a, x * 2


def shared_with_a_tensor(x):
    y = x * 1
    a, b = np.asarray(y), np.asarray(y, dtype=np.float32)
    a[0] = 5
    b[1] = 6
    return a, b, y


def of_another_type(x):
    return np.array(x, dtype=np.float64), np.asarray(x, np.float64) if x.dim() > 8 else np.asarray(x, dtype="float64"), np.array(x > 0).sum()


def of_a_number(x):
    a = np.array(x.sum())
    return a.shape, a.ndim, torch.from_numpy(a)


@pytest.mark.parametrize("fn", [copied_from_a_tensor, shared_with_a_tensor, of_another_type, of_a_number])
def test_an_array_of_a_tensor(fn):
    check(fn, torch.linspace(-2, 3, 6).reshape(2, 3), backward=False, options=EAGER)


def test_an_array_of_what_requires_gradients_is_left_to_numpy_to_refuse():
    check(lambda x: np.array(x * 2), torch.ones(2, requires_grad=True), graphs=None, breaks=None, options=EAGER)


# universal functions of NumPy on tensors, which give tensors


def numbers_of_tensors(x):
    return (np.log(x[0]) - np.log(x[1])) / x[2], np.sqrt(x.sum()), x * np.sqrt(x.mean()), np.exp(x) + 1


def several_types(x):
    n = x.long()
    return np.sqrt(n), np.add(n, 1.5), np.add(1, n), np.log(x.double()), np.greater(x, 0.5), np.isnan(x), np.maximum(x, 0.5), np.logical_and(x > 0, x > 1)


def beside_arrays(x):
    return np.add(x, np.ones(3)), np.multiply(np.ones(3, dtype=np.float32), x)


def written_afterwards(x):
    y = np.abs(x)
    y += 1
    return y, x


@pytest.mark.filterwarnings("ignore:__array_wrap__")
@pytest.mark.parametrize("function", [numbers_of_tensors, several_types, beside_arrays, written_afterwards])
def test_universal_functions_of_tensors(function):
    check(function, torch.tensor([1.5, 2.0, 3.0]), rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:__array_wrap__")
def test_universal_functions_of_tensors_that_require_gradients():
    check(lambda x: np.log(x), torch.ones(3, requires_grad=True), graphs=None, breaks=None)
