"""Outputs that are computed from other outputs hang on them: hooks, kept gradients, and gradients between outputs are eager's."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynacompile

D = torch.float64


def chained(x, w):
    h = x * 3
    return h, (h * h).sum()


def three_levels(x, w):
    h = torch.sin(x @ w)
    t = torch.cos(h)
    u = (t @ w) * h
    return h, u, (u * t).sum()


def with_another_path(x, w):
    t = (x @ w).tanh()
    h = t.sin()
    return h, (h * t).exp()


def view_of_an_input(x, w):
    v = x.view(-1)
    return v, (v * v).sum()


def views_of_an_output(x, w):
    h = x * w.sum()
    v = h.view(-1)
    return h, v, (v * v).sum() + h.sum()


def hidden_states(x, w):
    first = x @ w
    second = torch.relu(first) + first
    third = second @ w + first
    return first, second, third, (third * second).sum()


def parts(x, w):
    a, b = (x @ w).split(2, 1)
    return a, b, (a * b.exp()).sum()


def written_in_place(x, w):
    h = x * w.sum()
    h.mul_(2)
    return h, (h * h).sum()


def written_input(x, w):
    x.mul_(w.sum())
    return x, (x * x).sum()


def hooked_inside(x, w):
    h = x * 2
    h.register_hook(lambda g: g * 3)
    return h, h.sin().sum()


def independent(x, w):
    t = (x @ w).tanh()
    return t * 2, t * 3


PROGRAMS = [
    chained,
    three_levels,
    with_another_path,
    view_of_an_input,
    views_of_an_output,
    hidden_states,
    parts,
    written_in_place,
    written_input,
    independent,
]


def check_each_way(fn, ask):
    torch.manual_seed(0)
    values = torch.randn(3, 4, dtype=D), torch.randn(4, 4, dtype=D)
    found = []
    for call in (fn, dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True})):
        x, w = (v.clone().requires_grad_() for v in values)
        found.append(ask(call(x * 1, w) if fn is written_input else call(x, w), x, w))
    torch.testing.assert_close(found[1], found[0])


def loss(outputs):
    return sum(o.sin().sum() * (i + 1) for i, o in enumerate(outputs))


@pytest.mark.parametrize("fn", PROGRAMS)
def test_kept_gradients(fn):
    def ask(outputs, x, w):
        for o in outputs:
            o.retain_grad()
        outputs[-1].sum().backward()
        return [g for g in (*(o.grad for o in outputs), x.grad, w.grad) if g is not None]

    check_each_way(fn, ask)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_hooks_see_and_change_gradients(fn):
    def ask(outputs, x, w):
        seen = {}
        for i, o in enumerate(outputs[:-1]):
            o.register_hook(lambda g, i=i: seen.update({i: g}) or g * 2 + 1)
        grads = torch.autograd.grad(loss(outputs), (x, w), allow_unused=True)
        return [g for g in (*(seen[i] for i in sorted(seen)), *grads) if g is not None]

    check_each_way(fn, ask)


def test_a_hook_of_the_graph_runs_on_the_whole_gradient():
    def ask(outputs, x, w):
        found = [torch.autograd.grad(o.sum(), x, retain_graph=True)[0] for o in outputs]
        (grad,) = torch.autograd.grad(loss(outputs), x, create_graph=True)
        return (*found, grad, torch.autograd.grad(grad.square().sum(), x)[0])

    check_each_way(hooked_inside, ask)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_gradients_between_outputs(fn):
    def ask(outputs, x, w):
        found = []
        for o in outputs:
            for other in outputs:
                grads = torch.autograd.grad(o.sum(), (other, x, w), retain_graph=True, allow_unused=True)
                found.append([torch.zeros(()) if g is None else g for g in grads])
        return found

    check_each_way(fn, ask)


@pytest.mark.parametrize("fn", PROGRAMS)
def test_gradients_of_some_inputs(fn):
    def ask(outputs, x, w):
        outputs[-1].sum().backward(inputs=[outputs[0]], retain_graph=True)
        first = outputs[0].grad
        loss(outputs).backward(inputs=[x])
        return [g for g in (first, x.grad) if g is not None] + [torch.tensor(w.grad is None)]

    check_each_way(fn, ask)


@pytest.mark.parametrize("fn", [f for f in PROGRAMS if f not in (written_in_place, written_input)])
def test_double_backward(fn):
    def ask(outputs, x, w):
        grads = torch.autograd.grad(loss(outputs), (*outputs[:1], x, w), create_graph=True, allow_unused=True)
        again = torch.autograd.grad(sum(g.square().sum() for g in grads if g is not None), (x, w), allow_unused=True)
        return [g for g in (*grads, *again) if g is not None]

    check_each_way(fn, ask)


def written_beside_a_view(x, w):
    h = (x @ w).exp().clone()
    h.add_(1).sin_()
    o = h.log_softmax(0)
    return h[1:], h, o, (o / (1 + h.square())).sum()


def read_before_and_after(x, w):
    h = x @ w
    before = h * 3
    h.add_(1).mul_(w.sum())
    return before.sin(), h, (h * h + before).sum()


def written_through_a_view(x, w):
    h = (x @ w).sin()
    h[0] = x[1] * 2
    h.t().mul_(1.5)
    return h, (h.exp() * x).sum(), h.tanh()


def written_twice(x, w):
    h = (x @ w).tanh().clone()
    h.mul_(2)
    t = h.clone()
    t.add_(h).cos_()
    h.add_(1)
    return h, t, (h * t).sum(), t.sin() * h.sum()


def read_by_an_older_view(x, w):
    h = (x * w.sum()).clone()
    rows = h.view(-1)
    h.mul_(x).sin_()
    return h, (rows * rows).sum()


def a_view_is_the_output(x, w):
    h = (x @ w).clone()
    rows = h[1:]
    rows.mul_(2).sin_()
    return rows, (rows.exp() * 2).sum(), h.sum()


SETTLED = [written_in_place, written_beside_a_view, read_before_and_after, written_through_a_view, written_twice]
REFUSED = [read_by_an_older_view, a_view_is_the_output]


def twice_differentiated(call):
    torch.manual_seed(0)
    x, w = torch.randn(3, 4, dtype=D, requires_grad=True), torch.randn(4, 4, dtype=D, requires_grad=True)
    outputs = call(x, w)
    first = torch.autograd.grad(sum(o.square().sum() for o in outputs), (x, outputs[0]), create_graph=True)
    penalty = sum(g.square().sum() for g in first)
    second = torch.autograd.grad(penalty, (x, w), create_graph=True)
    by_outputs = torch.autograd.grad(penalty, outputs, retain_graph=True, allow_unused=True)
    return first, second, torch.autograd.grad(sum(g.square().sum() for g in second), (x, w)), by_outputs


@pytest.mark.parametrize("program", SETTLED, ids=lambda p: p.__name__)
def test_double_backward_through_outputs_that_are_written_in_place(program):
    got = twice_differentiated(dynacompile.compile(program, isolate_recompiles=True, options={"reference": True}))
    for g, e in zip(got, twice_differentiated(program), strict=True):
        assert [t is None for t in g] == [t is None for t in e]
        torch.testing.assert_close([t for t in g if t is not None], [t for t in e if t is not None])


@pytest.mark.parametrize("program", REFUSED, ids=lambda p: p.__name__)
def test_a_refused_part_of_a_double_backward_is_never_left_out(program):
    """An older view of what is written leads to the output in eager, by a node that the write makes anew."""
    with pytest.raises(RuntimeError, match="writes in place to .* output"):
        twice_differentiated(dynacompile.compile(program, isolate_recompiles=True, options={"reference": True}))
    twice_differentiated(program)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("part", [lambda x: x.view(4, 3), lambda x: x[1:], lambda x: x * 1], ids=["all", "rows", "no view"])
def test_a_view_that_was_written_several_times_leads_to_the_outputs(part, times):
    """Autograd makes a view's node anew where its version has changed."""

    def frame(y):
        for _ in range(times):
            y[0] = 1
        return y * y, y.view(-1)

    results = []
    for call in (frame, dynacompile.compile(frame, isolate_recompiles=True, options={"reference": True})):
        y = part(torch.linspace(-1, 2, 12).view(3, 4).requires_grad_() * 1)
        made = call(y)
        y.retain_grad()
        asked = torch.autograd.grad(loss(made), (y, made[1]), retain_graph=True, allow_unused=True)
        loss(made).backward()
        results.append([*(g for g in asked if g is not None), y.grad])
    torch.testing.assert_close(results[1], results[0])


class Classifier(nn.Module):
    """As language models are: gives its loss, its logits and its hidden states."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 5)

    def forward(self, x, labels):
        states = []
        for layer in self.body:
            x = x + torch.tanh(layer(x))
            states.append(x)
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits, tuple(states)


def test_a_model_that_returns_its_loss_logits_and_hidden_states():
    torch.manual_seed(0)
    net, x, labels = Classifier(), torch.randn(4, 8), torch.arange(4)
    results = []
    for call in (net, dynacompile.compile(net, isolate_recompiles=True, options={"reference": True})):
        net.zero_grad()
        total, logits, states = call(x, labels)
        logits.retain_grad()
        states[1].retain_grad()
        total.backward()
        results.append([logits.grad, states[1].grad, *(p.grad.clone() for p in net.parameters())])
    torch.testing.assert_close(results[1], results[0])


def test_outputs_are_freed_with_their_nodes():
    x = torch.randn(3, requires_grad=True)
    freed = []

    class Flag:
        def __del__(self):
            freed.append(1)

    h, total = dynacompile.compile(lambda x: ((h := x.exp()), (h * h).sum()), isolate_recompiles=True)(x)
    h.grad_fn.metadata["flag"] = total.grad_fn.metadata["flag"] = Flag()
    del h, total
    assert freed == [1]


def test_a_gradient_that_is_always_zeros_is_no_none():
    """Eager's copysign gives its sign zeros, which depend on no tangent, also beside a view of an input that another output is computed from."""

    def fn(x, w):
        h = x.flatten()
        return torch.copysign(x, w) * 2, h * 3, h

    x, w = torch.randn(4, 4, dtype=D, requires_grad=True), torch.randn(4, 4, dtype=D, requires_grad=True)
    outputs = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": True})(x, w)
    found = torch.autograd.grad(loss(outputs), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(loss(fn(x, w)), (x, w)))
    assert not found[1].any()


class TwoResults(torch.autograd.Function):
    """The cosine of a gradient of zeros counts."""

    @staticmethod
    def forward(ctx, y):
        return y * 2, y + 1

    @staticmethod
    def backward(ctx, a, b):
        return a + b.cos()


FURTHER = ("one", "other", "one * x", "other * x", "one + h", "other.clone()", "(other * h).sum()", "one.sin() * other", "-other * h + x")


def results_at_levels(*chosen):
    """A program that gives h, which its other results may be computed from, and the chosen expressions."""
    names = {"TwoResults": TwoResults}
    exec(f"def fn(x, w):\n    h = x * w.sum()\n    one, other = TwoResults.apply(x)\n    return h, {', '.join(chosen)}", names)
    return names["fn"]


@pytest.mark.parametrize("chosen", list(itertools.combinations(FURTHER, 2)))
def test_gradients_that_a_function_gets_together_come_from_results_of_any_level(chosen):
    def ask(outputs, x, w):
        found = []
        for count in range(1, 1 + len(outputs)):
            for asked in itertools.combinations(outputs, count):
                found += torch.autograd.grad(loss(asked), (x, w), retain_graph=True, allow_unused=True)
        return [torch.zeros(()) if g is None else g for g in found]

    check_each_way(results_at_levels(*chosen), ask)
