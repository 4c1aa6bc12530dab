"""Step times as they were measured: medians, spread, what they say of a speed-up, and how that is told."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dynacompile.callbacks.texts import counted

ERROR_SHARE = 0.05  # of the time, by which the true speed-up may lie beyond each end of the interval that is told


@dataclass(frozen=True)
class StepTimes:
    """Median milliseconds per batch of whole training steps; compiled is None where nothing was compiled.

    rounds: for each, the eager and the compiled milliseconds. samples: of the batch, None where Lightning can't tell. accumulated: batches of one optimizer
    step. is_of_training: the steps are some of the training's own, each on its batch. is_uncalled: something was to be compiled, and no step called it.
    peaks: CUDA bytes of an eager and of a compiled step. compile_seconds: spent on compiling while measuring, which is in no time.
    """

    eager: float
    compiled: float | None
    steps: int
    rounds: tuple[tuple[float, ...], ...] = ()
    samples: int | None = None
    accumulated: int = 1
    is_manual: bool = False
    is_uncalled: bool = False
    peaks: tuple[int, ...] = ()
    compile_seconds: float = 0.0
    is_of_training: bool = False

    @property
    def speedup(self) -> float | None:
        return self.eager / self.compiled if self.compiled else None

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """Where the true speed-up lies with 90 %: the order statistics of the rounds' ratios that bound their median. None for fewer than five rounds."""
        return None if self.compiled is None else bounds_of_median([eager / compiled for eager, compiled in self.rounds])

    @property
    def is_within_noise(self) -> bool:
        """Whether the rounds don't tell that compiled and eager steps differ: the interval of the speed-up holds 1, or there are too few rounds for one."""
        interval = self.speedup_interval
        return interval is None or interval[0] <= 1 <= interval[1]

    def quartiles(self, kind: int) -> tuple[float, float]:
        """First and third quartile of the eager (0) or compiled (1) milliseconds."""
        times = [times[kind] for times in self.rounds] or [(self.eager, self.compiled or 0.0)[kind]]
        if len(times) == 1:
            return times[0], times[0]
        first, _, third = statistics.quantiles(times, n=4, method="inclusive")
        return first, third

    def per_second(self, milliseconds: float) -> float | None:
        return None if self.samples is None else self.samples / milliseconds * 1e3

    def break_even(self, compile_seconds: float) -> int | None:
        """The training batch at which the time saved has paid for `compile_seconds`; None where no time is saved, or too little to tell from noise."""
        interval = self.speedup_interval
        if self.compiled is None or self.compiled >= self.eager or (interval is not None and interval[0] <= 1):
            return None
        return math.ceil(compile_seconds * 1e3 / (self.eager - self.compiled))


def bounds_of_median(values: Sequence[float]) -> tuple[float, float] | None:
    """The narrowest pair of order statistics that holds the true median with at least 1 - 2 ERROR_SHARE, whatever the distribution."""
    n, below = len(values), 0.0
    for rank in range(n):
        below += math.comb(n, rank) / 2**n  # that at most `rank` of the values are below the median
        if below > ERROR_SHARE:
            ordered = sorted(values)
            return None if rank == 0 else (ordered[rank - 1], ordered[n - rank])
    return None


def rows(times: StepTimes | None, unmeasured: str, compile_seconds: float, steps: int) -> list[tuple[str, str]]:
    """What the screen says of the measuring: name and value. compile_seconds and steps: of the whole fit."""
    if times is None:
        return [("step time", unmeasured or "not measured")]
    told = []
    if times.compiled is not None:
        told += [("speed-up", speedup_told(times)), ("step time, compiled", step_time(times, times.compiled, 1))]
    if times.is_uncalled:
        told.append(("speed-up", "none: no step called what was to be compiled"))
    told += [("step time, eager", step_time(times, times.eager, 0)), ("measured", how_measured(times))]
    if times.peaks:
        told.append(("peak memory of a step", ", ".join(f"{size / 2**30:.2f} GiB {kind}" for size, kind in zip(times.peaks, ("eager", "compiled")))))
    if times.compiled is not None:
        told.append(("paid off", break_even_told(times, compile_seconds, steps)))
    if times.compile_seconds:
        told.append(("compiled in between", f"{times.compile_seconds:.2f} s while measuring, which is in no step time"))
    return told


def how_measured(times: StepTimes) -> str:
    """What the times of steps are."""
    one = "batches" if times.is_of_training else "one batch"
    batch = one if times.samples is None else f"{one} of {times.samples}"
    kind = "manual optimization" if times.is_manual else "from forward to optimizer"
    steps = counted(times.steps, "step") + (" of each kind in turn" if times.compiled is not None else "")
    accumulated = f", per batch over an optimizer step of {times.accumulated}" if times.accumulated > 1 else ""
    return f"{steps} on {batch}, {kind}{accumulated}: medians and quartiles"


def step_time(times: StepTimes, median: float, kind: int) -> str:
    first, third = times.quartiles(kind)
    rate = times.per_second(median)
    told = f"{median:.1f} ms ({first:.1f} to {third:.1f})"
    return told if rate is None else f"{told}, {rate:.3g} samples/s" if rate < 1000 else f"{told}, {rate:,.0f} samples/s"


def speedup_told(times: StepTimes) -> str:
    told, interval = f"{times.speedup:.2f}x", times.speedup_interval
    if interval is None:
        return f"{told} (too few rounds to tell from noise: compile.measure_steps={times.steps}, 5 are needed)"
    span = f"{interval[0]:.2f}x to {interval[1]:.2f}x with 90 %"
    return f"{told}, within noise ({span})" if times.is_within_noise else f"{told} ({span})"


def break_even_told(times: StepTimes, compile_seconds: float, steps: int) -> str:
    step = times.break_even(compile_seconds)
    if step is None:
        return "not known: the speed-up is within noise" if times.is_within_noise else "not in this run: a compiled step is not faster"
    return f"at step {step} of {steps}" if step <= steps else f"not within {steps} steps; it would at step {step}"
