"""What one fit came to, as plain numbers, and its one screen of text."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dynacompile import events
from dynacompile.callbacks import times as step_times
from dynacompile.callbacks.communication import Communication
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import RunRecord, times_as_json
from dynacompile.callbacks.times import StepTimes
from dynacompile.callbacks.trials import COLUMNS as TRIAL_COLUMNS
from dynacompile.callbacks.trials import Trial
from dynacompile.quoting import printable_lines

SHOWN_ROWS = 4
SHOWN_CHANGES = 3
NOT_CALLED = "no call came through it: no step called it, or its forward was called instead"


@dataclass(frozen=True)
class Outcome:
    """modes: of what was to be compiled. modules: names of the modules and steps that are compiled. idle: those that no call came through. losses: the run's
    last metrics with "loss" in their name, and those that its progress bar shows. steps: training batches run. notes: further rows of the screen, name and
    text. ended: how the run ended, where it did not end by itself. trials: of compile=auto.

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
    notes: tuple[tuple[str, str], ...] = ()
    ended: str = ""
    trials: tuple[Trial, ...] = ()
    timeline: tuple[tuple[float, ...], ...] = ()
    communication: Communication = field(default_factory=Communication)
    started: float = 0.0
    measuring: tuple[tuple[float, float], ...] = ()

    @functools.cached_property
    def eager(self) -> Mapping[str, str]:
        """The modules and steps that were to be compiled and run as Python, each with the reason."""
        idle = dict.fromkeys(self.idle, NOT_CALLED)
        return idle | {name: self.ledger.why_eager(name) for name in self.modules if not self.ledger.has_graph(name)}

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


def facts(outcome: Outcome) -> list[tuple[str, str]]:
    """The summary's rows: name and value."""
    ledger, times = outcome.ledger, outcome.times
    rows = [(name, f"{value:.4f}") for name, value in sorted(outcome.losses.items())]
    if outcome.ended:
        rows.append(("ended by", outcome.ended))
    rows += compiled_rows(outcome)
    counts = ledger.metrics()
    rows.append(("compile time", f"{ledger.compile_seconds:.2f} s for {counts['graphs']:.0f} graphs, {counts['kernels']:.0f} kernels"))
    rows.append(("graph breaks", f"{counts['graph_breaks']:.0f}"))
    rows += [("", line) for line in most_frequent(f"[{e.code}] {e.reason} at {e.site}" for e in ledger.breaks)]
    if skipped := list(ledger.of(events.FrameSkipped)):
        rows.append(("left to Python", f"{len(skipped)} functions" if len(skipped) > 1 else "1 function"))
        rows += [("", line) for line in most_frequent(f"{e.site}: {e.reason}" for e in skipped)]
    rows.append(("recompiles", f"{counts['recompiles']:.0f}"))
    rows += [("", line) for line in most_frequent(recompile_line(e) for e in ledger.recompiles)]
    if limits := list(ledger.of(events.LimitHit)):
        rows.append(("limits hit", f"{len(limits)}: eager from there on"))
        rows += [("", line) for line in most_frequent(f"{e.frame}, {e.limit} entries: {e.guard}; to allow more: {e.override}" for e in limits)]
    rows += outcome.notes
    rows += [("tried" if i == 0 else "", trial.line()) for i, trial in enumerate(outcome.trials)]
    if not outcome.compiled and times is not None:
        times = dataclasses.replace(times, compiled=None)
    rows += step_times.rows(times, outcome.unmeasured, ledger.compile_seconds, outcome.steps)
    rows += outcome.communication.rows()
    if outcome.train_step_ms is not None:
        rows.append(("training", f"{outcome.steps} batches, {outcome.train_step_ms:.1f} ms each (median, with optimizer), {outcome.fit_seconds:.0f} s in all"))
    if outcome.peak_bytes is not None:
        rows.append(("peak GPU memory", f"{outcome.peak_bytes / 2**30:.2f} GiB"))
    return rows + [("logs" if i == 0 else "", place) for i, place in enumerate(outcome.logs)]


def compiled_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What is compiled and what runs as Python, and why."""
    if not outcome.compiled and not outcome.eager:
        return [("compiled", "nothing (compile=none)")]
    modes = f" in mode {' and '.join(outcome.modes)}"
    rows = [("compiled", shortened(outcome.compiled) + modes if outcome.compiled else "nothing")]
    by_reason: dict[str, list[str]] = {}
    for name, reason in outcome.eager.items():
        by_reason.setdefault(reason, []).append(name)
    return rows + [("not compiled" if i == 0 else "", f"{shortened(tuple(names))}: {reason}") for i, (reason, names) in enumerate(by_reason.items())]


def recompile_line(event: events.Recompiled) -> str:
    """What differed, and what to do about it."""
    more = f"; to prevent it: {event.override}" if event.override else f"; expected: {event.expected}" if event.expected else ""
    return f"{event.frame}: {'; '.join(event.failed[:SHOWN_CHANGES])}{and_more(len(event.failed) - SHOWN_CHANGES)}{more}"


def and_more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""


def most_frequent(lines: Iterable[str]) -> list[str]:
    """The lines that occur most, at most SHOWN_ROWS, each with its count where it is not 1."""
    return [line if count == 1 else f"{line} ({count} times)" for line, count in Counter(lines).most_common(SHOWN_ROWS)]


def shortened(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def screen(outcome: Outcome) -> Panel:
    """One screen of text."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts(outcome):
        table.add_row(Text(name), Text(printable_lines(value)))
    return Panel(Group(table), title="dynacompile", title_align="left", box=box.ROUNDED, expand=False)


def show(outcome: Outcome, console: Console | None = None) -> None:
    (console or Console()).print(screen(outcome))
