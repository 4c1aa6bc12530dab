"""step() and zero_grad() of every optimizer of torch.optim, in each of its forms: whole, or broken by name, with the state that eager has."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke, Recompiled

SINGLE, FOREACH, FUSED = {"foreach": False}, {"foreach": True}, {"fused": True}
FORMS = {
    "ASGD": (SINGLE, FOREACH),
    "Adadelta": (SINGLE, FOREACH),
    "Adafactor": (SINGLE, FOREACH),
    "Adagrad": (SINGLE, FOREACH, FUSED, {"lr_decay": 0.1}),
    "Adam": (SINGLE, FOREACH, FUSED, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (SINGLE, FOREACH, FUSED, {"maximize": True}),
    "Adamax": (SINGLE, FOREACH),
    "LBFGS": ({},),
    "Muon": ({},),
    "NAdam": (SINGLE, FOREACH, {"decoupled_weight_decay": True}),
    "RAdam": (SINGLE, FOREACH, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "RMSprop": (SINGLE, FOREACH, {"momentum": 0.9, "centered": True}),
    "Rprop": (SINGLE, FOREACH),
    "SGD": (SINGLE, FOREACH, FUSED, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "SparseAdam": ({},),
}
BREAKS = {
    "LBFGS": {"autograd-call"},  # its closure runs the backward pass
    "SparseAdam": {"unknown-object"},  # sparse gradients
}
CASES = [pytest.param(name, form, id=f"{name} {' '.join(form)}".strip()) for name, forms in FORMS.items() for form in forms]


def test_every_optimizer_is_here():
    found = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer}
    assert found - set(FORMS) == set()


def gradient(parameter, step, sparse):
    torch.manual_seed(step)
    if sparse:
        return torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.randn(2, 3), parameter.shape)
    return torch.randn_like(parameter)


def training(name, form, compiling, to_none):
    """Parameters and optimizer after four steps, and what was told."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3, 3))]
    optimizer = getattr(torch.optim, name)(parameters, **form)

    def closure():
        optimizer.zero_grad()
        loss = sum((p * p).sum() for p in parameters)
        loss.backward()
        return loss

    def update():
        if name == "LBFGS":
            optimizer.step(closure)
            return
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)

    step, events = update, []
    if compiling:
        dynacompile.reset()
        step = dynacompile.compile(update, backend="eager", isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    try:
        for i in range(4):
            for p in parameters:
                p.grad = gradient(p, i, name == "SparseAdam")
            step()
    finally:
        end()
    return parameters, optimizer, events


@pytest.mark.whole
@pytest.mark.parametrize("name, form", CASES)
def test_step(name, form):
    to_none = "foreach" in form
    parameters, optimizer, events = training(name, form, True, to_none)
    wanted, theirs, _ = training(name, form, False, to_none)
    torch.testing.assert_close(parameters, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(optimizer.state_dict()["state"], theirs.state_dict()["state"], rtol=1e-6, atol=1e-6)
    assert optimizer.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]
    assert [p.grad is None for p in parameters] == [p.grad is None for p in wanted]
    told = {e.code for e in events if isinstance(e, GraphBroke)}
    assert told <= BREAKS.get(name, set()) and bool(told) == (name in BREAKS), told
    assert not any(isinstance(e, FrameSkipped) for e in events) and sum(isinstance(e, Recompiled) for e in events) <= 1


@pytest.mark.parametrize("name, form", [("Adam", FOREACH), ("SGD", FUSED), ("LBFGS", {}), ("SparseAdam", {})])
def test_step_after_dynamo_was_used(name, form):
    """Its first use, also the one by an eager torch.cond, marks parts of every optimizer as disabled for all of the process."""
    torch.compile(torch.sin, backend="eager")(torch.ones(1))
    assert torch.optim.Adam._init_group._torchdynamo_disable
    test_step(name, form)
