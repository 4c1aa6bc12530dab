"""Subclasses of torch.Tensor: as inputs, made in the frame, with an override of torch's functions and without one."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

import dynacompile
from tests.checking import check
from tests.programs.subclasses import (
    EAGER,
    Asking,
    Assigning,
    Below,
    BySuper,
    Choosing,
    Disabled,
    Image,
    Logged,
    Made,
    Meta,
    Operators,
    OwnParameter,
    Plain,
    Setting,
    Unrelated,
    Unwrapping,
    arg,
    check_both,
    compiled_of,
    dense,
)
from tests.scenarios import attempt, check_same


def operations(x):
    parts = x.split(1)
    return torch.sin(x) * 2, x.sum(0), x @ x, x.T, x[0], parts, x.max(0), torch.stack([x, x]), 2 - x, -x, x**2, 2**x, x.shape, x.size(0), len(x)


def functions(x):
    return (
        F.pad(x, (1, 1)), torch.einsum("ij,jk->ik", x, x), torch.norm(x), F.softmax(x, -1), F.layer_norm(x, (3,)), F.gelu(x), torch.cat([x, x]),
        torch.where(x > 0, x, -x), F.linear(x, x), torch.meshgrid(x[0], x[1], indexing="ij"), F.mse_loss(x, x * 2), F.normalize(x), torch.topk(x, 2),
    )  # fmt: skip


def fields(x):
    return x.requires_grad, x.dtype, x.ndim, x.data, x.detach(), x.T, x.mT, x.real, x.numel(), x.dim(), x.stride(), x.is_contiguous(), x.element_size()


def classes(x):
    return isinstance(x, Plain), type(x) is Plain, type(x * 2).__name__, isinstance(x, torch.nn.Parameter), isinstance(x * 2, torch.Tensor), x * 2


def made_inside(x):
    y = (x * 2).as_subclass(Plain) + 1
    return y, y.as_subclass(torch.Tensor), y.as_subclass(Below), y.detach(), y.view(-1), x.as_subclass(Plain)


def aliases_of_an_input(x):
    return x.view(-1), x[0], x.as_subclass(Below), x.as_subclass(torch.Tensor), x.detach()


def in_place(x):
    y = x * 1
    y += 1
    y -= x
    y *= 2
    y[0] = 5.0
    y.add_(1)
    return y


def twice_the_same(x):
    y = x * 2
    return y, [y], {"y": y}


def attributes(x):
    y = x * 2
    y.tag, y.other = 3, y.sum()
    return y, y.tag, y.other, hasattr(y, "tag"), hasattr(y, "none"), getattr(y, "none", 7), hasattr(y * 2, "tag")


@functools.lru_cache
def name_of_result(factor):
    return type(torch.ones(2).as_subclass(Plain) * factor).__name__


def asked_while_captured(x):
    return x * 2, name_of_result(3)


def test_functions_that_are_asked_while_the_frame_is_captured():
    compiled = compiled_of(asked_while_captured)
    assert compiled(dense())[1] == "Plain" == name_of_result(3)


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        Logged.log.append(("mode", func.__name__, [t.__name__ for t in types]))
        return func(*args, **(kwargs or {}))


def watched(x):
    Logged.log, Logged.calls = [], 0
    with Watching():
        y = x * 2
        z = y.as_subclass(Logged)
        found = y.shape, torch.cat([y, x]), y[0], len(y), -y, y.add_(1), F.softmax(z, 0), [row.T for row in z], isinstance(z + 1, Logged), z.requires_grad
        with torch._C.DisableTorchFunctionSubclass():
            disabled = z * 3
        with torch._C.DisableTorchFunction():
            all_disabled = z * 4
    return found, y, z, disabled, all_disabled, list(Logged.log)


def test_modes_are_asked_before():
    check_both(watched, arg(Logged))
    check_both(watched, dense())


@dynacompile.allow_in_graph
def allowed(x):
    return torch.sin(x) + 1


def in_containers(x):
    y = x * 2
    table = {y: 1, x: 2}
    tree = torch.utils._pytree.tree_map(lambda leaf: leaf * 2, {"a": x, "b": [y, 1]})
    return table[y], table[x], y in table, tree, sum([x, y]), [a * b for a, b in zip(x, y, strict=True)], allowed(x)


def disabled_inside(x):
    with torch._C.DisableTorchFunctionSubclass():
        return x * 2, x.T, torch._C._is_torch_function_enabled()


def unpacked(x):
    a, b, c = x
    return [row * 2 for row in x], a + b * c


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    torch.set_grad_enabled(False)
    z = x * 3
    torch.set_grad_enabled(True)
    return y, z, x * 4


@pytest.mark.parametrize(
    "fn",
    [
        operations,
        functions,
        fields,
        classes,
        made_inside,
        aliases_of_an_input,
        in_place,
        twice_the_same,
        attributes,
        unpacked,
        without_gradients,
        in_containers,
        disabled_inside,
    ],
)
def test_the_class_is_kept(fn):
    check_both(fn, arg())
    check_both(fn, arg(Disabled))


def log(x):
    Logged.log, Logged.calls = [], 0
    y = torch.cat([x, x * 2], dim=0) - 1
    y.add_(1)
    return y.sum(), y.shape, y[0], 1 - y, F.softmax(y, 0), list(Logged.log), Logged.calls


def test_an_override_is_asked_for_each_operation():
    check_both(log, arg(Logged))


def unwrapped(x):
    return x + 1, torch.sin(x), x.T, x.shape, 2 * x, x[0], x.split(1)[0], x.sum()


def test_an_override_that_gives_plain_tensors():
    check_both(unwrapped, arg(Unwrapping))


def image(x):
    y = x.clone()
    z = (y * 2 + x).clamp(0, 1)
    return y, y.label, z, x.shape, y.dtype, x.to(torch.float64), F.interpolate(x[None, None], scale_factor=2.0), y.add_(1), torch.stack([x, x]), x.detach()


@pytest.mark.parametrize("dynamic", [None, True])
def test_fields_with_getters_of_the_class(dynamic):
    x = arg(Image, False)
    x.label = "cat"
    for backend in ("eager", "default"):
        check(image, x, options={"backend": backend, "dynamic": dynamic})
    compiled = compiled_of(lambda x: x.clone() * x.shape[0])
    for rows in (3, 4, 5, 6):
        x = torch.ones(rows, 2).as_subclass(Image)
        x.label = "cat"
        assert torch.equal(compiled(x), torch.ones(rows, 2) * rows)


def words(x):
    m = Meta(x * 2, "word")
    y = m + 1
    return y, y.word, y.twice, y.scaled(3), m.twice.word, torch.zeros(2) + y.sum(), type(y)(y, "new").word


def test_attributes_that_an_override_hands_on():
    check_both(words, dense().requires_grad_())


def operators(x):
    return (
        x + 1, 3 - x, x.add(1), -x, len(x), 1 if x else 2, x[0], x == 2, 3 in x, x.of(x * 2), x.double(x), x.factor, type(x).factor,
        torch.Tensor.add(x, 1), torch.add(x, 1), x * 2, Operators.of(x * 3) + 1,
    )  # fmt: skip


def test_methods_of_the_class():
    check_both(operators, arg(Operators))


def choices(x):
    Choosing.calls = 0
    found = [x + 1, x.itemsize, x.sum()]
    try:
        found.append(x * 2)
    except TypeError:
        found.append("TypeError")
    return found, Choosing.calls


def test_an_override_that_tells_functions_apart():
    check_both(choices, arg(Choosing), backward=False)


def mixed(x, y):
    return x + y, y + x, torch.add(y, x), torch.mul(x, y)


def unrelated(x, y):
    try:
        return x + y
    except TypeError:
        return x * 2


def test_two_classes():
    check_both(mixed, arg(), dense().requires_grad_())
    check_both(mixed, arg(), arg(Below))
    check_both(unrelated, arg(), arg(Unrelated))


def constructed(x):
    y = BySuper(x * 2, 3, b=4)
    return y, y.a, y.b, y + 1, hasattr(y + 1, "a"), Made(x), Unrelated(x), Unrelated([1.0, 2.0]) + 1, Plain(2, 2).shape


def test_made_by_their_classes():
    check_both(constructed, dense())
    check_both(lambda x: (Unrelated(x), Unrelated(x) + 1), dense().requires_grad_())


def by_property(x):
    y = (x * 2).as_subclass(Setting)
    y.word = 4
    z = (x * 3).as_subclass(Assigning)
    z.word = 5
    return y, y.word, y._word, z, z.word


def by_getattr(x):
    return x.abc, hasattr(x, "_none"), getattr(x, "_none", 7), x * 2


def test_hooks_of_attributes():
    check_both(by_property, dense())
    check_both(by_getattr, arg(Asking, False))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = OwnParameter(dense())
        self.register_buffer("shift", arg(grad=False))
        self.held = [arg(grad=False)]

    def forward(self, x):
        return x * self.weight + self.shift + self.held[0]


def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(network() for _ in range(3))

    def forward(self, x, y):
        for block in self.blocks:
            x, y = x + block(x), y + block(y)
        return x, y


def test_modules():
    check_both(Layer(), dense())
    check_both(network(), arg())
    check_both(Blocks(), arg(), dense().requires_grad_())
    check_both(torch.nn.MultiheadAttention(3, 1, batch_first=True), arg()[None], arg()[None], arg()[None], backward=False)


def written(x):
    x[0] = 5.0
    x[1] += 1
    x *= 2
    x.seen = x.sum()
    return x, x.seen


def test_inputs_are_written():
    check_both(written, arg(grad=False))
    check_both(lambda x: (x[0].add_(1), x * 2), arg(grad=False))
    check_both(lambda x, y: (x.copy_(y), x.masked_fill_(y > 0, 1.0), x * 2), dense(), arg(grad=False))
    check_both(lambda x, y: (torch.add(x, 1, out=y), y * 2), arg(grad=False), arg(grad=False))


def written_without_gradients(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def test_an_input_that_requires_gradients_is_written_by_python():
    check(written_without_gradients, arg(), graphs=1, breaks=1, options=EAGER)
    check(lambda x: x.add_(1), arg(), graphs=0, breaks=None, options=EAGER)


def test_an_index_of_a_subclass():
    check_both(lambda x, i: (x[i], x * 2), dense().requires_grad_(), torch.tensor([0, 2]).as_subclass(Unwrapping))


class Marked(torch.Tensor):
    pass


MARKED = {
    "itself": lambda x: (lambda w: (w, (w * w).sum()))((x * 2).as_subclass(Marked)),
    "result of one": lambda x: (lambda w: (w, (w * w).sum()))(x.as_subclass(Marked) * 2),
    "beside its base": lambda x: (lambda y: (y.as_subclass(Marked), y, (y * y).sum()))(x * 2),
    "view": lambda x: (lambda v: (v, (v * 3).sum()))((x * 2).as_subclass(Marked)[1:]),
    "of the input": lambda x: (lambda w: (w, (w * w).sum()))(x.as_subclass(Marked)),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", MARKED)
def test_results_hang_on_results_of_a_subclass(name, backend):
    def story(wrap):
        run = wrap(MARKED[name])
        for x in (torch.ones(3).requires_grad_(), torch.ones(3).requires_grad_() * 1):
            first, *_, last = run(x)
            seen = []
            first.register_hook(lambda g, seen=seen: seen.append(g.sum().item()))
            first.retain_grad()
            yield type(first), type(last), type(x), attempt(torch.autograd.grad, last, first, retain_graph=True, allow_unused=True)
            last.backward()
            yield first.grad, seen, x.grad if x.is_leaf else None

    check_same(story, backend=backend, least=None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients_of_a_subclass_are_of_it(backend):
    layer = torch.nn.Linear(3, 2)

    def slopes(x):
        return torch.autograd.grad(layer(x).square().mean(), list(layer.parameters()))

    def story(wrap):
        run = wrap(slopes)
        for kind in (torch.Tensor, Marked, torch.Tensor):
            found = run(torch.ones(4, 3).as_subclass(kind))
            yield [type(g) for g in found], [g.as_subclass(torch.Tensor) for g in found]

    check_same(story, backend=backend, least=None)
