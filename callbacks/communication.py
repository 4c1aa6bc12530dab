"""Which share of a training step the reductions of DDP take: beside the backward, which hides them, and after it.

DDP times itself, on CPUs by the clock and on GPUs by events: its first ten backward passes that reduce, and every hundredth from there on. This reads
what it has noted, so that a step runs as it would without us.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    import lightning as L

FIRST_BATCHES, EVERY = 16, 50
"""At the end of which batches DDP is asked, which takes a tenth of a millisecond: the first ones, and some of the rest."""


@dataclass
class Communication:
    """The communication of one fit. samples: exposed and hidden milliseconds of backward passes in whose steps nothing was compiled here: from the end of
    the backward to that of the last reduction, where a rank that waits for a slower one has its waiting, too, and from the first reduction's start to the
    end of the backward. steps: milliseconds of steps, each of as many batches as it accumulates."""

    samples: list[tuple[float, float]] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    unmeasured: str = ""
    under_way: float = 0.0
    seen: int = 0  # the number of the last backward pass that was read
    compiled: list[float] = field(default_factory=list)  # compile seconds at the ends of the last two steps

    def batch_ended(self, trainer: L.Trainer, batch: int, milliseconds: float, compile_seconds: float) -> None:
        """batch: how many have ended. milliseconds: of this one. compile_seconds: so far."""
        if trainer.world_size == 1:
            return
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            self.unmeasured = f"not measured: {type(trainer.strategy).__name__} has no timers of its own"
            return
        self.under_way += milliseconds
        if trainer.fit_loop._should_accumulate():
            return
        self.steps.append(self.under_way)
        self.under_way = 0.0
        if batch <= FIRST_BATCHES * trainer.accumulate_grad_batches or batch % EVERY < trainer.accumulate_grad_batches:
            self.read(model)
        self.compiled = [*self.compiled[-1:], compile_seconds]

    def read(self, model: DistributedDataParallel) -> None:
        """Takes the last pass that DDP has timed, which was that of the step before this one, or an earlier one."""
        known = model._get_ddp_logging_data()
        number, whole = known.get("iteration", 0), known.get("backward_comm_time", 0) / 1e6
        is_warm = len(self.compiled) == 2 and self.compiled[0] == self.compiled[1]
        if number > self.seen and whole and is_warm:
            hidden = min(whole, max(0.0, known.get("backward_compute_comm_overlap_time", 0) / 1e6))
            self.samples.append((whole - hidden, hidden))
        self.seen = number

    def shares(self) -> tuple[float, float] | None:
        """The exposed and the hidden share of a step; None where nothing was measured."""
        if not self.samples:
            return None
        step = statistics.median(self.steps)
        exposed, hidden = self.milliseconds()
        return exposed / step, hidden / step

    def milliseconds(self) -> tuple[float, float]:
        return statistics.median(exposed for exposed, _ in self.samples), statistics.median(hidden for _, hidden in self.samples)

    def metrics(self) -> dict[str, float]:
        shares = self.shares()
        if shares is None:
            return {}
        exposed, hidden = self.milliseconds()
        of_step = {"communication_exposed": shares[0], "communication_hidden": shares[1]}
        return of_step | {"communication_exposed_ms": exposed, "communication_hidden_ms": hidden}

    def rows(self) -> list[tuple[str, str]]:
        """What the screen says: name and value."""
        shares = self.shares()
        if shares is None:
            return [("communication", self.unmeasured)] if self.unmeasured else []
        exposed, hidden = self.milliseconds()
        told = f"{shares[0]:.1%} of a step exposed ({exposed:.2f} ms), {shares[1]:.1%} hidden behind the backward ({hidden:.2f} ms)"
        return [("communication", f"{told}; medians of {len(self.samples)} reductions on this rank")]
