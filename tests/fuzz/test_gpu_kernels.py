"""A slice of random programs scheduled for a GPU; `python -m tests.fuzz.gpu_kernels FIRST LAST` runs any others."""

from __future__ import annotations

from collections import Counter

import pytest

from dynacompile import pipeline
from tests.fuzz.gpu_kernels import TOPICS, as_on_gpus, check_seed, generate


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("topic", [pytest.param(topic, marks=[pytest.mark.slow] * (topic == "convolutions")) for topic in TOPICS])
def test_schedules(topic):
    counts: Counter = Counter()
    assert list(check_seed(1, topic, False, False, counts, {})) == []
    assert counts["kernels"]


@pytest.mark.filterwarnings("ignore")
def test_text_by_tritons_interpreter_and_for_hopper():
    counts: Counter = Counter()
    known: dict[str, float] = {}
    assert list(check_seed(2, "graphs", True, True, counts, known)) == []
    assert counts["launches"] and known


def test_other_compiles_are_as_they_were():
    before = pipeline.schedule, pipeline.run_kernel
    with as_on_gpus(kept=False):
        assert pipeline.schedule != before[0]
    assert (pipeline.schedule, pipeline.run_kernel) == before


def test_programs_are_what_they_were():
    assert generate(7).text == generate(7).text
