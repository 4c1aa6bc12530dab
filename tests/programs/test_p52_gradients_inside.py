"""Hooks on tensors of the graph, tensors that come to require gradients, and torch.autograd.grad: in the graph; else a named break."""

import sys

import pytest
import torch

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def hooked(x):
    y = x * 2
    w = x.detach() + 1
    y.register_hook(lambda g: g * w)
    z = y.sin()
    if z.requires_grad:
        z.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return z


def hooked_after_a_use(x):
    y = x * 2
    z = y.cos()
    y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: None)
    y.register_hook(lambda g: g + 1)
    return y.sin() + z, y


def gradient(x):
    y = (x.sin() * x).sum()
    (g,) = torch.autograd.grad(y, x)
    return g * 2


def penalty(x):
    y = (x.sin() * x).sum()
    (g,) = torch.autograd.grad(y, [x], create_graph=True)
    return y + (g.norm() - 1) ** 2


def gradients_of_parts(x):
    y = x * 2
    z = y.sin()
    (first,) = torch.autograd.grad(z, y, torch.ones_like(z), retain_graph=True)
    fresh = x.detach().clone().requires_grad_()
    unused, used = torch.autograd.grad((fresh**3).sum(), (x, fresh), allow_unused=True)
    return first + z, unused, used


def hooks_of_branches(x):
    y = x * 2
    left, right = y.sin(), y.cos()
    left.register_hook(lambda g: g + 1)
    right.register_hook(lambda g: (g - 3).clamp(-2, 1))
    y.register_hook(lambda g: g * g + 1)
    return left * 2, right * 3, x.exp()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("picked", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
def test_a_hook_runs_where_a_gradient_comes(picked, backend):
    """Of several results some are differentiated: hooks on the way to others do nothing."""

    def story(wrap):
        run = wrap(hooks_of_branches)
        for _ in range(2):
            x = arg()
            results = run(x)
            sum(results[i].sum() for i in picked).backward()
            yield x.grad

    check_same(story, backend=backend, fullgraph=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fn", [hooked, hooked_after_a_use, gradient, penalty, gradients_of_parts])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)
    check(fn, arg(), rtol=1e-4, atol=1e-5)


def marked(x):
    y = x.detach()[:, None] * 2
    y.requires_grad = True
    return y.sin(), y.requires_grad


def marked_and_not(x):
    y = (x.detach() * 2).requires_grad_()
    y.requires_grad_(False)
    return y.sin() + x


def marked_view(x, w):
    y = x[:, None]
    y.requires_grad = True
    return (y * w).sin()


def test_tensors_of_the_graph_come_to_require_gradients():
    check(marked, arg(), options=EAGER)
    check(marked, arg(), graphs=None, breaks=None)  # ahead of time, nothing could tell its gradient
    for options in (EAGER, None):
        check(marked_and_not, arg(), options=options)
        check(marked_view, arg().detach(), torch.ones(4, requires_grad=True), options=options)


def hooks_with_effects(x):
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.shape))
    return y.sin(), seen


def hooks_an_input(x):
    handle = x.register_hook(lambda g: g * 3)
    y = x.sin()
    handle.remove()
    return y


def removes(x):
    y = x * 2
    handle = y.register_hook(lambda g: g * 3)
    z = y.sin()
    handle.remove()
    return z


def changes_what_the_hook_reads(x):
    y = x * 2
    scale = 2.0
    y.register_hook(lambda g: g * scale)
    scale = 5.0
    return y.sin()


SETTINGS = {"scale": 2.0}


def reads_settings(x):
    y = x * 2
    y.register_hook(lambda g: g * SETTINGS["scale"])
    return y.sin()


IN_BACKWARD = False


def refuses_to_run_now(grad):
    """As Fabric's hooks, which raise outside of `fabric.backward`."""
    if not IN_BACKWARD:
        raise RuntimeError("not in the backward pass")
    return grad * 2


def registers_what_would_raise_now(x):
    y = x * 2
    y.register_hook(refuses_to_run_now)
    return y.sin()


def runs_backward(x):
    fresh = x.detach().clone().requires_grad_()
    (fresh.sin() * fresh).sum().backward()
    return fresh.grad * 2


def keeps(x):
    y = x * 2
    y.retain_grad()
    return y.sin(), y


def marks_an_input(x):
    x.requires_grad_(False)
    return x * 2


BREAKING = [
    (hooks_an_input, "hooks"),
    (removes, "hooks"),
    (changes_what_the_hook_reads, "hooks"),
    (reads_settings, "hooks"),
    (runs_backward, "autograd-call"),
    (keeps, "autograd-call"),
    (marks_an_input, "autograd-call"),
]


@pytest.mark.parametrize(("fn", "code"), BREAKING)
def test_what_is_no_graph_breaks_by_name(fn, code):
    with pytest.raises(dynacompile.exc.Unsupported) as raised:
        dynacompile.compile(fn, backend="eager", fullgraph=True)(arg())
    assert raised.value.code == code
    for options in (EAGER, None):
        check(fn, arg(), graphs=None, breaks=None, calls=1, options=options, rtol=1e-4, atol=1e-5)


def test_gradients_through_what_was_computed_before_are_pythons():
    """The derivative by w has a part that goes through x, which the graph does not see."""

    def outer(compute):
        w = torch.linspace(1, 2, 4).requires_grad_()
        return compute(w.sin(), w)

    def compute(x, w):
        return torch.autograd.grad((x * w).sum(), w)[0]

    compiled = dynacompile.compile(compute, isolate_recompiles=True)
    torch.testing.assert_close(outer(compiled), outer(compute))
    with pytest.raises(dynacompile.exc.Unsupported, match="autograd-call"):
        outer(dynacompile.compile(compute, fullgraph=True, isolate_recompiles=True))


def test_a_hook_that_would_raise_now_runs_in_the_backward_pass(monkeypatch):
    x = arg()
    with pytest.raises(dynacompile.exc.Unsupported) as raised:
        dynacompile.compile(registers_what_would_raise_now, backend="eager", fullgraph=True)(x)
    assert raised.value.code == "hooks"
    y = dynacompile.compile(registers_what_would_raise_now, backend="eager")(x)
    monkeypatch.setattr(sys.modules[__name__], "IN_BACKWARD", True)
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, 4 * (2 * x).cos())


WEIGHTS = [torch.linspace(0.5, 1.5, 3).requires_grad_(), torch.linspace(-1, 1, 4).requires_grad_()]
PASSED_LISTS = {
    "autograd.grad by a global": lambda x, ws: torch.autograd.grad((x * WEIGHTS[0].sum() * WEIGHTS[1].square().sum()).sum(), WEIGHTS),
    "autograd.grad by an argument": lambda x, ws: torch.autograd.grad((x * ws[0].sum() * ws[1].square().sum()).sum(), ws),
    "autograd.grad of several": lambda x, ws: torch.autograd.grad([(x * ws[0].sum()).sum(), ws[1].square().sum()], ws, [torch.ones(()), x.sum()]),
    "func.grad": lambda x, ws: torch.func.grad(lambda q: (q[0].sum() * x).sum() * q[1].square().sum())(ws),
    "vmap": lambda x, ws: torch.func.vmap(lambda q, y: q[0] * y + q[1], in_dims=(None, 0))([w.sum() for w in ws], x),
    "cond": lambda x, ws: torch.cond(x.sum() > 0, lambda q: q[0].sum() + q[1].sum(), lambda q: q[0].prod() * 1.0, (ws,)),
}


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("name", PASSED_LISTS)
def test_lists_of_tensors_that_the_frame_is_given(name, kind):
    ws = kind(w.detach().clone().requires_grad_() for w in WEIGHTS)
    check(PASSED_LISTS[name], torch.ones(2), ws, options={"backend": "eager"})
