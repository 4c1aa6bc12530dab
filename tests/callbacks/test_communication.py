"""The share of a step that reductions take, from what DDP has noted of itself."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from torch.nn.parallel import DistributedDataParallel

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.communication import Communication


class Timed(DistributedDataParallel):
    """Tells, for each backward pass, what it is given: nanoseconds of communication, and of its overlap with the backward."""

    def __init__(self):
        self.passes: list[tuple[int, int]] = []

    def _get_ddp_logging_data(self):
        if not self.passes:
            return {}
        whole, overlap = self.passes[-1]
        return {"iteration": len(self.passes), "backward_comm_time": whole, "backward_compute_comm_overlap_time": overlap}


def measured(steps, accumulated=1):
    """Of steps of 10 ms each: what DDP noted in the step before, and whether something was compiled in this one."""
    model = Timed()
    loop = SimpleNamespace(_should_accumulate=lambda: batch % accumulated != 0)
    strategy = SimpleNamespace(model=model)
    trainer = SimpleNamespace(world_size=2, strategy=strategy, fit_loop=loop, accumulate_grad_batches=accumulated)
    found, batch, seconds = Communication(), 0, 0.0
    for noted, compiles in steps:
        seconds += compiles
        for _ in range(accumulated):
            batch += 1
            found.batch_ended(trainer, batch, 10.0, seconds)
        model.passes.append(noted)
    return found


def test_shares_of_a_step():
    found = measured([((4_000_000, 3_000_000), False)] * 5)
    assert found.samples == [(1.0, 3.0)] * 3  # a step is read in the next one, and the first of all has no step before it that tells it compiled nothing
    assert found.metrics() == pytest.approx(
        {"communication_exposed": 0.1, "communication_hidden": 0.3, "communication_exposed_ms": 1.0, "communication_hidden_ms": 3.0}
    )
    told = "10.0% of a step exposed (1.00 ms), 30.0% hidden behind the backward (3.00 ms); medians of 3 reductions on this rank"
    assert found.rows() == [("communication", told)]


def test_a_step_is_of_the_batches_that_it_accumulates():
    found = measured([((4_000_000, 3_000_000), False)] * 5, accumulated=4)
    assert found.shares() == pytest.approx((0.025, 0.075))


def test_steps_that_compile_are_left_out():
    slow, fast = ((900_000_000, 0), True), ((2_000_000, 1_000_000), False)
    assert measured([slow, slow, fast, slow, fast, fast]).samples == [(1.0, 1.0)] * 2


def test_an_overlap_beyond_the_communication_hides_all_of_it():
    assert measured([((2_000_000, 5_000_000), False)] * 3).samples == [(0.0, 2.0)]


def test_later_batches_are_rarely_asked():
    found = measured([((2_000_000, 1_000_000), False)] * 200)
    assert len(found.samples) < 30


def test_one_device_has_none():
    found = Communication()
    found.batch_ended(SimpleNamespace(world_size=1), 1, 10.0, 0.0)
    assert not found.metrics() and not found.rows()


def test_other_processes_get_a_callback_without_its_run():
    callback = DynamoCallback("max-autotune", measure_steps=3)
    callback.mark, callback.durations = "mine", [1.0]
    sent = pickle.loads(pickle.dumps(callback))
    assert (sent.settings, sent.mark, sent.durations, sent.outcome) == (callback.settings, "mine", [], None)
