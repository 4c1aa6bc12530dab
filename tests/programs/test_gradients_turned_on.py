"""Frames that run without gradients and turn them on, and results whose gradients come to no input: energies beside the forces taken from them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

BACKENDS = ["eager", "aot_eager", "default"]


def network(requires_grad: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).requires_grad_(requires_grad)


class Potential(nn.Module):
    """The energy, whose history is freed by the gradient, and the forces."""

    def __init__(self, requires_grad: bool = True, keep: bool = False):
        super().__init__()
        self.net, self.keep = network(requires_grad), keep

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.net(x).sum()
            (gradient,) = torch.autograd.grad(energy, x, retain_graph=self.keep)
        return energy, -gradient


def block(net, x):
    y = net(x)
    with torch.enable_grad():
        z = net(x)
    return y, z, torch.is_grad_enabled()


def function(net, x):
    torch.set_grad_enabled(True)
    y = net(x)
    torch.set_grad_enabled(False)
    return y


def left_on(net, x):
    torch.set_grad_enabled(True)
    return net(x)


@torch.enable_grad()
def decorated(net, x):
    return net(x) * 2


def calls_decorated(net, x):
    return decorated(net, x) + 1


def broken(net, x):
    with torch.enable_grad():
        y = net(x)
        dynacompile.graph_break()
        z = net(y.expand(-1, 3))
    return y, z, net(x)


def raises(net, x):
    with torch.enable_grad():
        y = net(x)
        raise ValueError("after", y.requires_grad)


def writes(net, x):
    x.mul_(2)
    with torch.enable_grad():
        y = net(x * 1)
    x.add_(1)
    return y


def views(net, x):
    before = net[0].weight.view(-1)
    with torch.enable_grad():
        after = net[0].weight.t()
        y = x @ after
    return before, after, y


def of_values(net, x):
    with torch.enable_grad():
        y = net(x[x[:, 0] > 0])
    return y


PROGRAMS = [block, function, left_on, calls_decorated, broken, raises, writes, views, of_values]


def outcome(fn, net, x):
    """What a call gives, the mode that it leaves, and the gradients that come of it."""
    net.zero_grad()
    with torch.no_grad():
        try:
            given = fn(net, x)
        except ValueError as error:
            return str(error), torch.is_grad_enabled()
        after = torch.is_grad_enabled()
    results = given if isinstance(given, tuple) else (given,)
    tensors = [t for t in results if isinstance(t, torch.Tensor)]
    shown = [(t.requires_grad, t.is_leaf, t._is_view()) for t in tensors]
    loss = sum(t.sum() for t in tensors if t.requires_grad)
    refused = back(loss, net) if isinstance(loss, torch.Tensor) else None
    return [t.detach().clone() for t in tensors], shown, results[len(tensors) :], after, str(refused)[:60], [p.grad for p in net.parameters()]


def alike(got, want):
    if isinstance(want, torch.Tensor):
        return isinstance(got, torch.Tensor) and torch.allclose(got, want, rtol=1e-4, atol=1e-6)
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(map(alike, got, want))
    return got == want


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS)
def test_as_in_eager(fn, backend):
    compiled = dynacompile.compile(fn, backend=backend, isolate_recompiles=True, fullgraph=fn is not broken, options={"fallback": "none", "verify": True})
    net = network()
    for _ in range(2):
        x = torch.randn(4, 3)
        x[0, 0] = 1.0
        given = x.clone()
        want, got = outcome(fn, net, x), outcome(compiled, net, given)
        assert alike(got, want), (got, want)
        torch.testing.assert_close(given, x)


def test_the_mode_of_the_caller_is_guarded():
    net, x = network(), torch.randn(4, 3)
    compiled = dynacompile.compile(block, isolate_recompiles=True, fullgraph=True)
    for _ in range(2):
        with torch.no_grad():
            y, z, mode = compiled(net, x)
        assert (y.requires_grad, z.requires_grad, mode) == (False, True, False)
        y, z, mode = compiled(net, x)
        assert (y.requires_grad, z.requires_grad, mode) == (True, True, True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [True, False], ids=["with gradients", "without"])
@pytest.mark.parametrize("frozen", [False, True], ids=["trained", "frozen"])
@pytest.mark.parametrize("keep", [False, True], ids=["freed", "kept"])
def test_energies_beside_forces(backend, grad, frozen, keep):
    eager = Potential(not frozen, keep)
    compiled = dynacompile.compile(eager, backend=backend, fullgraph=True, isolate_recompiles=True, options={"verify": True})
    for _ in range(2):
        x = torch.randn(4, 3)
        with torch.set_grad_enabled(grad):
            want, got = eager(x), compiled(x)
        torch.testing.assert_close(got, want)
        assert [(t.requires_grad, t.is_leaf) for t in got] == [(t.requires_grad, t.is_leaf) for t in want]
        assert [back(e, eager) for e in (got[0], got[0])] == [back(e, eager) for e in (want[0], want[0])]


def back(energy, module):
    """What a backward pass raises or leaves."""
    module.zero_grad()
    try:
        energy.backward()
    except RuntimeError as error:
        return str(error)
    return [p.grad is None or round(float(p.grad.sum()), 4) for p in module.parameters()]


def test_energies_and_forces_are_one_graph():
    potential = Potential()

    def run(x):
        return potential(x)

    with torch.no_grad():
        check(run, torch.randn(4, 3), graphs=1, breaks=0, kernels=4, backward=False)


def test_a_result_that_no_input_gets_a_gradient_of_beside_one_that_does():
    net = network()

    def run(x):
        inside = torch.ones(3, requires_grad=True)
        alone = (inside * x).sum()
        return alone, net(x).sum(), alone

    compiled, x = dynacompile.compile(run, fullgraph=True), torch.randn(3)
    for _ in range(2):
        net.zero_grad()
        first, second, third = compiled(x)
        assert first is third and first.requires_grad and second.requires_grad
        (first + second).backward()
        got = [p.grad.clone() for p in net.parameters()]
        net.zero_grad()
        eager = run(x)
        (eager[0] + eager[1]).backward()
        torch.testing.assert_close(got, [p.grad for p in net.parameters()])


def of_one_leaf(x, n):
    leaf = (x * 1).detach().requires_grad_()
    first = leaf.exp()
    second = first * first
    return (first, second, second.sum() * x)[:n]


WRITES = {"none": lambda out, x: None, "first": lambda out, x: out[0].detach().add_(1), "input": lambda out, x: x.add_(1)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_is_kept_for_a_leaf_inside_may_be_written(n, write, backend):
    def story(fn):
        for index in range(n):
            x = torch.linspace(0, 1, 4)
            out = fn(x, n)
            write(out, x)
            first = kind_of_error(out[index].sum().backward)
            yield first, first or kind_of_error(out[index].sum().backward)

    compiled = dynacompile.compile(of_one_leaf, backend=backend, fullgraph=True, isolate_recompiles=True)
    assert list(story(compiled)) == list(story(of_one_leaf))


def kind_of_error(call):
    try:
        call()
    except RuntimeError as error:
        return next((kind for kind in ("modified by an inplace operation", "a second time") if kind in str(error)), str(error))
    return None


def guided(x):
    with torch.inference_mode():
        h = x * 2
        with torch.inference_mode(False), torch.enable_grad():
            y = h.clone().requires_grad_()
            (gradient,) = torch.autograd.grad((y * y).sum(), y)
        return h - gradient


def told_in_inference(x):
    @torch.enable_grad()
    def double(x):
        return x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with torch.inference_mode():
        found = [double(x), torch.is_grad_enabled()]
        with torch.set_grad_enabled(True), torch.inference_mode(), torch.no_grad():
            found.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)
        found += [torch.is_grad_enabled(), x * 3, x.view(-1)]
    return found, torch.is_grad_enabled(), x * 4


def in_and_out(x):
    with torch.inference_mode():
        a = x * 2
        with torch.inference_mode(False):
            b = x * 3
            told = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
            with torch.inference_mode():
                c = x * 4
        d = b * 5
    return a, b, c, d, told


def breaks_inside(x):
    with torch.inference_mode():
        with torch.enable_grad():
            a = x * 2
            print(end="")
            b, told = a * 3, torch.is_grad_enabled()
        with torch.inference_mode(False):
            c = x * 3
            print(end="")
            d = c * 2
        with torch.inference_mode():
            e = x + 1
            print(end="")
            f = e + 1, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return a, b, told, c, d, f, x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def look(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone(), value.requires_grad, value.is_inference(), value.grad_fn is None
    return [look(part) for part in value] if isinstance(value, (tuple, list)) else value


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [guided, told_in_inference, in_and_out, breaks_inside])
def test_gradients_and_inference_mode(fn, backend):
    def story(wrap):
        leaf = torch.linspace(-1, 2, 6).reshape(2, 3).requires_grad_(fn is not guided)
        call = wrap(fn)
        for _ in range(2):
            out = call(leaf)
            yield look(out), torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if fn in (in_and_out, breaks_inside):
            out[1 if fn is in_and_out else 4].sum().backward()
            yield leaf.grad

    check_same(story, backend=backend, fullgraph=fn is not breaks_inside)
