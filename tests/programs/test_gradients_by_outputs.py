"""Gradients of gradients with respect to outputs of a compiled graph: eager's formulas read some results, and then gradients come to these."""

import pytest
import torch
import torch.nn.functional as F

from tests.scenarios import attempt, check_same

D = torch.float64
LEVELS = pytest.mark.parametrize("backend", ["aot_eager", "default"])


def chained(x, w):
    h = (x @ w).exp()
    return h, (h * h).sum()


def two_results(x, w):
    return (x @ w).tanh(), x.sigmoid() * w.sum()


def three_stages(x, w):
    h = torch.sigmoid(x @ w)
    t = h.exp()
    return h, t, (t.sqrt() * h).sum()


FRAMES = {
    "exp": lambda x, w: x.exp(),
    "tanh of a product": lambda x, w: (x @ w).tanh(),
    "softmax": lambda x, w: (x @ w).softmax(-1),
    "sqrt": lambda x, w: (x.square() + 1).sqrt(),
    "relu": lambda x, w: F.relu(x * w),
    "a view": lambda x, w: x.exp().view(-1),
    "not read": lambda x, w: (x * w).sin(),
    "two results": two_results,
    "chained": chained,
    "three stages": three_stages,
}


def leaves(deep=False):
    torch.manual_seed(3)
    x, w = (torch.randn(3, 3, dtype=D, requires_grad=True) for _ in range(2))
    for _ in range(6 if deep else 0):  # one input lies far above the other
        w = w * 1.1
    return x, w


def plain(found):
    """Gradients without the strides of 0 that eager's may have."""
    return [None if t is None else t.contiguous() for t in found]


@LEVELS
@pytest.mark.parametrize("name", FRAMES)
def test_a_gradient_by_each_output(name, backend):
    def story(wrap):
        run = wrap(FRAMES[name])
        for deep in (False, True):
            x, w = leaves(deep)
            out = run(x, w)
            out = out if isinstance(out, tuple) else (out,)
            for i in range(len(out)):
                (g,) = torch.autograd.grad(out[i].square().sum(), x, create_graph=True)
                yield g
                for asked in (*out, x, w, (x, w, *out)):
                    found = attempt(torch.autograd.grad, g.square().sum(), asked, retain_graph=True, allow_unused=True)
                    yield type(found), plain(found) if isinstance(found, tuple) else None
                once = torch.autograd.grad(g.sum(), (x, w), create_graph=True, allow_unused=True)
                yield plain(once)
                terms = [t.square().sum() for t in once if t is not None and t.requires_grad]
                if terms:
                    yield plain(torch.autograd.grad(sum(terms), (x, w), retain_graph=True, allow_unused=True))

    check_same(story, backend=backend, rtol=1e-9, atol=1e-11)


@LEVELS
def test_a_hook_of_an_output_runs_in_both_passes(backend):
    def story(wrap):
        x, w = leaves()
        y = wrap(lambda x, w: (x @ w).exp())(x, w)
        seen = []
        y.register_hook(lambda g: seen.append(g.detach().clone()))
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.square().sum().backward()
        yield seen, x.grad, w.grad

    check_same(story, backend=backend, rtol=1e-9, atol=1e-11)


@LEVELS
def test_a_freed_graph_is_freed_for_the_second_pass_where_eager_reads_its_result(backend):
    def story(wrap):
        for frame in (lambda x, w: x.exp(), lambda x, w: x.sin()):
            x, w = leaves()
            y = wrap(frame)(x, w)
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            y.sum().backward()
            yield "a second time" in str(attempt(g.sum().backward))

    check_same(story, backend=backend)
