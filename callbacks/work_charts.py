"""Charts of where time goes: the compiler's seconds by module and stage, a compiled step's by program and kernel, and what the machine could do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dynacompile import events
from dynacompile.callbacks.charts import COMPILED, MEASURING, PALETTE, PLAIN, ROOM_FOR_NAMES, WIDE, Box, Spec, icicle, ticks
from dynacompile.callbacks.kernel_rows import KernelRow, timed_programs
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.texts import amount

STAGES = ("capture", "differentiate", "lower", "schedule", "generate", "build", "link")
SHOWN_PARTS = 12  # in the chart of stages; the others are one
SHOWN_PROGRAMS = 24  # of a step, likewise
CHARTED_KERNELS = 12
LEAST_SHARE = 0.003  # of a step, for a box of its own
LEGEND = {"kernel of ours": COMPILED, "call of a library": "#f59e0b", "memory taken and given back": MEASURING, "the rest": PLAIN}
WORK = {"step": "#cbd5e1", "program": "#e2e8f0", **LEGEND}


def stages(ledger: Ledger, width: int) -> Spec | None:
    """All seconds in the compiler, below them those of each module or step, and below those its stages."""
    found: dict[str, dict[str, float]] = {}
    for event in ledger.of(events.StageFinished):
        of_part = found.setdefault(event.region or "(no region)", {})
        of_part[event.stage] = of_part.get(event.stage, 0.0) + event.seconds
    if not found:
        return None
    ranked = sorted(found.items(), key=lambda item: -sum(item[1].values()))
    if len(ranked) > SHOWN_PARTS:
        rest: dict[str, float] = {}
        for _, of_part in ranked[SHOWN_PARTS - 1 :]:
            rest = {stage: rest.get(stage, 0.0) + of_part.get(stage, 0.0) for stage in {**rest, **of_part}}
        ranked = [*ranked[: SHOWN_PARTS - 1], (f"{len(ranked) - SHOWN_PARTS + 1} others", rest)]
    known = [*STAGES, *sorted({stage for _, of_part in ranked for stage in of_part} - set(STAGES))]
    whole = sum(seconds for _, of_part in ranked for seconds in of_part.values())
    boxes, begin = [box(0, 0.0, whole, "all of compiling", "all", "s")], 0.0
    for part, of_part in ranked:
        boxes.append(box(1, begin, sum(of_part.values()), part, "module or step", "s"))
        for stage in (stage for stage in known if stage in of_part):
            boxes.append(box(2, begin, of_part[stage], stage, stage, "s"))
            begin += of_part[stage]
    colors = {"all": WORK["step"], "module or step": WORK["program"]} | {stage: PALETTE[i % len(PALETTE)] for i, stage in enumerate(known)}
    return icicle(boxes, colors, "seconds in the compiler", width, known)


def box(level: int, begin: float, size: float, name: str, kind: str, unit: str) -> Box:
    return Box(level, begin, size, name, kind, f"{name}: {amount(size)} {unit}")


def step(summary: Mapping[str, Any], ledger: Ledger, width: int) -> Spec | None:
    """A compiled step, below it its programs, and below those their kernels and calls, those that take longest first; what lies outside of programs is the
    rest."""
    programs = timed_programs(ledger)
    inside = sum(milliseconds(event) for event in programs)
    if not inside:
        return None
    whole = max(summary["compile"].get("step_ms_compiled", 0.0), inside)
    boxes, begin = [box(0, 0.0, whole, "a compiled step", "step", "ms")], 0.0
    calls = {op for event in ledger.of(events.Scheduled) for op, _ in event.calls}
    ranked = sorted(programs, key=milliseconds, reverse=True)
    for event in ranked[:SHOWN_PROGRAMS]:
        boxes.append(box(1, begin, milliseconds(event), " ".join((event.region, event.part)).strip(), "program", "ms"))
        boxes += boxes_of(event, begin, whole, calls)
        begin += milliseconds(event)
    if others := ranked[SHOWN_PROGRAMS:]:
        boxes.append(box(1, begin, sum(map(milliseconds, others)), f"{len(others)} other programs", "program", "ms"))
        begin += sum(map(milliseconds, others))
    if whole - begin > LEAST_SHARE * whole:
        boxes.append(box(1, begin, whole - begin, "Python, autograd, the framework", "the rest", "ms"))
    return icicle(boxes, WORK, "ms", width, tuple(LEGEND))


def milliseconds(event: events.ProgramTimed) -> float:
    return (sum(us for _, _, us, _, _ in event.steps) + event.rest_us) / 1e3


def boxes_of(event: events.ProgramTimed, begin: float, whole: float, calls: set[str]) -> list[Box]:
    boxes, few, count = [], 0.0, 0
    for name, _, us, _, _ in sorted(event.steps, key=lambda row: -row[2]):
        if us / 1e3 < LEAST_SHARE * whole:
            few, count = few + us / 1e3, count + 1
            continue
        boxes.append(box(2, begin, us / 1e3, name, "call of a library" if name in calls else "kernel of ours", "ms"))
        begin += us / 1e3
    if count:
        boxes.append(box(2, begin, few, f"{count} short ones", "kernel of ours", "ms"))
    if event.rest_us:
        boxes.append(box(2, begin + few, event.rest_us / 1e3, "memory", "memory taken and given back", "ms"))
    return boxes


def roofs(rows: Sequence[KernelRow], width: int) -> Spec | None:
    """The kernels that take longest, and what memory and arithmetic of the machine would let them take."""
    longest = [row for row in rows if row.is_measured][:CHARTED_KERNELS]
    if not longest:
        return None
    names = unlike([f"{row.name} ({row.place})" for row in longest])
    unit, divisor = ("milliseconds", 1e3) if longest[0].microseconds > 10_000 else ("microseconds", 1.0)
    values = [
        {"kernel": name, "took": round(row.microseconds / divisor, 4), "roof": round(min(row.roof_us, row.microseconds) / divisor, 4)}
        for name, row in zip(names, longest)
    ]
    y = {"field": "kernel", "type": "nominal", "title": None, "sort": names, "axis": {"labelLimit": 210 if width >= WIDE else 100}}
    x = {"type": "quantitative", "title": f"{unit} of a step", "axis": {"tickCount": ticks(width)}}
    words = [f"{value['kernel']}: {amount(value['took'])}, of which the machine would need {amount(value['roof'])}" for value in values]
    layers = [
        {"mark": {"type": "bar", "color": COMPILED, "opacity": 0.35}, "encoding": {"x": {"field": "took", **x}, "y": y}},
        {"mark": {"type": "bar", "color": COMPILED}, "encoding": {"x": {"field": "roof", **x}, "y": y}},
    ]
    return {**of_kernels(width, f"{unit.capitalize()} of a step. {'; '.join(words)}."), "data": {"values": values}, "layer": layers}


def of_kernels(width: int, description: str) -> Spec:
    """What the charts with a row for each kernel have in common."""
    return {"width": width - (260 if width >= WIDE else 130), "height": {"step": 20}, **ROOM_FOR_NAMES, "description": description}


def unlike(names: Sequence[str]) -> list[str]:
    """The names, of which each that occurred before has a number behind it."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return made


def moving(rows: Sequence[KernelRow], width: int) -> Spec | None:
    """Where no time is known: the kernels that move most."""
    largest = [row for row in rows if row.megabytes][:CHARTED_KERNELS]
    if not largest or any(row.is_measured for row in rows):
        return None
    names = unlike([f"{row.name} ({row.place})" for row in largest])
    y = {"field": "kernel", "type": "nominal", "title": None, "sort": names, "axis": {"labelLimit": 210 if width >= WIDE else 100}}
    x = {"field": "MB", "type": "quantitative", "title": "MB that all launches of a call move", "axis": {"tickCount": ticks(width)}}
    values = [{"kernel": name, "MB": round(row.megabytes, 3)} for name, row in zip(names, largest)]
    bars: Spec = {"mark": {"type": "bar", "color": COMPILED}, "encoding": {"x": x, "y": y}}
    words = "; ".join(f"{value['kernel']}: {amount(value['MB'])}" for value in values)
    return {**of_kernels(width, f"MB that all launches of a call move. {words}."), "data": {"values": values}, **bars}
