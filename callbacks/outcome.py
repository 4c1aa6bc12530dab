"""What one fit came to, as plain numbers."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynacompile.callbacks.communication import Communication
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import RunRecord, times_as_json
from dynacompile.callbacks.screen import facts
from dynacompile.callbacks.times import StepTimes
from dynacompile.callbacks.trials import COLUMNS as TRIAL_COLUMNS
from dynacompile.callbacks.trials import Trial

NOT_CALLED = "no call came through it: no step called it, or its forward was called instead"
NOT_READY = "its programs were still built in the background when the run ended"


@dataclass(frozen=True)
class Outcome:
    """modes: of what was to be compiled. modules: names of the modules and steps that are compiled. idle: those that no call came through. waiting: those that
    have a compile queued in the background. enabled: whether anything was to be compiled. losses: the run's last metrics with "loss" in their name, and
    those that its progress bar shows. steps: training batches run. notes: further rows of the screen, name and text. ended: how the run ended, where it did
    not end by itself. trials: of compile=auto.

    timeline: the training batches as `record.timeline` has them. started: when the run began, as time.time(). measuring: from when to when steps were measured.
    fit_seconds: wall time of the run. train_step_ms: median of the fit's own steps, optimizer included. peak_bytes: CUDA only.
    """

    modes: tuple[str, ...]
    modules: tuple[str, ...]
    losses: Mapping[str, float]
    steps: int
    fit_seconds: float
    train_step_ms: float | None
    times: StepTimes | None
    unmeasured: str
    ledger: Ledger
    peak_bytes: int | None = None
    logs: tuple[str, ...] = field(default=())
    idle: tuple[str, ...] = ()
    waiting: frozenset[str] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    ended: str = ""
    enabled: bool = True
    trials: tuple[Trial, ...] = ()
    timeline: tuple[tuple[float, ...], ...] = ()
    communication: Communication = field(default_factory=Communication)
    started: float = 0.0
    measuring: tuple[tuple[float, float], ...] = ()

    @functools.cached_property
    def eager(self) -> Mapping[str, str]:
        """The modules and steps that were to be compiled and run as Python, each with the reason."""
        idle = dict.fromkeys(self.idle, NOT_CALLED)
        late = {name: NOT_READY for name in self.modules if name in self.waiting and not self.ledger.has_made(name)}
        return idle | late | {name: self.ledger.why_eager(name) for name in self.modules if name not in late and not self.ledger.has_graph(name)}

    @property
    def compiled(self) -> tuple[str, ...]:
        """The modules and steps of which something is compiled."""
        return tuple(name for name in self.modules if name not in self.eager)

    @property
    def payoff_step(self) -> int | None:
        """The training batch at which the time saved had paid for compiling; None where a compiled step saves nothing."""
        return self.times.break_even(self.ledger.compile_seconds) if self.times and self.ledger.graphs else None

    def metrics(self) -> dict[str, float]:
        """Every number, by its name without prefix."""
        optional = {"train_step_ms": self.train_step_ms, "payoff_step": self.payoff_step, "peak_bytes": self.peak_bytes}
        known = {name: value for name, value in optional.items() if value is not None}
        return self.ledger.metrics() | {"fit_seconds": self.fit_seconds} | measured(self.times, self.ledger) | self.communication.metrics() | known

    def as_json(self, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """settings: those in force, as `texts.in_force` has them."""
        parts = {"modes": list(self.modes), "modules": list(self.compiled), "eager": dict(self.eager)}
        ran = {"steps": self.steps, "ended": self.ended, "losses": dict(self.losses), "compile": self.metrics()}
        more = {"facts": facts(self), "times": times_as_json(self.times), "timeline": self.timeline, "settings": settings or {}}
        more |= {"started": self.started, "measuring": self.measuring}
        return json.loads(json.dumps({**parts, **ran, **more, **self.trials_as_json()}))

    def trials_as_json(self) -> dict[str, Any]:
        return {"auto": [dict(zip(TRIAL_COLUMNS, trial.told())) for trial in self.trials]} if self.trials else {}

    def record(self, settings: Mapping[str, Any] | None = None, trace: str = "") -> RunRecord:
        """What the run's folder keeps of it. trace: the name of the file of events."""
        return RunRecord(self.as_json(settings), self.ledger, trace)


def measured(times: StepTimes | None, ledger: Ledger) -> dict[str, float]:
    """The numbers of a measurement, as far as there was one; of a compiled step where there is a graph."""
    if times is None:
        return {}
    known: dict[str, float | None] = {"step_ms_eager": times.eager, "samples_per_sec_eager": times.per_second(times.eager)}
    known |= ends("step_ms_eager", times.quartiles(0) if len(times.rounds) > 1 else None)
    if ledger.graphs and times.compiled is not None:
        known |= {"step_ms_compiled": times.compiled, "speedup": times.speedup, "samples_per_sec_compiled": times.per_second(times.compiled)}
        known |= ends("step_ms_compiled", times.quartiles(1) if len(times.rounds) > 1 else None) | ends("speedup", times.speedup_interval)
    known |= {f"step_peak_bytes_{kind}": peak for kind, peak in zip(("eager", "compiled"), times.peaks)}
    return {name: value for name, value in known.items() if value is not None}


def ends(name: str, interval: tuple[float, float] | None) -> dict[str, float | None]:
    """The numbers that tell where a number's spread begins and ends; none where it is not known."""
    return {} if interval is None else {f"{name}_low": interval[0], f"{name}_high": interval[1]}
