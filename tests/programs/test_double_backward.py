"""Gradients of gradients through compiled functions: penalties, physics-informed losses, inner loops, Hessians, and batches of gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import functional as AF

import dynacompile

D = torch.float64


def compiled(fn, dynamic=None, **options):
    return dynacompile.compile(fn, isolate_recompiles=True, dynamic=dynamic, options={"reference": True, **options})


def leaf(*shape):
    return torch.randn(*shape, dtype=D, requires_grad=True)


def mlp(*widths):
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1]).double()


def check_step(step, make):
    """step(call) gives tensors; the compiled call's equal eager's."""
    torch.manual_seed(0)
    eager = make()
    torch.manual_seed(1)
    expected = step(eager)
    torch.manual_seed(1)
    got = step(compiled(eager))
    torch.testing.assert_close(got, expected)


def parameters(net):
    return [p for p in net.parameters() if p.requires_grad]


def test_gradient_penalty():
    critic = mlp(6, 16, 16, 1)

    def step(call):
        x = torch.randn(8, 6, dtype=D, requires_grad=True)
        (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        loss = call(x).mean() + 10 * ((grad.norm(2, dim=1) - 1) ** 2).mean()
        return torch.autograd.grad(loss, parameters(critic), allow_unused=True)

    check_step(step, lambda: critic)


def test_gradient_penalty_with_dropout_has_the_mask_of_the_forward():
    critic = nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(16, 1)).double()

    def step(call):
        x = torch.randn(8, 6, dtype=D, requires_grad=True)
        out = call(x)
        torch.rand(7)  # the generator goes on
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return (*torch.autograd.grad(grad.square().sum(), parameters(critic), allow_unused=True), torch.rand(3))

    check_step(step, lambda: critic)


@pytest.mark.parametrize("order", [2, 3])
def test_derivatives_of_a_network_by_its_inputs(order):
    net = mlp(2, 16, 16, 1)

    def step(call):
        points = torch.randn(10, 2, dtype=D, requires_grad=True)
        value = call(points)
        for _ in range(order):
            (value,) = torch.autograd.grad(value.sum(), points, create_graph=True)
            value = value[:, :1]
        return torch.autograd.grad(value.square().mean(), parameters(net), allow_unused=True)

    check_step(step, lambda: net)


@pytest.mark.parametrize("steps", [1, 2])
def test_inner_loop_of_model_agnostic_meta_learning(steps):
    def loss(w, b, x, y):
        return F.mse_loss(torch.tanh(x @ w) @ b, y)

    def step(call):
        x, y, w, b = torch.randn(8, 3, dtype=D), torch.randn(8, 1, dtype=D), leaf(3, 5), leaf(5, 1)
        fast = (w, b)
        for _ in range(steps):
            grads = torch.autograd.grad(call(*fast, x, y), fast, create_graph=True)
            fast = tuple(p - 0.1 * g for p, g in zip(fast, grads))
        return torch.autograd.grad(call(*fast, x, y), (w, b))

    check_step(step, lambda: loss)


def rosenbrock(x):
    return ((1 - x[:-1]) ** 2 + 10 * (x[1:] - x[:-1] ** 2) ** 2).sum()


@pytest.mark.parametrize(
    "query",
    [
        lambda f, x: AF.hessian(f, x),
        lambda f, x: AF.hessian(f, x, vectorize=True),
        lambda f, x: AF.hessian(f, x, create_graph=True),
        lambda f, x: AF.hvp(f, x, torch.ones_like(x))[1],
        lambda f, x: AF.vhp(f, x, torch.ones_like(x))[1],
        lambda f, x: AF.jacobian(f, x, vectorize=True),
    ],
    ids=["hessian", "hessian_vectorized", "hessian_differentiable", "hvp", "vhp", "jacobian_vectorized"],
)
def test_functions_of_torch_autograd(query):
    check_step(lambda call: query(call, leaf(5)), lambda: rosenbrock)


@pytest.mark.parametrize("create_graph", [False, True])
def test_batches_of_gradients(create_graph):
    def fn(x, w):
        return torch.tanh(x @ w)

    def step(call):
        x, w = leaf(3, 4), leaf(4, 2)
        rows = torch.autograd.grad(call(x, w), (x, w), torch.randn(5, 3, 2, dtype=D), is_grads_batched=True, create_graph=create_graph)
        return (*rows, *torch.autograd.grad(sum(r.square().sum() for r in rows), (x, w))) if create_graph else rows

    check_step(step, lambda: fn)


@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {"options": {"reference": True}}], ids=["unfused", "interpreted"])
@pytest.mark.parametrize(
    "fn",
    [lambda x: (torch.maximum(x**3, x).split(2, 1)[1],), lambda x: (y := x.tanh().abs(), o := y.cumsum(1), (o + x).sum())],
    ids=["a part of an output", "a sum of an output"],
)
def test_batches_of_gradients_whose_memory_has_gaps_or_is_shared(fn, options):
    def gradients(call):
        x = leaf(3, 4)
        y = call(x)[-1]
        return torch.autograd.grad(y, x, torch.ones(5, *y.shape, dtype=D), is_grads_batched=True)

    torch.manual_seed(0)
    expected = gradients(fn)
    torch.manual_seed(0)
    torch.testing.assert_close(gradients(dynacompile.compile(fn, isolate_recompiles=True, **options)), expected)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x: torch.func.grad(lambda v: f(v).sum())(x),
        lambda f, x: torch.func.vmap(f)(torch.stack([x, 2 * x])),
        lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f, x: torch.func.hessian(lambda v: f(v).sum())(x),
        lambda f, x: torch.func.vmap(torch.func.grad(lambda v: f(v).sum()))(torch.stack([x, 2 * x])),
    ],
    ids=["grad", "vmap", "jvp", "hessian", "gradients_of_samples"],
)
def test_transforms_of_torch_func(transform):
    check_step(lambda call: (call(leaf(4)), transform(call, torch.randn(4, dtype=D)))[1], lambda: lambda x: x.sin() * x)


def test_vmap_over_a_backward():
    def step(call):
        x = leaf(3, 4)
        y = call(x)
        return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(torch.randn(5, 3, 4, dtype=D))

    check_step(step, lambda: lambda x: F.softplus(x) * x)


def test_forward_mode_through_a_backward():
    def step(call):
        x = leaf(4)
        y = call(x)
        with torch.autograd.forward_ad.dual_level():
            tangent = torch.autograd.forward_ad.make_dual(torch.ones(4, dtype=D), torch.full((4,), 3.0, dtype=D))
            (grad,) = torch.autograd.grad(y, x, tangent)
            return torch.autograd.forward_ad.unpack_dual(grad)

    check_step(lambda call: tuple(step(call)), lambda: lambda x: x.sin() * x)


def written(x, w):
    y = x * 1
    x.mul_(2)
    return (y.exp() * y.mul_(w)).sum()


def layers(x, w):
    return F.layer_norm(F.gelu(x @ w), (4,)).logsumexp(-1).sum()


def kinked(x, w):
    return F.max_pool1d(torch.relu(x @ w)[None], 2).square().sum()


def gathered(x, w):
    return (x[torch.tensor([0, 2, 2])].cumsum(0) @ w).prod(1).sum()


@pytest.mark.parametrize("fn", [layers, kinked, gathered, lambda x, w: torch.linalg.solve(w @ w.t() + 4 * torch.eye(4, dtype=D), x.t()).sin().sum()])
def test_gradgradcheck(fn):
    torch.manual_seed(0)
    assert torch.autograd.gradgradcheck(compiled(fn), (leaf(3, 4), leaf(4, 4)))


def test_inputs_that_the_graph_writes_are_as_they_were():
    def step(call):
        x, w = leaf(3, 4), leaf(3, 4)
        grads = torch.autograd.grad(call(x * 2, w), (x, w), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), (x, w))

    check_step(step, lambda: written)


def test_a_parameter_that_was_written_since_is_an_error_as_in_eager():
    x, w, b = leaf(3, 4), leaf(4, 4), leaf(4)
    out = compiled(lambda x, w, b: torch.tanh(x @ w + b).sum())(x, w, b)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, x, create_graph=True)


class Scaled(torch.autograd.Function):
    """Its gradient is not that of its value, and can be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].sin()


def test_custom_functions_and_detached_values():
    def fn(x, w):
        return (Scaled.apply(x @ w) * x.detach().exp()[:, :4]).sum()

    def step(call):
        x, w = leaf(3, 4), leaf(4, 4)
        grads = torch.autograd.grad(call(x, w), (x, w), create_graph=True)
        return (*grads, *torch.autograd.grad(sum(g.square().sum() for g in grads), (x, w)))

    check_step(step, lambda: fn)


def test_several_graphs():
    def fn(x, w):
        h = torch.tanh(x @ w)
        dynacompile.graph_break()
        return (h * x).sin().sum()

    def step(call):
        x, w = leaf(3, 4), leaf(4, 4)
        (grad,) = torch.autograd.grad(call(x, w), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, w))

    check_step(step, lambda: fn)


def test_graphs_in_parts():
    def fn(x, w):
        h = torch.tanh(x @ w)
        return (h[h > 0] ** 3).sum()

    x, w = leaf(3, 4), leaf(4, 4)
    expected, got = (torch.autograd.grad(call(x, w), (x, w), create_graph=True) for call in (fn, compiled(fn, capture_values=True)))
    again = [torch.autograd.grad(sum(g.square().sum() for g in grads), (x, w)) for grads in (expected, got)]
    torch.testing.assert_close(again[1], again[0])


def test_changing_sizes():
    call = compiled(lambda x, w: torch.tanh(x @ w).square().sum(1).exp().sum(), dynamic=True)
    w = leaf(4, 4)
    for rows in (3, 5, 9):
        x = leaf(rows, 4)
        results = []
        for fn in (lambda x, w: torch.tanh(x @ w).square().sum(1).exp().sum(), call):
            (grad,) = torch.autograd.grad(fn(x, w), x, create_graph=True)
            results.append(torch.autograd.grad(grad.square().sum(), (x, w)))
        torch.testing.assert_close(results[1], results[0])


def test_under_autocast():
    def fn(x, w):
        return torch.tanh(x @ w).float().square().sum()

    def step(call):
        x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            out = call(x, w)
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        return [g.double() for g in (grad, *torch.autograd.grad(grad.square().sum(), (x, w)))]

    torch.manual_seed(0)
    expected = step(fn)
    torch.manual_seed(0)
    torch.testing.assert_close(step(compiled(fn)), expected, rtol=3e-2, atol=3e-2)


def test_nothing_is_kept_alive_by_a_gradient():
    x = leaf(4)
    call = compiled(lambda x: x.exp().sum())
    (grad,) = torch.autograd.grad(call(x), x, create_graph=True)
    (again,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(again, x.exp())
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(grad.sum(), x)


LEAVES = {
    "linear": lambda x, w: F.linear(x, w),
    "mul": lambda x, w: (x[:, None] * w).sum(1),
    "matmul": lambda x, w: x @ w,
    "several": lambda x, w: (x @ w) * w.sum() + (x * w[0] * w[1]).sin(),
    "computed": lambda x, w: x * w.sin()[0] + (x @ w.t()).tanh(),
}


@pytest.mark.parametrize("fn", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize(("then", "now"), [(False, True), (True, False)])
def test_a_leaf_that_was_frozen_or_unfrozen_since(fn, then, now):
    """Autograd keeps leaves themselves. What is computed of one keeps the history that it had in the call."""
    first, head = leaf(4, 4), leaf(4, 4)

    def step(call):
        x = torch.randn(3, 4, dtype=D, requires_grad=True)
        first.requires_grad_(then)
        out = call(x)
        first.requires_grad_(now)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        penalty = slope.square().sum()
        found = torch.autograd.grad(penalty, [t for t in (x, first, head) if t.requires_grad], create_graph=True, allow_unused=True)
        first.grad = head.grad = None
        (penalty + sum(g.sin().sum() for g in found if g is not None)).backward()
        return [*found, first.grad, head.grad, x.grad]

    check_step(step, lambda: lambda x: (fn(x, first) @ head).sin())


@pytest.mark.parametrize("fn", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize(("call_time", "first_time", "second_time"), list(itertools.product([False, True], repeat=3)))
def test_a_leaf_that_was_frozen_or_unfrozen_between_derivatives(fn, call_time, first_time, second_time):
    """What differentiates a gradient counts a leaf as it is then; so does what differentiates that."""
    first, head = leaf(4, 4), leaf(4, 4)
    first.data.mul_(0.1)  # derivatives of this order of large values are chaotic

    def step(call):
        x = (torch.randn(3, 4, dtype=D) * 0.1).requires_grad_()
        first.requires_grad_(call_time)
        out = call(x)
        first.requires_grad_(first_time)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        first.requires_grad_(second_time)
        (bend,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
        first.requires_grad_(True)
        found = torch.autograd.grad(bend.sin().sum(), [x, first, head], create_graph=True, allow_unused=True)
        more = torch.autograd.grad(found[0].sin().sum(), [x, first, head], allow_unused=True)
        assert first.grad is None and first.requires_grad
        return [slope, bend, *found, *more]

    check_step(step, lambda: lambda x: (fn(x, first) @ head).sin())


def test_hooks_of_leaves_run_for_the_gradients_that_come_to_them():
    first, counts = leaf(4, 4), []

    def step(call):
        ran: list[int] = []
        handle = first.register_hook(lambda grad: ran.append(1))
        x = torch.randn(3, 4, dtype=D, requires_grad=True)
        out = call(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        first.grad = None
        slope.square().sum().backward()
        handle.remove()
        counts.append(len(ran))
        return [slope, first.grad, x.grad]

    check_step(step, lambda: lambda x: (x @ first).sin())
    assert set(counts) == {1}
