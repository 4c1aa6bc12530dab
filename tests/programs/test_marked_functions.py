"""Functions that `torch.compiler.allow_in_graph` marks: followed where capture can, one operation of the graph where that would end it."""

from __future__ import annotations

import random
import uuid

import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.events import Compiled, GraphBroke
from tests.scenarios import check_same

STACK: list[str] = []
SEEN: list[str] = []


class Registry:
    seen = ()


REGISTRY = Registry()


@torch.compiler.allow_in_graph
def named(x, w, factor=2.0):
    STACK.append(uuid.uuid4().hex)
    try:
        return (x @ w) * factor if uuid.uuid4().hex else x
    finally:
        STACK.pop()


@torch.compiler.allow_in_graph
def several(xs, scale):
    uuid.uuid4()
    return [x * scale for x in xs] + [xs[0][:1], None]


@torch.compiler.allow_in_graph
def caching(x, w):
    REGISTRY.seen = tuple(sorted({*REGISTRY.seen, len(x)}))
    uuid.uuid4()
    return x * 2 + w


def caches(x, w):
    return caching(x, w) * x


@torch.compiler.allow_in_graph
def given_back(x):
    uuid.uuid4()
    return x


@torch.compiler.allow_in_graph
def writing(x):
    uuid.uuid4()
    return x.mul_(2).view(-1)


@torch.compiler.allow_in_graph
def plain(x):
    SEEN.append(type(x).__name__)
    return x.sin()


def products(x, w):
    y = named(x, w)
    return named(y, w.t(), factor=0.5) + x, y.sin()


def lists(x, w):
    first, second, row, nothing = several([x, w], 3.0)
    return first.sum() + second.sum(), row, nothing is None


def aliases(x, w):
    y = x * 1
    z = given_back(y)
    flat = writing(z)
    return y, z is y, flat + 1, flat, given_back(x)


def followed(x, w):
    return plain(x) * w.sum()


def nested(x, w):
    with torch.no_grad():
        scale = named(x, w).sum()
    return torch.func.vmap(lambda row: given_back(row) * 2)(x) * scale


@pytest.mark.parametrize("program", [products, lists, caches, aliases, followed, nested], ids=lambda f: f.__name__)
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_marked_functions_are_in_one_graph(program, backend):
    def story(wrap):
        SEEN.clear()
        run = wrap(program)
        for _ in range(3):
            x, w = (torch.linspace(-1, 1, n).view(4, -1).requires_grad_() for n in (16, 16))
            out = run(x, w)
            parts = [t for t in (out if isinstance(out, tuple) else (out,)) if isinstance(t, torch.Tensor)]
            grads = torch.autograd.grad(sum(t.sum() for t in parts if t.requires_grad), [x, w], allow_unused=True)
            yield out, grads, list(SEEN), len(STACK)

    told = check_same(story, backend=backend)
    assert [type(e).__name__ for e in told if isinstance(e, (Compiled, GraphBroke))] == ["Compiled"]


@torch.compiler.allow_in_graph
def drawing(x):
    uuid.uuid4()
    return x * random.random()


@torch.compiler.allow_in_graph
def telling(x):
    uuid.uuid4()
    return x * 2, uuid.uuid4().hex


@torch.compiler.allow_in_graph
def reading(x):
    uuid.uuid4()
    return x * x.sum().item()


@torch.compiler.allow_in_graph
def changing(x, xs):
    uuid.uuid4()
    xs.append(x)
    return x * 2


@torch.compiler.allow_in_graph
def noting(x):
    SEEN.append("noted")
    uuid.uuid4()
    return x * 2


@torch.compiler.allow_in_graph
def casting(x):
    uuid.uuid4()
    torch.set_autocast_enabled("cpu", not torch.is_autocast_enabled("cpu"))
    return x * 2


@torch.compiler.allow_in_graph
def raising(x):
    uuid.uuid4()
    raise ValueError("by the user")


REFUSED = {
    "drawing": (lambda x: drawing(x + 1) * 2, "drawing"),
    "telling": (lambda x: telling(x + 1)[0] * 2, "telling"),
    "reading": (lambda x: reading(x + 1) * 2, "reading"),
    "changing": (lambda x: (changing(x + 1, xs := [x]), len(xs)), "changing"),
    "noting": (lambda x: noting(x + 1) * 2, "noting"),
    "casting": (lambda x: casting(x + 1) * 2, "casting"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_the_promise_of_the_mark_is_left_to_python(name):
    program, shown = REFUSED[name]

    def story(wrap):
        SEEN.clear()
        random.seed(0)
        run = wrap(program)
        for _ in range(3):
            yield run(torch.ones(3)), list(SEEN), torch.is_autocast_enabled("cpu")
        torch.set_autocast_enabled("cpu", False)

    told = check_same(story, backend="eager", least=None)
    assert any(shown in e.reason for e in told if isinstance(e, GraphBroke))
    with pytest.raises(Unsupported, match=shown):
        dynacompile.compile(program, fullgraph=True, isolate_recompiles=True)(torch.ones(3))


def test_exceptions_of_marked_functions():
    def caught(x):
        try:
            return raising(x * 2)
        except ValueError as error:
            return x + len(str(error))

    def story(wrap):
        for _ in range(2):
            yield wrap(caught)(torch.ones(3))

    check_same(story, backend="eager", least=None)
    with pytest.raises(ValueError, match="by the user"):
        dynacompile.compile(lambda x: raising(x * 2))(torch.ones(3))
