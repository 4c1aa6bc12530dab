"""What is saved for backward goes as the backward reads it for the last time, and its memory is used again where nobody else has it."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import dynacompile

N = 640  # a matrix is larger than what is worth an allocation of its own


@pytest.fixture(autouse=True)
def fresh():
    dynacompile.reset()
    yield
    dynacompile.reset()


def matrices(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(N, N, generator=generator) / N**0.5).requires_grad_() for _ in range(count)]


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x


def loss_of(x, *weights):
    return layers(x, *weights).square().sum()


def watched(x, look, *weights):
    """The gradient that comes to the second of three layers is looked at."""
    a, b, c = weights
    h = torch.tanh(x @ a)
    i = torch.tanh(h @ b)
    i.register_hook(look)
    return torch.tanh(i @ c).square().sum()


def assert_same(got, expected):
    for g, e in zip(got, expected, strict=True):
        torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-4)


class Storages:
    """The storages of what is saved, by weak references."""

    def __init__(self):
        self.refs: list[StorageWeakRef] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.refs.append(StorageWeakRef(tensor.untyped_storage()))
        return tensor

    def alive(self) -> int:
        return sum(not ref.expired() for ref in self.refs)


def test_gradients_call_after_call():
    args = matrices(4)
    expected = torch.autograd.grad(loss_of(*args), args)
    compiled = dynacompile.compile(loss_of)
    for _ in range(3):
        assert_same(torch.autograd.grad(compiled(*args), args), expected)


def test_a_second_backward_is_eagers_error():
    args = matrices(3)
    loss = dynacompile.compile(loss_of)(*args)
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()


def test_a_graph_that_is_retained_gives_the_same_gradients_again():
    args = matrices(4)
    expected = torch.autograd.grad(loss_of(*args), args)
    loss = dynacompile.compile(loss_of)(*args)
    for retain in (True, True, False):
        assert_same(torch.autograd.grad(loss, args, retain_graph=retain), expected)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, args)


def test_gradients_are_differentiated():
    args = matrices(3)

    def twice(function):
        (first,) = torch.autograd.grad(function(*args), args[:1], create_graph=True)
        return torch.autograd.grad(first.square().sum(), args)

    assert_same(twice(dynacompile.compile(loss_of)), twice(loss_of))


def test_results_that_the_user_holds_are_not_written():
    """tanh's gradient could be written over what tanh gave, which is the result."""
    args = matrices(3)
    compiled = dynacompile.compile(layers)
    out = compiled(*args)
    before, view = out.detach().clone(), out.detach()[1:]
    got = torch.autograd.grad(out, args, torch.ones_like(out))
    assert torch.equal(out, before) and torch.equal(view, before[1:])
    expected = layers(*args)
    assert_same(got, torch.autograd.grad(expected, args, torch.ones_like(expected)))


def test_the_gradient_that_the_user_gives_is_not_written():
    args = matrices(3)
    out = dynacompile.compile(layers)(*args)
    given = torch.ones_like(out)
    torch.autograd.grad(out, args, given)
    assert torch.equal(given, torch.ones_like(given))


def test_saved_tensors_that_hooks_keep_are_not_written():
    args = matrices(3)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def pack(tensor):
        kept.append((tensor.detach(), tensor.detach().clone()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = dynacompile.compile(loss_of)(*args)
    got = torch.autograd.grad(loss, args)
    assert kept and all(torch.equal(tensor, before) for tensor, before in kept)
    assert_same(got, torch.autograd.grad(loss_of(*args), args))


def test_saved_tensors_that_hooks_moved_away():
    args = matrices(3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), torch.from_numpy):
        loss = dynacompile.compile(loss_of)(*args)
    assert_same(torch.autograd.grad(loss, args), torch.autograd.grad(loss_of(*args), args))


def test_memory_of_numpy_that_hooks_give_is_not_written():
    args = matrices(3)
    arrays = []

    def unpack(tensor):
        arrays.append((array := tensor.detach().clone().numpy(), array.copy()))
        return torch.from_numpy(array)

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), unpack):
        loss = dynacompile.compile(loss_of)(*args)
    torch.autograd.grad(loss, args)
    assert arrays and all((array == before).all() for array, before in arrays)


@pytest.mark.parametrize("retain", [False, True], ids=["freed", "retained"])
def test_what_is_saved_is_gone_before_the_backward_ends(retain):
    """In the midst of the backward the last layer's results are gone, where the graph is not retained."""
    args = matrices(4)
    storages, counts = Storages(), []

    def look(gradient):
        counts.append(storages.alive())

    compiled = dynacompile.compile(watched)
    torch.autograd.grad(compiled(args[0], lambda g: None, *args[1:]), args)
    with torch.autograd.graph.saved_tensors_hooks(storages.pack, lambda t: t):
        loss = compiled(args[0], look, *args[1:])
    gc.collect()
    before = storages.alive()
    torch.autograd.grad(loss, args, retain_graph=retain)
    assert len(counts) == 1
    assert counts[0] == before if retain else counts[0] < before


def test_an_error_in_the_midst_of_the_backward():
    """Eager's nodes that have run are freed by then, too."""
    args = matrices(4)

    @dynacompile.disable
    def fails(gradient):
        raise ValueError("no")

    loss = dynacompile.compile(watched)(args[0], fails, *args[1:])
    with pytest.raises(ValueError, match="no"):
        torch.autograd.grad(loss, args)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, args)


def test_two_losses_that_are_asked_for_one_by_one():
    """The first backward frees what is its own alone."""

    def two(x, a, b):
        return torch.tanh(x @ a).sum(), torch.sin(x @ b).sum()

    args = matrices(3)
    expected = [torch.autograd.grad(loss, args, allow_unused=True) for loss in two(*args)]
    got = [torch.autograd.grad(loss, args, allow_unused=True) for loss in dynacompile.compile(two)(*args)]
    for g, e in zip(got, expected, strict=True):
        assert [t is None for t in g] == [t is None for t in e]
        assert_same([t for t in g if t is not None], [t for t in e if t is not None])


def test_inputs_that_only_autograd_holds_are_freed():
    """The result of eager code before the region has no other owner once its name is gone."""
    args = matrices(3)
    compiled = dynacompile.compile(loss_of)
    x = args[0] * 1.0
    storage = StorageWeakRef(x.untyped_storage())
    loss = compiled(x, *args[1:])
    del x
    gc.collect()
    assert not storage.expired()
    torch.autograd.grad(loss, args[1:])
    assert storage.expired()


def test_symbolic_sizes():
    compiled = dynacompile.compile(loss_of, dynamic=True)
    weights = matrices(2)
    for rows in (500, 700, 640):
        x = torch.randn(rows, N, requires_grad=True)
        assert_same(torch.autograd.grad(compiled(x, *weights), [x, *weights]), torch.autograd.grad(loss_of(x, *weights), [x, *weights]))


def test_explain_tells_the_peak():
    told = dynacompile.explain(loss_of, backward=True)(*matrices(4))
    matrix = N * N * 4
    assert 5 * matrix <= told.peak() < 5 * matrix + 4096 and told.peak("unfused_peak") >= told.peak()
    assert f"{told.peak():,} bytes at the peak of memory" in str(told)


@pytest.mark.parametrize("options", [{}, {"reference": True}], ids=["built", "interpreted"])
def test_hooks_that_give_back_other_strides(options):
    """What a hook gives back is laid out as the backward was compiled for."""

    def loss(x, w):
        return ((x @ w).sin() * (x + 1).exp()).sum()

    def gradients(fn):
        x = torch.arange(12.0).reshape(3, 4).div(7).t().requires_grad_()
        w = torch.linspace(-1, 1, 9).reshape(3, 3).t().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().numpy().copy(), lambda a: torch.from_numpy(a.copy(order="C"))):
            value = fn(x, w)
        return torch.autograd.grad(value, [x, w])

    torch.testing.assert_close(gradients(dynacompile.compile(loss, isolate_recompiles=True, options=options)), gradients(loss))


@pytest.mark.parametrize("sizes", [(3, 1), (1, 4), ()], ids=str)
@pytest.mark.parametrize("options", [{"backend": "aot_eager"}, {"options": {"reference": True}}], ids=["unfused", "interpreted"])
def test_hooks_that_give_back_expanded_tensors_copied(options, sizes):
    """Elements of expanded inputs share memory, those of their copies do not."""

    def gradients(fn):
        x, y = torch.full(sizes, 0.5).requires_grad_(), torch.arange(12.0).reshape(3, 4).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t):
            value = fn(x.expand(3, 4), y)
        return torch.autograd.grad(value, [x, y], torch.ones(3, 4))

    def product(x, y):
        return (x * y).sin()

    torch.testing.assert_close(gradients(dynacompile.compile(product, isolate_recompiles=True, **options)), gradients(product))


def test_hooks_that_give_back_other_elements_in_expanded_tensors():
    x, y = torch.ones(3, 1).requires_grad_(), torch.ones(3, 4).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t + torch.arange(4.0)):
        value = dynacompile.compile(lambda x, y: x * y, backend="aot_eager", isolate_recompiles=True)(x.expand(3, 4), y)
    with pytest.raises(RuntimeError, match="whose elements differ can't have strides"):
        value.sum().backward()


def test_hooks_that_give_back_something_else():
    x = torch.linspace(-1, 1, 6).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:2]):
        value = dynacompile.compile(lambda x: x.sin().exp().sum(), isolate_recompiles=True)(x)
    with pytest.raises(RuntimeError, match="a hook for saved tensors gave back"):
        value.backward()
