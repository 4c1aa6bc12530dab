"""Seeds, states of generators, generators of the frame and of the caller."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.checking import check

EAGER = {"backend": "eager"}


def seed(x):
    torch.manual_seed(3)
    return x + torch.rand(4)


def seed_after(x):
    y = x + torch.rand(4)
    torch.manual_seed(7)
    return y


def seed_mid(x):
    y = x + torch.rand(4)
    torch.manual_seed(7)
    return y + torch.randn(4)


def state(x):
    s = torch.get_rng_state()
    y = torch.rand(4)
    torch.set_rng_state(s)
    return x + y


def state_ret(x):
    s = torch.get_rng_state()
    return x + 1, s


def fork(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = torch.rand(4)
    return x + y


def fork2(x):
    a = torch.rand(4)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = torch.rand(4)
    return x + y + torch.rand(4) + a


def gen(x):
    g = torch.Generator().manual_seed(5)
    return x + torch.rand(4, generator=g)


def gen2(x):
    g = torch.Generator()
    g.manual_seed(5)
    a = torch.randn(4, generator=g)
    b = torch.randperm(4, generator=g)
    return x + a, b, g.initial_seed()


def gen_inplace(x):
    g = torch.Generator().manual_seed(5)
    y = x.clone()
    y.normal_(generator=g)
    return y


def gen_ret(x):
    g = torch.Generator().manual_seed(5)
    return x + torch.rand(4, generator=g), torch.rand(2, generator=g)


def gen_state(x):
    g = torch.Generator().manual_seed(5)
    s = g.get_state()
    a = torch.rand(4, generator=g)
    g.set_state(s)
    b = torch.rand(4, generator=g)
    return x + a + b


def gen_multi(x):
    g = torch.Generator().manual_seed(5)
    return torch.multinomial(x.abs(), 2, generator=g)


def gen_mut(x):
    g = torch.Generator().manual_seed(5)
    y = torch.rand(4, generator=g)
    y.add_(1)
    return x * y, y


def iseed(x):
    return x + 1, torch.initial_seed()


def iseed2(x):
    torch.manual_seed(11)
    return x + 1, torch.initial_seed()


def drop(x):
    torch.manual_seed(4)
    return F.dropout(x, 0.5)


def randint(x):
    g = torch.Generator().manual_seed(2)
    return x + torch.randint(0, 9, (4,), generator=g)


def seedret(x):
    g = torch.manual_seed(4)
    return x + torch.rand(4), g.initial_seed()


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {}
CASES = [
    *((fn, 1, 0) for fn in (seed, seed_after, state, state_ret, fork, gen, gen_ret, gen_state, gen_mut, iseed, drop, randint)),
    (seed_mid, 2, 1),
    (fork2, 3, 2),
    (gen2, 1, 1),
    (gen_inplace, 1, 1),
    (gen_multi, 1, 1),
    (iseed2, 1, 1),
    (seedret, 1, 1),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)
