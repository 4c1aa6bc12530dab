"""Graph breaks in loops: the rounds share their graphs, one call returns before the next begins, and nothing runs twice."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, LimitHit
from tests.checking import check

SAID: list = []


@dynacompile.disable
def say(*values):
    SAID.append(values)


def prints(x):
    for i in range(100):
        x = x + i
        say(i)
    return x * 2


def both_sides(x):
    for i in range(100):
        x = x * 0.99
        say("in")
        x = x + i
    return x * 2


def unused_counter(x):
    for _ in range(50):
        x = torch.sin(x)
        say("a")
    return x


def batches(x):
    total = 0.0
    for batch in [x + i for i in range(20)]:
        loss = (batch * batch).sum()
        total += loss.item()
    return total


def collects(x):
    losses = []
    for _ in range(20):
        x = x * 1.01
        losses.append(x.sum().item())
    return losses, x


def enumerated(x):
    out = x
    for i, y in enumerate([x, x + 1, x + 2] * 7):
        out = out + y * i
        say(i)
    return out


def zipped(x):
    out = x
    for y, k in zip([x, x + 1, x + 2] * 7, range(100)):
        out = out + y
        say(k)
    return out


def in_dict(x):
    for k, v in {k: x + k for k in range(20)}.items():
        x = x + v
        say(k)
    return x


def while_tensor(x):
    n = 0
    while x.sum() > 1:
        x = x * 0.9
        n += 1
    return x, n


def while_item(x):
    err = 10.0
    while err > 0.1:
        x = x * 0.5
        err = x.abs().max().item()
    return x, err


def while_counts(x):
    n = 0
    while n < 30:
        x = x + 1
        say(n)
        n += 1
    return x


def nested(x):
    for i in range(6):
        for j in range(7):
            x = x + j
            say(i, j)
        x = x * 0.5
    return x


def while_in_for(x):
    for _ in range(6):
        while x.sum() > 1:
            x = x * 0.5
        x = x + 1
    return x


def some_rounds(x):
    for i in range(100):
        x = x + 1
        if i % 10 == 0:
            say(i)
    return x


def one_round(x):
    for k, w in enumerate([torch.full((4,), float(k)) for k in range(12)]):
        x = torch.relu(x + w)
        if k == 3:
            say("once")
    return x


def without_gradients(x):
    y = x * 2
    with torch.no_grad():
        for i in range(30):
            y = y + i
            say(i)
    return y * x


def leaves_early(x):
    rounds = 0
    for i in range(100):
        x = x + 1
        rounds = i
        if x.sum() > 50:
            break
    else:
        x = x * 100
    return x, rounds


def runs_to_the_end(x):
    for _ in range(10):
        x = x + 1
        if x.sum() > 5000:
            break
    else:
        x = x * 100
    return x


def skips_rounds(x):
    for i in range(40):
        if i % 2:
            continue
        x = x + i
        say(i)
    return x


def handles_inside(x):
    for i in range(30):
        try:
            x = x + 1
            say(i)
            if i == 7:
                raise ValueError(i)
            x = x * 1.5
        except ValueError as error:
            say("caught", str(error))
            x = x * 0.1
    return x


def shares_its_iterator(x):
    values = iter([1, 2, 3, 4])
    for i in values:
        say(i)
        x = x + next(values)
    return x


def grows(x):
    values = [1, 2]
    for v in values:
        say(v)
        if len(values) < 6:
            values.append(v + 2)
        x = x + v
    return x, values


def shrinks(x):
    values = [1, 2, 3, 4, 5, 6]
    for v in values:
        say(v)
        values.pop()
        x = x + v
    return x, values


def of_a_generator(x):
    def values():
        for i in range(30):
            yield x + i

    y = x
    for v in values():
        y = y + v
        say("got")
    return y


def counts_in_a_closure(x):
    n = 0

    def bump(t):
        nonlocal n
        n += 1
        return t + n

    for _ in range(20):
        x = bump(x)
        say(n)
    return x, n


def two_breaks(x):
    for i in range(30):
        x = x + i
        say(i)
        x = x * 0.5
        say("second")
        x = x - 1
    return x


def iterates_an_argument(x, values):
    y = x + 1
    for v in values:
        y = y + v
    return y


PROGRAMS = [  # function, graphs, breaks, recompiles over two calls
    (prints, 3, 2, 0),
    (both_sides, 4, 3, 1),
    (unused_counter, 2, 2, 0),
    (batches, 1, 0, 0),
    (collects, 1, 0, 0),
    (enumerated, 2, 2, 0),
    (zipped, 2, 2, 1),
    (in_dict, 3, 3, 1),
    (while_tensor, 3, 3, 1),
    (while_item, 2, 2, 0),
    (while_counts, 3, 3, 2),
    (nested, 4, 3, 1),
    (while_in_for, 5, 4, 0),
    (some_rounds, 6, 6, 3),
    (one_round, 2, 1, 0),
    (without_gradients, 3, 2, 0),
    (leaves_early, 2, 2, 0),
    (runs_to_the_end, 3, 2, 0),
    (skips_rounds, 4, 4, 3),
    (handles_inside, 5, 4, 2),
    (shares_its_iterator, 2, 2, 1),
    (grows, 5, 6, 3),
    (shrinks, 3, 4, 1),
    (of_a_generator, 2, 2, 0),
    (counts_in_a_closure, 3, 3, 1),
    (two_breaks, 5, 4, 0),
]


@pytest.mark.parametrize("fn,graphs,breaks,recompiles", PROGRAMS, ids=[p[0].__name__ for p in PROGRAMS])
def test_loop(fn, graphs, breaks, recompiles):
    """What was said is the same in both; no frame is left to Python, and no limit is hit."""
    SAID.clear()
    fn(torch.arange(1.0, 5.0))
    said = list(SAID)
    events = check(fn, torch.arange(1.0, 5.0), graphs=graphs, breaks=breaks, recompiles=recompiles, options={"backend": "eager"})
    assert not [e for e in events if isinstance(e, (FrameSkipped, LimitHit))]
    assert SAID == said * 5


def test_the_stack_does_not_grow_with_the_rounds():
    def rounds(x):
        for i in range(3000):
            x = x + 1
            say(i)
        return x

    compiled = dynacompile.compile(rounds, backend="eager", isolate_recompiles=True, fallback="none")
    assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 3000.0))
