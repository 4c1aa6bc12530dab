"""Charts of a run over time: what it did when, how long batches took, what memory it held; and the steps that were measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynacompile import events
from dynacompile.callbacks.charts import ALARM, COMPILED, COMPILING, EAGER, MEASURING, PLAIN, WIDE, Spec, ticks
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import BUCKETS
from dynacompile.callbacks.texts import amount, counted

FEWEST = 10  # batches for a chart over time, which says nothing of fewer
SLOW = 1.25  # times the median, from which on the slowest of the batches that share a point is drawn
MARKS = 60  # of one kind of event
NARROWEST = 600  # of the whole run, the part that a stretch of compiling is drawn as at the least, so that it can be seen
PHASES = {"compiled steps": COMPILED, "eager steps": EAGER, "compiling": COMPILING, "measuring": MEASURING, "everything else": PLAIN}
EVENTS = {"recompile": EAGER, "graph break": "#ec4899", "limit hit": ALARM}
KINDS = {events.Recompiled: "recompile", events.GraphBroke: "graph break", events.LimitHit: "limit hit"}
EXTENT = {"minExtent": 44}
Stretch = tuple[float, float, str]  # from, to, phase


def began(summary: Mapping[str, Any]) -> float:
    """When the run began, as time.time(); of runs of before that was kept, when their first batches did."""
    rows = summary.get("timeline", ())
    return summary.get("started") or (rows[0][1] - rows[0][3] / 1e3 if rows else 0.0)


def length(summary: Mapping[str, Any]) -> float:
    """Seconds of the run."""
    return max(summary["compile"].get("fit_seconds", 0.0), summary["timeline"][-1][1] - began(summary))


def phases(summary: Mapping[str, Any], ledger: Ledger) -> list[Stretch]:
    """What the run did when, in seconds since it began; later stretches lie over earlier ones."""
    start, rows = began(summary), summary["timeline"]
    whole = length(summary)
    compiled_from = min((event.at for event in ledger.of(events.Compiled) if event.ops), default=math.inf)
    steps, last = [], start
    for row in rows:
        spent = row[5] / 1e3 if len(row) > 5 else row[1] - last
        begin = max(last, row[1] - spent)
        steps.append((begin - start, row[1] - start, "compiled steps" if row[1] > compiled_from else "eager steps"))
        last = row[1]
    compiling = [(event.at - event.seconds - start, event.at - start, "compiling") for event in ledger.of(events.StageFinished)]
    measuring = [(begin - start, end - start, "measuring") for begin, end in summary.get("measuring", ())]
    seen = [stretch for kind in (steps, measuring, widened(joined(compiling, 0.0), whole)) for stretch in joined(kind, whole / NARROWEST)]
    return [(0.0, whole, "everything else"), *((max(0.0, begin), min(end, whole), phase) for begin, end, phase in seen if end > 0 and begin < whole)]


def joined(stretches: Iterable[Stretch], gap: float) -> list[Stretch]:
    """Stretches of one phase that touch, or nearly so, as one."""
    found: list[Stretch] = []
    for begin, end, phase in sorted(stretches):
        if found and found[-1][2] == phase and begin - found[-1][1] <= gap:
            found[-1] = (found[-1][0], max(found[-1][1], end), phase)
        else:
            found.append((begin, end, phase))
    return found


def widened(stretches: Iterable[Stretch], whole: float) -> list[Stretch]:
    return [(begin, max(end, begin + whole / NARROWEST), phase) for begin, end, phase in stretches]


def happened(summary: Mapping[str, Any], ledger: Ledger) -> dict[str, list[float]]:
    """When something of EVENTS happened in the run, by its kind."""
    start, whole = began(summary), length(summary)
    found: dict[str, list[float]] = {}
    for event in ledger.seen:
        if (kind := KINDS.get(type(event[1]))) is not None:  # type: ignore[arg-type]
            found.setdefault(kind, []).append(min(max(0.0, event[1].at - start), whole))
    return {kind: sorted(times) for kind, times in found.items()}


def marked(found: Mapping[str, list[float]]) -> list[tuple[float, str]]:
    """The marks of what happened; of what happened very often, some of it in even steps."""
    return [(when, kind) for kind, times in found.items() for when in times[:: -(-len(times) // MARKS)]]


def unit(seconds: float) -> tuple[str, float]:
    """What a run of so many seconds is told in, and how many seconds that is."""
    return ("hours", 3600.0) if seconds > 7200 else ("minutes", 60.0) if seconds > 180 else ("seconds", 1.0)


def timeline(summary: Mapping[str, Any], ledger: Ledger, width: int) -> Spec | None:
    """Three rows over the run's time: phases with marks of what happened, milliseconds of batches, and memory where it is known."""
    if len(summary.get("timeline", ())) < FEWEST:
        return None
    stretches = phases(summary, ledger)
    name, divisor = unit(stretches[0][1])
    x: Spec = {"type": "quantitative", "scale": {"domain": [0, round(stretches[0][1] / divisor, 4)], "nice": False}}
    found = happened(summary, ledger)
    rows = [bands(stretches, marked(found), divisor, x, width), durations(summary, divisor, x, width), memory(summary, divisor, x, width)]
    shown = [row for row in rows if row is not None]
    shown[-1] = titled(shown[-1], f"{name} since the run began", width)
    apart = {"scale": {"color": "independent"}, "legend": {"color": "independent"}}
    return {"description": told(summary, stretches, found), "vconcat": shown, "spacing": 16, "bounds": "flush", "resolve": apart}


def told(summary: Mapping[str, Any], stretches: list[Stretch], found: Mapping[str, list[float]]) -> str:
    """What the rows of the timeline show, in words."""
    spent = ", ".join(f"{phase} {amount(seconds)}" for phase, seconds in seen_of(stretches).items())
    sentences = [f"The run took {amount(stretches[0][1])} seconds: {spent}."]
    for kind, times in found.items():
        when = f"after {amount(times[0])} seconds" if len(times) == 1 else f"from {amount(times[0])} to {amount(times[-1])} seconds"
        sentences.append(f"{counted(len(times), kind)} {when}.")
    rows = summary["timeline"]
    usual = statistics.median(row[2] for row in rows)
    sentences.append(f"Half of the batches took at most {amount(usual)} ms, the slowest {amount(max(row[3] for row in rows))} ms.")
    if held := [row[4] / 2**30 for row in rows if len(row) > 4 and row[4]]:
        sentences.append(f"Memory held: {amount(held[0])} GiB at first, at most {amount(max(held))}, {amount(held[-1])} at the end.")
    return " ".join(sentences)


def seen_of(stretches: list[Stretch]) -> dict[str, float]:
    """The seconds of each phase that is seen, longest first: where stretches lie over one another the last one is."""
    places = sorted({place for begin, end, _ in stretches for place in (begin, end)})
    index = {place: at for at, place in enumerate(places)}
    shown = [""] * (len(places) - 1)
    for begin, end, phase in stretches:
        shown[index[begin] : index[end]] = [phase] * (index[end] - index[begin])
    seconds: dict[str, float] = {}
    for begin, end, phase in zip(places, places[1:], shown):
        seconds[phase] = seconds.get(phase, 0.0) + end - begin
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def titled(row: Spec, title: str, width: int) -> Spec:
    """The row with the axis that all rows share."""
    x = {**row["encoding"]["x"], "title": title, "axis": {"tickCount": ticks(width)}}
    return {**row, "encoding": {**row["encoding"], "x": x}}


def bands(stretches: list[Stretch], marks: list[tuple[float, str]], divisor: float, x: Spec, width: int) -> Spec:
    values = [
        {"begin": round(begin / divisor, 5), "end": round(end / divisor, 5), "phase": phase, "said": f"{phase}: {end - begin:.3g} s"}
        for begin, end, phase in stretches
    ]
    happened = [kind for kind in EVENTS if any(mark[1] == kind for mark in marks)]
    used = {phase: shade for phase, shade in PHASES.items() if any(stretch[2] == phase for stretch in stretches)} | {kind: EVENTS[kind] for kind in happened}
    color = {"type": "nominal", "title": None, "scale": {"domain": list(used), "range": list(used.values())}, "legend": {"columns": 8 if width >= WIDE else 2}}
    y = {"datum": 0, "type": "quantitative", "axis": None, "scale": {"domain": [0, 1.6]}}
    band = {"x": {"field": "begin", **x, "axis": None}, "x2": {"field": "end"}, "y": y, "y2": {"datum": 1}, "description": {"field": "said"}}
    layers: list[Spec] = [{"data": {"values": values}, "mark": {"type": "rect"}, "encoding": {**band, "color": {"field": "phase", **color}}}]
    if marks:
        shape = {"field": "event", "type": "nominal", "scale": {"domain": list(EVENTS), "range": ["circle", "square", "cross"]}, "legend": None}
        places = {"x": {"field": "when", **x}, "y": {"datum": 1.3, "type": "quantitative"}, "shape": shape, "description": {"field": "said"}}
        dots = [{"when": round(when / divisor, 5), "event": kind, "said": f"{kind} after {when:.3g} s"} for when, kind in marks]
        mark = {"type": "point", "filled": True, "size": 60, "opacity": 0.9}
        layers.append({"data": {"values": dots}, "mark": mark, "encoding": {**places, "color": {"field": "event", **color}}})
    return {"width": width, "height": 44, "layer": layers, "encoding": {"x": {**x, "axis": None}}}


def durations(summary: Mapping[str, Any], divisor: float, x: Spec, width: int) -> Spec:
    """Of batches; the line is broken where steps were measured between two of them. part: how often that was so before."""
    start, measured = began(summary), [end for _, end in summary.get("measuring", ())]
    values = [
        {"when": round((row[1] - start) / divisor, 5), "ms": row[2], "most": row[3], "part": sum(end <= row[1] for end in measured)}
        for row in summary["timeline"]
    ]
    y = {"field": "ms", "type": "quantitative", "title": "ms a batch", "scale": {"type": "log", "nice": False}, "axis": {**EXTENT, "tickCount": 5}}
    slow = [value for value in values if value["most"] > SLOW * value["ms"]]
    span = {"data": {"values": slow}, "mark": {"type": "rule", "color": EAGER, "opacity": 0.5, "aria": False}, "encoding": {"y2": {"field": "most"}}}
    line = {"mark": {"type": "line", "color": COMPILED, "strokeWidth": 1.5}, "encoding": {"detail": {"field": "part", "type": "nominal"}}}
    across = {"field": "when", **x, "title": None, "axis": {"labels": False, "ticks": False, "tickCount": ticks(width)}}
    return {"width": width, "height": 130, "data": {"values": values}, "encoding": {"x": across, "y": y}, "layer": [span, line]}


def memory(summary: Mapping[str, Any], divisor: float, x: Spec, width: int) -> Spec | None:
    """GiB that were held at the ends of batches. Runs of before they were kept have none."""
    start = began(summary)
    values = [{"when": round((row[1] - start) / divisor, 5), "GiB": round(row[4] / 2**30, 4)} for row in summary["timeline"] if len(row) > 4 and row[4]]
    if not values:
        return None
    y = {"field": "GiB", "type": "quantitative", "title": "GiB held", "scale": {"zero": True}, "axis": {**EXTENT, "tickCount": 3}}
    mark = {"type": "area", "color": COMPILED, "opacity": 0.25, "line": {"color": COMPILED, "strokeWidth": 1.5}}
    return {"width": width, "height": 60, "data": {"values": values}, "mark": mark, "encoding": {"x": {"field": "when", **x}, "y": y}}


def distribution(summary: Mapping[str, Any], ledger: Ledger, width: int) -> Spec | None:
    """How often a training batch took how long, those aside in which something was compiled, and the slowest hundredth."""
    compiled = sorted({batch for batch, event in ledger.seen if isinstance(event, events.StageFinished)})
    rows = summary.get("timeline", [])
    firsts = [*(row[0] for row in rows[1:]), math.inf]
    times = sorted(row[2] for row, end in zip(rows, firsts) if not any(row[0] <= batch < end for batch in compiled))
    if len(times) < FEWEST:
        return None
    shown = times[: math.ceil(len(times) * 0.99)]
    bins, counted = {"maxbins": 40 if width >= WIDE else 20}, "batches" if len(rows) < BUCKETS else "medians of batches"
    encoding = {
        "x": {"field": "ms", "type": "quantitative", "bin": bins, "title": "ms a batch", "axis": {"tickCount": ticks(width)}},
        "y": {"aggregate": "count", "type": "quantitative", "title": counted, "axis": {"tickMinStep": 1, **EXTENT}},
    }
    values = [{"ms": ms} for ms in shown]
    half, most = amount(statistics.median(shown)), amount(shown[math.ceil(len(shown) * 0.9) - 1])
    words = f"Of {len(shown)} {counted} half are at most {half} ms, nine of ten at most {most} ms, the slowest {amount(shown[-1])} ms."
    bar = {"mark": {"type": "bar", "color": COMPILED}, "encoding": encoding}
    return {"width": width, "height": 110, "description": words, "data": {"values": values}, **bar}


def rounds(times: Mapping[str, Any] | None, width: int) -> Spec | None:
    """The measured steps, eager and compiled in turn."""
    if not times or times["compiled"] is None or len(times["rounds"]) < 2:
        return None
    values = [{"step": kind, "ms": ms} for pair in times["rounds"] for kind, ms in zip(("eager", "compiled"), pair)]
    y = {"field": "step", "type": "nominal", "title": None, "sort": ["eager", "compiled"], "axis": {"labelFontSize": 12}}
    x = {"field": "ms", "type": "quantitative", "title": "ms a step", "scale": {"zero": True}, "axis": {"tickCount": ticks(width)}}
    color = {"field": "step", "type": "nominal", "legend": None, "scale": {"domain": ["eager", "compiled"], "range": [EAGER, COMPILED]}}
    points = {"mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 50}, "encoding": {"x": x, "y": y, "color": color}}
    medians = {"mark": {"type": "tick", "thickness": 3, "size": 28}, "encoding": {"x": {**x, "aggregate": "median"}, "y": y, "color": color}}
    words = " ".join(f"{kind}: {steps_in_words(ms)}." for kind, ms in zip(("eager", "compiled"), zip(*times["rounds"])))
    return {"width": width - 60, "height": 90, "description": words, "data": {"values": values}, "layer": [points, medians]}


def steps_in_words(ms: Sequence[float]) -> str:
    return f"{len(ms)} steps, median {amount(statistics.median(ms))} ms, from {amount(min(ms))} to {amount(max(ms))} ms"
