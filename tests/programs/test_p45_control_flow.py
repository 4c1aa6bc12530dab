"""torch.cond, scan, map and their like; marks that take functions out of the graph or put them in as one operation."""

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def decided(x):
    return torch.cond(x.shape[0] > 2, lambda a: a.sin(), lambda a: a.cos(), (x,))


def scanned(x):
    carry, rows = scan(lambda c, a: (c + a, c * a), torch.zeros(4), x)
    return carry, rows


def scanned_back(x):
    return scan(lambda c, a: ({"s": c["s"] + a}, (c["s"] * a, a.cos())), {"s": torch.ones(4)}, x, reverse=True)


def rows(x):
    return map_rows(lambda a, k: a.sin() * k, x, torch.arange(4.0))


@pytest.mark.parametrize("fn", [decided, scanned, scanned_back, rows])
@pytest.mark.filterwarnings("ignore")
def test_one_graph(fn):
    check(fn, arg().detach(), options=EAGER)


def test_unrolled_loops_have_gradients():
    x = arg()
    total, made = dynacompile.compile(scanned, backend="eager", fullgraph=True)(x)
    (total.sum() + made.sum()).backward()
    y = arg()
    carry, sums = torch.zeros(4), 0
    for row in y:
        carry, sums = carry + row, sums + (carry * row).sum()
    (carry.sum() + sums).backward()
    torch.testing.assert_close(x.grad, y.grad)


SEEN = []


@dynacompile.allow_in_graph
def opaque(x, factor=1.0):
    SEEN.append(type(x).__name__)
    return [x * factor if i else x.sin() for i in range(2)]


def test_allowed_functions_are_one_operation():
    def use(x):
        first, second = opaque(x * 2, factor=3.0)
        return first + second

    def story(wrap):
        compiled = wrap(use)
        for _ in range(2):
            x = arg()
            y = compiled(x)
            y.sum().backward()
            yield y, x.grad

    for backend in ("eager", "default"):
        events = check_same(story, backend=backend)
        assert [e.ops for e in events if type(e).__name__ == "Compiled"] == [5]


@torch.compiler.disable
def excluded(x):
    return x * x.sum().item()


def test_disabled_functions_of_torch_break_by_name():
    events = check(lambda x: excluded(x + 1) * 2, arg().detach(), graphs=2, breaks=1, options=EAGER)
    assert [e.code for e in events if type(e).__name__ == "GraphBroke"] == ["disabled"]
