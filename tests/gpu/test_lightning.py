"""Fits on a GPU train with the callback as without it."""

from __future__ import annotations

import pytest

from dynacompile import events
from tests.callbacks.test_loops import STEPS, Manual, Project, Skips, TwoOptimizers, fit, left_nothing, same

ON_GPU = {"accelerator": "gpu", "devices": 1}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"precision": "32-true", "gradient_clip_val": 0.5}, 1e-3),
        ({"precision": "bf16-mixed", "gradient_clip_val": 0.5}, 3e-2),
        ({"precision": "16-mixed"}, 1e-2),
        ({"precision": "16-mixed", "gradient_clip_val": 0.5}, 1e-2),
        ({"precision": "32-true", "accumulate_grad_batches": 2}, 1e-3),
    ],
    ids=str,
)
def test_a_fit_is_as_without_the_callback(options, tolerance, mode, tmp_path):
    plain, compiled = (fit(Project, tmp_path / str(on), on, mode=mode, **ON_GPU, **options) for on in (False, True))
    same(compiled, plain, tolerance)
    assert {part: min(count, 1) for part, count in compiled.entries.items()} == STEPS and not compiled.count(events.LimitHit)
    left_nothing(compiled)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
@pytest.mark.parametrize("cls", [Manual, TwoOptimizers, Skips])
def test_other_ways_to_optimize(cls, precision, tmp_path):
    plain, compiled = (fit(cls, tmp_path / str(on), on, precision=precision, **ON_GPU) for on in (False, True))
    same(compiled, plain, 1e-2)
    left_nothing(compiled)
