"""Steps that call a closure: the closure is compiled, and the step's own part after it, where torch's step is no loop around the closure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, Recompiled

OPTIMIZERS: dict[str, Callable] = {
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4),
    "LBFGS with line search": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
STEPS = 5


@dataclass
class Fit:
    """A model of float64, its optimizer, and the number of evaluations of its closure."""

    name: str
    seen: list[float] = field(default_factory=list)
    raised: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
        self.optimizer = OPTIMIZERS[self.name](self.model.parameters())
        self.x, self.y = torch.randn(16, 4).double(), torch.randn(16, 1).double()

    def loss(self) -> torch.Tensor:
        return (self.model(self.x) - self.y).square().mean()

    def closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss()
        loss.backward()
        self.seen.append(loss.item())
        return loss

    def step(self) -> Any:
        return self.optimizer.step(self.closure)

    def same_as(self, other: Fit) -> None:
        assert self.raised == other.raised
        torch.testing.assert_close(self.seen, other.seen, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(list(self.model.parameters()), list(other.model.parameters()), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close([p.grad for p in self.model.parameters()], [p.grad for p in other.model.parameters()], rtol=1e-9, atol=1e-12)


def compiled(step: Callable, **options: Any) -> Callable:
    return dynacompile.compile(step, isolate_recompiles=True, **{"options": {"reference": True}, **options})


@pytest.fixture
def told():
    events: list = []
    end = dynacompile.subscribe(events.append)
    yield events
    end()


def frames(events: list, part: str) -> int:
    return sum(isinstance(e, Compiled) and part in e.frame for e in events)


def trained(name: str, told: list, wrap: Callable = lambda fit: compiled(fit.step)) -> Fit:
    """A fit in which the step is compiled, which must be eager's."""
    eager, ours = Fit(name), Fit(name)
    told.clear()
    step = wrap(ours)
    for _ in range(STEPS):
        torch.testing.assert_close(step(), eager.step(), rtol=1e-9, atol=1e-12)
        ours.same_as(eager)
    return ours


def by_its_method(fit: Fit) -> Callable:
    step = compiled(fit.optimizer.step)
    return lambda: step(fit.closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_closures_are_compiled_with_what_follows_them(name, told):
    fit = trained(name, told)
    assert frames(told, "Fit.closure") >= 1, "the closure up to its backward, and what follows"
    kind = type(fit.optimizer).__name__.replace("AdamW", "Adam")
    expected = 0 if kind == "LBFGS" else 1
    after = [e for e in told if isinstance(e, Compiled) and f"of {kind}.step>" in e.frame and e.ops > 0]
    assert len(after) == expected, "torch's step after the closure is one graph, but for LBFGS, which is Python around closures"
    assert not any(isinstance(e, (FrameSkipped, Recompiled)) for e in told)


@pytest.mark.parametrize("name", ["LBFGS", "SGD"])
def test_the_step_itself_is_what_is_compiled(name, told):
    trained(name, told, by_its_method)
    assert frames(told, "Fit.closure") >= 1


@pytest.mark.filterwarnings("ignore:step is compiled in name only")
@pytest.mark.parametrize("name", ["LBFGS", "SGD", "AdamW fused"])
def test_after_dynamo_has_left_steps_alone(name, told):
    """Its first use in a process marks steps as disabled; so is, by a copy of the mark, the wrapper that all optimizers made later share."""
    torch.compile(torch.sin, backend="eager")(torch.ones(1))
    trained("LBFGS", told)
    trained("LBFGS", told, by_its_method)
    trained(name, told)
    assert frames(told, "Fit.closure") >= 1
    trained(name, told, by_its_method)
    assert frames(told, "Fit.closure") >= 1


def test_a_scheduler_around_a_step_that_dynamo_has_left_alone(told):
    """It wraps the step, and has Dynamo's marks of it."""
    torch.compile(torch.sin, backend="eager")(torch.ones(1))

    def scheduled(fit: Fit) -> Callable:
        torch.optim.lr_scheduler.ExponentialLR(fit.optimizer, 0.9)
        return compiled(fit.step)

    trained("LBFGS", told, scheduled)


@pytest.mark.parametrize("name", ["LBFGS", "AdamW foreach"])
def test_what_was_reset_is_met_again(name, told):
    trained(name, told)
    found = [e.frame for e in told if isinstance(e, Compiled)]
    dynacompile.reset()
    trained(name, told)
    assert [e.frame for e in told if isinstance(e, Compiled)] == found


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad], ids=["no_grad", "enable_grad"])
def test_closures_that_set_whether_there_are_gradients(name, mode, told):
    def run(wrap: Callable) -> Fit:
        fit = Fit(name)
        modes = []

        def closure():
            modes.append(torch.is_grad_enabled())
            with mode():
                fit.optimizer.zero_grad()
                loss = fit.loss()
                with torch.enable_grad():
                    fit.closure()
            modes.append(torch.is_grad_enabled())
            return loss.detach()

        step = wrap(lambda: fit.optimizer.step(closure))
        for _ in range(3):
            fit.seen.append(step().item())
        assert all(modes) and torch.is_grad_enabled()
        return fit

    run(compiled).same_as(run(lambda f: f))
    assert frames(told, "closure") >= 1


@pytest.mark.parametrize("name", ["LBFGS", "SGD", "AdamW fused"])
@pytest.mark.parametrize("at", [0, 2, 3])
def test_exceptions_of_closures(name, at, told):
    """The state is as after eager's step, gradients are on again, and the next step goes on."""

    def run(wrap: Callable) -> Fit:
        fit = Fit(name)
        calls = [0]

        def closure():
            calls[0] += 1
            loss = fit.closure()
            if calls[0] == at + 1:
                raise ValueError(f"call {at}")
            return loss

        step = wrap(lambda: fit.optimizer.step(closure))
        for _ in range(4):
            try:
                step()
            except (ValueError, TypeError) as error:  # LBFGS itself raises the latter where an earlier call has ended too soon
                fit.raised.append((type(error), str(error)))
            assert torch.is_grad_enabled()
        assert (ValueError, f"call {at}") in fit.raised
        return fit

    run(compiled).same_as(run(lambda f: f))


def test_a_step_inside_of_a_closure(told):
    """As a generator's step within that of a discriminator."""

    def run(wrap: Callable) -> list[Fit]:
        outer, inner = Fit("LBFGS"), Fit("SGD")

        def closure():
            inner.step()
            return outer.closure()

        step = wrap(lambda: outer.optimizer.step(closure))
        for _ in range(3):
            step()
        return [outer, inner]

    for ours, eager in zip(run(compiled), run(lambda f: f), strict=True):
        ours.same_as(eager)
    assert frames(told, "of SGD.step>") >= 1 and frames(told, "Fit.closure") >= 1


def test_a_disabled_closure_stays_python(told):
    def run(wrap: Callable) -> Fit:
        fit = Fit("LBFGS")
        closure = dynacompile.disable(fit.closure)
        step = wrap(lambda: fit.optimizer.step(closure))
        for _ in range(3):
            step()
        return fit

    run(compiled).same_as(run(lambda f: f))
    assert frames(told, "Fit.closure") == 0


def test_a_mark_of_one_function_is_not_that_of_others_with_its_code(told):
    def made():
        def f(x):
            return x + 1

        return f

    marked, other = made(), made()
    dynacompile.leave_to_python(marked)
    run = compiled(lambda f, x: f(x) * 2, backend="eager")
    x = torch.ones(2)
    called = []

    def through(x):  # a frame of its own, as the graph ends before it
        called.append(len(called))
        dynacompile.graph_break()
        return marked(x)

    assert torch.equal(run(through, x), (x + 1) * 2)
    told.clear()
    alone = compiled(other, backend="eager")
    assert torch.equal(alone(x), x + 1)
    assert sum(isinstance(e, Compiled) for e in told) == 1 and not any(isinstance(e, FrameSkipped) for e in told)
