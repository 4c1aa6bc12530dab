"""One parameter in the midst of many changes: a step is compiled once more, says what has changed, and goes on with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, GuardFailed, Recompiled, StageFinished

COUNT, PLACE = 24, 11
GUARDS = 9  # of one more parameter: its metadata, identity and being a leaf, its gradient's metadata, its state's type and length, three tensors of that


@dataclass
class Training:
    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer

    @property
    def group(self) -> list[torch.nn.Parameter]:
        return self.optimizer.param_groups[0]["params"]

    @property
    def state(self) -> dict[str, torch.Tensor]:
        return self.optimizer.state[self.parameters[PLACE]]


def parameter(rows: int = 5) -> torch.nn.Parameter:
    found = torch.nn.Parameter(torch.linspace(-1, 1, rows * 3).reshape(rows, 3))
    found.grad = torch.full_like(found, 0.5)
    return found


def training(foreach: bool, count: int = COUNT) -> Training:
    parameters = [parameter() for _ in range(count)]
    return Training(parameters, torch.optim.AdamW(parameters, lr=0.01, foreach=foreach))


def to(dtype: torch.dtype, at: Training) -> None:
    p = at.parameters[PLACE]
    p.grad = None
    p.data = p.data.to(dtype)
    p.grad = torch.full_like(p, 0.5)
    at.state.update({name: value.to(dtype) for name, value in at.state.items() if name != "step"})


def grown(at: Training) -> None:
    p = at.parameters[PLACE]
    p.grad = None
    p.data = torch.cat([p.data, p.data])
    p.grad = torch.full_like(p, 0.5)
    at.state.update({name: torch.cat([value, value]) for name, value in at.state.items() if name != "step"})


def transposed(at: Training) -> None:
    at.state["exp_avg"] = at.state["exp_avg"].t().contiguous().t()


def replaced(at: Training) -> None:
    before, now = at.parameters[PLACE], parameter()
    at.group[PLACE] = at.parameters[PLACE] = now
    at.optimizer.state[now] = at.optimizer.state.pop(before)


def with_maxima(at: Training) -> None:
    at.state["max_exp_avg_sq"] = torch.zeros(5, 3)


def renamed(at: Training) -> None:
    at.state["elsewhere"] = at.state.pop("exp_avg_sq")


def frozen(at: Training) -> None:
    at.parameters[PLACE].requires_grad_(False)


def without_gradient(at: Training) -> None:
    at.parameters[PLACE].grad = None


def gradient_of_another(at: Training) -> None:
    at.parameters[PLACE].grad = at.parameters[PLACE + 1].grad


def longer(at: Training) -> None:
    at.parameters.append(parameter())
    at.group.append(at.parameters[-1])
    at.optimizer.state[at.parameters[-1]] = {name: value.clone() for name, value in at.state.items()}


def shorter(at: Training) -> None:
    at.optimizer.state.pop(at.group.pop())


def swapped(at: Training) -> None:
    at.group[PLACE], at.group[PLACE + 1] = at.group[PLACE + 1], at.group[PLACE]


# What changes, and a part of what is said of it.
CHANGES: dict[str, tuple[Callable[[Training], None], str]] = {
    "dtype": (lambda at: to(torch.float64, at), f"[{PLACE}]: torch.float32 -> torch.float64"),
    "shape": (grown, f"[{PLACE}]: 5 -> 10"),
    "strides of a state": (transposed, "['exp_avg'].stride(0): 3 -> 1"),
    "requires_grad": (frozen, f"[{PLACE}].requires_grad: True -> False"),
    "no gradient": (without_gradient, f"[{PLACE}].grad"),
    "gradient of another parameter": (gradient_of_another, f"[{PLACE}].grad is "),
    "another object": (replaced, f"[{PLACE}]"),
    "swapped with the next one": (swapped, f"[{PLACE}]"),
    "one more name in the state": (with_maxima, "len("),
    "another name in the state": (renamed, "['exp_avg_sq']: present -> missing"),
    "one more parameter": (longer, f": {COUNT} -> {COUNT + 1}"),
    "one parameter less": (shorter, f": {COUNT} -> {COUNT - 1}"),
}


def events_of(run: Callable[[], object], *kinds: type) -> list:
    found: list = []
    end = dynacompile.subscribe(lambda event: found.append(event) if isinstance(event, kinds) else None)
    try:
        run()
    finally:
        end()
    return found


def outcome(step: Callable[[], object]) -> object:
    try:
        return step()
    except (RuntimeError, TypeError, KeyError) as error:
        return type(error)


def started(foreach: bool, count: int = COUNT) -> tuple[Training, Training, Callable[[], object], list]:
    """Ours and eager's after three steps, what makes a step of ours, and the entry that was made."""
    ours, theirs = training(foreach, count), training(foreach, count)
    step = dynacompile.compile(lambda: ours.optimizer.step(), isolate_recompiles=True)
    made = events_of(lambda: [step() for _ in range(3)], Compiled)
    for _ in range(3):
        theirs.optimizer.step()
    return ours, theirs, step, made


@pytest.mark.parametrize("foreach", [False, True], ids=["single-tensor", "foreach"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_parameter_is_one_recompile_that_names_it(change, foreach):
    ours, theirs, step, made = started(foreach)
    assert len(made) == 1
    apply, told = CHANGES[change]
    apply(ours)
    apply(theirs)
    outcomes: list = []
    found = events_of(lambda: outcomes.extend([outcome(step), outcome(step)]), Recompiled, GuardFailed)
    assert outcomes == [outcome(theirs.optimizer.step), outcome(theirs.optimizer.step)]
    texts = [text for e in found for text in (e.failed if isinstance(e, Recompiled) else (f"{e.source}: {e.was} -> {e.now}",))]
    assert sum(isinstance(e, Recompiled) for e in found) == 1 and any(told in text for text in texts), texts
    for p, q in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(p, q)
        states = ours.optimizer.state.get(p, {}), theirs.optimizer.state.get(q, {})
        assert states[0].keys() == states[1].keys()
        torch.testing.assert_close(*states)


@pytest.mark.parametrize("foreach", [False, True], ids=["single-tensor", "foreach"])
def test_another_device_of_one_state_raises_as_in_eager(foreach):
    ours, theirs, step, _ = started(foreach)
    for at in (ours, theirs):
        at.state["exp_avg"] = at.state["exp_avg"].to("meta")
    assert outcome(step) is outcome(theirs.optimizer.step) is not None


@pytest.mark.parametrize("foreach", [False, True], ids=["single-tensor", "foreach"])
def test_state_that_was_cleared_is_made_again(foreach):
    ours, theirs, step, _ = started(foreach)
    for at in (ours, theirs):
        at.state.clear()
    for _ in range(2):
        step()
        theirs.optimizer.step()
    for p, q in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("foreach", [False, True], ids=["single-tensor", "foreach"])
def test_each_parameter_has_a_few_guards(foreach):
    (few,), (many,) = started(foreach)[3], started(foreach, 2 * COUNT)[3]
    assert many.guards - few.guards == COUNT * GUARDS


def test_guards_are_compiled_before_kernels_are_waited_for():
    ours = training(True)
    step = dynacompile.compile(lambda: ours.optimizer.step(), isolate_recompiles=True)
    stages = [event.stage for event in events_of(lambda: [step() for _ in range(2)], StageFinished)]
    assert stages[-4:] == ["generate", "guards", "build", "link"] and stages.count("guards") == 1


def test_guards_on_symbols_are_compiled_when_all_of_them_are_known():
    step = dynacompile.compile(lambda x: x.sin() + x.shape[0], dynamic=True)
    stages = [event.stage for event in events_of(lambda: step(torch.ones(5, 3)), StageFinished)]
    assert stages[-1] == "guards" and stages.count("guards") == 1
