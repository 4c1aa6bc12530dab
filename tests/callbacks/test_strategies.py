"""Fits of two processes of gloo under Lightning's strategies: with the callback as without it, told once, and Lightning's own errors where it has one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import lightning as L
import pytest
from lightning.pytorch.strategies import FSDPStrategy

from dynacompile.callbacks import DynamoCallback
from tests.asked import asked
from tests.callbacks.projects import QUIET, Project, loader
from tests.callbacks.strategies_fit import ALONE, CASES, FURTHER
from tests.distributed.ranks import Ended, start
from tests.forked import LIGHTNING, run

SCREEN = "─ dynacompile ─"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("strategies")


@pytest.fixture(scope="module")
def cases(request) -> list[str]:
    return [case["case"] for case in asked(request, "test_both_ranks_train_as_without_the_callback")]


@pytest.fixture(scope="module")
def ended(folder, cases) -> list[Ended]:
    return start("tests.callbacks.strategies_fit", str(folder), *(cases or ["ddp"]), timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.further] if case in FURTHER else []) for case in (*CASES, *ALONE)])
def test_both_ranks_train_as_without_the_callback(case, ended):
    for rank, process in enumerate(ended):
        assert f"held {case}" in process.out.splitlines(), f"rank {rank} ended with {process.code}:\n{process.err[-3000:]}"


@pytest.mark.slow
def test_the_closing_screen_is_the_first_ranks_alone(ended, cases):
    assert [process.out.count(SCREEN) for process in ended] == [sum(ALONE[case][1] if case in ALONE else 1 for case in cases or ["ddp"]), 0]


@pytest.mark.slow
def test_processes_that_lightning_spawns(tmp_path, folder, ended):
    done = run(LIGHTNING, "-m", "tests.callbacks.spawned_fit", str(tmp_path), env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        eager = (folder / "ddp" / f"loss{rank}").read_text()
        assert (tmp_path / f"rank{rank}").read_text() == f"optimizer_step training_step validation_step, 0 recompiles, loss {eager}"
    assert done.stdout.count(SCREEN) == 1 and len(list(tmp_path.rglob("summary*.json"))) == len(list(tmp_path.rglob("compile_report*"))) == 1


# what Lightning refuses, it refuses in its own words


def raised(**options) -> str:
    with pytest.raises(Exception) as told:
        L.Trainer(**QUIET, **options).fit(Project(), loader())
    return f"{told.type.__name__}: {told.value}"


@pytest.mark.parametrize("strategy", ["fsdp", FSDPStrategy(), "deepspeed_stage_2"], ids=["fsdp", "FSDPStrategy", "deepspeed_stage_2"])
def test_what_lightning_refuses_on_cpus(strategy, tmp_path):
    if strategy == "deepspeed_stage_2" and importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    options = {"strategy": strategy, "devices": 2, "default_root_dir": tmp_path}
    plain, compiled = raised(**options), raised(**options, callbacks=[DynamoCallback()])
    assert plain == compiled
    assert ("requires a GPU accelerator" if strategy != "deepspeed_stage_2" else "DeepSpeed") in compiled, compiled
