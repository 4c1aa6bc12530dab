"""torch.func inside compiled functions: vmap, grad, functional_call, alone and nested; what can't be followed breaks with the right result."""

import collections

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, stack_module_state, vmap

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
TABLE = torch.arange(4.0)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4).requires_grad_()


def mapped(x):
    return vmap(lambda a: a.sin() * a.sum())(x) + 1


def mapped_dims(x):
    return vmap(torch.dot, in_dims=(1, 1))(x, x * 2), vmap(lambda a, b: a * b, in_dims=(0, None), out_dims=1)(x, x[0])


def mapped_structures(x):
    made = torch.vmap(lambda pair, k: {"a": pair[0] * pair[1], "b": [pair[0].sum() + k]}, in_dims=(0, None))((x, x.cos()), 2.0)
    return made["a"] + made["b"][0][:, None]


def mapped_closure(x):
    y = x * 2
    return vmap(lambda a: a * TABLE + y[0])(x)


def mapped_random(x):
    return vmap(lambda a: a + torch.rand(4), randomness="different")(x)


def gradient(x):
    return grad(lambda a: (a.sin() * a).sum())(x) * 2


def gradients(x):
    both = grad(lambda a, b: (a * b.sin()).sum(), argnums=(0, 1))(x, x * 2)
    one, kept = grad(lambda a: ((a**3).sum(), {"kept": a * 2}), has_aux=True)(x)
    slope, value = grad_and_value(lambda a: (a.cos() * x).sum())(x)
    return *both, one, kept["kept"], slope, value


def second_gradient(x):
    return grad(lambda a: grad(lambda b: (b**3).sum())(a).sum())(x)


def each_sample(x):
    def loss(weight, sample):
        return ((sample * weight).sum() - 1) ** 2

    return vmap(grad(loss), in_dims=(None, 0))(torch.ones(4), x)


MODEL = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()).eval()


def called(x):
    tensors = {name: p * 2 for name, p in MODEL.named_parameters()}
    return functional_call(MODEL, tensors, (x,)) + functional_call(MODEL, dict(MODEL.named_buffers()), x) + MODEL(x)


def called_for_gradients(x):
    tensors = dict(MODEL.named_parameters())

    def loss(tensors, sample):
        return functional_call(MODEL, tensors, (sample[None],)).sum()

    made = vmap(grad(loss), in_dims=(None, 0))({k: v.detach() for k, v in tensors.items()}, x)
    return {k: v * 2 for k, v in made.items()}


ALL = [
    mapped,
    mapped_dims,
    mapped_structures,
    mapped_closure,
    gradient,
    gradients,
    second_gradient,
    each_sample,
    called,
    called_for_gradients,
]


@pytest.mark.parametrize("fn", [*ALL, mapped_random])
def test_one_graph(fn):
    check(fn, arg(), options=EAGER)


@pytest.mark.parametrize("fn", ALL)
def test_with_kernels(fn):
    def story(wrap):
        compiled = wrap(fn)
        for scale in (1, 2):
            x = (arg() * scale).detach().requires_grad_()
            result = compiled(x)
            outputs = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
            if outputs:
                sum(o.sum() for o in outputs).backward()
            yield result, x.grad

    check_same(story, rtol=1e-4, atol=1e-5)


def ensemble(x):
    params, buffers = stack_module_state([nn.Linear(4, 2), nn.Linear(4, 2)])
    return vmap(lambda p, b: functional_call(nn.Linear(4, 2), (p, b), (x,)).shape[0] + p["weight"])(params, buffers)


def effects(x):
    seen = []
    y = vmap(lambda a: (seen.append(a.shape), a * 2)[1])(x)
    return y, seen


def in_place(x):
    y = x.detach() * 1
    vmap(lambda a: a.mul_(2))(y)
    return y


@pytest.mark.parametrize("fn", [effects, in_place])
def test_what_breaks_is_right(fn):
    check(fn, arg(), graphs=None, breaks=None, calls=1, options=EAGER)


def test_caught_exceptions_leave_no_trace():
    def caught(x):
        try:
            y = vmap(lambda a: a.sin() if a.shape[0] == 3 else {}[a.shape])(x)
        except KeyError:
            y = x * 3
        return y + 1

    check(caught, arg(), options=EAGER)


def steps_of_an_inner_loop(x):
    def task(row):
        weights, losses = {"w": torch.ones(3), "b": torch.zeros(())}, []
        for _ in range(3):
            slopes, loss = torch.func.grad_and_value(lambda p: ((p["w"] * row).sum() + p["b"]).pow(2))(weights)
            weights = {name: value - 0.1 * slopes[name] for name, value in weights.items()}
            losses.append(loss)
        return weights, losses

    return torch.func.vmap(task)(x)


def a_counter_in_a_cell(x):
    def row(t):
        count = 0

        def next_power():
            nonlocal count
            count += 1
            return t**count

        return next_power() + next_power()

    return torch.func.vmap(row)(x)


def branches_with_comprehensions(x):
    return torch.cond(x.sum() > 0, lambda x: sum([y * 2 for y in (x, x + 1)]), lambda x: {"a": x - 1}["a"], (x,))


class Held:
    def __init__(self, value):
        self.value = value


class Named(dict):
    pass


class Rows(list):
    pass


def objects_and_containers(x):
    def row(t):
        held, queue, seen, named, rows = Held(t), collections.deque([t], maxlen=2), set(), Named(a=t), Rows()
        held.more = t + 1
        del held.more
        held.value = held.value * 2
        queue.append(held.value)
        seen.update((1, 2))
        named["b"] = held.value
        named.tag = 3
        rows.append(queue.pop())
        try:
            raise ValueError("none")
        except ValueError as error:
            error.factor = len(seen)
            return rows[0] * error.factor + named["b"] * named.tag

    return torch.func.vmap(row)(x), torch.func.grad(lambda t: row(t).sum())(x)


@pytest.mark.parametrize("fn", [steps_of_an_inner_loop, a_counter_in_a_cell, branches_with_comprehensions, objects_and_containers])
def test_a_body_may_write_into_containers_of_its_own(fn):
    check(fn, torch.randn(4, 3), backward=False, options={"backend": "eager"})


def a_list_of_the_frame(x):
    seen = []
    return torch.func.vmap(lambda t: (seen.append(1), t * 2)[1])(x), seen


def an_own_list_in_one_of_the_frame(x):
    seen = []

    def row(t):
        mine = []
        mine.append(1)
        seen.append(mine)
        return t * 2

    return torch.func.vmap(row)(x), seen


def a_variable_of_the_frame(x):
    count = 0

    def row(t):
        nonlocal count
        count += 1
        return t * count

    return torch.func.vmap(row)(x), count


def an_object_of_the_frame(x):
    held = Held(1)

    def row(t):
        held.value += 1
        return t * held.value

    return torch.func.vmap(row)(x), held.value


def an_own_object_in_one_of_the_frame(x):
    held = Held(1)

    def row(t):
        held.inner = Held(2)
        held.inner.value = 3
        return t * held.inner.value

    return torch.func.vmap(row)(x), held.inner.value


LEFT = [a_list_of_the_frame, an_own_list_in_one_of_the_frame, a_variable_of_the_frame, an_object_of_the_frame, an_own_object_in_one_of_the_frame]


@pytest.mark.parametrize("fn", LEFT)
def test_a_body_that_writes_into_what_was_there_before_is_left_to_python(fn):
    check(fn, torch.randn(4, 3), graphs=None, breaks=1, backward=False, options={"backend": "eager"})


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return (self.second(self.first(x).tanh()).sin() + x).cos()


@pytest.mark.parametrize("before", [lambda net, x: net(x), lambda net, x: net[0](x), lambda net, x: x], ids=["module", "part", "nothing"])
@pytest.mark.parametrize("parametrized", [False, True])
def test_functional_calls_of_modules_that_were_called_before(before, parametrized):
    """Calls of like modules are followed once, but for those under functional_call, which have other tensors than lie in the module."""
    net = nn.Sequential(Block(), Block(), Block())
    if parametrized:
        nn.utils.parametrizations.weight_norm(net[0].first)

    def fn(x):
        found = [before(net, x)]
        for scale in (0.5, 2.0):
            found.append(torch.func.functional_call(net, {k: p * scale for k, p in net.named_parameters()}, (x,)))
        name, value = next(iter(net.named_parameters()))
        found += [torch.func.functional_call(net, {name: value * 3}, (x,)), net(x)]
        return found

    x = torch.randn(3, 4)
    torch.testing.assert_close(dynacompile.compile(fn, backend="eager", fullgraph=True)(x), fn(x))
