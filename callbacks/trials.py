"""What compile=auto has tried, as tables and screens tell of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dynacompile.callbacks.times import StepTimes, step_time

Changes = Mapping[str, Any]
MARGIN = 1.01  # how many times as fast as the best so far a later trial must be to be kept
COLUMNS = ("settings", "step ms eager", "step ms compiled", "speed-up", "peak bytes", "seconds", "outcome")


@dataclass
class Trial:
    """changes: of the user's settings, by key. times: None where it was not measured, and `reason` says why. seconds: what the trial took."""

    changes: Changes
    times: StepTimes | None = None
    reason: str = ""
    seconds: float = 0.0
    is_kept: bool = False

    @property
    def name(self) -> str:
        return " ".join(f"{key}={shown(value)}" for key, value in self.changes.items()) or "as configured"

    @property
    def speedup(self) -> float:
        return (self.times.speedup if self.times else None) or 0.0

    @property
    def surely(self) -> float:
        """The low end of the speed-up's interval; the speed-up where too few rounds tell of noise."""
        interval = self.times.speedup_interval if self.times else None
        return self.speedup if interval is None else interval[0]

    def is_faster_than(self, best: Trial) -> bool:
        """By its median, and by what is sure of it."""
        return self.speedup > MARGIN * best.speedup and self.surely > MARGIN * best.surely

    @property
    def outcome(self) -> str:
        return "; ".join(filter(None, (self.reason, "kept" if self.is_kept else "" if self.reason else "not clearly faster")))

    def told(self) -> tuple[Any, ...]:
        """In the order of COLUMNS."""
        times = self.times
        if times is None:
            return self.name, None, None, None, None, self.seconds, self.outcome
        return self.name, times.eager, times.compiled, times.speedup, times.peaks[-1] if times.peaks else None, self.seconds, self.outcome

    def line(self) -> str:
        """A row of the screen."""
        if self.times is None or self.times.compiled is None:
            return f"{self.name}: {self.outcome}"
        return f"{self.name}: {self.speedup:.2f}x, {step_time(self.times, self.times.compiled, 1)} ({self.seconds:.0f} s; {self.outcome})"


def shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, Mapping) else str(value).lower() if isinstance(value, bool) else str(value)
