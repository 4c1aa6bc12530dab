"""A Python number beside a tensor of half precision is rounded where eager rounds it, whether it is a constant of the graph or a symbol."""

import pytest
import torch

import dynacompile
from tests.scenarios import check_same

OPERATIONS = {
    "x + r": lambda x, r: x + r,
    "r - x": lambda x, r: r - x,
    "x - r": lambda x, r: x - r,
    "x * r": lambda x, r: x * r,
    "x / r": lambda x, r: x / r,
    "r / x": lambda x, r: r / x,
    "x // r": lambda x, r: x // r,
    "x % r": lambda x, r: x % r,
    "r % x": lambda x, r: r % x,
    "x ** r": lambda x, r: x**r,
    "r ** x": lambda x, r: r**x,
    "x < r": lambda x, r: x < r,
    "fmod": lambda x, r: torch.fmod(x, r),
    "where": lambda x, r: torch.where(x > 1, r, x),
    "clamp": lambda x, r: x.clamp(max=r),
    "add_": lambda x, r: x.clone().add_(r),
}
NUMBERS = [1.5, 2.25, 1.1987652481784965, 0.3331, 2.7182818, 1.0009765, 300.123, -0.1, 1e-7]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("symbolic", [False, True], ids=["constants", "symbols"])
def test_numbers_are_rounded_as_in_eager(name, dtype, symbolic):
    operation = OPERATIONS[name]

    def story(wrap):
        x = torch.tensor([1.0, 1.203125, 0.333, 2.5, -1.7, 65000.0, 0.0001, 3.0]).to(dtype)
        run = wrap(operation)
        for r in NUMBERS if symbolic else NUMBERS[2:5]:
            if not symbolic:
                run = wrap(lambda x, r=r: operation(x, r))
                yield run(x)
            else:
                yield run(x, r)

    check_same(story, rtol=0.0, atol=0.0)
    dynacompile.reset()
