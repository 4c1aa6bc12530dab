"""Fits on a GPU leave the same behind with their steps measured and without."""

from __future__ import annotations

import pytest
import torch

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.times import rows
from tests.callbacks.equal_fits import Steps, assert_same, fit
from tests.callbacks.test_inert import Momentum, WithCounters, WithMetric, reset

ON_GPU = {"accelerator": "gpu", "devices": 1, "deterministic": "warn"}


@pytest.fixture(autouse=True)
def _algorithms_as_before():
    """A trainer sets for the process whether algorithms are deterministic."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class Draws(Steps):
    """Noise from the device's generator and from one that the module holds."""

    def extra(self, batch, index, loss):
        if "numbers" not in vars(self):
            self.numbers = torch.Generator(self.device).manual_seed(3)
        return loss * (1 + torch.rand(1, device=self.device) + torch.rand(1, device=self.device, generator=self.numbers))


@pytest.mark.parametrize("precision", ["32-true", "16-mixed", "bf16-mixed"])
@pytest.mark.parametrize("cls", [Steps, Draws, WithMetric, WithCounters, Momentum], ids=lambda cls: cls.__name__)
def test_a_measured_fit_equals_one_without(cls, precision, tmp_path):
    reset(cls)
    without = fit(cls, tmp_path / "without", **ON_GPU, precision=precision)
    reset(cls)
    callback = DynamoCallback({"enabled": False, "measure_after": 3, "measure_steps": 2, "trace": False})
    assert_same(without, fit(cls, tmp_path / "with", callback, **ON_GPU, precision=precision))
    times = callback.outcome.times
    assert times is not None and len(times.peaks) == 1 and times.peaks[0] > 0, callback.outcome.unmeasured


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_fit_is_the_same_with_and_without_measuring(mode, tmp_path):
    def compiled(steps: int, folder: str):
        callback = DynamoCallback({"mode": mode, "measure_after": 4, "measure_steps": steps, "trace": False})
        return callback, fit(Steps, tmp_path / folder, callback, **ON_GPU)

    (_, without), (callback, measured) = compiled(0, "without"), compiled(5, "with")
    assert_same(without, measured)
    assert len(callback.outcome.times.peaks) == 2
    assert "peak memory of a step" in dict(rows(callback.outcome.times, "", 1.0, 10))


def test_where_a_copy_does_not_fit_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (0, 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", torch.cuda.memory_allocated)
    callback = DynamoCallback({"enabled": False, "measure_after": 3, "measure_steps": 2, "trace": False})
    fit(Steps, tmp_path, callback, **ON_GPU)
    assert callback.outcome.times is None and "the copy that is put back takes" in callback.outcome.unmeasured
