"""train.py as a user runs it: its last lines, its errors, a sweep's table. The first test starts a process; others run in one that has imported Lightning."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from dynacompile.callbacks.overrides import is_found
from dynacompile.callbacks.settings import CompileSettings
from tests.forked import LIGHTNING, ROOT, run

TINY = (
    "trainer=fast",
    "trainer.max_steps=4",
    "trainer.val_check_interval=4",
    "trainer.limit_val_batches=1",
    "compile.measure_after=1",
    "compile.measure_steps=1",
    "logger=csv",
    "model=mlp",
    "model.net.width=16",
    "data.batch_size=4",
)


def train(folder: Path, *arguments: str, started: bool = False) -> subprocess.CompletedProcess:
    environment = {**os.environ, "COLUMNS": "120", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [*TINY, *(argument for argument in arguments if argument not in flags)]
    command = [str(ROOT / "train.py"), *flags, *overrides]
    if not started:
        return run(LIGHTNING, *command, cwd=folder, env=environment)
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_a_run_ends_with_its_summary(tmp_path):
    done = train(tmp_path, "compile=none", "logger=default", started=True)
    assert done.returncode == 0, done.stderr
    for fact in ("val/loss", "val/unigram_loss", "nothing (compile=none)", "step time, eager", "logs/"):
        assert fact in done.stdout, fact
    (offline,) = tmp_path.glob("logs/*/*/wandb/offline-run-*")
    assert list(offline.glob("*.wandb"))
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("compile.recompile_limt=3", "error: unknown key compile.recompile_limt: did you mean 'recompile_limit'"),
        ("compile.modules={net.layrs.*: {mode: default}}", "error: compile.modules: no module matches 'net.layrs.*': did you mean 'net.layers.*'"),
        (
            "compile.modules={net.layers.*: {isolate_recompile: true}}",
            "error: compile.modules['net.layers.*']: unknown compile option 'isolate_recompile': did you mean 'isolate_recompiles'",
        ),
        ("compile.mode=max-autotun", "error: unknown mode 'max-autotun': did you mean 'max-autotune'"),
        ("compile.modules.optimizer_step.7.fuse=false", "error: compile.modules: a fit with 1 optimizer has no 'optimizer_step.7'"),
        ("matmul_precision=hihg", "error: unknown matmul_precision 'hihg': did you mean 'high'"),
        ("trainer.max_steps=four", "error: trainer.max_steps is a number in the config (24), and 'four' here (TypeError: "),
        ("+modle=conv", "error: +modle=conv adds a new key 'modle', which nothing reads: did you mean 'model'"),
        pytest.param(
            "hydra/launcher=joblib",
            "error: hydra/launcher=joblib needs a plugin that is not installed: pip install 'dynacompile[sweep]'",
            marks=pytest.mark.skipif(is_found("hydra_plugins.hydra_joblib_launcher"), reason="it is installed"),
        ),
        ("compile.modules={training_step: {dynamic: {batch.0: {0: {}}}}}", "error: batch[0].size(0) is marked as dynamic, but the program is right only"),
        ("output=afile", "error: output=afile is a file, where the run needs a folder"),
        ("hydra.run.dir=afile", "error: hydra.run.dir=afile: "),
        ("hydra.run.dir=afile/logs", "afile is a file, where the run needs a folder"),
        ("hydra.run.dir=/proc/none/logs", "error: hydra.run.dir=/proc/none/logs: no folder can be made there"),
        ("output=/proc/none", "error: output=/proc/none: No such file or directory: /proc/none"),
        ("ckpt_path=nosuch/epoch=0-step=3.ckpt", "error: ckpt_path=nosuch/epoch=0-step=3.ckpt: there is no such file: there is no checkpoint beside it"),
        ("ckpt=a.ckpt", "error: there is no key ckpt: did you mean 'ckpt_path'"),
        ("compil=default", "error: there is no key compil: did you mean 'compile'"),
        ("trainer.max_stepss=4", "error: there is no key trainer.max_stepss: did you mean 'max_steps'"),
        ("objective=val/los", "error: objective=val/los is no number of this job: did you mean 'val/loss'"),
    ],
)
def test_a_wrong_setting_is_one_line(tmp_path, argument, message):
    (tmp_path / "afile").touch()
    done = train(tmp_path, argument)
    assert done.returncode == 1
    assert message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_error_of_the_program_mentions_a_word_where_the_config_has_a_number(tmp_path):
    done = train(tmp_path, "model.lr=high", "trainer.devices=auto")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout and "TypeError" in done.stderr
    assert "model.lr is a number in the config (0.002), and 'high' here" in done.stderr


@pytest.mark.slow
def test_a_key_of_ones_own_can_be_added(tmp_path):
    done = train(tmp_path, "+models=16", "model.net.width=${models}", "trainer.devices=auto", "compile=none")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_fit_goes_on_from_checkpoints_with_other_settings(tmp_path):
    """Twice, each time to a later step. The names of checkpoints hold `=`, which Hydra reads in quotes alone."""
    first = train(tmp_path, "trainer.enable_checkpointing=true", "hydra.run.dir=first")
    assert first.returncode == 0, first.stderr
    again = train(
        tmp_path, "ckpt_path=first/csv/checkpoints/epoch=0-step=4.ckpt", "trainer.max_steps=8", "trainer.enable_checkpointing=true", "hydra.run.dir=again"
    )
    assert again.returncode == 0, again.stderr
    (kept,) = tmp_path.glob("again/csv/checkpoints/*step=8.ckpt")
    last = train(tmp_path, f"ckpt_path={kept}", "compile=none", "trainer.max_steps=10", "hydra.run.dir=last")
    assert last.returncode == 0, last.stderr
    steps = [json.loads((tmp_path / name / "csv" / "summary.json").read_text())["steps"] for name in ("first", "again", "last")]
    assert steps == [4, 4, 2]
    assert "epoch=0-step=4.ckpt at step 4" in " ".join(again.stdout.replace("│", " ").split()) and "at step 8" in last.stdout


@pytest.mark.slow
def test_a_sweep_ends_with_a_comparison(tmp_path):
    done = train(tmp_path, "-m", "compile=none,default")
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("comparison of 2 runs") :]
    assert "compile=none" in table and "compile=default" in table and "failed" not in table
    (folder,) = tmp_path.glob("logs/*/*-sweep")
    none, compiled = csv.DictReader((folder / "sweep.csv").read_text().splitlines())
    assert float(none["loss"]) == pytest.approx(float(compiled["loss"]), abs=2e-4)
    assert float(compiled["speedup_over_none"]) == pytest.approx(float(none["step_ms"]) / float(compiled["step_ms"]))
    written = {path.name: path.read_text() for path in folder.glob("sweep.*")}
    for name in written:
        (folder / name).unlink()
    again = run(LIGHTNING, "-m", "dynacompile", "sweep", str(folder), env={**os.environ, "COLUMNS": "120"})
    assert "comparison of 2 runs" in again.stdout
    assert written == {path.name: path.read_text() for path in folder.glob("sweep.*")}


@pytest.mark.slow
def test_a_wrong_setting_of_one_job_is_a_row_of_the_sweep(tmp_path):
    done = train(tmp_path, "-m", "compile=none", "compile.mode=default,fastest")
    assert done.returncode == 1, done.stderr
    assert "job 1 failed: ConfigError: unknown mode 'fastest'" in done.stderr and "1 of 2 jobs failed" in done.stdout and "Traceback" not in done.stderr


@pytest.mark.slow
def test_options_of_modules_come_from_the_command_line_without_quotes(tmp_path):
    done = train(tmp_path, "compile.modules.net.layers.*.mode=reduce-overhead", "compile.modules.type:Linear.recompile_limit=2", "compile.show=true")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if line.startswith("│")]
    assert any(row[2:] == ["mode=reduce-overhead", "modules[net.layers.*], command line"] for row in rows), done.stdout
    assert any(row[2:] == ["recompile_limit=2", "modules[type:Linear], command line"] for row in rows), done.stdout
    assert "step time" not in done.stdout


@pytest.mark.slow
def test_help_is_for_people(tmp_path):
    done = train(tmp_path, "--help")
    assert "compile: auto, background, debug, default, " in done.stdout and "Start with" in done.stdout and "_target_" not in done.stdout


@pytest.mark.slow
def test_a_sweep_ranges_over_limits_and_over_options_of_modules(tmp_path):
    ranges = ("compile.modules.net.layers.*.mode=default,reduce-overhead", "compile.recompile_limit=2,8")
    done = train(tmp_path, "-m", *ranges, "compile.show=true")
    assert done.returncode == 0, done.stderr
    (sweep,) = tmp_path.glob("logs/*/*-sweep")
    configs = [OmegaConf.load(sweep / str(job) / ".hydra" / "config.yaml").compile for job in range(4)]
    told = [CompileSettings.of(OmegaConf.to_container(config)) for config in configs]
    assert [(of.overrides["net.layers.*"]["mode"], of.base.recompile_limit) for of in told] == [
        ("default", 2),
        ("default", 8),
        ("reduce-overhead", 2),
        ("reduce-overhead", 8),
    ]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if line.startswith("│")]
    assert sum(row[2:] == ["mode=reduce-overhead", "modules[net.layers.*], command line"] for row in rows) >= 2, done.stdout


@pytest.mark.slow
def test_what_auto_has_chosen_is_used_again_by_the_command_that_the_file_names(tmp_path):
    done = train(tmp_path, "compile=auto", "compile.auto=1e-9", "compile.recompile_limit=5")
    assert done.returncode == 0, done.stderr
    (chosen,) = tmp_path.rglob("compile/chosen.yaml")
    text = chosen.read_text()
    folder, name = re.search(r"(--config-dir=\S+) (compile=chosen)", text).groups()  # as its comment says
    again = train(tmp_path, folder, name, "compile.show=true")
    assert again.returncode == 0, again.stderr
    assert "compile=chosen" in again.stdout and "recompile_limit=5" in again.stdout, again.stdout


@pytest.mark.further
def test_optuna_maximises_the_speed_up(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    search = ("hydra/sweeper=optuna", "objective=compile/speedup", "hydra.sweeper.direction=maximize", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1")
    done = train(tmp_path, "-m", *search, "model.lr=interval(1e-4,1e-2)")
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("logs/*/*-sweep")
    found = [json.loads((folder / str(job) / "run.json").read_text())["numbers"]["compile/speedup"] for job in range(2)]
    assert yaml.safe_load((folder / "optimization_results.yaml").read_text())["best_value"] == max(found)
