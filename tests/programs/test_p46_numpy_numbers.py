"""NumPy's functions on Python numbers inside the frame: constants, and NumPy's own numbers as results."""

import math

import numpy as np
import pytest
import torch

from tests.checking import check

CAPTURE = {"backend": "eager"}


def arg():
    return torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


def scale(x):
    x = x * np.sqrt(x.shape[0])
    x *= np.float32(0.1)
    return x, np.sqrt(2)


def both_sides(x):
    return np.float64(2) ** x, x - np.int64(3), np.float32(2) / x, x < np.float16(2), np.int32(2) >= x


def sizes(x):
    count = np.prod(x.shape)
    return x.reshape(count), x.view(np.int64(3)), x[np.int64(1)], x[: np.int64(2)], x.repeat(int(np.ceil(x.shape[0] / 2))), count


def arithmetic(x):
    n = np.int64(7)
    return x + 1, n + 1, n / 2, -n, abs(np.float32(-2)), n < 8, n == 7, 2 * np.float64(3), divmod(n, 2), np.round(2.567, 2), np.clip(5, 0, 3), np.maximum(1, 2)


def python_takes_them(x):
    n, y = np.int64(2), np.float64(2.5)
    return x + 1, int(y), float(n), math.floor(y), max(y, 1), list(range(n)), [1, 2, 3][n], f"{y:.2f} {n}", y.item(), y.is_integer(), isinstance(y, float)


def branches(x):
    x = x + 1 if np.isfinite(2.0) else x - 1
    return x * 2 if np.isclose(0.1 + 0.2, 0.3) and not np.isnan(1.0) else x


def tensors_of_them(x):
    listed = torch.tensor([np.int32(1), np.int32(2)])
    return (
        x,
        torch.tensor(np.float64(2.5)),
        listed,
        torch.as_tensor(np.float32(1)),
        torch.full((2,), np.float64(2)),
        torch.tensor(np.float64(1), dtype=torch.int8),
    )


@pytest.mark.parametrize("fn", [scale, both_sides, sizes, arithmetic, python_takes_them, branches, tensors_of_them])
def test_one_graph(fn):
    check(fn, arg(), options=CAPTURE)


def test_kernels():
    check(scale, arg())
    check(tensors_of_them, arg())


def warns(x):
    with np.errstate(divide="ignore"):
        return x * np.log(0.0)


def truth(x):
    return x + np.bool_(True)


def array(x):
    return x + float(np.arange(3).sum())


def of_tensor(x):
    return np.sqrt(x.detach()) + x


def written(x):
    return x * float(np.sqrt(4.0, out=np.zeros(())))


@pytest.mark.parametrize("fn", [warns, truth, array, written])
def test_breaks(fn):
    check(fn, arg(), options=CAPTURE, graphs=None, breaks=None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_tensors_are_arrays_to_numpy():
    check(of_tensor, arg(), options=CAPTURE)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32])
@pytest.mark.parametrize(
    "given", [tuple, list, lambda items: dict(enumerate(items)), lambda items: [[items[0]], [items[1]]]], ids=["tuple", "list", "dict", "nested"]
)
def test_the_type_of_numbers_that_lie_in_an_argument(given, kind):
    def made(x, items):
        listed = list(items.values()) if isinstance(items, dict) else items
        return x + 1, torch.tensor(listed), torch.as_tensor(listed)

    check(made, arg(), given([kind(1), kind(0)]), options=CAPTURE)


def test_numbers_that_torch_refuses_together():
    def made(x, items):
        try:
            return x + 1, torch.tensor([2, items[0]])
        except TypeError as error:
            return x + 2, str(error)

    check(made, arg(), [np.bool_(True)], options=CAPTURE, graphs=None, breaks=None)
