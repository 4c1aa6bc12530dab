"""Charts of pages: Vega-Lite drawn as SVG, so that a page needs neither scripts nor a network. Colours of text and lines are the page's own."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

DRAWS = "vl_convert"
MISSING = "Charts need the package vl-convert-python: pip install vl-convert-python, then `python -m dynacompile report` on the run's folder."
EAGER, COMPILED, COMPILING, MEASURING, PLAIN, ALARM = "#d97706", "#3b82f6", "#8b5cf6", "#14b8a6", "#94a3b8", "#dc2626"
PALETTE = (COMPILED, COMPILING, "#06b6d4", "#22c55e", "#eab308", "#f97316", "#64748b", "#ec4899")
WIDE, NARROW = 860, 300  # pixels of a chart's plot in a wide window, and on a phone
CHARACTER = 6.4  # pixels of a label's letter
LONG_NAME = 16  # letters of a kind in a legend, of which three are too wide for a phone
CONFIG = {
    "background": None,
    "padding": {"left": 4, "right": 14, "top": 5, "bottom": 5},
    "font": "Helvetica, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": "currentColor", "titleColor": "currentColor", "tickColor": "currentColor", "domainColor": "currentColor"}
    | {"gridColor": "currentColor", "gridOpacity": 0.1, "titleFontWeight": "normal", "labelFontSize": 11, "titleFontSize": 11, "domainOpacity": 0.4}
    | {"tickOpacity": 0.4, "labelOverlap": True, "labelSeparation": 4},
    "legend": {"title": None, "labelColor": "currentColor", "titleColor": "currentColor", "orient": "top", "labelFontSize": 12, "symbolType": "square"}
    | {"offset": 8, "columnPadding": 26, "labelLimit": 260},
    "text": {"color": "currentColor"},
}
ROOM_FOR_NAMES = {"padding": {"left": 28, "right": 14, "top": 5, "bottom": 5}}  # of rows: a browser's font may be wider than the one they are measured with
INNER = re.compile(r' (?:aria-label|aria-roledescription|role)="[^"]*"')
SAID = 5  # of the parts of a box, in the words of a chart
Spec = dict[str, Any]
"""Of Vega-Lite. description: what the chart shows, in words and numbers, for who can't see it."""
Make = Callable[[int], Spec | None]  # the chart for a plot of so many pixels across; None where there is nothing to show


def drawn(make: Make) -> str:
    """The chart for wide windows and for phones, each an SVG element that is read as its description; what to install where nothing draws it. Empty where
    there is nothing to show."""
    specs = [(name, make(width)) for name, width in (("for-wide", WIDE), ("for-phones", NARROW))]
    if any(spec is None for _, spec in specs):
        return ""
    if importlib.util.find_spec(DRAWS) is None:
        return f"<p>{MISSING}</p>"
    return "".join(f'<div class="{name}">{as_svg(spec)}</div>' for name, spec in specs if spec is not None)


def as_svg(spec: Spec) -> str:
    """An image whose name is the chart's description. Its single marks have tooltips, and are not read: a reader would hear the numbers of the axes."""
    svg = importlib.import_module(DRAWS).vegalite_to_svg({**spec, "config": {**CONFIG, **spec.get("config", {})}})
    svg = re.sub(r'(<(path|rect|circle|line)\b[^>]*?aria-label="([^"]*)"[^>]*?)(/>|></\2>)', r"\1><title>\3</title></\2>", svg)
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', svg)
    wide = f"max-width:{size[1]}px" if size else ""
    head, inside = INNER.sub("", svg).removesuffix("</svg>").split(">", maxsplit=1)
    named = f'<svg role="img" aria-label="{escape(spec["description"])}" style="width:100%;height:auto;overflow:visible;{wide}"'
    return f'{named}{head.removeprefix("<svg")}><g aria-hidden="true">{inside}</g></svg>'


def ticks(width: int) -> int:
    return 10 if width >= WIDE else 4


@dataclass(frozen=True)
class Box:
    """Of an icicle: its level from above, from where to where it goes, and its kind, which has a colour. said: what it says of itself."""

    level: int
    begin: float
    size: float
    name: str
    kind: str
    said: str


def icicle(boxes: Sequence[Box], colors: Mapping[str, str], title: str, width: int, shown: Sequence[str] = ()) -> Spec:
    """Boxes below the boxes that they are parts of; a name stands in its box where there is room. title: of the axis. shown: kinds in the legend."""
    whole = max(box.begin + box.size for box in boxes)
    levels = 1 + max(box.level for box in boxes)
    rows = []
    for box in boxes:
        room = box.size / whole * width / CHARACTER if whole else 0
        label = next((text for text in (box.said, box.name) if len(text) + 1 < room), f"{box.name[: int(room) - 2]}..." if room > 8 else "")
        across = {"begin": round(box.begin, 5), "end": round(box.begin + box.size, 5), "middle": round(box.begin + box.size / 2, 5)}
        rows.append({**across, "top": box.level, "bottom": box.level + 1, "center": box.level + 0.5, "kind": box.kind, "said": box.said, "label": label})
    used = [kind for kind in colors if any(box.kind == kind for box in boxes)]
    axis = {"tickCount": ticks(width)}
    listed = [kind for kind in used if kind in shown]
    columns = 8 if width >= WIDE else 3 if max(map(len, listed), default=0) < LONG_NAME else 2
    legend = {"values": listed, "columns": columns} if shown else None
    encoding = {
        "x": {"field": "begin", "type": "quantitative", "title": title, "scale": {"nice": False}, "axis": axis},
        "x2": {"field": "end"},
        "y": {"field": "top", "type": "quantitative", "axis": None, "scale": {"domain": [0, levels], "reverse": True}},
        "y2": {"field": "bottom"},
        "color": {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": used, "range": [colors[k] for k in used]}, "legend": legend},
        "description": {"field": "said"},
    }
    written = {"x": {"field": "middle", "type": "quantitative"}, "y": {"field": "center", "type": "quantitative"}, "text": {"field": "label"}}
    rect = {"mark": {"type": "rect", "stroke": "white", "strokeWidth": 1, "strokeOpacity": 0.6}, "encoding": encoding}
    text = {"mark": {"type": "text", "color": "#0f172a", "fontSize": 11}, "encoding": written}
    return {"width": width, "height": 38 * levels, "description": in_words(boxes), "data": {"values": rows}, "layer": [rect, text]}


def in_words(boxes: Sequence[Box]) -> str:
    """Each box of an icicle that has parts, with the largest of them."""
    sentences = []
    for box in boxes:
        end = box.begin + box.size
        parts = [part for part in boxes if part.level == box.level + 1 and box.begin <= part.begin + part.size / 2 < end]
        named = [part.said for part in sorted(parts, key=lambda part: -part.size)]
        more = [f"and {len(named) - SAID} more"] if len(named) > SAID else []
        if named:
            sentences.append(f"{box.said}, of which {'; '.join(named[:SAID] + more)}.")
    return " ".join(sentences) or f"{boxes[0].said}."
