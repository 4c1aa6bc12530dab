"""The plot of a sweep: a Vega-Lite chart of step times, rendered by vl-convert, which needs neither a browser nor a network."""

from __future__ import annotations

import importlib
import importlib.util
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynacompile.callbacks.charts import COMPILED, DRAWS, EAGER, ROOM_FOR_NAMES, WIDE, Spec, ticks
from dynacompile.callbacks.sweep_runs import Run
from dynacompile.callbacks.sweep_table import heading, kind_of_step, shared_overrides
from dynacompile.callbacks.texts import amount
from dynacompile.quoting import printable
from dynacompile.run_files import write_whole

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"
VERSION = "5.21"
OVERRIDES_BELOW = "slice(split(replace(datum.label, ': ', ':\\u00a0'), ' '), 0, 3)"  # of a job, on phones: as many lines as two bars have room for
COLORS = {"eager": EAGER, "compiled": COMPILED}


def chart(runs: Sequence[Run]) -> dict[str, Any]:
    """The Vega-Lite specification of the plot that is a file of its own."""
    subtitle = textwrap.wrap(heading(runs), 110)
    return {"$schema": SCHEMA, "title": {"text": "milliseconds of a training step", "subtitle": subtitle, "anchor": "start"}, **bars(runs, WIDE)}


def bars(runs: Sequence[Run], width: int) -> Spec:
    """A group of bars for each job: median milliseconds of its eager and compiled steps, the quartiles as a line. width: of the plot with its labels."""
    shared = {*shared_overrides(runs)}
    values = []
    for run in runs:
        name = f"{run.name}: {printable(' '.join(o for o in run.overrides if o not in shared)) or 'defaults'}"
        for kind in dict.fromkeys(("eager", kind_of_step(run))):
            if (median := run.value(f"step_ms_{kind}")) is not None:
                low, high = (run.value(f"step_ms_{kind}{end}") for end in ("_low", "_high"))
                values.append({"job": name, "step": kind, "ms": median, "low": median if low is None else low, "high": median if high is None else high})
    labels = {"labelLimit": 260} if width >= WIDE else {"labelLimit": 125, "labelExpr": OVERRIDES_BELOW}
    where = {
        "y": {"field": "job", "type": "nominal", "sort": None, "title": None, "axis": labels},
        "yOffset": {"field": "step", "sort": list(COLORS)},
    }
    color = {"field": "step", "scale": {"domain": list(COLORS), "range": list(COLORS.values())}, "title": None}
    x = {"field": "ms", "type": "quantitative", "title": "ms, median and quartiles", "axis": {"tickCount": ticks(width)}}
    quartiles = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "color": {"value": "currentColor"}}
    words = (f"job {value['job']}, {value['step']}: {amount(value['ms'])} ({amount(value['low'])} to {amount(value['high'])})" for value in values)
    return {
        "width": width - (280 if width >= WIDE else 130),
        **ROOM_FOR_NAMES,
        "description": f"Milliseconds of a step. {'; '.join(words)}.",
        "data": {"values": values},
        "encoding": where,
        "layer": [
            {"mark": "bar", "encoding": {"x": x, "color": color}},
            {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": quartiles},
        ],
    }


def write_plot(runs: Sequence[Run], folder: Path) -> list[str]:
    """Writes the chart's specification, and the picture where vl-convert is installed. Returns the names of the files. Raises OSError."""
    spec = chart(runs)
    if not spec["data"]["values"]:
        return []
    write_whole(folder / "sweep.vl.json", json.dumps(spec, indent=1) + "\n")
    if importlib.util.find_spec(DRAWS) is None:
        return ["sweep.vl.json (pip install vl-convert-python draws it)"]
    write_whole(folder / "sweep.svg", importlib.import_module(DRAWS).vegalite_to_svg(spec, vl_version=VERSION))
    return ["sweep.svg", "sweep.vl.json"]
