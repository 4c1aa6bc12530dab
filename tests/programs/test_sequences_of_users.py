"""Lists and tuples of users' classes that functions of torch are given: those written in C read them past the methods of the class."""

from __future__ import annotations

import pytest
import torch

from dynacompile.events import Compiled, GraphBroke
from tests.scenarios import check_same


class Pair(tuple):
    def __getitem__(self, place):
        return tuple.__getitem__(self, place) * 2

    def __iter__(self):
        return iter([tuple.__getitem__(self, 0) + 1, tuple.__getitem__(self, 1)])


class Row(list):
    def __getitem__(self, place):
        return list.__getitem__(self, place) * 2

    def __iter__(self):
        return iter([list.__getitem__(self, 0) + 1, list.__getitem__(self, 1)])


def joined(parts):
    return torch.stack(parts), torch.cat(tensors=parts, dim=-1), torch.hstack(parts), sum(parts), parts[1], torch._foreach_mul(parts, 3)


@pytest.mark.parametrize("cls", [Pair, Row], ids=lambda c: c.__name__)
@pytest.mark.parametrize("made", ["inside", "given"])
def test_methods_of_the_class_are_not_asked_by_c(cls, made):
    def inside(x, y):
        return joined(cls((x, y.sin())))

    def story(wrap):
        run = wrap(inside if made == "inside" else joined)
        for _ in range(3):
            x, y = (torch.linspace(-1, 1, 6).view(2, 3).requires_grad_() for _ in range(2))
            out = run(x, y) if made == "inside" else run(cls((x, y)))
            yield out, torch.autograd.grad(sum(t.sum() for t in (*out[:5], *out[5])), [x, y])

    told = check_same(story, backend="eager")
    assert [type(e).__name__ for e in told if isinstance(e, (Compiled, GraphBroke))] == ["Compiled"]
