"""What one fit came to, as plain numbers, and its one screen of text."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.measure import StepTimes
from dynacompile.quoting import printable_lines
from dynacompile.run_files import write_whole

SHOWN_ROWS = 4


@dataclass(frozen=True)
class Outcome:
    """modes: of the compiled modules, none where nothing was compiled. losses: the fit's last metrics with "loss" in their name. steps: training batches run.

    idle: modules that were to be compiled, and that no call came through.
    fit_seconds: wall time of the fit. train_step_ms: median of the fit's own steps, optimizer included. peak_bytes: CUDA only.
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

    @property
    def payoff_step(self) -> int | None:
        """The training batch at which the time saved had paid for compiling; None where a compiled step saves nothing."""
        if self.times is None or self.times.compiled is None or self.times.compiled >= self.times.eager:
            return None
        return math.ceil(self.ledger.compile_seconds * 1e3 / (self.times.eager - self.times.compiled))

    def metrics(self) -> dict[str, float]:
        """Every number, by its name without prefix."""
        optional = {"train_step_ms": self.train_step_ms, "payoff_step": self.payoff_step, "peak_bytes": self.peak_bytes}
        known = {name: value for name, value in optional.items() if value is not None}
        return self.ledger.metrics() | {"fit_seconds": self.fit_seconds} | measured(self.times) | known

    def as_json(self) -> dict[str, object]:
        return {"modes": list(self.modes), "modules": list(self.modules), "steps": self.steps, "losses": dict(self.losses), "compile": self.metrics()}

    def write(self, path: Path) -> Path:
        """Raises OSError, a FileExistsError where the file is there already."""
        return write_whole(path, json.dumps(self.as_json(), indent=2) + "\n", new=True)


def measured(times: StepTimes | None) -> dict[str, float]:
    """The numbers of a measurement, as far as there was one."""
    if times is None:
        return {}
    named = {"step_ms_eager": times.eager, "step_ms_compiled": times.compiled, "speedup": times.speedup}
    return {name: value for name, value in named.items() if value is not None}


def facts(outcome: Outcome) -> list[tuple[str, str]]:
    """The summary's rows: name and value."""
    ledger, times = outcome.ledger, outcome.times
    rows = [(name, f"{value:.4f}") for name, value in sorted(outcome.losses.items())]
    nothing = "nothing" if outcome.idle else "nothing (compile=none)"
    rows.append(("compiled", f"{shortened(outcome.modules)} in mode {' and '.join(outcome.modes)}" if outcome.modules else nothing))
    if outcome.idle:
        rows.append(("not compiled", f"{shortened(outcome.idle)}: no call came through the module, as where its forward is called"))
    counts = ledger.metrics()
    rows.append(("compile time", f"{ledger.compile_seconds:.2f} s for {counts['graphs']:.0f} graphs, {counts['kernels']:.0f} kernels"))
    rows.append(("graph breaks", f"{counts['graph_breaks']:.0f}"))
    rows += [("", line) for line in most_frequent(f"[{e.code}] {e.reason} at {e.site}" for e in ledger.breaks)]
    if skipped := list(ledger.of(events.FrameSkipped)):
        rows.append(("left to Python", f"{len(skipped)} functions" if len(skipped) > 1 else "1 function"))
        rows += [("", line) for line in most_frequent(f"{e.site}: {e.reason}" for e in skipped)]
    rows.append(("recompiles", f"{counts['recompiles']:.0f}"))
    rows += [("", line) for line in most_frequent(f"{e.frame}: {'; '.join(e.failed)}" for e in ledger.recompiles)]
    if times is None:
        rows.append(("step time", outcome.unmeasured or "not measured"))
    else:
        rows.append(("step time, eager", f"{times.eager:.1f} ms (forward and backward, median of {times.steps})"))
        if times.compiled is not None:
            rows.append(("step time, compiled", f"{times.compiled:.1f} ms (same batch, same run)"))
            rows.append(("speed-up", f"{times.speedup:.2f}x"))
            rows.append(("paid off", payoff(outcome)))
    if outcome.train_step_ms is not None:
        rows.append(("training", f"{outcome.steps} batches, {outcome.train_step_ms:.1f} ms each (median, with optimizer), {outcome.fit_seconds:.0f} s in all"))
    if outcome.peak_bytes is not None:
        rows.append(("peak GPU memory", f"{outcome.peak_bytes / 2**30:.2f} GiB"))
    return rows + [("logs" if i == 0 else "", place) for i, place in enumerate(outcome.logs)]


def most_frequent(lines: Iterable[str]) -> list[str]:
    """The lines that occur most, at most SHOWN_ROWS, each with its count where it is not 1."""
    return [line if count == 1 else f"{line} ({count} times)" for line, count in Counter(lines).most_common(SHOWN_ROWS)]


def payoff(outcome: Outcome) -> str:
    step = outcome.payoff_step
    if step is None:
        return "not in this run: a compiled step is not faster"
    if step <= outcome.steps:
        return f"at step {step} of {outcome.steps}"
    return f"not within {outcome.steps} steps: at step {step}"


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
