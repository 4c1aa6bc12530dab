"""Floats that differ from call to call: arguments, attributes, globals, closures, and what Python computes of them."""

from __future__ import annotations

import inspect
import itertools
import math
import random
import sys

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile import backends, native
from dynacompile.events import Compiled
from tests.dynamic.varying import check_varying

X = torch.linspace(-1.5, 2.0, 4)
FLOATS = (0.1, 0.25, 0.5, 1.75, -0.5, 3e-5)
SCALE = 0.0
ROOTS = 0 if "statically_known_true" in inspect.getsource(torch._refs.pow) else 1  # in torch 2.11 an exponent of 0.5 has an entry of its own


def calls(*floats: float) -> list[tuple]:
    return [(X, f) for f in floats]


def branch(x, f):
    return x * f if f > 0.25 else x + f


PROGRAMS = {
    "product": (lambda x, f: x * f, calls(*FLOATS, 0.0, math.inf), 2),
    "arithmetic": (lambda x, f: x * (f * 0.9 + 1) / 2 - f**2 + abs(-f) + (f - 1) % 1, calls(*FLOATS[:2]), 2),
    "the program's order": (lambda x, f: x.double() * (f * 0.1 * 0.1) + (f + 0.1 + 0.2), calls(*FLOATS), 2),
    "functions": (lambda x, f: x * math.sqrt(f) * math.cos(f * math.pi) + math.exp(-f) + math.log(f), calls(0.1, 0.2, 0.3, 1.5), 2),
    "results": (lambda x, f: (x * f, f * 3, -f, f / 7, f, max(f, 0.2), min(1.0, f)), calls(*FLOATS), 2),
    "branch": (branch, calls(0.1, 0.2, 0.3, 1.5, 0.22), 3),
    "truth": (lambda x, f: x * f if f else x, calls(0.5, 0.25, 0.0, 1.5, -0.0), 3),
    "an int of it": (lambda x, f: (x[: int(f * 2)], round(f * 3), math.floor(f), math.ceil(-f)), calls(0.61, 1.52, 1.83, 0.5), 2),
    "as text": (lambda x, f: (x, f"{f}"), calls(0.1, 0.2, 0.3), 2),
    "division by it": (lambda x, f: x * (1 / f), calls(0.1, 0.2, 0.4, -3.0), 2),
    "in factories": (lambda x, f: x + torch.full((4,), f) + torch.tensor(f) + torch.full_like(x, f), calls(*FLOATS), 2),
    "factories alone": (lambda f: torch.arange(4) * f, [(f,) for f in FLOATS], 2),
    "of ints": (lambda x, f: torch.arange(4) * f, calls(*FLOATS), 2),
    "compared": (lambda x, f: (x > f, x.clamp(min=f), torch.where(x > 0, x, f), x.masked_fill(x == f, f)), calls(*FLOATS), 2),
    "scales": (lambda x, f: (torch.add(x, x, alpha=f), x.addcmul(x, x, value=f), x.addcdiv(x, x + 9, value=f)), calls(*FLOATS), 2),
    "activations": (lambda x, f: (F.leaky_relu(x, f), F.elu(x, f), F.softplus(x, f), F.threshold(x, f, f)), calls(*FLOATS), 2),
    "padding": (lambda x, f: (F.pad(x, (1, 2), "constant", f), F.pad(x, (0, 1), value=f * 2)), calls(*FLOATS), 2),
    "matrix products": (lambda x, f: torch.addmm(x.expand(4, 4), x.expand(4, 4), x.expand(4, 4), beta=f, alpha=f), calls(*FLOATS), 2),
    "lists of tensors": (lambda x, f: [*torch._foreach_mul([x, x], f), *torch._foreach_add([x], [x], alpha=f)], calls(*FLOATS), 2),
    "powers": (lambda x, f: (x.abs().pow(f), f**x), calls(*[f for f in FLOATS if f > 0]), 2 + ROOTS),
    "math.pow": (lambda x, f: x * math.pow(f, -0.8) + math.pow(2, f), calls(0.1, 0.2, 0.3, 1.5, 100.0), 2),
    "math.pow of what is not positive": (lambda x, f: x * math.pow(f, 2.0), calls(0.5, 0.25, 0.75, -0.5, 0.0, -3.0), 5),
    "narrow": (lambda x, f: (x.bfloat16() * f, x.half() + f, x.bfloat16() > f), calls(*FLOATS), 2),
    "in place": (lambda x, f: x.mul_(f).add_(x, alpha=1 - f), calls(*FLOATS), 2),
    "half of a size": (lambda x: x * (len(x) / 2), [(torch.randn(n),) for n in (4, 5, 6, 7)], 2),
    "power of a size": (lambda x: x * len(x) ** -0.5, [(torch.randn(n),) for n in (4, 5, 6, 7)], 2),
    "part of a size": (lambda x: x[: int(len(x) * 0.75)] + 1, [(torch.randn(n),) for n in (4, 5, 6, 7)], 2),
    "ints and floats": (lambda x, n: x * n, [(X, n) for n in (1, 0.5, 0.25, 2.5)], 2),
    "not a number": (lambda x, f: x * f, calls(0.5, math.nan, 0.25, 1.5, math.nan), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_entries(name):
    fn, given, entries = PROGRAMS[name]
    assert check_varying(fn, given, entries)


@pytest.mark.parametrize("name", ["product", "the program's order", "branch", "in factories", "factories alone", "of ints", "compared", "scales", "padding"])
def test_kernels(name):
    fn, given, entries = PROGRAMS[name]
    assert check_varying(fn, given, entries, backend="default")


@pytest.mark.parametrize("name", ["activations", "matrix products", "lists of tensors", "powers", "narrow", "in place", "part of a size", "not a number"])
def test_more_kernels(name):
    fn, given, entries = PROGRAMS[name]
    assert check_varying(fn, given, entries, backend="default")


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_gradients(backend):
    given = [(X.clone().requires_grad_(), f) for f in FLOATS]
    assert check_varying(lambda x, f: (x * f).sin() / f + x * (f * 2), given, 2, backend=backend)


TAKEN_APART = {
    "lerp": lambda x, f: torch.lerp(x, x.detach() * 2, f) + x.lerp(x.detach() + 1, f / 2),
    "lerp of halves": lambda x, f: torch.lerp(x.bfloat16(), x.detach().bfloat16() * 2, f),
    "huber_loss": lambda x, f: F.huber_loss(x, x.detach() ** 2, delta=f),
    "huber_loss of each": lambda x, f: F.huber_loss(x, x.detach() ** 2, reduction="none", delta=f),
    "smooth_l1_loss": lambda x, f: F.smooth_l1_loss(x, x.detach() ** 2, beta=f, reduction="sum"),
    "label_smoothing": lambda x, f: F.cross_entropy(x.view(2, 2), torch.tensor([1, -100]), label_smoothing=f / 2),
    "label_smoothing, weights": lambda x, f: F.cross_entropy(x.view(2, 2), torch.tensor([1, 0]), torch.tensor([0.3, 2.0]), label_smoothing=f / 2),
    "label_smoothing of each": lambda x, f: F.cross_entropy(x.view(2, 2), torch.tensor([1, 0]), reduction="none", label_smoothing=f / 2),
}


@pytest.mark.parametrize("name", TAKEN_APART)
@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_numbers_that_the_backward_of_torch_asks_for(name, backend):
    given = [(X.clone().requires_grad_(), f) for f in (0.1, 0.25, 1.75, 0.5, 0.6)]
    assert check_varying(TAKEN_APART[name], given, 2, backend=backend)


def test_no_smoothing_beside_classes_that_are_ruled_out():
    program = lambda x, f: F.cross_entropy(x, torch.tensor([0]), label_smoothing=f)  # noqa: E731
    x = torch.tensor([[1.0, -math.inf, 0.0]])
    compiled = dynacompile.compile(program, isolate_recompiles=True)
    for f in (0.1, 0.2, 0.0, 0.3):
        torch.testing.assert_close(compiled(x, f), program(x, f))


@pytest.mark.parametrize("bound", [0.0, -1.0])
def test_bounds_of_losses_that_torch_refuses_or_knows_otherwise(bound):
    for function in (lambda x, f: F.huber_loss(x, x * 2, delta=f), lambda x, f: F.smooth_l1_loss(x, x * 2, beta=f)):
        compiled = dynacompile.compile(function, isolate_recompiles=True)
        for f in (0.5, 0.75, bound):
            try:
                want = function(X, f)
            except RuntimeError as error:
                with pytest.raises(RuntimeError) as caught:
                    compiled(X, f)
                assert str(caught.value).splitlines()[0] == str(error).splitlines()[0]
            else:
                torch.testing.assert_close(compiled(X, f), want)


def test_symbolic_from_the_start():
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 1, dynamic=True)


def test_inductor_is_given_no_symbol_for_a_float(monkeypatch):
    """It would take one for a constant, or fail. Sizes and ints that vary stay symbols."""
    given: list = []
    monkeypatch.setattr(backends, "inductor_call", lambda graph, fakes: given.append(fakes) or graph.forward)
    inductor = {"backend": "inductor"}
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, **inductor)
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, dynamic=True, **inductor)
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, options={"varying": ("f",)}, **inductor)
    assert check_varying(lambda x, n: x * (1 / n), calls(3, 5, 7), 3, **inductor), "a float that is computed"
    assert not any(isinstance(fake, torch.SymFloat) for fakes in given for fake in fakes)
    assert check_varying(lambda x, n: x * n, calls(3, 5, 7), 2, **inductor)
    assert check_varying(lambda x: x / x.shape[0], [(torch.ones(n),) for n in (3, 5, 7)], 2, **inductor)


def test_constants_on_request():
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, options={"specialize_float": True})
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, dynamic=True, options={"specialize_float": True})
    assert check_varying(lambda x, f: x * f, calls(0.1, 0.2, 0.3), 3, dynamic=False)


def test_what_python_raises():
    def fn(x, f):
        try:
            return x * math.sqrt(1 / f)
        except ZeroDivisionError:
            return x
        except ValueError:
            return -x

    assert check_varying(fn, calls(0.1, 0.2, 0.4, 0.0, 0.3), 3)


def test_globals_closures_and_attributes():
    class Box:
        rate = 0.0

    module, box, cell = sys.modules[__name__], Box(), 0.0

    def fn(x):
        return x * SCALE + box.rate - cell

    compiled, made = dynacompile.compile(fn, backend="eager", isolate_recompiles=True), []
    end = dynacompile.subscribe(made.append)
    try:
        for f in FLOATS:
            module.SCALE, box.rate, cell = f, f * 2, f / 3
            assert torch.equal(compiled(X), fn(X))
    finally:
        end()
    assert sum(isinstance(e, Compiled) for e in made) == 2


def test_a_float_that_the_frame_moves():
    class Decayed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rate, self.steps = 1.0, 0

        def forward(self, x):
            self.rate *= 0.9
            self.steps += 1
            return x * self.rate / self.steps

    ours, eager = Decayed(), Decayed()
    compiled = dynacompile.compile(ours, backend="eager", isolate_recompiles=True)
    for _ in range(8):
        assert torch.equal(compiled(X), eager(X))
        assert (ours.rate, ours.steps) == (eager.rate, eager.steps)
    assert len(native.core().entries(Decayed.forward.__code__)) == 1


def test_each_number_is_one_input():
    def fn(x, f):
        return (x * f + 1).relu() * f - f * 0.5

    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    for f in FLOATS[:2]:
        compiled(X, f)
    (_, entry), *_ = native.core().entries(fn.__code__)
    assert [i.source.text() for i in entry.info.captured.inputs] == ["x", "f", "f * 0.5"]


def test_guards_name_the_condition():
    compiled = dynacompile.compile(branch, backend="eager", isolate_recompiles=True)
    for f in (0.1, 0.2):
        compiled(X, f)
    (_, entry), *_ = native.core().entries(branch.__code__)
    (guard,) = [g for g in entry.info.captured.guards if g.kind == "SHAPE"]
    assert guard.expected.text() == "not f > 0.25"
    assert guard.site.line == branch.__code__.co_firstlineno + 1


def cutmix(x, rate, row, column):
    """The box whose share of the image is what is left of it after it was cut at the edges."""
    height, width = x.shape[1:]
    side = (1.0 - rate) ** 0.5
    tall, wide = int(height * side), int(width * side)
    top, bottom = max(row - tall // 2, 0), min(row + tall // 2, height)
    left, right = max(column - wide // 2, 0), min(column + wide // 2, width)
    x = x.clone()
    x[:, top:bottom, left:right] = x.flip(0)[:, top:bottom, left:right]
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return x, x.sum() * kept + x.mean() * (1.0 - kept), kept


def test_the_share_of_a_box_of_random_sizes():
    pick = random.Random(0)
    calls = [(torch.arange(200.0).view(2, 10, 10), pick.random(), pick.randrange(10), pick.randrange(10)) for _ in range(12)]
    check_varying(cutmix, calls, 3)  # a box without rows has an entry of its own


@pytest.mark.parametrize("rounds", [8, 14, 15, 16, 17, 40, 90])
def test_long_formulas(rounds):
    """Those that the native machine does not hold, or that take long, are of constants."""

    def nested(x, f):
        for _ in range(rounds):
            f = 1.0 - f / 2
        return x * f, f

    def in_a_row(x, f, n):
        total = n
        for i in range(rounds):
            total = total + max(n - i, 0) * n
            f = f * 0.5 + 0.25
        return x * (total / 7) * f, x + 1 if total / 7 > f else x - 1, total / 3

    for program, calls in ((nested, [(f,) for f in (0.5, 0.75, 0.3)]), (in_a_row, [(0.5, 3), (0.7, 5), (0.1, 9)])):
        compiled = dynacompile.compile(program, isolate_recompiles=True, backend="eager", options={"fallback": "none"})
        for numbers in calls:
            got, want = compiled(torch.ones(2), *numbers), program(torch.ones(2), *numbers)
            torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
            assert got[-1] == want[-1]


@pytest.mark.parametrize("numbers", [[0.5, 7.0], [3, 40], [2.5, 7, 0.25]], ids=["floats", "ints", "both"])
def test_an_order_of_a_few_numbers_has_one_entry(numbers):
    def fn(x, given):
        ordered = sorted(given)
        given.sort(reverse=True)
        return x * ordered[0] + ordered[-1] * given[0]

    compiled = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)
    for step in range(6):
        given = [number + (number > 5) * 2 * step + step for number in numbers]
        assert torch.equal(compiled(torch.ones(3), list(given)), fn(torch.ones(3), list(given)))
    assert len(compiled.buckets[0].entries) == 2  # numbers as constants, and as symbols
    for given in itertools.permutations(numbers):
        assert torch.equal(compiled(torch.ones(3), list(given)), fn(torch.ones(3), list(given)))
    assert len(compiled.buckets[0].entries) <= 1 + math.factorial(len(numbers))
