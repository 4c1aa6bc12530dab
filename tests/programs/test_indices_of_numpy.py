"""Tensors that arrays of NumPy index: permutations, triangles and masks that a module keeps as arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynacompile.events import GraphBroke
from tests.scenarios import attempt, check_same

ROWS, COLUMNS, MASK = np.array([0, 2]), np.array([1, 0], dtype=np.int32), np.array([True, False, True])


def reads(x):
    return x[ROWS], x[ROWS, COLUMNS], x[:, COLUMNS], x[None, ROWS, ..., :1], x[torch.tensor([1, 2]), ROWS]


def writes(x):
    y = x.clone()
    y[ROWS, COLUMNS] = 1.0
    y[:, ROWS] = x[:, COLUMNS]
    y[ROWS] += x[COLUMNS]
    return y


def of_the_frame(x):
    i, j = np.tril_indices(3, -1)
    y = x.clone()
    y[i, j] = x[j, i]
    y[np.arange(3), np.arange(3)] = 7.0
    return y, x[2 - np.arange(3)]


def written_later(x):
    i = np.arange(3)
    y = x[i]
    i[0] = 2
    return y, x[i], i.tolist()


WHOLE = [reads, writes, of_the_frame, written_later]


def rows_of_rows(x):
    return x[np.array([[0, 1], [2, 0]])], x[np.array([[0, 1], [2, 0]]), np.array([[1], [2]])]


def masks(x):
    y = x.clone()
    y[MASK] = 3.0
    y[:, np.array([False, True, True])] -= 1
    return y, x[MASK], x[:, np.array([True, False, False])]


def single_numbers(x):
    return x[np.array(1)], x[np.int64(1)], x[np.array(1), 0]


def bytes_and_shorts(x):
    return x[np.array([0, 1, 1], dtype=np.int16)], x[np.array([0, 1], dtype=np.int8), 0]


def floats(x):
    return x[np.array([0.0, 1.0])]


def outside(x):
    return x[np.array([5])]


def in_a_list(x):
    return x[[np.array([0, 1]), np.array([1, 1])]]


def story_of(fn):
    def story(wrap):
        run = wrap(fn)
        for scale in (1, 2):
            yield attempt(run, torch.arange(9.0).reshape(3, 3) * scale)

    return story


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", WHOLE)
def test_one_graph(fn, backend):
    events = check_same(story_of(fn), backend=backend, fullgraph=True)
    assert not [e for e in events if isinstance(e, GraphBroke)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("fn", [rows_of_rows, masks, single_numbers, bytes_and_shorts, floats, in_a_list])
def test_as_in_eager(fn, backend):
    check_same(story_of(fn), backend=backend, least=None)


def test_places_outside():
    def story(wrap):
        yield type(attempt(wrap(outside), torch.ones(3, 3))).__name__

    check_same(story, least=None)


def test_gradients():
    def story(wrap):
        x = torch.arange(9.0).reshape(3, 3).requires_grad_()
        sum(y.sum() * n for n, y in enumerate(wrap(reads)(x), 1)).backward()
        yield x.grad

    check_same(story, fullgraph=True)


def test_an_array_that_changes_between_calls():
    def story(wrap):
        places = np.array([0, 1])
        run = wrap(lambda x: x[places] * 2)
        yield run(torch.eye(3))
        places[0] = 2
        yield run(torch.eye(3))
        places = np.array([2, 2, 0])
        yield run(torch.eye(3))

    check_same(story)
