"""Optimizer steps inside compiled functions: state that appears at the first step, and schedules."""

import pytest
import torch
from torch import nn

import dynacompile
from tests.scenarios import check_same

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "momentum foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "momentum fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "adamw with a tensor as lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
}


def training(wrap, make, steps=4, schedule=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make(model.parameters())
    scheduler = schedule(optimizer) if schedule else None

    def update():
        optimizer.step()
        optimizer.zero_grad()

    step = wrap(update)
    for i in range(steps):
        loss = model(torch.linspace(-1, 1, 12).reshape(3, 4) * (i + 1)).pow(2).sum()
        loss.backward()
        step()
        if scheduler:
            scheduler.step()
        yield [*model.parameters()], sorted(map(sorted, (s.keys() for s in optimizer.state.values())))


def count(events, kind):
    return sum(type(e).__name__ == kind for e in events)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_steps(name):
    """The first step makes the state, the others are one graph: no count of steps is in it."""
    events = check_same(lambda wrap: training(wrap, OPTIMIZERS[name]), least=0, backend="eager")
    assert count(events, "Recompiled") <= 1 and count(events, "GraphBroke") == count(events, "FrameSkipped") == 0


@pytest.mark.parametrize("name", ["momentum", "adam foreach", "adamw", "momentum fused"])
def test_steps_with_kernels(name):
    check_same(lambda wrap: training(wrap, OPTIMIZERS[name], 3), least=0)


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)


def test_scheduled_rates_as_tensors_stay_in_the_graph():
    def make(parameters):
        return torch.optim.AdamW(parameters, lr=torch.tensor(0.1), foreach=False)

    events = check_same(lambda wrap: training(wrap, make, 6, cosine), backend="eager", rtol=1e-4, atol=1e-5)
    assert count(events, "Recompiled") == count(events, "GraphBroke") == 0 and count(events, "FirstStepLeft") == 1


def warmed(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 5) * 0.9**k)


SCHEDULED = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True, foreach=False),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("name", list(SCHEDULED))
def test_scheduled_rates_make_two_entries_and_the_bits_of_eager(name):
    events = check_same(lambda wrap: training(wrap, SCHEDULED[name], 16, warmed), backend="eager", rtol=0.0, atol=0.0)
    assert count(events, "Compiled") == 2 and count(events, "GraphBroke") == count(events, "FrameSkipped") == 0


@pytest.mark.parametrize("name", ["sgd", "sgd foreach", "adam", "adamw foreach"])
def test_scheduled_rates_with_kernels(name):
    events = check_same(lambda wrap: training(wrap, SCHEDULED[name], 16, warmed), rtol=1e-4, atol=1e-5)
    assert count(events, "Compiled") == 2 and count(events, "GraphBroke") == count(events, "FrameSkipped") == 0


def test_a_compiled_step_method():
    def story(wrap):
        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scheduler = cosine(optimizer)
        step = wrap(optimizer.step)
        for _ in range(10):
            parameter.grad = torch.ones(3)
            step()
            scheduler.step()
            yield parameter

    events = check_same(story, least=1, backend="eager")
    assert count(events, "Recompiled") == 1, "the rate becomes a symbol"


def test_scalars_given_as_tensors():
    def story(wrap):
        def use(x, t):
            y = x.add(x, alpha=t).sub_(x, alpha=t * 3).addcdiv(x, x + 9, value=t)
            z = torch.addcmul(y, x, x, value=t)
            return z, torch._foreach_add([y, z], [x, x], alpha=t)

        compiled = wrap(use)
        for i in range(3):
            yield compiled(torch.arange(3.0), torch.tensor(0.5 + i))

    events = check_same(story)
    assert count(events, "Compiled") == 1


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in place"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "addcmul", "addcdiv"])
def test_scalars_given_as_tensors_are_rounded_as_eager_rounds(name, dtype, in_place):
    def fn(x, y, z, t):
        method = getattr(x.clone(), name + "_" * in_place)
        return method(y, alpha=t) if name in ("add", "sub") else method(y, z, value=t)

    torch.manual_seed(0)
    x, y, z = torch.randn(1024).to(dtype), torch.randn(1024).to(dtype), torch.rand(1024).add(0.5).to(dtype)
    compiled = dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)
    for number in (0.0131, -0.7):
        assert torch.equal(compiled(x, y, z, torch.tensor(number)), fn(x, y, z, torch.tensor(number)))


def test_dicts_of_tensors():
    table = {}

    def story(wrap):
        weights = [torch.ones(2), torch.zeros(2)]
        table.clear()

        def use(x):
            own = {x: 2.0}
            for weight in weights:
                if weight not in table:
                    table[weight] = {"steps": torch.zeros(())}
                table[weight]["steps"] += 1
                x = x * own.get(weight, 3.0) + table[weight]["steps"]
            return x

        compiled = wrap(use)
        for i in range(3):
            yield compiled(torch.ones(2) * i), len(table), [table[w]["steps"] for w in weights]

    events = check_same(story, backend="eager")
    assert sum(type(e).__name__ == "Recompiled" for e in events) == 1


def test_clipping_is_part_of_the_step():
    def story(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def update():
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return norm

        step = wrap(update)
        for _ in range(3):
            model(torch.linspace(-1, 1, 12).reshape(3, 4)).pow(2).sum().backward()
            yield step(), [*model.parameters()]

    events = check_same(story, backend="eager")
    assert count(events, "Recompiled") == count(events, "GraphBroke") == 0 and count(events, "FirstStepLeft") == 1
