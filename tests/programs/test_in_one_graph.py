"""What stays in one graph: annotations, result types, numbers of NumPy, versions, hooks on inputs, what the function of a transform gives back."""

import collections.abc
import functools
import itertools
import operator
import typing

import numpy as np
import packaging.version
import pytest
import torch
from torch.utils import _pytree as pytree

import dynacompile
from dynacompile.events import Recompiled
from tests.checking import assert_same, check

LEVELS = pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
T = typing.TypeVar("T")


def x():
    return torch.arange(6.0).reshape(2, 3) + 0.5


# annotations


def maps_tensors_only(t):
    return pytree.tree_map_only(torch.Tensor, lambda a: a + 1, [t, 2, {"a": t}])


def annotates_an_inner_function(t):
    def inner(f: collections.abc.Callable[[T, list[int]], typing.Any], *rest: typing.Annotated[int, "count"]) -> typing.Callable[..., T]:
        return f(t, [len(rest)])

    return inner(lambda a, b: a * b[0], 1, 2, 3)


def makes_aliases(t):
    made = [typing.Callable[[int], int], typing.Dict[str, int], list[int], typing.Optional[str], tuple[int, ...]]  # noqa: UP006, UP045
    return t + len(made), made


# result types


def maps_a_named_result(t):
    return pytree.tree_map(lambda a: a + 1, torch.max(t, 1))


def makes_a_result(t):
    made = torch.return_types.max([t, t + 1])
    return made, made.indices * 2, made[0]


# versions


def asks_for_the_version(t):
    if torch.__version__ >= (2, 0) and packaging.version.parse(torch.__version__) > packaging.version.parse("1.8"):
        return t + 1
    return t


# errors that the frame takes


def zips_strictly(t):
    found = []
    for lengths in [(2, 2), (1, 2), (2, 1), (2, 2, 1), (1, 1, 2)]:
        try:
            found.append(len(list(zip(*([t] * n for n in lengths), strict=True))))
        except ValueError as error:
            found.append(str(error))
    return t + 1, found


def looks_for_what_is_not_there(t):
    try:
        return t + [1, 2].index(3)
    except ValueError:
        return t - (1, 2).index(2)


# iterators without an end


def chains_what_comes(t):
    endless = itertools.chain.from_iterable(itertools.repeat([t, t * 2]))
    rows = [[1], [2, 3]]
    numbers = itertools.chain.from_iterable(rows)
    first = next(numbers)
    rows.append([4])
    return [a + 1 for a in itertools.islice(endless, 5)], first, list(numbers)


# transforms


def gives_an_argument_as_it_is(t):
    rows, given = torch.func.jacrev(lambda a, b: (b.sin(), a), argnums=1, has_aux=True)(t, t[0])
    return rows, given, torch.func.vmap(lambda a: (a + 1, t))(t)


@pytest.mark.parametrize(
    "program",
    [
        maps_tensors_only,
        annotates_an_inner_function,
        makes_aliases,
        maps_a_named_result,
        makes_a_result,
        asks_for_the_version,
        zips_strictly,
        looks_for_what_is_not_there,
        chains_what_comes,
        gives_an_argument_as_it_is,
    ],
)
def test_is_one_graph(program):
    check(program, x())


# breaks in loops over more than anybody lists


def breaks_in_a_long_loop(t, iterator):
    rounds = 0
    for _ in iterator():
        dynacompile.graph_break()
        rounds += 1
        if rounds == 3:
            break
    return t + rounds


@pytest.mark.parametrize("iterator", [lambda: itertools.product(range(300), repeat=4), lambda: itertools.repeat(1, 10**9), lambda: itertools.repeat(1)])
def test_a_long_iterator_is_not_listed_at_a_break(iterator):
    assert torch.equal(dynacompile.compile(breaks_in_a_long_loop, backend="eager")(x(), iterator), x() + 3)


# numbers of NumPy that exist before the frame


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(3, 3), 1 / np.sqrt(64)

    def forward(self, t):
        return self.linear(t) * self.scale, type(self.scale * 2)


def computes_with(t, n):
    return t * n, n * 2, type(n), torch.tensor(n), operator.index(n) if isinstance(n, np.integer) else float(n)


def test_a_module_keeps_a_number_of_numpy():
    check(Scaled(), x())


@pytest.mark.parametrize("cls", [np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint16])
def test_numbers_of_numpy_are_constants(cls):
    check(computes_with, x(), cls(3))


def test_numbers_of_numpy_that_change():
    """They are constants at first; one that changes is left to Python, and costs two entries."""
    compiled, recompiles = dynacompile.compile(lambda t, n: (t * n).sin(), backend="eager", isolate_recompiles=True), []
    end = dynacompile.subscribe(lambda event: recompiles.append(event) if isinstance(event, Recompiled) else None)
    try:
        given = x()
        for n in range(2, 14):
            assert torch.equal(compiled(given, np.float64(n)), (given * n).sin())
    finally:
        end()
    assert len(recompiles) < 4


def test_which_number_of_numpy_it_is():
    compiled = dynacompile.compile(lambda t, a, b: (t + 1, a is b, a), backend="eager")
    for a, b in [(n, n) for n in (np.float64(3), np.int64(3))] + [(np.float64(3), np.float64(3)), (np.int64(3), np.int64(3))]:
        _, same, first = compiled(x(), a, b)
        assert same is (a is b) and first is a


# hooks on inputs


class Doubles:
    def of(self, g):
        return g * 2


doubles = Doubles()


def hooks_an_input(t):
    t.register_hook(lambda g: g * 2)
    return (t * t).sum()


def hooks_it_twice(t):
    y = t * 3
    t.register_hook(lambda g: g * 2)
    t.register_hook(lambda g: g + 1)
    return (y * t).sum()


def hook_reads_a_tensor_of_the_frame(t):
    k = t.detach() * 2
    t.register_hook(lambda g: g * k)
    return (t * t).sum()


def hook_counts(t):
    seen = []
    t.register_hook(lambda g: seen.append(float(g.sum())))
    (t * t).sum().backward(retain_graph=True)
    return (t * t).sum(), seen


def hook_is_a_method(t):
    t.register_hook(doubles.of)
    return (t * t).sum()


def hook_is_a_partial(t):
    t.register_hook(functools.partial(torch.mul, other=4))
    return (t * t).sum()


def hook_is_removed(t):
    handle = t.register_hook(lambda g: g * 2)
    out = (t * t).sum()
    handle.remove()
    return out


def gives_the_gradient_behind_a_hook(t):
    t.register_hook(lambda g: g * 2)
    y = (t * t).sum()
    return torch.autograd.grad(y, t, create_graph=True)[0].sum() + y


def hook_and_an_error(t):
    t.register_hook(lambda g: g * 2)
    y = t + 1
    if t.shape[0] == 2:
        raise ValueError("after it")
    return y


def outcome(function):
    """What a call of it gives, and the gradient, also of a second pass, which goes through the hooks that are left."""
    leaf = x().requires_grad_()
    try:
        out = function(leaf)
    except ValueError as error:
        (leaf * leaf).sum().backward()
        return str(error), leaf.grad
    loss, *rest = out if isinstance(out, tuple) else (out,)
    loss.backward()
    first = leaf.grad.clone()
    (leaf * leaf).sum().backward()
    return loss.detach(), rest, first, leaf.grad


@LEVELS
@pytest.mark.parametrize(
    "program",
    [
        hooks_an_input,
        hooks_it_twice,
        hook_reads_a_tensor_of_the_frame,
        hook_counts,
        hook_is_a_method,
        hook_is_a_partial,
        hook_is_removed,
        gives_the_gradient_behind_a_hook,
        hook_and_an_error,
    ],
)
def test_hooks_on_inputs(program, backend):
    assert_same("outcome", outcome(dynacompile.compile(program, backend=backend)), outcome(program), None, None)


@pytest.mark.parametrize("program", [hooks_an_input, hooks_it_twice, hook_reads_a_tensor_of_the_frame, hook_is_a_method])
def test_hooks_on_inputs_end_no_graph(program):
    assert_same("outcome", outcome(dynacompile.compile(program, backend="aot_eager", fullgraph=True)), outcome(program), None, None)
