"""Compiled steps of every optimizer in every form: few launches, no recompile for a rate or a step count, and results within the spread of eager's forms."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke
from tests.checking import check
from tests.optimizers import matrix
from tests.optimizers.matrix import SHAPES, STEPS, Case, Training, assert_within_spread, compiled, eager

BOTH = ("single", "foreach")
ALL = ("single", "foreach", "fused")


def warmed(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 5) * 0.9**k)


def cases() -> list[Case]:
    found = []
    adams = [{}, {"amsgrad": True}, {"weight_decay": 0.1}, {"maximize": True}, {"capturable": True}]
    for name, others, variants in (
        ("Adam", ALL, adams),
        ("AdamW", ALL, adams),
        ("SGD", ALL, [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "nesterov": True}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}]),
        ("Adagrad", ALL, [{}, {"lr_decay": 0.1}, {"maximize": True}]),
        ("Adadelta", BOTH, [{}, {"weight_decay": 0.1, "maximize": True}]),
        ("Adamax", BOTH, [{}, {"weight_decay": 0.1, "maximize": True}]),
        ("NAdam", BOTH, [{}, {"decoupled_weight_decay": True, "weight_decay": 0.1}]),
        ("RMSprop", BOTH, [{}, {"momentum": 0.9, "centered": True}]),
        ("Rprop", BOTH, [{}]),
        ("ASGD", BOTH, [{}]),
        ("RAdam", BOTH, [{}]),
        ("Adafactor", BOTH, [{}, {"maximize": True}]),
    ):
        for options in variants:
            for form in others:
                if not (options.get("capturable") and form == "fused"):
                    found.append(Case(name, options, form, tuple(o for o in others if not (options.get("capturable") and o == "fused"))))
    for form in ALL:
        found.append(Case("AdamW", {}, form, ALL, schedule=warmed))
        found.append(Case("AdamW", {}, form, ALL, clip="norm"))
        found.append(Case("AdamW", {}, form, ALL, clip="value"))
        found.append(Case("AdamW", {}, form, ALL, groups=2))
    for form in ("single", "fused"):
        found.append(Case("AdamW", {}, form, ("single", "fused"), tensor_rate=True))
    found.append(Case("SGD", {"lr": 0.1, "momentum": 0.9}, "foreach", BOTH, schedule=warmed))
    found.append(Case("Adafactor", {"weight_decay": 0.1}, "single", ("single",), tensor_rate=True))
    return found


CASES = cases()


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_steps(case):
    training, told = compiled(case, options={"reference": True})
    assert_within_spread(training.results(), eager(case))
    assert not told.breaks
    assert told.entries <= 2 and told.recompiles <= 1, "one entry makes the state, the other one is for all steps"
    kinds = len(SHAPES) if case.name == "Adafactor" else case.groups  # its kernels have sums over sizes, and the sizes as numbers
    assert max(told.launches) <= 4 * kinds and max(told.externs) == 0, (told.launches, told.externs)


KERNELS = [c for c in CASES if c.name in ("AdamW", "SGD") and (not c.options or c.schedule)]


@pytest.mark.parametrize("case", KERNELS, ids=lambda c: c.id)
def test_steps_with_kernels(case):
    training, told = compiled(case)
    assert_within_spread(training.results(), eager(case))
    assert told.entries <= 2 and max(told.launches) <= 4 * case.groups


class Cycled(torch.optim.lr_scheduler.LambdaLR):
    """Sets every number of every group, to others each step."""

    def __init__(self, optimizer):
        self.given = [dict(group) for group in optimizer.param_groups]
        super().__init__(optimizer, lambda k: 0.9**k)

    def step(self):
        super().step()
        for group, given in zip(self.optimizer.param_groups, self.given):
            factor = 1 - 0.01 * self.last_epoch
            for name in ("weight_decay", "momentum", "dampening", "eps", "lr_decay"):
                if isinstance(given.get(name), float):
                    group[name] = given[name] * factor
            if "betas" in given:
                group["betas"] = tuple(b * factor for b in given["betas"])


CYCLED = [
    ("AdamW", {"weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
]


@pytest.mark.parametrize("name, options", CYCLED, ids=[name for name, _ in CYCLED])
@pytest.mark.parametrize("backend", [{"backend": "eager"}, {"options": {"reference": True}}, {}], ids=["eager", "reference", "kernels"])
def test_numbers_that_change_are_inputs_of_fused_steps(name, options, backend):
    case = Case(name, options, "fused", ALL, schedule=Cycled, groups=2)
    training, told = compiled(case, **backend)
    assert_within_spread(training.results(), eager(case))
    assert not told.breaks
    assert told.entries <= 2 and told.recompiles <= 1
    assert max(told.launches, default=0) <= 8 and max(told.externs, default=0) == 0


@pytest.mark.parametrize("form", ALL)
def test_launches_do_not_grow_with_the_number_of_parameters(form, monkeypatch):
    found = []
    for count in (3, 40):
        monkeypatch.setattr(matrix, "SHAPES", tuple((5 + i % 7, 6) for i in range(count)))
        _, told = compiled(Case("AdamW", {}, form, ALL, clip="norm"), options={"reference": True})
        found.append(max(told.launches))
    assert found[0] == found[1] <= 4


def test_a_scalar_and_tiny_parameters_have_bodies_of_their_own(monkeypatch):
    monkeypatch.setattr(matrix, "SHAPES", ((), (1,), (3,), (40,), (), (3,), (1,)))
    case = Case("AdamW", {}, "single", ALL)
    training, told = compiled(case, options={"reference": True})
    assert_within_spread(training.results(), eager(case))
    assert max(told.launches) <= 6


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(form, dtype):
    case = Case("AdamW", {"weight_decay": 0.1}, form, ALL, dtype=dtype)
    training, told = compiled(case, options={"reference": True})
    wanted = eager(case)
    if dtype == torch.bfloat16:  # eager's forms round at different places, one step of 16 bits each
        for k, result in enumerate(training.results()):
            assert min((result.float() - w[k].float()).abs().max().item() for w in wanted) <= 0.05
    else:
        assert_within_spread(training.results(), wanted)
    assert max(told.launches) <= 4


@pytest.mark.parametrize("name, options", [("AdamW", {"amsgrad": True}), ("SGD", {"lr": 0.1, "momentum": 0.9}), ("RMSprop", {"momentum": 0.9}), ("NAdam", {})])
@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("after", [1, 2, 10])
def test_state_dicts_are_eagers_at_any_step(name, options, form, after):
    """Some steps here and the others there, in either order, are twenty steps."""
    case = Case(name, options, form, BOTH)

    def wrap(update):
        return dynacompile.compile(update, isolate_recompiles=True, options={"reference": True})

    for wraps in ((wrap, lambda f: f), (lambda f: f, wrap)):
        first = Training(case, form, wraps[0])
        first.run(0, after)
        second = Training(case, form, wraps[1])
        with torch.no_grad():
            for own, given in zip(second.parameters, first.parameters, strict=True):
                own.copy_(given)
        second.optimizer.load_state_dict(first.state())
        second.run(after, STEPS)
        assert_within_spread(second.results(), eager(case))


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad"])
@pytest.mark.parametrize("infinite", [0.0, 1.0])
def test_scaled_gradients_and_steps_left_out(name, infinite):
    """What GradScaler gives a fused optimizer."""

    def results(wrap):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(s)) for s in ((4, 3), (7,))]
        optimizer = getattr(torch.optim, name)(parameters, lr=0.1, fused=True)
        update = wrap(lambda: optimizer.step())
        for i in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p) * 1024
            optimizer.grad_scale = torch.tensor(1024.0)
            optimizer.found_inf = torch.tensor(infinite if i == 1 else 0.0)
            update()
        return parameters, [p.grad for p in parameters], optimizer.state_dict()["state"]

    got = results(lambda f: dynacompile.compile(f, isolate_recompiles=True, options={"reference": True, "fallback": "none"}, fullgraph=True))
    torch.testing.assert_close(got, results(lambda f: f), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name, options, breaks", [
    ("AdamW", {"fused": True}, 0),
    ("SGD", {"fused": True, "lr": 0.1}, 0),
    ("AdamW", {"foreach": True}, 1),
    ("SGD", {"lr": 0.1, "momentum": 0.9}, 1),
], ids=["AdamW fused", "SGD fused", "AdamW foreach", "SGD"])  # fmt: skip
def test_a_step_by_a_gradient_scaler(name, options, breaks):
    """Fused optimizers leave a step out inside of the graph; for others GradScaler asks for the number of infinite gradients."""
    events: list = []

    def results(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

        def step():
            scaler.step(optimizer)
            scaler.update()

        update = wrap(step)
        for i in range(6):
            torch.manual_seed(i)
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(2, 4)).square().sum()).backward()
            if i == 3:
                model.weight.grad[0, 0] = float("inf")
            update()
        return list(model.parameters()), optimizer.state_dict()["state"], scaler.state_dict()

    end = dynacompile.subscribe(events.append)
    try:
        got = results(lambda f: dynacompile.compile(f, isolate_recompiles=True, options={"reference": True}))
    finally:
        end()
    torch.testing.assert_close(got, results(lambda f: f), rtol=1e-5, atol=1e-6)
    assert sum(isinstance(e, GraphBroke) for e in events) == breaks and not any(isinstance(e, FrameSkipped) for e in events)


@pytest.mark.parametrize("name", ["Adam", "RMSprop", "Adagrad"])
def test_sparse_gradients_are_refused_as_in_eager(name):
    def outcome(wrap):
        parameter = torch.nn.Parameter(torch.ones(3, 2))
        optimizer = getattr(torch.optim, name)([parameter], lr=0.1)
        parameter.grad = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 2), (3, 2))
        try:
            wrap(lambda: optimizer.step())()
        except RuntimeError as error:
            return str(error)
        return parameter

    wanted = outcome(lambda f: f)
    got = outcome(lambda f: dynacompile.compile(f, isolate_recompiles=True, options={"reference": True}))
    if isinstance(wanted, str):
        assert got == wanted
    else:
        torch.testing.assert_close(got, wanted)


def test_lists_beside_optimizers():
    """Averages of weights, zeroed gradients, casts of all weights, and unscaling are one launch each."""
    torch.manual_seed(0)
    given = [torch.randn(n) for n in (40, 7, 300, 12)]

    def average(*ts):
        return torch._foreach_lerp(list(ts[:2]), list(ts[2:]), 0.1)

    def zeroed(*ts):
        torch._foreach_zero_(list(ts))

    def casts(*ts):
        return [t.half() for t in ts]

    def unscale(*ts):
        torch._foreach_mul_(list(ts), 0.5)

    same = [torch.randn(n) for n in (40, 7, 40, 7)]
    for function, tensors in ((average, same), (zeroed, given), (casts, given), (unscale, given)):
        check(function, *tensors, kernels=1, backward=False)
