"""Numbers that Python's and NumPy's generators draw are inputs of the graph, drawn before it in the frame's order."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.events import Compiled, GraphBroke
from tests.fuzz.draws import function_of, seen

ONE_GRAPH = """
a = np.random.beta(0.4, 0.4); y = a * y + (1 - a) * y[torch.randperm(y.size(0))]
i, j = random.randint(0, 2), random.randrange(5); y = x[i : i + 4, j : j + 4, 0] * 2
i = np.random.randint(0, 4); y = x[:, i : i + 4, None, 0].relu()
y = (y * random.uniform(0.8, 1.2) + random.gauss(0, 0.1)).clamp(0, 1)
y = y * rng.random() + rng.normal(0, 1) - rng.uniform(1, 2)
y = y.masked_fill(torch.rand(y.shape) < r.uniform(0.2, 0.8), 0.0)
a = r.random(); y = y + a * torch.randn_like(y); kept.append(a)
y = y * random.choice([0.5, 1.0, 2.0]) + random.choice((1, 2, 3))
own = random.Random(5); y = y * own.random() + own.uniform(1, 2)
own = np.random.default_rng(5); y = y * own.random() + torch.rand(6, 8, generator=g)
random.seed(3); y = y * random.random(); np.random.seed(4); y = y + np.random.rand()
kept = [random.random() for _ in range(3)]; y = y * kept[1]
y = y + random.getrandbits(4) + np.random.RandomState(3).rand()
y = y + x[random.randrange(1, 4)][:8, 0]; kept.append(y * np.random.normal(1, 2))
""".strip().split("\n")
BREAKS = """
if random.random() < 0.5: y = y * 2
random.shuffle(kept); y = y + random.sample([1, 2, 3], 2)[0]
s = r.getstate(); y = y * r.random(); r.setstate(s)
y = y + int(r.random() * 4) + random.SystemRandom().randint(2, 2)
t = torch.rand(4, generator=g); y = y * 2 if (t > 0.5).any() and t.sum() > 2 else y * 3
y = y * random.uniform(True, 2) if (x > 0.9).all() else y * random.random()
y = y * rng.integers(3) + np.random.choice([1.0, 2.0])
y = y + torch.zeros(random.randint(1, 1)).sum()
try: y = y * random.randrange(0)
except ValueError: y = y * random.random()
""".strip().split("\n")
BREAKS[-2:] = ["\n    ".join(BREAKS[-2:])]


def program(line):
    return function_of(f"def fn(x, r, rng, g):\n    y, kept = x[..., 0] * 1, []\n    {line}\n    return y, kept")


def check_as_in_eager(line, fullgraph):
    compiled = dynacompile.compile(program(line), isolate_recompiles=True, backend="eager", fullgraph=fullgraph)
    for seed in range(4):
        assert repr(seen(compiled, seed)) == repr(seen(program(line), seed))


@pytest.mark.parametrize("line", ONE_GRAPH)
def test_one_graph(line):
    events = []
    end = dynacompile.subscribe(events.append)
    check_as_in_eager(line, fullgraph=False)
    check_as_in_eager(line, fullgraph=True)
    end()
    assert not [e for e in events if isinstance(e, GraphBroke)]
    assert len([e for e in events if isinstance(e, Compiled) and e.ops]) == 4  # with gradients and without, for each


@pytest.mark.parametrize("line", BREAKS)
def test_what_python_needs_is_drawn_by_python(line):
    check_as_in_eager(line, fullgraph=False)


def test_what_cannot_be_drawn_before_the_graph_is_named():
    def fn(x, items):
        random.shuffle(items)
        return x + 1

    with pytest.raises(Unsupported, match=r"drawn-number.*shuffle"):
        dynacompile.compile(fn, backend="eager", fullgraph=True)(torch.ones(2), [1, 2])


def test_subclasses_of_generators_draw_by_their_own_methods():
    class Fixed(random.Random):
        def random(self):
            return 0.25

    def fn(x, r):
        return x * r.random() + r.uniform(1, 3)

    assert torch.equal(dynacompile.compile(fn, backend="eager")(torch.ones(2), Fixed(3)), fn(torch.ones(2), Fixed(3)))


@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_gradients_of_a_mixed_batch(backend):
    def step(net, x, y):
        share = np.random.beta(0.4, 0.4)
        first = random.randint(0, 2)
        out = net(share * x[:, first : first + 4] + (1 - share) * x.flip(0)[:, first : first + 4])
        return share * torch.nn.functional.mse_loss(out, y) + (1 - share) * torch.nn.functional.mse_loss(out, y.flip(0))

    found = []
    for wrap in (lambda fn: fn, lambda fn: dynacompile.compile(fn, backend=None if backend == "default" else backend, fullgraph=True)):
        torch.manual_seed(0), np.random.seed(0), random.seed(0)
        net, x, y = torch.nn.Linear(4, 3), torch.randn(5, 6), torch.randn(5, 3)
        run = wrap(step)
        for _ in range(3):
            run(net, x, y).backward()
        found.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(*found)
