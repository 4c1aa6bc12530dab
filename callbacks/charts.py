"""The charts of a report: Vega-Lite drawn as SVG, so that a page needs neither scripts nor a network. Colours of text and lines are the page's own."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dynacompile import events
from dynacompile.callbacks.ledger import Ledger

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
    values = [{"batch": first, "ms": median, "most": most} for first, _, median, most in rows]
    marks = [{"batch": batch, "event": what} for batch, what in marked(ledger)]
    y = {"field": "ms", "type": "quantitative", "title": "ms a batch", "scale": {"type": "log", "nice": False}}
    x = {"field": "batch", "type": "quantitative", "title": "training batch", "axis": {"tickMinStep": 1}}
    span = {"mark": {"type": "rule", "color": EAGER, "opacity": 0.5}, "encoding": {"y2": {"field": "most"}}}
    layers: list[Spec] = [
        {"data": {"values": values}, "encoding": {"x": x, "y": y}, "layer": [span, {"mark": {"type": "line", "color": COMPILED, "strokeWidth": 1.5}}]},
    ]
    if marks:
        color = {"field": "event", "type": "nominal", "title": None, "scale": {"domain": list(EVENTS), "range": list(EVENTS.values())}}
        layers.append({"data": {"values": marks}, "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5}, "encoding": {"x": x, "color": color}})
    return {"width": 760, "height": 220, "layer": layers}


EVENTS = {"compiled": COMPILED, "recompile": EAGER, "graph break": "#8b5cf6", "limit hit": MARK}


def marked(ledger: Ledger) -> list[tuple[int, str]]:
    """The batches in which something of EVENTS happened, each once."""
    kinds = {events.Compiled: "compiled", events.Recompiled: "recompile", events.GraphBroke: "graph break", events.LimitHit: "limit hit"}
    return sorted({(batch, kinds[type(event)]) for batch, event in ledger.seen if type(event) in kinds})


def rounds(times: Mapping[str, Any] | None) -> Spec | None:
    """The measured steps, eager and compiled in turn."""
    if not times or times["compiled"] is None or len(times["rounds"]) < 2:
        return None
    values = [{"step": kind, "ms": ms} for pair in times["rounds"] for kind, ms in zip(("eager", "compiled"), pair)]
    y = {"field": "step", "type": "nominal", "title": None, "sort": ["eager", "compiled"]}
    x = {"field": "ms", "type": "quantitative", "title": "ms a step, forward to optimizer", "scale": {"zero": True}}
    color = {"field": "step", "type": "nominal", "legend": None, "scale": {"domain": ["eager", "compiled"], "range": [EAGER, COMPILED]}}
    points = {"mark": {"type": "point", "filled": True, "opacity": 0.6, "size": 40}, "encoding": {"x": x, "y": y, "color": color}}
    medians = {"mark": {"type": "tick", "thickness": 3, "size": 28}, "encoding": {"x": {**x, "aggregate": "median"}, "y": y, "color": color}}
    return {"width": 700, "height": 90, "data": {"values": values}, "layer": [points, medians]}


def stages(ledger: Ledger) -> Spec | None:
    """Where the compiler's seconds went: one bar for each module or step, in the order of the stages."""
    found: dict[tuple[str, str], float] = {}
    for event in ledger.of(events.StageFinished):
        key = event.region or "(no region)", event.stage
        found[key] = found.get(key, 0.0) + event.seconds
    if not found:
        return None
    known = [*STAGES, *sorted({stage for _, stage in found} - set(STAGES))]
    values = [{"part": part, "stage": stage, "seconds": round(s, 4), "order": known.index(stage)} for (part, stage), s in found.items()]
    order = sorted({part for part, _ in found}, key=lambda part: -sum(s for (p, _), s in found.items() if p == part))
    used = [stage for stage in known if any(stage == s for _, s in found)]
    encoding = {
        "x": {"field": "seconds", "type": "quantitative", "title": "seconds in the compiler"},
        "y": {"field": "part", "type": "nominal", "title": None, "sort": order},
        "color": {
            "field": "stage",
            "type": "nominal",
            "title": None,
            "scale": {"domain": used, "range": [PALETTE[i % len(PALETTE)] for i in range(len(used))]},
        },
        "order": {"field": "order"},
    }
    return {"width": 640, "height": {"step": 24}, "data": {"values": values}, "mark": "bar", "encoding": encoding}


def kernels(rows: Sequence[tuple[str, float]]) -> Spec | None:
    """The kernels that move most. rows: name and megabytes."""
    if not rows:
        return None
    encoding = {
        "x": {"field": "MB", "type": "quantitative", "title": "MB that all launches of a call move"},
        "y": {"field": "kernel", "type": "nominal", "title": None, "sort": "-x", "axis": {"labelLimit": 260}},
    }
    values = [{"kernel": name, "MB": round(size, 3)} for name, size in rows]
    return {"width": 480, "height": {"step": 20}, "data": {"values": values}, "mark": {"type": "bar", "color": COMPILED}, "encoding": encoding}
