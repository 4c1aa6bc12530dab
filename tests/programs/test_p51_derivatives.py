"""torch.func's jvp, vjp, jacrev, jacfwd, hessian and linearize, vmap with all of its arguments, and their combinations: one graph each."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager"}
LAYER = nn.Linear(4, 2)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def forward_mode(x):
    result, tangent = jvp(torch.sin, (x,), (torch.ones_like(x),))
    pair, tangents, kept = jvp(lambda a, b: ({"p": a * b.sin()}, a + 1), (x, x * 2), (torch.ones_like(x), x), has_aux=True)
    return result, tangent, pair["p"], tangents["p"], kept


def reverse_mode(x):
    result, pull = vjp(lambda a, b: (a * b, {"k": b.sin()}), x, x * 2)
    once = pull((result[0], {"k": result[1]["k"]}))
    twice = pull((torch.ones_like(x), {"k": x}))
    value, back, kept = vjp(lambda a: (a.sin(), a * 3), x, has_aux=True)
    return result, once, twice, back(value), kept


def reverse_jacobians(x):
    row = x[0]
    both = jacrev(lambda a, b: (a * b).sum(1), argnums=(0, 1))(x, x + 1)
    chunks = jacrev(lambda a: a.sin() * a.sum(), chunk_size=2)(row)
    each = jacrev(lambda a: (a.cos(), a.sum()), chunk_size=1)(row)
    made, kept = jacrev(lambda a: ({"s": a.sin(), "t": a.sum()}, a + 1), has_aux=True)(row)
    return *both, chunks, *each, made, kept


def forward_jacobians(x):
    row = x[0]
    one = jacfwd(lambda a, b: (a * b).sum(1), argnums=1)(x, x + 1)
    both = jacfwd(lambda a, b: (a * b).sum(1) + a.sum(), argnums=(0, 1))(x, x.sum())
    made, kept = jacfwd(lambda a: ((a.sin(), a.sum()), a + 1), has_aux=True)(row)
    return one, *both, made, kept


def hessians(x):
    return hessian(lambda a: (a.sin() * a).sum())(x[0]), hessian(lambda a, b: (a * a * b).sum(), argnums=1)(x[0], x[1])


def of_parameters(x):
    made = jacrev(lambda tensors: functional_call(LAYER, tensors, (x[0],)))({k: v.detach() for k, v in LAYER.named_parameters()})
    return made["weight"] * 2, made["bias"] + 1


def kernel_of_parameters(x):
    tensors = {k: v.detach() for k, v in LAYER.named_parameters()}
    made = vmap(jacrev(lambda p, sample: functional_call(LAYER, p, (sample,))), in_dims=(None, 0))(tensors, x)
    return torch.einsum("nabc,mabc->nm", made["weight"], made["weight"])


def linear(x):
    value, along = linearize(lambda a, b: a.sin() * b, x.detach(), x.detach() * 2)
    return value, along(torch.ones_like(x), x.detach())


def out_dims(x):
    y = x.sin()
    return vmap(lambda a: (a * 2, {"s": a.sum()}), out_dims=(1, {"s": 0}))(x), vmap(lambda a: (a * 2, y.sum()), out_dims=(0, None))(x)


def in_dims(x):
    return vmap(lambda pair, q: pair[0] * pair[1]["k"] + q, in_dims=((0, {"k": 1}), None))((x, {"k": x.t() * 1}), x[0])


def other_options(x):
    return vmap(lambda a: a * 2 + a.sum(), chunk_size=2)(x), vmap(lambda a, k=None: a * k)(x, k=x * 2), vmap(lambda a: a * 2)(x.detach()[:0])


def same_draws(x):
    return vmap(lambda a: a + torch.rand(4), randomness="same")(x)


def combined(x):
    first = vmap(grad(lambda r: (r.sin() * r).sum()))(x)
    second = grad(lambda a: vmap(lambda r: r.sin().sum())(a).sum())(x)
    third = jvp(grad(lambda a: (a.sin() * a).sum()), (x,), (torch.ones_like(x),))
    fourth = vmap(jacrev(lambda r: r.sin() * r.sum()))(x)
    fifth = vmap(vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(0, 0))(x, x[:, 0])
    return first, second, *third, fourth, fifth


def strictly_called(x):
    return functional_call(LAYER, {k: v * 2 for k, v in LAYER.named_parameters()}, (x,), strict=True)


@torch.no_grad()
def without_gradients_around(x):
    value, pull = vjp(torch.sin, x)
    return grad(lambda a: (a * a).sum())(x), grad_and_value(lambda a: a.sin().sum())(x), pull(value), jacrev(torch.cos)(x[0])


WHOLE = [
    forward_mode,
    reverse_mode,
    reverse_jacobians,
    forward_jacobians,
    hessians,
    of_parameters,
    kernel_of_parameters,
    linear,
    out_dims,
    in_dims,
    other_options,
    combined,
    strictly_called,
    without_gradients_around,
]


@pytest.mark.parametrize("fn", [*WHOLE, same_draws])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)


@pytest.mark.parametrize("fn", WHOLE)
def test_with_kernels(fn):
    check(fn, arg(), rtol=1e-4, atol=1e-5)


def pulled_after_a_write(x):
    y = x.detach() * 1
    result, pull = vjp(lambda a: a.sin(), y)
    y.add_(1)
    return pull(result)


def draws(x):
    result, pull = vjp(lambda a: nn.functional.dropout(a, 0.5), x)
    return result, pull(torch.ones_like(x))


def linear_with_gradients(x):
    return linearize(torch.sin, x)[1](torch.ones_like(x))


def wrong_dimensions(x):
    return vmap(lambda a, b: a * b, in_dims=(0, 0))(x, 2.0)


BREAKING = [(pulled_after_a_write, "mutation"), (draws, "random-state"), (linear_with_gradients, "autograd-call"), (wrong_dimensions, "would-raise")]


@pytest.mark.parametrize(("fn", "code"), BREAKING)
def test_what_is_no_graph_breaks_by_name(fn, code):
    with pytest.raises(dynacompile.exc.Unsupported) as raised:
        dynacompile.compile(fn, backend="eager", fullgraph=True)(arg())
    assert raised.value.code == code
    check(fn, arg(), graphs=None, breaks=None, calls=1, options=EAGER)


@pytest.mark.parametrize("name", ["linearize", "jvp", "vjp", "jacrev", "jacfwd", "hessian", "grad"])
def test_derivatives_in_inference_mode(name):
    layer = torch.nn.Linear(4, 4)
    of = lambda v: layer(v).tanh()  # noqa: E731
    forms = {
        "linearize": lambda h: torch.func.linearize(of, h)[1](h.cos()),
        "jvp": lambda h: torch.func.jvp(of, (h,), (h.cos(),)),
        "vjp": lambda h: torch.func.vjp(of, h)[1](h.cos()),
        "jacrev": torch.func.jacrev(of),
        "jacfwd": torch.func.jacfwd(of),
        "hessian": torch.func.hessian(lambda v: of(v).sum()),
        "grad": torch.func.grad(lambda v: of(v).sum()),
    }
    h = torch.randn(2, 4)
    compiled = dynacompile.compile(forms[name], backend="eager")
    with torch.inference_mode():
        try:
            expected = forms[name](h)
        except RuntimeError as error:  # torch 2.11 has no rule for vmap of tangents there
            with pytest.raises(type(error)):
                compiled(h)
            return
        torch.testing.assert_close(compiled(h), expected)
