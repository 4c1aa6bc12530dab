"""Numbers that count up are served by one entry: those that the frame itself changes, and those that `varying` names."""

import pytest
import torch

import dynacompile

COUNT = 0


def entries(compiled):
    return len(dynacompile.cache_entries(compiled))


class Stepper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.steps, self.decay = 0, 0.5

    def forward(self, x):
        self.steps += 1
        self.decay *= 0.9
        y = self.linear(x) * self.steps + self.decay
        return y * 2 if self.steps % 3 == 0 else y


def twin():
    torch.manual_seed(0)
    return Stepper()


def test_attributes_that_a_module_counts_with():
    eager, module = twin(), twin()
    compiled = dynacompile.compile(module, isolate_recompiles=True, fullgraph=True)
    x = torch.randn(3, 2)
    for _ in range(7):
        torch.testing.assert_close(compiled(x), eager(x))
    assert (module.steps, module.decay) == (eager.steps, eager.decay)
    assert entries(compiled) == 2, "one for each side of the branch"


def test_globals():
    def step(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    compiled = dynacompile.compile(step, isolate_recompiles=True, fullgraph=True)
    start = COUNT
    assert [compiled(torch.ones(1)).item() for _ in range(4)] == [start + i for i in range(1, 5)]
    assert entries(compiled) == 1


def test_constants_where_the_user_asks_for_them():
    module = twin()
    compiled = dynacompile.compile(module, isolate_recompiles=True, options={"specialize_int": True, "specialize_float": True})
    x = torch.randn(3, 2)
    compiled(x)
    compiled(x)
    assert entries(compiled) == 2


class Progress:
    def __init__(self):
        self.completed = 0


class Loop:
    def __init__(self):
        self.progress, self.rate = Progress(), 3


@pytest.mark.parametrize("varying", [("progress.completed", "index"), ()])
def test_named_numbers(varying):
    loop = Loop()

    def step(x, index):
        return x * (loop.progress.completed + 1) + index * loop.rate

    compiled = dynacompile.compile(step, isolate_recompiles=True, fullgraph=True, options={"varying": varying})
    for index in range(4):
        assert compiled(torch.ones(1), index).item() == loop.progress.completed + 1 + index * 3
        loop.progress.completed += 2
    assert entries(compiled) == (1 if varying else 2)


def test_a_counter_that_only_python_reads():
    """It costs nothing: no symbols, no guards."""

    def step(x, index):
        return x * 2

    compiled = dynacompile.compile(step, isolate_recompiles=True, fullgraph=True, options={"varying": ("index",)})
    for index in range(4):
        compiled(torch.ones(1), index)
    assert entries(compiled) == 1
