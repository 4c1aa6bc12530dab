"""Sweeps: every job fails alone, and the comparison is printed and written however the sweep ends."""

from __future__ import annotations

import csv
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher

from dynacompile import __main__ as command
from dynacompile.callbacks.sweep import show_sweep
from dynacompile.callbacks.sweep_page import headline
from dynacompile.callbacks.sweep_plot import chart
from dynacompile.callbacks.sweep_runs import EXITED, NO_WORD, Result, Run, first_line, saved_runs
from dynacompile.callbacks.sweep_table import as_csv, as_markdown, cells, rows_of
from dynacompile.errors import ConfigError
from tests import forked
from tests.callbacks.logged import finished

APP = """
defaults:
  - _self_
  - override hydra/sweeper: each_alone
hydra:
  callbacks: {comparison: {_target_: dynacompile.callbacks.sweep.Comparison}}
  sweep: {dir: sweep, subdir: "${hydra.job.num}"}
  hydra_logging: {root: {level: WARNING}}
  job_logging: {root: {level: WARNING}}
what: fine
x: 1
fixed: yes
"""
SCRIPT = """
import os, sys, hydra
from dynacompile.callbacks.sweep_runs import Result

@hydra.main(version_base="1.3", config_path=".", config_name="own")
def main(cfg):
    if cfg.what == "raises":
        raise ValueError("a wrong value")
    if cfg.what == "dies":
        os.kill(os.getpid(), 9)
    if cfg.what == "interrupts":
        raise KeyboardInterrupt
    return Result({"val/loss": float(cfg.x) ** 2}, "val/loss")

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """app(*arguments, task=...): runs an app of one's own in this process. Returns its status."""
    (tmp_path / "own.yaml").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_RUN_GROUP", "")
    monkeypatch.delenv("WANDB_RUN_GROUP")

    def run(*arguments: str, task: Callable) -> int:
        monkeypatch.setattr(sys, "argv", ["app.py", "-m", *arguments])
        try:
            hydra.main(version_base="1.3", config_path=str(tmp_path), config_name="own")(task)()
        except SystemExit as ended:
            return int(ended.code or 0)
        finally:
            GlobalHydra.instance().clear()
            HydraConfig.instance().cfg = None
        return 0

    return run


def fails(cfg):
    if cfg.what == "config":
        raise ConfigError("unknown key compile.recompile_limt: did you mean 'recompile_limit'?")
    if cfg.what == "memory":
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    if cfg.what == "exits":
        raise SystemExit("error: gave up")
    return Result({"val/loss": float(cfg.x)})


def test_every_job_fails_alone(app, tmp_path, capsys):
    assert app("what=config,fine,memory,exits,other", "x=2", "fixed=no", task=fails) == 1
    shown = capsys.readouterr().out
    runs = list(saved_runs(tmp_path / "sweep"))
    assert [(run.overrides[0], bool(run.reason)) for run in runs] == [
        ("what=config", True),
        ("what=fine", False),
        ("what=memory", True),
        ("what=exits", True),
        ("what=other", False),
    ]
    assert "unknown key compile.recompile_limt: did you mean 'recompile_limit'" in runs[0].reason
    assert "OutOfMemoryError: CUDA out of memory" in runs[2].reason and "SystemExit: error: gave up" in runs[3].reason
    assert runs[4].numbers == {"val/loss": 2.0}
    assert "comparison of 5 runs, all with x=2 fixed=no" in shown and "3 of 5 jobs failed" in shown
    assert "No job has measured a compiled step." in shown
    assert "Traceback" in (tmp_path / "sweep" / "0" / "error.txt").read_text()


@pytest.mark.parametrize("interrupt", ["Ctrl-C", "SIGTERM"])
def test_what_lightning_makes_of_an_interrupt_ends_the_sweep(app, tmp_path, interrupt):
    """It exits, after its own shutdown, in which further interrupts are ignored."""

    class SIGTERMException(SystemExit): ...

    ran = []

    def task(cfg):
        ran.append(cfg.x)
        if cfg.x == 2 and interrupt == "SIGTERM":
            raise SIGTERMException
        if cfg.x == 2:
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt:
                sys.exit(1)
        return {"loss": cfg.x}

    app("x=1,2,3", task=task)
    assert ran == [1, 2]
    first, second = saved_runs(tmp_path / "sweep")
    assert first.numbers == {"loss": 1} and not second.numbers


def test_a_job_that_exits_runs_once(app, tmp_path):
    ran = []

    def task(cfg):
        ran.append(cfg.x)
        if cfg.x in (2, 3):
            sys.exit("enough")
        return {"loss": cfg.x}

    assert app("x=1,2,3,4", task=task) == 1
    assert ran == [1, 2, 3, 4]
    assert [run.failed for run in saved_runs(tmp_path / "sweep")] == ["", "SystemExit: enough", "SystemExit: enough", ""]


def test_a_run_that_exits_says_so_in_its_folder(tmp_path):
    (tmp_path / "own.yaml").write_text(APP)
    (tmp_path / "app.py").write_text(SCRIPT)
    done = forked.run(forked.LIGHTNING, "app.py", "what=interrupts", "hydra.run.dir=run", cwd=tmp_path)
    assert done.returncode != 0
    (run,) = saved_runs(tmp_path)
    assert run.failed == EXITED and run.reason == EXITED and not run.goes_on


def test_runs_of_their_own_are_told_apart_by_their_folders(tmp_path, capsys):
    for name in ("monday", "tuesday"):
        (tmp_path / name).mkdir()
        Run((f"day={name}",), {"val/loss": 1.0}, failed=EXITED if name == "tuesday" else "").write(tmp_path / name)
    assert show_sweep(tmp_path) == 1
    shown = capsys.readouterr().out
    assert "monday" in shown and "error.txt" not in shown  # there is no such file
    assert [row["job"] for row in csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines())] == ["monday", "tuesday"]


def test_an_override_of_all_jobs_that_does_not_compose_is_refused_before_any_runs(app, tmp_path, capsys):
    ran = []
    assert app("nope=3", "x=1,2", task=lambda cfg: ran.append(cfg.x)) == 1
    assert not ran and "Could not override 'nope'" in capsys.readouterr().err


def test_jobs_keep_their_places_beside_one_that_does_not_compose(app, tmp_path):
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "a.yaml").write_text("a: 1\n")
    (tmp_path / "group" / "c.yaml").write_text("a: 3\n")
    app("+group=a,b,c", task=lambda cfg: {"loss": cfg.group.a})
    assert [(run.number, run.overrides, dict(run.numbers)) for run in saved_runs(tmp_path / "sweep")] == [
        (0, ("+group=a",), {"loss": 1}),
        (1, ("+group=b",), {}),
        (2, ("+group=c",), {"loss": 3}),
    ]


def test_a_sweep_without_failures_ends_with_status_0_and_its_files(app, tmp_path):
    assert app("x=1,2", task=fails) == 0
    assert {"sweep.md", "sweep.csv", "multirun.yaml"} <= {path.name for path in (tmp_path / "sweep").iterdir()}


def test_the_runs_of_a_sweep_are_one_group_in_wandb(app):
    groups = []
    app("x=1,2", task=lambda cfg: groups.append(os.environ["WANDB_RUN_GROUP"]))
    assert len(groups) == 2 and groups[0] == groups[1] and groups[0].endswith("/sweep")


@pytest.mark.slow
def test_wandb_has_the_group_with_each_run(app, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")

    def task(cfg):
        wandb.init(project="p", dir=str(tmp_path / f"job{cfg.x}"), mode="offline").finish()

    for number in (1, 2):
        (tmp_path / f"job{number}").mkdir()
    assert app("x=1,2", task=task) == 0
    records = [record for file in sorted(tmp_path.rglob("*.wandb")) for record in finished(file)]
    groups = [record.run.run_group for record in records if record.WhichOneof("record_type") == "run"]
    assert len(set(groups)) == 1 and groups[0].endswith("/sweep") and len(groups) >= 2


def test_a_launcher_that_ends_early_leaves_no_job_out(app, tmp_path, monkeypatch):
    """As joblib's does where the process of one job has died."""
    launcher = next(found for found in Plugins.instance().discover(Launcher) if found.__name__ == "BasicLauncher")
    whole = launcher.launch

    def launch(self, job_overrides, initial_job_idx):
        if len(job_overrides) > 1:
            whole(self, job_overrides[:1], initial_job_idx)
            raise RuntimeError("a worker died")
        return whole(self, job_overrides, initial_job_idx)

    monkeypatch.setattr(launcher, "launch", launch)
    ran = []
    assert app("x=1,2,3", task=lambda cfg: ran.append(cfg.x) or {"loss": cfg.x}) == 0
    assert ran == [1, 2, 3]
    assert [run.numbers["loss"] for run in saved_runs(tmp_path / "sweep")] == [1, 2, 3]


def test_batches_of_jobs_are_numbered_through(app, tmp_path):
    assert app("x=1,2,3", "hydra.sweeper.max_batch_size=2", task=fails) == 0
    assert [run.number for run in saved_runs(tmp_path / "sweep")] == [0, 1, 2]


def test_a_job_whose_process_died_is_a_row(tmp_path, capsys):
    died = subprocess.run([sys.executable, "-c", "import os, socket; print(socket.gethostname(), os.getpid())"], capture_output=True, text=True, check=True)
    host, process = died.stdout.split()
    for number, owner in enumerate([(host, int(process)), (host, os.getpid())]):
        (tmp_path / str(number)).mkdir()
        Run((f"x={number}",), owner=owner, number=number).write(tmp_path / str(number))
    died, going = saved_runs(tmp_path)
    assert died.reason == NO_WORD and going.goes_on and not going.reason
    assert show_sweep(tmp_path) == 1
    assert "not finished" in (tmp_path / "sweep.md").read_text() and "killed" in (tmp_path / "sweep.md").read_text()


def measured(number: int, *overrides: str, eager: float, compiled: float | None = None, **more: float) -> Run:
    numbers = {"val/loss": 1.5, "compile/seconds": 2.0, "compile/recompiles": 1.0}
    for kind, median in (("eager", eager), ("compiled", compiled)):
        if median is not None:
            numbers |= {f"compile/step_ms_{kind}": median, f"compile/step_ms_{kind}_low": 0.9 * median, f"compile/step_ms_{kind}_high": 1.1 * median}
            numbers[f"compile/samples_per_sec_{kind}"] = 4e3 / median
    if compiled is not None:
        numbers |= {"compile/speedup": eager / compiled, "compile/speedup_low": 1.0, "compile/speedup_high": 3.0}
    return Run(overrides, numbers | {f"compile/{name}": value for name, value in more.items()}, number=number)


def test_speed_ups_are_over_the_job_that_trains_the_same_and_compiles_nothing():
    runs = [
        measured(0, "model=a", "compile=none", eager=20.0),
        measured(1, "model=a", "compile=default", "compile.fuse=false", eager=22.0, compiled=10.0, step_peak_bytes_compiled=2.0**30),
        measured(2, "model=b", "compile=default", eager=30.0, compiled=10.0),
    ]
    none, same, other = rows_of(runs)
    assert (none.step_ms, none.samples_per_sec, none.speedup_over_none, none.speedup_over_eager) == (20.0, 200.0, 1.0, None)
    assert (same.step_ms, same.samples_per_sec, same.speedup_over_none, same.speedup_over_eager) == (10.0, 400.0, 2.0, 2.2)
    assert (same.speedup_over_none_low, same.speedup_over_none_high) == pytest.approx((18 / 11, 22 / 9))
    assert same.peak_bytes == 2**30
    assert other.speedup_over_none is None and other.speedup_over_eager == 3.0


def test_table_markdown_and_csv_tell_the_same():
    runs = [measured(0, "m=a", "compile=none", eager=20.0), measured(1, "m=a", "compile=default", eager=22.0, compiled=10.0)]
    runs.append(Run(("m=a", "x=|"), failed="E", number=2))
    names, rows = cells(runs)
    assert names == ["job", "", "step ms", "samples/s", "over compile=none", "over eager", "compile s", "recompiles", "val/loss", "outcome"]
    assert rows[1] == ["1", "compile=default", "10 (9 to 11)", "400", "2.00x (1.64 to 2.44)", "2.20x (1.00 to 3.00)", "2.0", "1", "1.5000", "finished"]
    assert rows[2] == ["2", "x=|", *["-"] * 7, "E"]
    text = as_markdown(runs)
    assert text.startswith("comparison of 3 runs, all with m=a\n\n| job |  | step ms |") and "| 2 | x=\\| | - |" in text
    read = list(csv.DictReader(as_csv(runs).splitlines()))
    assert [row["step_ms"] for row in read] == ["20.0", "10.0", ""] and read[2]["failed"] == "E" and read[0]["shared"] == "m=a"


def test_a_column_is_there_where_a_job_has_a_number_for_it():
    runs = [measured(0, "compile=none", eager=20.0, step_peak_bytes_eager=3 * 2.0**30), measured(1, "compile=default", eager=22.0, compiled=10.0)]
    names, rows = cells(runs)
    assert [row[names.index("peak GiB")] for row in rows] == ["3.00", "-"]
    assert "peak GiB" not in cells(runs[1:])[0]
    first, second = csv.DictReader(as_csv(runs).splitlines())
    assert (first["peak_bytes"], second["peak_bytes"]) == (str(3 * 2.0**30), "")


def test_the_plot_has_a_bar_for_each_measured_step(tmp_path):
    spec = chart([measured(0, "compile=none", eager=20.0), measured(1, "compile=default", eager=22.0, compiled=10.0), Run(("x=1",), failed="E")])
    assert [(bar["step"], bar["ms"]) for bar in spec["data"]["values"]] == [("eager", 20.0), ("eager", 22.0), ("compiled", 10.0)]


def test_the_plot_is_drawn(tmp_path):
    pytest.importorskip("vl_convert")
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        measured(number, f"x={number}", eager=20.0, compiled=10.0).write(tmp_path / str(number))
    assert show_sweep(tmp_path) == 0
    assert (tmp_path / "sweep.svg").read_text().startswith("<svg")
    assert json.loads((tmp_path / "sweep.vl.json").read_text())["data"]["values"]


def test_a_folder_that_is_no_sweeps_is_named(tmp_path):
    with pytest.raises(SystemExit, match="^error: no jobs in .*it should hold 0/run.json"):
        command.main(["sweep", str(tmp_path)])


def test_a_sweep_has_a_page_that_leads_to_the_reports_of_its_jobs(tmp_path, monkeypatch):
    for number, run in enumerate((measured(0, "x=<b>", eager=20.0, compiled=10.0), Run(("x=1",), failed="ConfigError: no", number=1))):
        (tmp_path / str(number) / "csv").mkdir(parents=True)
        run.write(tmp_path / str(number))
    (tmp_path / "0" / "csv" / "compile_report.html").write_text("")
    (tmp_path / "1" / "error.txt").write_text("")
    command.main(["sweep", str(tmp_path)])
    page = (tmp_path / "sweep.html").read_text()
    assert 'href="0/csv/compile_report.html"' in page and 'href="1/error.txt"' in page and "ConfigError: no" in page
    assert "Job 0 (x=&lt;b&gt;) gains most: its compiled steps are 2.00 times as fast as its eager ones" in page and "1 of 2 jobs failed" in page
    assert "x=&lt;b&gt;" in page and "<b>" not in page and page.count('<svg role="img"') in (0, 2)
    assert not re.findall(r"""(?:src|href)\s*=\s*["']https?:""", page)
    (tmp_path / "sweep.html").unlink()
    monkeypatch.setattr(sys, "argv", ["sweep.py", str(tmp_path)])
    runpy.run_path("scripts/sweep.py", run_name="__main__")
    assert (tmp_path / "sweep.html").read_text() == page


OVER_NONE, OVER_EAGER = "as fast as those of compile=none.", "as fast as its eager ones."


@pytest.mark.parametrize(("none", "faster", "said"), [
    (True, 10.0, f"gains most: its compiled steps are 2.00 times {OVER_NONE}"),
    (True, 40.0, f"loses least: its compiled steps are 0.50 times {OVER_NONE}"),
    (False, 10.0, f"gains most: its compiled steps are 6.00 times {OVER_EAGER}"),
])  # fmt: skip
def test_the_headline_is_of_the_job_that_compiles_nothing_where_there_is_one(none, faster, said):
    """Eager steps of a job were slow, as when something else ran beside them."""
    runs = [measured(0, "compile=none" if none else "compile=eager", eager=20.0), measured(1, "compile=default", eager=6 * faster, compiled=faster)]
    assert headline(runs)[0] == f"Job 1 (compile=default) {said}"


def test_a_result_is_the_number_that_is_optimised():
    assert float(Result({"val/loss": 2.5}, "val/loss")) == 2.5
    assert str(float(Result({"val/loss": 2.5}))) == "nan"
    with pytest.raises(ConfigError, match="objective=val/los is no number of this job: did you mean 'val/loss'"):
        Result({"val/loss": 2.5, "compile/seconds": 1.0}, "val/los")


def own_app(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "own.yaml").write_text(APP)
    (folder / "app.py").write_text(SCRIPT)
    environment = {**os.environ, "COLUMNS": "150", "OMP_NUM_THREADS": "1"}
    return forked.run(forked.LIGHTNING, "app.py", "-m", *arguments, cwd=folder, env=environment)


@pytest.mark.slow
def test_the_table_is_printed_when_a_sweep_is_interrupted(tmp_path):
    done = own_app(tmp_path, "what=fine,interrupts,fine2")
    assert done.returncode != 0
    assert "comparison of 2 runs" in done.stdout and (tmp_path / "sweep" / "sweep.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "launcher"), [("hydra_plugins.hydra_joblib_launcher", "joblib"), ("hydra_plugins.hydra_submitit_launcher", "submitit_local")]
)
def test_jobs_in_processes_of_their_own_fail_alone(tmp_path, package, launcher):
    pytest.importorskip(package)
    more = ["hydra.launcher.n_jobs=2"] if launcher == "joblib" else []
    done = own_app(tmp_path, f"hydra/launcher={launcher}", *more, "what=fine,dies,raises")
    assert done.returncode == 1, done.stderr
    fine, dies, raises = saved_runs(tmp_path / "sweep")
    assert fine.numbers and not fine.reason
    assert dies.reason and "a wrong value" in raises.reason


@pytest.mark.slow
def test_optuna_optimises_the_number_that_the_result_names(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    done = own_app(tmp_path, "hydra/sweeper=optuna", "x=interval(1,3)", "hydra.sweeper.n_trials=2", "hydra.sweeper.n_jobs=1")
    assert done.returncode == 0, done.stderr
    assert "best_value" in (tmp_path / "sweep" / "optimization_results.yaml").read_text()
    assert "comparison of 2 runs" in done.stdout


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("one\ntwo", "ValueError: one"),
        ("", "ValueError"),
        ("Error in call to target 'f':\nTypeError('no')\nfull_key: model.net", "ValueError: Error in call to target 'f': TypeError('no') full_key: model.net"),
        ("nothing follows:", "ValueError: nothing follows:"),
    ],
    ids=["the first line", "no text", "what a colon announces", "a colon at the end"],
)
def test_a_failed_job_is_told_with_its_cause(text, told):
    assert first_line(ValueError(text)) == told
