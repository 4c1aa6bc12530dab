"""A rank that compiles for long says so, where others may wait for it."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynacompile
from dynacompile.complaints import COMPLAINTS
from dynacompile.errors import ConfigError


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(COMPLAINTS, "known", set())
    dynacompile.reset()

    def begin(count: int) -> None:
        dist.init_process_group("fake", rank=count - 1, world_size=count, store=FakeStore())

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def slow(graph, example_inputs):
    time.sleep(0.4)
    return graph


def compiles() -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dynacompile.compile(lambda x: x + 1, backend=slow)(torch.ones(3))
    return [str(w.message) for w in told if "has been compiling" in str(w.message)]


@pytest.mark.parametrize(("count", "seconds", "told"), [(8, "0.1", 1), (8, "30", 0), (8, "0", 0), (1, "0.1", 0)], ids=["long", "not long", "off", "alone"])
def test_who_compiles_for_long_names_its_rank_and_region(ranks, monkeypatch, count, seconds, told):
    monkeypatch.setenv("DYNACOMPILE_WATCHDOG_SECONDS", seconds)
    ranks(count)
    found = compiles()
    assert len(found) == told
    assert all(text.startswith("rank 7 of 8 has been compiling region") and "<lambda>" in text for text in found)


def test_without_processes_nothing_is_watched(ranks, monkeypatch):
    monkeypatch.setenv("DYNACOMPILE_WATCHDOG_SECONDS", "0.1")
    assert not compiles()


def test_seconds_are_a_number(ranks, monkeypatch):
    monkeypatch.setenv("DYNACOMPILE_WATCHDOG_SECONDS", "soon")
    ranks(2)
    with pytest.raises(ConfigError, match="DYNACOMPILE_WATCHDOG_SECONDS must be a number of seconds"):
        compiles()
