"""Which sizes and ints become symbols, and how many entries a sequence of calls makes; graphs run op by op."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile import native
from tests.dynamic.varying import check_varying

SIZES = ((4, 8), (8, 16), (32, 64), (7, 9))


def r(*size: int) -> torch.Tensor:
    return torch.randn(*size)


def above_ten(x):
    return x + 1 if x.size(0) > 10 else x - 1


def attention(q, k, v):
    b, h, t, d = q.shape
    mask = torch.ones(t, t, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-1, -2) / d**0.5).masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, h * d)


def causal(x):
    at = torch.arange(x.shape[0])
    return at[None, :] <= at[:, None]


def halves(x):
    if x.shape[0] % 2:
        return x * 2
    a, b = x.view(2, -1).unbind(0)
    return torch.cat([b, a])


PROGRAMS = {
    "walkthrough": (lambda x: x * 2 + 1, [(r(4, 8),), (r(8, 16),), (r(32, 64),)], 2),
    "any size": (lambda x: x * 2 + 1, [(r(*s),) for s in SIZES], 2),
    "batch": (lambda x: x.sum(-1), [(r(n, 16),) for n in (8, 4, 5)], 2),
    "branch": (above_ten, [(r(n),) for n in (4, 5, 6, 12, 13, 9)], 3),
    "branch on a remainder": (halves, [(r(n),) for n in (4, 6, 8, 5, 7, 10)], 3),
    "concatenation": (lambda a, b: torch.cat([a, b]).view(-1).reshape(-1, 1), [(r(4), r(5)), (r(6), r(7)), (r(8), r(2))], 2),
    "mask": (causal, [(r(n),) for n in (4, 5, 6, 9)], 2),
    "attention": (attention, [(r(2, 2, t, 8), r(2, 2, t, 8), r(2, 2, t, 8)) for t in (4, 5, 6, 9)], 2),
    "equal sizes": (lambda a, b: a + b, [(r(n), r(n)) for n in (4, 5, 6)], 2),
    "size as a number": (lambda x: x.numel() // 2 + x.shape[0] * 3 - len(x) % 3, [(r(*s),) for s in SIZES], 2),
    "shape as a result": (lambda x: (x.shape, x.size(), x.shape[1:], x * 2), [(r(*s),) for s in SIZES], 2),
    "shape arithmetic": (lambda x: torch.zeros(x.shape[:1] + (2 * x.shape[1],)) + x.shape.numel(), [(r(*s),) for s in SIZES], 2),
    "extremes": (lambda x, y: torch.ones(max(len(x), len(y)) + min(len(x), 3)), [(r(4), r(5)), (r(9), r(7)), (r(5), r(6))], 2),
    "negative slice": (lambda x, n: x[:n].flip(0) + x[-n:], [(r(20, 4), n) for n in (3, 4, 5, 6)], 2),
    "int argument": (lambda x, n: x[:n] * n, [(r(40), n) for n in (3, 4, 5, 6)], 2),
    "int arithmetic": (lambda x, n: (n + 1) * 2 - n // 3 + (n << 2) - -n, [(r(4), n) for n in (5, 7, 8, 9)], 2),
    "int division": (lambda x, n: (-n // 4, -n % 4, n // -3, n % -3, -n // -3, divmod(-n, 4), n * x), [(r(4), n) for n in (5, 7, 8, 9)], 2),
    "padded to a multiple": (lambda x: F.pad(x, (0, -x.shape[-1] % 8)) * -(-x.shape[-1] // 8), [(r(2, n),) for n in (4, 5, 7, 8, 9, 17)], 2),
    "step counter": (lambda x, n: (x * n, n + 1), [(r(4), n) for n in range(6)], 2),
    "int in a list": (lambda x, c: x * c[0], [(r(4), [n, 1]) for n in (5, 7, 8, 9)], 2),
    "view that keeps a dimension": (lambda x: x.view(x.shape[0], -1, 2).transpose(0, 1), [(r(n, 8),) for n in (4, 5, 6)], 2),
    "columns of a buffer": (lambda x: x + 1, [(torch.zeros(64, 32)[:, :n],) for n in (4, 5, 6)], 2),
    "rows of a wider buffer": (lambda x: x + 1, [(torch.zeros(8, n)[:, :4],) for n in (10, 12, 14)], 2),
    "transposed": (lambda x: x.t() + 1, [(r(*s).t(),) for s in SIZES], 2),
    "written": (lambda x: x.mul_(2).add_(x.shape[0]), [(r(*s),) for s in SIZES], 2),
    "unused dimension": (lambda x: x[0] * 2, [(r(*s),) for s in SIZES], 2),
    "dictionary of sizes": (lambda x: {"n": len(x), "x": x + len(x)}, [(r(n),) for n in (4, 5, 6)], 2),
    "text": (lambda x: f"{len(x)}", [(r(n),) for n in (4, 5, 6)], 2),
    "loop": (lambda x: [x + i for i in range(len(x))][-1], [(r(n),) for n in (4, 5, 6)], 3),
    "unbind": (lambda x: [row * 2 for row in x], [(r(n, 2),) for n in (4, 5, 6)], 3),
    "float of a size": (lambda x: x * (len(x) / 2), [(r(n),) for n in (4, 5, 6)], 2),
    "written by a number": (lambda x, y, n: x.mul_(n).add_(y), [(r(4), r(4), n) for n in (3, 5, 6, 7)], 2),
    "factory of an int": (lambda n: torch.ones(n) * 2, [(n,) for n in (4, 5, 6)], 2),
    "tensor of an int": (lambda n: torch.tensor(n) * 2, [(n,) for n in (4, 5, 6)], 2),
    "zero and one": (lambda x: x * 2, [(r(n, 3),) for n in (4, 0, 1, 5, 6, 1, 0)], 4),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_entries(name):
    fn, calls, entries = PROGRAMS[name]
    check_varying(fn, calls, entries)


def test_always_static():
    check_varying(lambda x: x * 2, [(r(n),) for n in (4, 5, 6)], 3, dynamic=False)


def test_symbolic_from_the_start():
    check_varying(lambda x: x * 2, [(r(*s),) for s in SIZES], 1, dynamic=True)
    check_varying(lambda x, n: x[:n] * n, [(r(9), 3), (r(12), 4)], 1, dynamic=True)
    layer = torch.nn.Linear(8, 4)
    check_varying(lambda x: layer(x), [(r(n, 8),) for n in (3, 4, 5)], 1, dynamic=True)


def test_ints_are_constants_on_request():
    check_varying(lambda x, n: x * n, [(r(4), n) for n in (2, 3, 4)], 3, options={"specialize_int": True})


def test_after_a_graph_break():
    def broken(x):
        y = x * len(x)
        dynacompile.graph_break()
        return y + len(x), y.sum(0)

    check_varying(broken, [(r(*s),) for s in SIZES], 4, breaks=2)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return self.inner(x) * self.steps


def test_a_module_that_counts_its_steps():
    ours, eager = Layers(), Layers()
    eager.load_state_dict(ours.state_dict())
    compiled = dynacompile.compile(ours, backend="eager", isolate_recompiles=True)
    for n in (3, 3, 3, 4, 5):
        x = r(n, 8)
        torch.testing.assert_close(compiled(x), eager(x))
        assert ours.steps == eager.steps
    assert len(native.core().entries(Layers.forward.__code__)) == 2


def test_aliased_inputs_of_varying_sizes():
    def add(x, y):
        x.add_(1)
        return x + y

    compiled = dynacompile.compile(add, backend="eager", isolate_recompiles=True)
    for n in (4, 5, 6):
        compiled(r(n), r(n))
    x = r(7)
    z = x.clone()
    torch.testing.assert_close(compiled(x, x), add(z, z))
    whole = r(9)
    other = whole.clone()
    torch.testing.assert_close(compiled(whole[:7], whole[2:]), add(other[:7], other[2:]))


def test_dimensions_that_were_equal_need_not_stay_so():
    check_varying(lambda x: x.sum(0), [(r(4, 4),), (r(5, 5),), (r(5, 6),), (r(7, 3),)], 2)


def test_guards_are_named_with_the_users_line():
    def fn(x):
        return x + 1 if x.size(0) > 10 else x

    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    for n in (4, 5):
        compiled(r(n))
    (_, entry), *_ = native.core().entries(fn.__code__)
    (guard,) = [g for g in entry.info.captured.guards if g.kind == "SHAPE" and "10" in g.expected.text()]
    assert guard.expected.text() == "x.size(0) <= 10"
    assert guard.site.line == fn.__code__.co_firstlineno + 1


def test_values_stay_unknown():
    """The graph is cut where a tensor of one int takes a row, and at a size that depends on values: there is one entry, for every row and size."""
    check_varying(lambda x, i: x[i] * 2 + x.nonzero().sum(), [(r(n, 3), torch.tensor(i)) for n, i in ((4, 1), (5, 3), (6, -1))], 1, dynamic=True)
