"""What a person reads first in a report: plain sentences, a few numbers, and what to change to gain more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dynacompile.callbacks.kernel_rows import timed_programs
from dynacompile.callbacks.record import RunRecord
from dynacompile.callbacks.texts import amount, counted
from dynacompile.callbacks.work_charts import milliseconds
from dynacompile.events import LimitHit, Scheduled
from dynacompile.quoting import printable

LAUNCH_BOUND = 0.7  # of a step on a GPU: where kernels take less, the device waits for Python
GRAPHS = ("reduce-overhead", "max-autotune")  # modes that launch CUDA graphs


@dataclass(frozen=True)
class Tile:
    """A number with its name. mood: "good", "bad" or nothing."""

    name: str
    value: str
    note: str = ""
    mood: str = ""


@dataclass
class Advice:
    """setting: what to set, to be pasted as it stands; empty where the advice is of another kind. found: what it was given for, with the seconds of each."""

    setting: str
    what: str
    found: list[tuple[str, float]] = field(default_factory=list)

    @property
    def text(self) -> str:
        known = [printable(reason) for reason in dict.fromkeys(reason for reason, _ in self.found) if reason]
        seconds = sum(seconds for _, seconds in self.found)
        told = [known[0] + (f" and {len(known) - 1} more" if len(known) > 1 else "")] if known else []
        told += [f"{len(self.found)} times"] if len(self.found) > 1 else []
        told += [f"{seconds:.1f} s"] if seconds >= 0.05 else []
        return printable(self.what, longest=2000) + (f" ({', '.join(told)})" if told else "")


def headline(record: RunRecord) -> list[str]:
    """The speed-up, when compiling paid off, what went wrong."""
    summary, known = record.summary, record.summary["compile"]
    told = []
    if "speedup" in known:
        told += [speed(summary, known), f"{spread(summary)}{payoff(summary, known)}"]
    elif known["graphs"]:
        told.append(f"Compiling took {known['seconds']:.1f} s; what a step gains was not measured.")
    else:
        told.append("Nothing was compiled.")
    if known["graphs"] and not to_gain(record):
        told.append("Nothing was in the way: no graph break, no limit, and no recompile that a setting would have prevented.")
    if record.ledger.from_cache:
        told.append(f"{record.ledger.from_cache.replace(' from', ' came from')}, so the run did not wait for their compiler.")
    if record.ledger.resumed:
        told.append(f"The fit was resumed {record.ledger.resumed}.")
    if summary.get("ended"):
        told.append(f"The run was ended by {summary['ended']} after {summary['steps']} batches.")
    return told


def speed(summary: Mapping[str, Any], known: Mapping[str, float]) -> str:
    times = summary.get("times") or {}
    compiled, eager, factor = known["step_ms_compiled"], known["step_ms_eager"], known["speedup"]
    if times.get("within_noise"):
        return f"A compiled step takes {compiled:.1f} ms and an eager one {eager:.1f} ms: within the noise of this machine they are as fast."
    if factor < 1:
        return f"Compiled steps are slower than eager ones: {compiled:.1f} ms rather than {eager:.1f} ms, {factor:.2f} times as fast."
    return f"A compiled step is {factor:.2f} times as fast as an eager one: {compiled:.1f} ms rather than {eager:.1f} ms."


def spread(summary: Mapping[str, Any]) -> str:
    interval = (summary.get("times") or {}).get("interval")
    return f"With 90 % confidence the factor lies between {interval[0]:.2f} and {interval[1]:.2f}. " if interval else ""


def payoff(summary: Mapping[str, Any], known: Mapping[str, float]) -> str:
    if "payoff_step" not in known:
        return f"Compiling took {known['seconds']:.1f} s, which the time saved does not pay back."
    if known["payoff_step"] <= summary["steps"]:
        return f"Compiling took {known['seconds']:.1f} s, and had paid off at batch {known['payoff_step']:.0f} of {summary['steps']}."
    return f"Compiling took {known['seconds']:.1f} s, and would pay off at batch {known['payoff_step']:.0f}; this run had {summary['steps']}."


def bars(record: RunRecord) -> list[tuple[str, float, float]]:
    """The eager and the compiled step: name, milliseconds, and the share of the longer one. None where nothing was measured."""
    known = record.summary["compile"]
    both = [(kind, known.get(f"step_ms_{kind}", 0.0)) for kind in ("eager", "compiled")]
    longest = max(milliseconds for _, milliseconds in both)
    return [(kind, milliseconds, milliseconds / longest) for kind, milliseconds in both] if all(milliseconds for _, milliseconds in both) else []


def tiles(record: RunRecord) -> list[Tile]:
    summary, known = record.summary, record.summary["compile"]
    made = []
    if "speedup" in known:
        times = summary.get("times") or {}
        interval, noise = times.get("interval"), times.get("within_noise")
        note = "within noise" if noise else f"{interval[0]:.2f}x to {interval[1]:.2f}x with 90 %" if interval else ""
        made.append(Tile("speed-up of a step", f"{known['speedup']:.2f}x", note, "" if noise else "good" if known["speedup"] > 1 else "bad"))
        if "samples_per_sec_compiled" in known:
            made.append(Tile("samples a second", amount(known["samples_per_sec_compiled"]), f"eager: {amount(known['samples_per_sec_eager'])}"))
    made.append(Tile("compile time", f"{known['seconds']:.1f} s", f"{counted(known['graphs'], 'graph')}, {counted(known.get('kernels', 0), 'kernel')}"))
    if "payoff_step" in known:
        paid = known["payoff_step"] <= summary["steps"]
        name, note = ("paid off at batch", "of") if paid else ("would pay off at batch", "the run had")
        made.append(Tile(name, f"{known['payoff_step']:.0f}", f"{note} {summary['steps']}"))
    breaks, limits = known.get("graph_breaks", 0), known.get("limits_hit", 0)
    made.append(Tile("graph breaks", f"{breaks:.0f}", "the step is whole" if known["graphs"] and not breaks else ""))
    prevented = sum(bool(event.override) for event in record.ledger.recompiles)
    made.append(Tile("recompiles", f"{known.get('recompiles', 0):.0f}", f"{prevented} that a setting prevents" if prevented else ""))
    if limits:
        made.append(Tile("limits hit", f"{limits:.0f}", "eager from there on", "bad"))
    peaks = [known.get(f"step_peak_bytes_{kind}") for kind in ("compiled", "eager")]
    if all(peaks):
        made.append(Tile("peak memory of a step", f"{peaks[0] / 2**30:.2f} GiB", f"eager: {peaks[1] / 2**30:.2f} GiB"))
    return made


def to_gain(record: RunRecord) -> list[Advice]:
    """What to change to gain more: each advice once, with what it was given for, how often, and the seconds that this cost."""
    found: dict[tuple[str, str], Advice] = {}

    def add(setting: str, what: str, reason: str = "", seconds: float = 0.0) -> None:
        found.setdefault((setting, what), Advice(setting, what)).found.append((reason, seconds))

    for event in record.ledger.of(LimitHit):
        add(event.override, "it has run as Python since its entries reached their limit", f"{event.frame}, {counted(event.limit, 'entry', 'entries')}")
    for event in record.ledger.recompiles:
        if event.override:
            add(event.override, "it prevents recompiles", event.frame, event.seconds)
    for event in record.ledger.breaks:
        if event.hint:
            add("", event.hint[:1].upper() + event.hint[1:], f"graph break at {event.site}")
    for name, reason in record.summary["eager"].items():
        add("", f"{name} runs as Python: {reason}")
    for what in waits(record):
        add("compile=reduce_overhead", what)
    return list(found.values())


def waits(record: RunRecord) -> list[str]:
    """Where a GPU waits for Python between the kernels of a step."""
    known, summary = record.summary["compile"], record.summary
    programs = timed_programs(record.ledger)
    on_gpu = any(event.device.startswith("cuda") for event in record.ledger.of(Scheduled))
    mode = summary.get("settings", {}).get("settings", {}).get("mode")
    step = known.get("step_ms_compiled", 0.0)
    inside = sum(map(milliseconds, programs))
    if not (on_gpu and programs and step) or mode in GRAPHS or inside > LAUNCH_BOUND * step:
        return []
    return [f"kernels take only {inside / step:.0%} of a compiled step, and the GPU waits for Python meanwhile; CUDA graphs launch them together"]
