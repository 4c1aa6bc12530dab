from __future__ import annotations

import gc

import lightning as L
import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.screen import facts
from dynacompile.callbacks.snapshot import Snapshot
from dynacompile.callbacks.times import StepTimes, bounds_of_median, rows
from tests.callbacks.equal_fits import Steps, fit

EAGER = {"enabled": False, "measure_after": 3, "measure_steps": 2, "trace": False}
COMPILED = {"measure_after": 3, "measure_steps": 5, "trace": False}


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    dynacompile.reset()


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"accumulate_grad_batches": 3}], ids=str)
def test_one_optimizer_step_is_measured_whole(options, tmp_path, monkeypatch):
    """Each measured step clears gradients once and steps once; under accumulation a middle batch stands for all between."""
    calls: list[str] = []
    real_step, real_zero = torch.optim.AdamW.step, torch.optim.AdamW.zero_grad
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self, closure=None: (calls.append("step"), real_step(self, closure))[1])
    monkeypatch.setattr(torch.optim.AdamW, "zero_grad", lambda self, set_to_none=True: (calls.append("zero"), real_zero(self, set_to_none))[1])
    steps = {"limit_train_batches": 6, "max_epochs": 1}
    fit(Steps, tmp_path / "without", **steps, **options)
    expected = len(calls)
    callback = DynamoCallback(EAGER)
    fit(Steps, tmp_path / "with", callback, **steps, **options)
    assert callback.outcome.times.accumulated == options.get("accumulate_grad_batches", 1)
    assert len(calls) - 2 * expected == 2 * (1 + 2)  # a step and a clearing for the watched step and the two rounds


def test_compiled_and_eager_steps_take_turns(tmp_path):
    callback = DynamoCallback(COMPILED)
    fit(Steps, tmp_path, callback)
    times = callback.outcome.times
    assert len(times.rounds) == 5 and all(len(times) == 2 for times in times.rounds)
    assert times.samples == 4 and times.accumulated == 1 and not times.is_manual and times.peaks == ()
    assert times.compile_seconds == 0 and times.compiled is not None


def test_what_compiles_while_measuring_is_told_apart(tmp_path):
    """The step's first call falls to the measuring, so that is where it compiles."""
    callback = DynamoCallback({**COMPILED, "measure_after": 0})
    fit(Steps, tmp_path, callback)
    times = callback.outcome.times
    assert times.compile_seconds > 0 and max(max(times) for times in times.rounds) < times.compile_seconds * 1e3
    assert any(name == "compiled in between" for name, _ in rows(times, "", 1.0, 10))


class RaisesUncompiled(Steps):
    def on_before_zero_grad(self, optimizer):
        if self.trainer.fit_loop.epoch_loop.batch_idx == 3 and "training_step" not in vars(self):
            raise ValueError("only where nothing is compiled")


def test_a_step_that_raises_while_it_is_measured_ends_the_measuring_and_not_the_fit(tmp_path):
    callback = DynamoCallback(COMPILED)
    left = fit(RaisesUncompiled, tmp_path, callback)
    assert callback.outcome.times is None
    assert callback.outcome.unmeasured == "not measured: a repeated step raised ValueError: only where nothing is compiled"
    assert left["completed"] == 12


class Interrupted(Steps):
    def on_before_zero_grad(self, optimizer):
        if self.trainer.fit_loop.epoch_loop.batch_idx == 3 and "training_step" not in vars(self):
            raise KeyboardInterrupt


def test_an_interrupt_while_measuring_ends_the_fit_as_it_does_elsewhere(tmp_path):
    callback = DynamoCallback(COMPILED)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit(Interrupted, tmp_path, callback)


class CallsForward(Steps):
    def training_step(self, batch, index):
        return nn.functional.mse_loss(self.net.forward(batch[0]), batch[1])


def test_where_no_step_calls_a_target_there_is_no_compiled_time(tmp_path):
    callback = DynamoCallback({**COMPILED, "step": False, "modules": ["net"]})
    fit(CallsForward, tmp_path, callback)
    times = callback.outcome.times
    assert times.compiled is None and times.speedup is None and all(len(times) == 1 for times in times.rounds)
    assert ("speed-up", "none: no step called what was to be compiled") in facts(callback.outcome)


def test_measuring_is_in_no_step_of_the_fit(tmp_path):
    callback = DynamoCallback({**COMPILED, "measure_after": 0})
    fit(Steps, tmp_path, callback)
    assert callback.durations[1] < callback.outcome.times.compile_seconds * 1e3


def test_the_loop_is_given_back(tmp_path):
    loops: list[object] = []

    class Looking(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            loops.append("run" in vars(trainer.fit_loop.epoch_loop.automatic_optimization))

    fit(Steps, tmp_path, DynamoCallback(EAGER), Looking())
    assert loops and not any(loops)


def test_measuring_waits_for_what_is_built_in_the_background(tmp_path, monkeypatch):
    asked: list[float | None] = []
    monkeypatch.setattr(dynacompile, "wait", lambda timeout=None: asked.append(timeout) or len(asked) > 2)
    background = {**EAGER, "background": True, "measure_after": 0}
    callback = DynamoCallback(background)
    fit(Steps, tmp_path / "in time", callback)
    assert callback.outcome.times is not None and asked[:3] == [0, 0, 0]
    monkeypatch.setattr(dynacompile, "wait", lambda timeout=None: False)
    callback = DynamoCallback(background)
    fit(Steps, tmp_path / "too late", callback)
    assert callback.outcome.times is None and callback.outcome.unmeasured == "not measured: programs were still built in the background"


@pytest.mark.parametrize("settings", [{"background": True}, {"modules": {"training_step": {"background": True}}}], ids=["all", "a part"])
def test_a_fit_that_compiles_in_the_background_is_measured(settings, tmp_path):
    class Waiting(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            dynacompile.wait()

    callback = DynamoCallback({**COMPILED, **settings, "measure_after": 0})
    fit(Steps, tmp_path, callback, Waiting())
    times = callback.outcome.times
    assert times is not None and times.compiled is not None, callback.outcome.unmeasured


def test_the_copies_are_freed_when_measuring_ends(tmp_path):
    """Without the garbage collector: they are as large as the model."""
    alive: list[int] = []

    class Looking(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            alive.append(sum(type(held) is Snapshot for held in gc.get_objects()))

    gc.collect()
    gc.disable()
    try:
        fit(Steps, tmp_path / "measured", DynamoCallback(EAGER), Looking())
        fit(RaisesUncompiled, tmp_path / "raises", DynamoCallback(COMPILED), Looking())
    finally:
        gc.enable()
    assert alive == [0] * 24


# the figures


def times(eager_ms: list[float], compiled_ms: list[float]) -> StepTimes:
    rounds = tuple(zip(eager_ms, compiled_ms))
    return StepTimes(sorted(eager_ms)[len(eager_ms) // 2], sorted(compiled_ms)[len(compiled_ms) // 2], len(rounds), rounds, samples=8)


def test_the_interval_holds_the_median_with_ninety_percent():
    assert bounds_of_median([3.0, 1.0, 2.0, 5.0, 4.0]) == (1.0, 5.0)  # 1 - 2 / 2**5
    assert bounds_of_median([float(i) for i in range(8)]) == (1.0, 6.0)  # 1 - 2 * 9 / 2**8
    assert bounds_of_median([1.0, 2.0, 3.0, 4.0]) is None


def test_within_noise_is_said_where_a_round_went_the_other_way():
    clear = times([10.0, 11.0, 10.5, 10.2, 12.0], [8.0, 8.5, 8.1, 8.2, 9.0])
    assert not clear.is_within_noise and dict(rows(clear, "", 1.0, 10_000))["speed-up"] == "1.28x (1.24x to 1.33x with 90 %)"
    unclear = times([10.0, 11.0, 10.5, 10.2, 12.0], [8.0, 8.5, 8.1, 8.2, 13.0])
    assert unclear.is_within_noise and "within noise (0.92x to 1.30x" in dict(rows(unclear, "", 1.0, 10))["speed-up"]
    few = times([10.0], [8.0])
    assert dict(rows(few, "", 1.0, 10))["measured"].startswith("1 step of each kind in turn on ")
    assert few.is_within_noise and "too few rounds" in dict(rows(few, "", 1.0, 10))["speed-up"]


def test_the_screen_names_spread_rate_and_break_even():
    told = dict(rows(times([10.0, 11.0, 10.5, 10.2, 12.0], [8.0, 8.5, 8.1, 8.2, 9.0]), "", 0.23, 200))
    assert next(iter(told)) == "speed-up"
    assert told["step time, eager"] == "10.5 ms (10.2 to 11.0), 762 samples/s" and told["step time, compiled"] == "8.2 ms (8.1 to 8.5), 976 samples/s"
    assert told["measured"] == "5 steps of each kind in turn on one batch of 8, from forward to optimizer: medians and quartiles"
    assert told["paid off"] == "at step 100 of 200"
    assert rows(None, "not measured: because", 0.0, 1) == [("step time", "not measured: because")]


def test_break_even():
    faster = StepTimes(eager=10.0, compiled=8.0, steps=5)
    assert faster.break_even(0.2) == 100
    assert dict(rows(faster, "", 0.2, 50))["paid off"] == "not within 50 steps; it would at step 100"
    assert StepTimes(eager=10.0, compiled=10.0, steps=5).break_even(0.2) is None
    within_noise = times([10.0, 11.0, 10.5, 10.2, 12.0], [8.0, 8.5, 8.1, 8.2, 13.0])
    assert within_noise.break_even(0.2) is None
