"""Every optimizer of torch.optim in its forms, trained eagerly and compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import dynacompile
from dynacompile.events import Compiled, Event, FrameSkipped, GraphBroke, Recompiled, StageFinished

STEPS = 20
SHAPES = ((4, 3), (6,), (5, 2, 2), (1, 7), (16,))
FORMS: dict[str, dict] = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@dataclass(frozen=True)
class Case:
    """An optimizer's options, in one of the forms of `FORMS`. others: forms that eager has of it, whose spread is what rounding may do."""

    name: str
    options: dict
    form: str = "single"
    others: tuple[str, ...] = ("single", "foreach")
    schedule: Callable | None = None
    clip: str = ""
    groups: int = 1
    tensor_rate: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def id(self) -> str:
        told = [self.name, self.form, *(f"{k}={v}" for k, v in self.options.items()), self.clip]
        told += ["scheduled"] * bool(self.schedule) + [f"{self.groups} groups"] * (self.groups > 1) + ["tensor rate"] * self.tensor_rate
        return " ".join(t for t in told if t) + ("" if self.dtype == torch.float32 else f" {self.dtype}")


@dataclass
class Training:
    """Parameters, their optimizer, and a function that does one step with the gradients of the step's number."""

    case: Case
    form: str
    wrap: Callable = lambda f: f
    parameters: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(s, dtype=self.case.dtype)) for s in SHAPES]
        self.optimizer = self.make(self.parameters)
        self.scheduler = self.case.schedule(self.optimizer) if self.case.schedule else None
        self.update = self.wrap(self.step)

    def make(self, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        options = {**self.case.options, **FORMS[self.form]}
        if self.case.tensor_rate:
            options["lr"] = torch.tensor(options.get("lr", 1e-3))
        groups = [{"params": parameters[k :: self.case.groups]} for k in range(self.case.groups)]
        for k, group in enumerate(groups[1:]):
            group["weight_decay"] = 0.01 * (k + 1)
        return getattr(torch.optim, self.case.name)(groups, **options)

    def step(self) -> None:
        if self.case.clip == "norm":
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        elif self.case.clip == "value":
            torch.nn.utils.clip_grad_value_(self.parameters, 0.1)
        self.optimizer.step()

    def run(self, first: int, last: int) -> None:
        for i in range(first, last):
            torch.manual_seed(i)
            for p in self.parameters:
                p.grad = torch.randn_like(p)
            self.update()
            if self.scheduler is not None:
                self.scheduler.step()

    def results(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters]

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self.optimizer.state_dict())


@dataclass
class Told:
    events: list[Event]

    def count(self, kind: type) -> int:
        return sum(isinstance(e, kind) for e in self.events)

    @property
    def launches(self) -> list[int]:
        return [dict(e.facts)["launches"] for e in self.events if isinstance(e, StageFinished) and e.stage == "schedule"]

    @property
    def externs(self) -> list[int]:
        return [dict(e.facts)["externs"] for e in self.events if isinstance(e, StageFinished) and e.stage == "schedule"]

    @property
    def breaks(self) -> set[str]:
        return {e.code for e in self.events if isinstance(e, GraphBroke)} | {"skipped" for e in self.events if isinstance(e, FrameSkipped)}

    @property
    def entries(self) -> int:
        return self.count(Compiled)

    @property
    def recompiles(self) -> int:
        return self.count(Recompiled)


def eager(case: Case) -> list[list[torch.Tensor]]:
    """What each form that eager has of it gives. On the CPU eager refuses `capturable`, which changes no results."""
    options = {k: v for k, v in case.options.items() if k != "capturable"}
    alike = replace(case, options=options, form="single")
    key = (repr(alike), case.schedule, SHAPES)
    if key not in EAGER:
        found = []
        for form in case.others:
            training = Training(alike, form)
            training.run(0, STEPS)
            found.append(training.results())
        EAGER[key] = found
    return EAGER[key]


EAGER: dict[tuple, list[list[torch.Tensor]]] = {}
"""What `eager` gave: forms of one optimizer are compared with the same results."""


def compiled(case: Case, **options: Any) -> tuple[Training, Told]:
    events: list[Event] = []
    training = Training(case, case.form, lambda f: dynacompile.compile(f, isolate_recompiles=True, **options))
    end = dynacompile.subscribe(events.append)
    try:
        training.run(0, STEPS)
    finally:
        end()
    return training, Told(events)


def assert_within_spread(got: list[torch.Tensor], wanted: list[list[torch.Tensor]]) -> None:
    """Each result is as near to one of eager's as those are to each other, or to rounding."""
    for k, result in enumerate(got):
        theirs = torch.stack([w[k] for w in wanted]).double()
        spread = (theirs.max(0).values - theirs.min(0).values).max().item()
        eps = torch.finfo(result.dtype).eps * 16 * max(1.0, theirs.abs().max().item())
        distance = (theirs - result.double()).abs().reshape(len(theirs), -1).max(1).values.min().item()
        assert distance <= 2 * spread + eps, f"tensor {k} is {distance} off, eager's spread is {spread}"
