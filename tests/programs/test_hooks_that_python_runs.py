"""Hooks of tensors that capture can't follow are registered after the graph, and run as Python in each backward pass."""

import warnings

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke
from tests.checking import assert_same


def keeps_gradients(x, seen):
    """As Grad-CAM does."""
    y = x * 2
    y.register_hook(lambda grad: seen.append(grad))
    return (y * y).sum() + y.sin().sum()


def warns_of_gradients(x, seen):
    def checked(t, name):
        if t.requires_grad:
            t.register_hook(lambda grad: checked(grad, "gradient of " + name))
        if torch.isnan(t).any():
            seen.append(name)
            warnings.warn(f"{name} is NaN", stacklevel=1)
        return t

    return checked(checked(x * 2, "double").sqrt(), "root").sum()


def changes_by_values(x, seen):
    y = x.sin()

    def clips(grad):
        if grad.norm() > 1:
            seen.append(grad.norm())
            return grad / grad.norm()
        return None

    y.register_hook(clips)
    return (y * 3).sum() + (y * y).sum()


def reads_what_changes_later(x, seen):
    name = "first"
    y = x * 3
    y.register_hook(lambda grad: seen.append((name, grad.sum().item())))
    name = "second"
    return y.sum()


class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.told = nn.Linear(3, 3), []

    def save(self, grad):
        self.told.append(grad)

    def forward(self, x):
        y = self.layer(x)
        y.register_hook(self.save)
        return y.relu().sum()


PROGRAMS = [keeps_gradients, warns_of_gradients, changes_by_values, reads_what_changes_later]


def story(function, given):
    told = []
    for values in given:
        x, seen = values.clone().requires_grad_(), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(x, seen)
            before = list(seen)
            result.backward(retain_graph=True)
            once = list(seen)
            result.backward()
        told.append((result, before, once, list(seen), x.grad, [str(w.message) for w in caught if w.category is UserWarning]))
    return told


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_hooks_run_as_in_eager(program, backend):
    given = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([-1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 0.0]), torch.tensor([-1.0, -2.0, 3.0]), torch.ones(3)]
    compiled = dynacompile.compile(program, backend=backend, isolate_recompiles=True)
    assert_same("story", story(compiled, given), story(program, given), 1e-5, 1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_they_end_no_graph(program):
    events = []
    end = dynacompile.subscribe(events.append)
    story(dynacompile.compile(program, isolate_recompiles=True), [torch.ones(3), torch.ones(3) * 2])
    end()
    frames = [e for e in events if isinstance(e, (Compiled, GraphBroke, FrameSkipped))]
    assert [type(e) for e in frames if not isinstance(e, Compiled) or "lambda" not in e.frame and "clips" not in e.frame] == [Compiled]


def test_methods_of_modules():
    torch.manual_seed(0)
    module, x = Watched(), torch.randn(2, 3)
    compiled = dynacompile.compile(module, isolate_recompiles=True)
    for call in (compiled, module):
        module.zero_grad()
        call(x).backward()
        module.told.append(module.layer.weight.grad.clone())
    assert len(module.told) == 4
    assert_same("gradients", module.told[:2], module.told[2:], 1e-5, 1e-6)
