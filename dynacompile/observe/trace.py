"""DYNACOMPILE_TRACE=file.jsonl: every event as one JSON line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dynacompile.events import Event, Subscriber, to_json


def trace_subscriber() -> Subscriber | None:
    """A subscriber that appends to the file that DYNACOMPILE_TRACE names, or None where it is unset."""
    chosen = os.environ.get("DYNACOMPILE_TRACE")
    return jsonl(Path(chosen)) if chosen else None


def jsonl(path: Path) -> Subscriber:
    """Appends each event to `path`, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(event: Event) -> None:
        with path.open("a") as out:
            out.write(json.dumps(to_json(event)) + "\n")

    return write
