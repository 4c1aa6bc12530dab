"""Hooks of modules and parameters, registered before the call: they fire as in eager, in its order, and are in the graph."""

import pytest
import torch
from torch import nn

import dynacompile
from tests.scenarios import check_same


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def story_of(register, in_order=True):
    """What a training step shows with hooks that `register(model, log)` puts on: result, gradients, and what the hooks saw."""

    def story(wrap):
        log: list = []
        model = network()
        handles = register(model, log)
        run = wrap(lambda x: model(x * 2) + 1)
        try:
            for scale in (1.0, 2.0):
                x = (torch.linspace(-1, 1, 12).reshape(3, 4) * scale).requires_grad_()
                y = run(x)
                y.sum().backward()
                yield y, x.grad, [p.grad for p in model.parameters()], list(log) if in_order else sorted(log, key=repr)
        finally:
            for handle in handles:
                handle.remove()

    return story


def noted(log, name):
    def hook(module, *values):
        log.append((name, type(module).__name__, len(values)))

    return hook


def backward_hooks(model, log):
    def scaled(module, grads, outputs):
        log.append(("full", type(module).__name__))
        return tuple(g * 2 for g in grads)

    def before(module, outputs):
        log.append(("pre", type(module).__name__))
        return tuple(g + 1 for g in outputs)

    return [model[0].register_full_backward_hook(scaled), model[2].register_full_backward_pre_hook(before), model.register_full_backward_hook(scaled)]


def forward_hooks(model, log):
    def before(module, args, kwargs):
        log.append("before")
        return (args[0] * 3,), kwargs

    def after(module, args, kwargs, output):
        log.append("after")
        return output + 1

    return [
        model[0].register_forward_pre_hook(before, with_kwargs=True),
        model[2].register_forward_hook(after, with_kwargs=True),
        model[1].register_forward_hook(noted(log, "always"), always_call=True),
    ]


def global_hooks(model, log):
    register = nn.modules.module
    return [
        register.register_module_forward_pre_hook(noted(log, "pre")),
        register.register_module_forward_hook(noted(log, "post")),
        register.register_module_full_backward_hook(noted(log, "back")),
    ]


def parameter_hooks(model, log):
    def accumulated(parameter):
        log.append(("accumulated", tuple(parameter.shape), float(parameter.grad.sum().round(decimals=2))))

    def seen(grad):
        log.append(("grad", tuple(grad.shape)))
        return grad * 2

    return [p.register_post_accumulate_grad_hook(accumulated) for p in model.parameters()] + [model[0].weight.register_hook(seen)]


@pytest.mark.parametrize("register", [backward_hooks, forward_hooks, global_hooks])
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_fire_as_in_eager(register, backend):
    check_same(story_of(register), backend=backend, fullgraph=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_hooks_of_parameters_fire_as_in_eager(backend):
    """A graph that is differentiated as a whole gives all gradients at once: the hooks of different parameters have no order then."""
    events = check_same(story_of(parameter_hooks, in_order=backend == "eager"), backend=backend, least=None, rtol=1e-4, atol=1e-5)
    assert not [e for e in events if type(e).__name__ == "GraphBroke"]


def test_forward_hooks_are_in_the_graph():
    model, log = network(), []
    handles = forward_hooks(model, log)
    x = torch.ones(2, 4)
    wanted = model(x)
    torch.testing.assert_close(dynacompile.compile(model, backend="eager", fullgraph=True)(x), wanted)
    assert log == ["before", ("always", "Tanh", 2), "after"] * 2 and len(handles) == 3
