"""All that is known of a run once it has ended, as its folder keeps it: summary.json, and the trace of events beside it."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dynacompile.callbacks.ledger import Ledger, read_trace
from dynacompile.errors import ConfigError
from dynacompile.run_files import write_whole

SUMMARY, TRACE, REPORT = "summary", "compile_events", "compile_report"
SECONDS_BETWEEN = 0.5
BUCKETS = 400  # points of a timeline at most


@dataclass(frozen=True)
class RunRecord:
    """summary: what summary.json holds. trace: the name of the file of events, empty where there is none."""

    summary: Mapping[str, Any]
    ledger: Ledger
    trace: str = ""

    @staticmethod
    def read(path: Path) -> RunRecord:
        """The record of a run's folder, or of one of the files that a run has written there. Raises ConfigError where there is none."""
        summary = path
        if path.is_dir():
            found = sorted(path.rglob(f"{SUMMARY}*.json"), key=lambda p: p.stat().st_mtime)
            if not found:
                raise ConfigError(f"{path} has no {SUMMARY}.json: name the folder of a run with compile.trace on (`logs/DATE/TIME`), or a file of it")
            summary = found[-1]
        elif not path.name.startswith((SUMMARY, TRACE, REPORT)):
            raise ConfigError(f"{path} is no folder of a run, nor a file of one: name `logs/DATE/TIME`, or its {SUMMARY}.json")
        elif not path.name.startswith(SUMMARY):
            stem = path.name.removeprefix(TRACE).removeprefix(REPORT).partition(".")[0]
            summary = path.with_name(f"{SUMMARY}{stem}.json")
        try:
            values = json.loads(summary.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"there is no {summary}: name the folder of a run, or a file of it") from None
        except ValueError as error:
            raise ConfigError(f"{summary} is no summary of a run: {error}") from None
        trace = summary.with_name(f"{TRACE}{summary.stem.removeprefix(SUMMARY)}.jsonl")
        return RunRecord(values, read_trace(trace), trace.name) if trace.exists() else RunRecord(values, Ledger())

    def write(self, path: Path) -> Path:
        """Writes the summary into a new file. Raises OSError, a FileExistsError where it is there already."""
        return write_whole(path, json.dumps(self.summary, indent=2) + "\n", new=True)


@dataclass
class Held:
    """Bytes that this process holds at the ends of batches, asked at most once in SECONDS_BETWEEN, since asking takes time."""

    at_ends: list[int] = field(default_factory=list)
    asked: float = -math.inf

    def note(self, device: torch.device) -> None:
        """The end of a batch. On GPUs its tensors there count, else the memory that the process really has (0 where that can't be read)."""
        at = time.monotonic()
        if at - self.asked < SECONDS_BETWEEN:
            self.at_ends.append(self.at_ends[-1])
        else:
            self.asked = at
            self.at_ends.append(torch.cuda.memory_allocated(device) if device.type == "cuda" else resident_bytes())


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def timeline(durations: Sequence[float], ends: Sequence[float], held: Sequence[int] = ()) -> tuple[tuple[float, ...], ...]:
    """Training batches in at most BUCKETS rows: the first batch, the time at which the last one ended (as time.time()), the median and the greatest
    milliseconds, the most bytes that were held at the end of one (0: not known), and the milliseconds of all of them together."""
    width = max(1, -(-len(durations) // BUCKETS))
    rows = []
    for first in range(0, len(durations), width):
        part = sorted(durations[first : first + width])
        end = ends[min(first + width, len(ends)) - 1]
        most = max(held[first : first + width], default=0)
        rows.append((first, round(end, 3), round(part[len(part) // 2], 3), round(part[-1], 3), most, round(sum(part), 3)))
    return tuple(rows)


def times_as_json(times: Any) -> dict[str, Any] | None:
    return None if times is None else dataclasses.asdict(times) | {"interval": times.speedup_interval, "within_noise": times.is_within_noise}
