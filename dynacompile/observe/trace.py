"""DYNACOMPILE_TRACE=file.jsonl: every event as one JSON line."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dynacompile.events import Subscriber, to_json
from dynacompile.run_files import Lines


def trace_subscriber() -> Subscriber | None:
    """A subscriber that appends to the file that DYNACOMPILE_TRACE names, or None where it is unset."""
    chosen = os.environ.get("DYNACOMPILE_TRACE")
    return jsonl(Path(chosen)) if chosen else None


def jsonl(path: Path) -> Subscriber:
    """Appends each event to `path`, one JSON object a line. A new file is the user's alone. Raises OSError where there is no writing to it: what calls
    subscribers warns of that once."""
    lines = Lines(Path(os.path.abspath(os.path.expanduser(path))), follow=True)
    return lambda event: lines.append(json.dumps(to_json(event)))
