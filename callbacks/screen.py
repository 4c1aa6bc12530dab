"""The one screen of text that a run ends with: what a step gained, what was compiled, how training went, and where to read more."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dynacompile import events
from dynacompile.callbacks import times as step_times
from dynacompile.callbacks.texts import counted
from dynacompile.quoting import printable_lines

if TYPE_CHECKING:
    from dynacompile.callbacks.outcome import Outcome

SHOWN_ROWS = 4
SHOWN_CHANGES = 3
GROUPS = frozenset(("compiled", "resumed", "training", "report", "logs"))  # rows above which a line stays empty
WORRIES = frozenset(("ended by", "not compiled", "limits hit"))
WIDEST = 110  # columns of text, which longer lines are hard to read beyond
AROUND = 8  # columns of the box that no text is in: its sides, and what keeps columns apart
Facts = list[tuple[str, str]]


def facts(outcome: Outcome) -> Facts:
    """The screen's rows: name and value. A row without a name goes on with what the one above it says."""
    return [*gained(outcome), *made(outcome), *went(outcome), *(("logs" if i == 0 else "", place) for i, place in enumerate(outcome.logs))]


def gained(outcome: Outcome) -> Facts:
    """How long a step takes, eager and compiled."""
    times = outcome.times
    if not outcome.compiled and times is not None:
        times = dataclasses.replace(times, compiled=None)
    ended = [("ended by", outcome.ended)] if outcome.ended else []
    return [*ended, *step_times.rows(times, outcome.unmeasured, outcome.ledger.compile_seconds, outcome.steps), *outcome.communication.rows()]


def made(outcome: Outcome) -> Facts:
    """What was compiled, and what was in the way."""
    ledger, counts = outcome.ledger, outcome.ledger.metrics()
    rows = compiled_rows(outcome)
    cached = f", {ledger.from_cache}" if ledger.from_cache else ""
    rows.append(("compile time", f"{ledger.compile_seconds:.2f} s for {counted(counts['graphs'], 'graph')}, {counted(counts['kernels'], 'kernel')}{cached}"))
    rows.append(("graph breaks", f"{counts['graph_breaks']:.0f}"))
    rows += [("", line) for line in most_frequent(f"[{e.code}] {e.reason} at {e.site}" for e in ledger.breaks)]
    told = outcome.eager  # among what is not compiled, with the reason
    if skipped := [e for e in ledger.of(events.FrameSkipped) if e.region not in outcome.idle and e.reason != told.get(e.region)]:
        rows.append(("left to Python", f"{len(skipped)} functions" if len(skipped) > 1 else "1 function"))
        rows += [("", line) for line in most_frequent(f"{e.site}: {e.reason}" for e in skipped)]
    rows.append(("recompiles", f"{counts['recompiles']:.0f}"))
    rows += [("", line) for line in most_frequent(recompile_line(e) for e in ledger.recompiles)]
    if limits := list(ledger.of(events.LimitHit)):
        rows.append(("limits hit", f"{len(limits)}: eager from there on"))
        rows += [("", line) for line in most_frequent(map(limit_line, limits))]
    rows += outcome.notes
    return rows + [("tried" if i == 0 else "", trial.line()) for i, trial in enumerate(outcome.trials)]


def went(outcome: Outcome) -> Facts:
    """How training went."""
    rows = [("resumed", outcome.ledger.resumed)] if outcome.ledger.resumed else []
    if outcome.train_step_ms is not None:
        batches = counted(outcome.steps, "batch", "batches")
        rows.append(("training", f"{batches} of {outcome.train_step_ms:.1f} ms (median, with optimizer), {seconds(outcome.fit_seconds)} in all"))
    rows += [(name, f"{value:.4f}") for name, value in sorted(outcome.losses.items())]
    if outcome.peak_bytes is not None:
        rows.append(("peak GPU memory", f"{outcome.peak_bytes / 2**30:.2f} GiB"))
    return rows


def compiled_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """What is compiled and what runs as Python, and why."""
    if not outcome.compiled and not outcome.eager:
        return [("compiled", "nothing: no step was called" if outcome.enabled else "nothing (compile=none)")]
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


def limit_line(event: events.LimitHit) -> str:
    """What differed from its entries, and how to allow more of them."""
    return f"{event.frame}, {counted(event.limit, 'entry', 'entries')}: {event.guard}; to allow more: {event.override}"


def and_more(count: int) -> str:
    return f"; and {count} more" if count > 0 else ""


def most_frequent(lines: Iterable[str]) -> list[str]:
    """The lines that occur most, at most SHOWN_ROWS, each with its count where it is not 1, and how many others there are."""
    found = Counter(lines)
    shown = [line if count == 1 else f"{line} ({count} times)" for line, count in found.most_common(SHOWN_ROWS)]
    return [*shown, f"and {len(found) - SHOWN_ROWS} more"] if len(found) > SHOWN_ROWS else shown


def seconds(count: float) -> str:
    return f"{count:.0f} s" if count >= 10 else f"{count:.1f} s"


def shortened(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def panel(rows: Sequence[tuple[str, str]], known: Mapping[str, float], is_noise: bool) -> Panel:
    """The rows as a screen. known: the run's numbers. is_noise: whether its speed-up may be noise."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold", max_width=WIDEST)
    faster = known.get("speedup", 1.0)
    gain = "" if is_noise or faster == 1 else "bold green" if faster > 1 else "bold red"
    for at, (name, value) in enumerate(rows):
        if at and name in GROUPS and rows[at - 1][0] not in ("report", "resumed"):
            table.add_row()
        style = gain if name == "speed-up" else "bold red" if name in WORRIES else "dim" if name == "measured" else ""
        table.add_row(Text(name), Text(printable_lines(value), style=style))
    return Panel(table, title="dynacompile", title_align="left", box=box.ROUNDED, expand=False, padding=(0, 1))


def screen(outcome: Outcome, report: str = "") -> Panel:
    """The box, as wide as what there is to say. report: where the page of the run lies."""
    return boxed(outcome, apart(outcome, report, None)[0])


def boxed(outcome: Outcome, rows: Facts) -> Panel:
    return panel(rows, outcome.metrics(), outcome.times is not None and outcome.times.is_within_noise)


def apart(outcome: Outcome, report: str, width: int | None) -> tuple[Facts, Facts]:
    """The rows of the box, and those with places, where the box would break one of them: nobody can copy that, and no terminal opens it. width: of the
    console, in columns; None: all fits."""
    rows = facts(outcome)
    at = next((at for at, (name, _) in enumerate(rows) if name == "logs"), len(rows))
    places = [*([("report", report)] if report else []), *rows[at:]]
    room = WIDEST if width is None else min(WIDEST, width - AROUND - max(len(name) for name, _ in rows))
    return (rows[:at], places) if any(len(place) > room for _, place in places) else (rows[:at] + places, [])


def show(outcome: Outcome, report: str = "", console: Console | None = None) -> None:
    console = console or Console()
    rows, places = apart(outcome, report, console.width)
    console.print(boxed(outcome, rows))
    for name, place in places:
        console.print(f"{name:8}{printable_lines(place)}", soft_wrap=True, highlight=False, markup=False)
