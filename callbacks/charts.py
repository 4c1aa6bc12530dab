"""The charts of a report: Vega-Lite drawn as SVG, so that a page needs neither scripts nor a network. Colours of text and lines are the page's own."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger
from dynacompile.callbacks.record import BUCKETS

DRAWS = "vl_convert"
MISSING = "Charts need the package vl-convert-python: pip install vl-convert-python, then `python -m dynacompile report` on the run's folder."
EAGER, COMPILED, MARK = "#d97706", "#3b82f6", "#dc2626"
STAGES = ("capture", "differentiate", "lower", "schedule", "generate", "build", "link")
PALETTE = ("#3b82f6", "#8b5cf6", "#06b6d4", "#22c55e", "#eab308", "#f97316", "#64748b", "#ec4899")
CONFIG = {
    "background": None,
    "padding": {"left": 16, "right": 16, "top": 5, "bottom": 5},
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": "currentColor", "titleColor": "currentColor", "tickColor": "currentColor", "domainColor": "currentColor"}
    | {"gridColor": "currentColor", "gridOpacity": 0.12, "titleFontWeight": "normal"},
    "legend": {"labelColor": "currentColor", "titleColor": "currentColor", "orient": "top"},
    "text": {"color": "currentColor"},
}
FOR_LABELS = {"left": 56, "right": 16, "top": 5, "bottom": 5}  # long labels take more room in a browser's font than in the one that charts are drawn with
FEW_TICKS = {"tickCount": 8, "labelOverlap": True}
CHARACTERS = 115  # of a label as wide as a chart
MARKS = 100  # of one kind of event in a timeline
SHOWN_PARTS = 12  # in the chart of stages; the others are one
FEWEST = 10  # batches for a timeline, which says nothing of fewer
Spec = dict[str, Any]


def drawn(spec: Spec, about: str) -> str:
    """The chart as an SVG element that says `about` to who can't see it; what to install where nothing draws it."""
    if importlib.util.find_spec(DRAWS) is None:
        return f"<p>{MISSING}</p>"
    svg = importlib.import_module(DRAWS).vegalite_to_svg({**spec, "config": CONFIG, "description": about})
    svg = re.sub(r'(<(path|rect|circle|line)\b[^>]*?aria-label="([^"]*)"[^>]*?)(/>|></\2>)', r"\1><title>\3</title></\2>", svg)
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    wide = f"max-width:{size[1]}px" if size else ""
    return re.sub(r"<svg ", f'<svg role="img" style="width:100%;height:auto;overflow:visible;{wide}" ', svg, count=1)


def batches(summary: Mapping[str, Any], ledger: Ledger) -> Spec | None:
    """How long each training batch took, and where something was compiled."""
    rows = summary.get("timeline", [])
    if len(rows) < FEWEST:
        return None
    values = [{"batch": row[0], "ms": row[2], "most": row[3]} for row in rows]
    marks = [{"batch": batch, "event": what} for batch, what in marked(ledger)]
    y = {"field": "ms", "type": "quantitative", "title": "ms a batch", "scale": {"type": "log", "nice": False}}
    x = {"field": "batch", "type": "quantitative", "title": "training batch", "axis": {"tickMinStep": 1}, "scale": {"nice": False}}
    span = {"mark": {"type": "rule", "color": EAGER, "opacity": 0.5}, "encoding": {"y2": {"field": "most"}}}
    layers: list[Spec] = [
        {"data": {"values": values}, "encoding": {"x": x, "y": y}, "layer": [span, {"mark": {"type": "line", "color": COMPILED, "strokeWidth": 1.5}}]},
    ]
    if marks:
        used = {kind: shade for kind, shade in EVENTS.items() if any(mark["event"] == kind for mark in marks)}
        color = {"field": "event", "type": "nominal", "title": None, "scale": {"domain": list(used), "range": list(used.values())}}
        layers.append({"data": {"values": marks}, "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5}, "encoding": {"x": x, "color": color}})
    return {"width": 760, "height": 220, "layer": layers}


EVENTS = {"compiled": COMPILED, "recompile": EAGER, "graph break": "#8b5cf6", "limit hit": MARK}


def marked(ledger: Ledger) -> list[tuple[int, str]]:
    """The batches in which something of EVENTS happened, each once; of a kind that happened in very many, some of them in even steps."""
    kinds = {events.Compiled: "compiled", events.Recompiled: "recompile", events.GraphBroke: "graph break", events.LimitHit: "limit hit"}
    found: dict[str, set[int]] = {}
    for batch, event in ledger.seen:
        if type(event) in kinds:
            found.setdefault(kinds[type(event)], set()).add(batch)
    return sorted((batch, kind) for kind, batches in found.items() for batch in sorted(batches)[:: -(-len(batches) // MARKS)])


def memory(summary: Mapping[str, Any]) -> Spec | None:
    """Bytes that were held at the ends of batches. Runs of before they were kept have none."""
    rows = [row for row in summary.get("timeline", []) if len(row) > 4 and row[4]]
    if len(rows) < FEWEST:
        return None
    values = [{"batch": row[0], "GiB": round(row[4] / 2**30, 4)} for row in rows]
    encoding = {
        "x": {"field": "batch", "type": "quantitative", "title": "training batch", "axis": {"tickMinStep": 1}, "scale": {"nice": False}},
        "y": {"field": "GiB", "type": "quantitative", "title": "GiB", "scale": {"zero": True}},
    }
    mark = {"type": "area", "color": COMPILED, "opacity": 0.25, "line": {"color": COMPILED, "strokeWidth": 1.5}}
    return {"width": 760, "height": 120, "data": {"values": values}, "mark": mark, "encoding": encoding}


def distribution(summary: Mapping[str, Any], ledger: Ledger) -> Spec | None:
    """How often a training batch took how long, those aside in which something was compiled, and the slowest hundredth."""
    compiled = {batch for batch, event in ledger.seen if isinstance(event, events.StageFinished)}
    rows = summary.get("timeline", [])
    firsts = [*(row[0] for row in rows[1:]), math.inf]
    times = sorted(row[2] for row, end in zip(rows, firsts) if not any(row[0] <= batch < end for batch in compiled))
    if len(times) < FEWEST:
        return None
    shown = times[: math.ceil(len(times) * 0.99)]
    encoding = {
        "x": {"field": "ms", "type": "quantitative", "bin": {"maxbins": 40}, "title": "ms a batch", "axis": FEW_TICKS},
        "y": {"aggregate": "count", "type": "quantitative", "title": "batches" if len(rows) < BUCKETS else "medians of batches", "axis": {"tickMinStep": 1}},
    }
    return {"width": 760, "height": 110, "data": {"values": [{"ms": ms} for ms in shown]}, "mark": {"type": "bar", "color": COMPILED}, "encoding": encoding}


def rounds(times: Mapping[str, Any] | None) -> Spec | None:
    """The measured steps, eager and compiled in turn."""
    if not times or times["compiled"] is None or len(times["rounds"]) < 2:
        return None
    values = [{"step": kind, "ms": ms} for pair in times["rounds"] for kind, ms in zip(("eager", "compiled"), pair)]
    y = {"field": "step", "type": "nominal", "title": None, "sort": ["eager", "compiled"]}
    x = {"field": "ms", "type": "quantitative", "title": "ms a step, forward to optimizer", "scale": {"zero": True}, "axis": FEW_TICKS}
    color = {"field": "step", "type": "nominal", "legend": None, "scale": {"domain": ["eager", "compiled"], "range": [EAGER, COMPILED]}}
    points = {"mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 40}, "encoding": {"x": x, "y": y, "color": color}}
    medians = {"mark": {"type": "tick", "thickness": 3, "size": 28}, "encoding": {"x": {**x, "aggregate": "median"}, "y": y, "color": color}}
    return {"width": 700, "height": 90, "data": {"values": values}, "layer": [points, medians]}


def stages(ledger: Ledger) -> Spec | None:
    """Where the compiler's seconds went, as an icicle: all of them, below them those of each module or step, and below those its stages."""
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
    values, begin = [icicle("all of compiling", "all", 0, 0.0, whole, whole)], 0.0
    for part, of_part in ranked:
        values.append(icicle(part, "module or step", 1, begin, sum(of_part.values()), whole))
        for stage in (stage for stage in known if stage in of_part):
            values.append(icicle(stage, stage, 2, begin, of_part[stage], whole))
            begin += of_part[stage]
    used = [stage for stage in known if any(stage in of_part for _, of_part in ranked)]
    colors = [PALETTE[i % len(PALETTE)] for i in range(len(used))]
    kind = {"domain": ["all", "module or step", *used], "range": ["#94a3b8", "#cbd5e1", *colors]}
    boxes = {
        "x": {"field": "begin", "type": "quantitative", "title": "seconds in the compiler", "scale": {"nice": False}},
        "x2": {"field": "end"},
        "y": {"field": "top", "type": "quantitative", "axis": None, "scale": {"domain": [0, 3], "reverse": True}},
        "y2": {"field": "bottom"},
        "color": {"field": "kind", "type": "nominal", "title": None, "scale": kind, "legend": {"values": used}},
        "description": {"field": "said"},
    }
    label = {"x": {"field": "middle", "type": "quantitative"}, "y": {"field": "center", "type": "quantitative"}, "text": {"field": "label"}}
    rect = {"mark": {"type": "rect", "stroke": "white", "strokeWidth": 1}, "encoding": boxes}
    text = {"mark": {"type": "text", "color": "#0f172a", "fontSize": 11}, "encoding": label}
    return {"width": 760, "height": 130, "data": {"values": values}, "layer": [rect, text]}


def icicle(name: str, kind: str, level: int, begin: float, seconds: float, whole: float) -> dict[str, Any]:
    """A box of the chart of stages. Its name stands in it where there is room."""
    said = f"{name}: {seconds:.3g} s"
    fits = next((text for text in (said, name) if whole and seconds / whole * CHARACTERS > len(text)), "")
    end, middle = begin + seconds, begin + seconds / 2
    box = {"begin": round(begin, 5), "end": round(end, 5), "middle": round(middle, 5), "top": level, "bottom": level + 1, "center": level + 0.5}
    return {**box, "kind": kind, "said": said, "label": fits}


def kernels(rows: Sequence[tuple[str, float]]) -> Spec | None:
    """The kernels that move most. rows: name and megabytes."""
    if not rows:
        return None
    encoding = {
        "x": {"field": "MB", "type": "quantitative", "title": "MB that all launches of a call move"},
        "y": {"field": "kernel", "type": "nominal", "title": None, "sort": "-x", "axis": {"labelLimit": 260}},
    }
    values = [{"kernel": name, "MB": round(size, 3)} for name, size in rows]
    bars = {"mark": {"type": "bar", "color": COMPILED}, "encoding": encoding}
    return {"width": 480, "height": {"step": 20}, "padding": FOR_LABELS, "data": {"values": values}, **bars}
