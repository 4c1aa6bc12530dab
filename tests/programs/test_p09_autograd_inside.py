"""Autograd inside compiled functions and around them: checkpoints, custom functions, gradients taken inside, threads, transforms."""

import threading

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.programs.test_p09_autograd import leaf
from tests.scenarios import attempt, check_same


def test_requires_grad_changes_between_calls():
    def story(wrap):
        run = wrap(lambda x, y: x * y)
        x, y = torch.ones(3), torch.ones(3) * 2
        for a, b in ((False, False), (True, False), (False, True), (True, True), (False, False)):
            out = run(x.clone().requires_grad_(a), y.clone().requires_grad_(b))
            yield out

    check_same(story)


def test_detached_inside():
    def story(wrap):
        run = wrap(lambda x, y: (x * y.detach() + (x * y).detach() + y.data if False else x * y.detach()) + y.sin())
        x, y = leaf(3), leaf(3, seed=1)
        run(x, y).sum().backward()
        yield x.grad, y.grad

    check_same(story)


def test_checkpoint_like_double_use():
    def story(wrap):
        run = wrap(lambda x, w: (x * w).tanh() * w)
        x, w = leaf(3), leaf(3, seed=1)
        out = checkpoint(run, checkpoint(run, x, w, use_reentrant=False), w, use_reentrant=False)
        out.sum().backward()
        yield out, x.grad, w.grad

    check_same(story)


def test_checkpoint_with_dropout():
    def story(wrap):
        run = wrap(lambda x: F.dropout(x * 2, 0.5))
        x = leaf(50)
        out = checkpoint(run, x, use_reentrant=False)
        out.sum().backward()
        yield out, x.grad

    check_same(story)


def test_checkpoint_inside():
    def story(wrap):
        def block(x, w):
            return (x * w).tanh() * w

        run = wrap(lambda x, w: checkpoint(block, x, w, use_reentrant=False) + 1)
        x, w = leaf(3), leaf(3, seed=1)
        out = run(x, w)
        out.sum().backward()
        yield out, x.grad, w.grad

    check_same(story, least=None)


def test_custom_autograd_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 20

    def story(wrap):
        run = wrap(lambda x: Twice.apply(x * 3) + 1)
        x = leaf(3)
        out = run(x)
        out.sum().backward()
        yield out, x.grad

    check_same(story, least=None)


def test_backward_inside():
    def story(wrap):
        def step(x, w):
            loss = (x * w).sum()
            loss.backward()
            return loss.detach() * 2

        run = wrap(step)
        w = leaf(3)
        for _ in range(2):
            yield run(torch.ones(3), w), w.grad

    check_same(story, least=None)


def test_grad_inside():
    def story(wrap):
        def step(x):
            y = (x * x).sum()
            (g,) = torch.autograd.grad(y, x)
            return g * 2

        run = wrap(step)
        yield run(leaf(3))

    check_same(story, least=None)


def test_training_step_inside():
    def story(wrap):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            optimizer.step()
            return loss

        run = wrap(step)
        for _ in range(3):
            yield run(torch.ones(2, 3), torch.zeros(2, 1)), list(net.parameters())

    check_same(story, least=None, rtol=1e-4, atol=1e-5)


def test_leaf_made_inside():
    def story(wrap):
        def fn(x):
            y = torch.ones(3, requires_grad=True)
            return x * y, y

        run = wrap(fn)
        out, y = run(leaf(3))
        out.sum().backward()
        yield out, y, y.grad

    check_same(story, least=None)


def test_anomaly_mode():
    def story(wrap):
        run = wrap(lambda x: x.sqrt().sum())
        x = torch.tensor([0.0, 1.0], requires_grad=True)
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            run(x).backward()
        yield x.grad

    check_same(story)


def test_saved_tensor_hooks():
    def story(wrap):
        run = wrap(lambda x: (x.sin() * x).sum())
        x = leaf(4)
        with torch.autograd.graph.save_on_cpu():
            out = run(x)
        out.backward()
        yield x.grad
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t.clone(), lambda t: t):
            out = run(x)
        out.backward()
        yield x.grad, len(packed) > 0

    check_same(story)


def test_backward_on_another_thread():
    def story(wrap):
        run = wrap(lambda x: (x.sin() * x).sum())
        x = leaf(4)
        out = run(x)
        thread = threading.Thread(target=out.backward)
        thread.start()
        thread.join()
        yield x.grad

    check_same(story)


def test_functional_transforms_around():
    def story(wrap):
        run = wrap(lambda x: (x.sin() * x).sum())
        x = leaf(4).detach()
        yield attempt(torch.func.grad(run), x)
        yield attempt(torch.func.vmap(wrap(lambda x: x.sin() * 2)), x[None].expand(3, 4))
        yield attempt(torch.func.jacrev(wrap(lambda x: x.sin() * 2)), x)
        yield attempt(torch.autograd.functional.jacobian, wrap(lambda x: x.sin() * 2), x)
        yield attempt(torch.func.jvp, wrap(lambda x: x.sin() * 2), (x,), (x,))
        yield run(x)

    check_same(story, least=None)


def test_forward_mode():
    def story(wrap):
        run = wrap(lambda x: x.sin() * 2)
        x = leaf(4).detach()
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones(4))
            out = attempt(run, dual)
            yield torch.autograd.forward_ad.unpack_dual(out).tangent
        yield run(x)

    check_same(story, least=None)


def test_batched_gradients():
    def story(wrap):
        x = leaf(3)
        out = wrap(lambda x: x.sin() * 2)(x)
        yield torch.autograd.grad(out, x, torch.eye(3), is_grads_batched=True)

    check_same(story, least=None)


def test_gradient_checks_of_many_ops():
    functions = [
        lambda x: x.cumsum(0).prod(),
        lambda x: x.view(2, 3).softmax(-1)[:, 0],
        lambda x: F.layer_norm(x.view(2, 3), (3,)).pow(3),
        lambda x: x.abs().clamp(0.2, 0.9).sqrt(),
        lambda x: torch.where(x > 0, x.exp(), x.sin()),
        lambda x: x.view(2, 3).std(-1) + x.view(2, 3).var(0).sum(),
        lambda x: x.max() - x.min() + x.amax() * 2 + x.view(2, 3).max(0).values.sum(),
        lambda x: x.norm() + x.norm(1) + x.norm(3),
        lambda x: x[torch.tensor([0, 0, 5, -1])].prod(),
        lambda x: x.view(2, 3).gather(1, torch.tensor([[0, 0], [2, 1]])).sin(),
        lambda x: torch.cat([x, x * 2]).view(3, 4).t().logsumexp(0),
        lambda x: x.repeat(2).view(3, 4).flip(0).roll(1, 1).cos(),
        lambda x: torch.stack([x, x.flip(0)]).median(0).values,
        lambda x: x.sort(descending=True).values * torch.arange(6.0),
        lambda x: x.topk(3).values.prod(),
        lambda x: F.pad(x.view(2, 3), (1, 2), value=3.0).pow(2).sum(0),
        lambda x: x.unfold(0, 3, 2).prod(-1),
        lambda x: F.conv1d(x.view(1, 2, 3), torch.ones(2, 2, 2)).tanh(),
        lambda x: x.view(2, 3).tril().matmul(x.view(3, 2)).diagonal().exp(),
        lambda x: torch.outer(x, x).trace() + torch.dot(x, x.flip(0)),
        lambda x: F.cross_entropy(x.view(2, 3), torch.tensor([0, 2])) + F.huber_loss(x, x.detach().flip(0)),
        lambda x: torch.index_add(torch.zeros(3), 0, torch.tensor([0, 1, 1, 2, 0, 0]), x).pow(2),
        lambda x: x.scatter(0, torch.tensor([0, 3]), torch.ones(2)).sin() + x.masked_fill(x > 0, 1.0),
        lambda x: torch.lerp(x, x.flip(0), 0.3) + torch.addcmul(x, x, x.flip(0)) + x.logit(0.1) if False else x.lerp(x.flip(0), 0.7),
        lambda x: x.double().sigmoid().float() ** 3 + torch.atan2(x, x.flip(0) + 5),
    ]

    def story(wrap):
        for fn in functions:
            x = leaf(6, seed=4)
            out = wrap(lambda x, fn=fn: fn(x))(x)
            out.backward(torch.linspace(0.5, 1.5, max(out.numel(), 1)).reshape(out.shape))
            yield out, x.grad

    check_same(story, rtol=1e-4, atol=1e-5)
