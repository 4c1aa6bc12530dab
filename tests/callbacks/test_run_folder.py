"""Where the files of a run go: the run's folder, with whatever loggers; never the working folder, and never over a file that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import wandb as wandb_package
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from dynacompile.callbacks import DynamoCallback, run_folder, screen
from dynacompile.callbacks.run_folder import RunFiles, files_of_run
from dynacompile.errors import ConfigError
from dynacompile.events import Resumed
from tests.callbacks.conftest import Regression, loader

QUICK = {"measure_after": 2, "measure_steps": 0}

NAMES = tuple(name for name in run_folder.NAMES if not name.endswith("chosen.yaml"))  # that file is of compile=auto alone


class Unplaced(Logger):
    """A logger of a service, which keeps nothing on this machine."""

    name, version = "team/project", "7"

    def log_metrics(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def csv(folder: Path) -> CSVLogger:
    return CSVLogger(folder / "logs", name="csv", version="3")


def board(folder: Path) -> TensorBoardLogger:
    pytest.importorskip("tensorboardX")
    return TensorBoardLogger(folder / "logs", name="board", version="3")


def wandb(folder: Path) -> WandbLogger:
    return WandbLogger(project="p", save_dir=folder / "logs", id="abc123", mode="disabled")


CASES = {
    "none": ([], "root"),
    "csv": ([csv], "logs/csv/3"),
    "tensorboard": ([board], "logs/board/3"),
    "wandb": ([wandb], "logs/p/{version}"),
    "wandb-and-csv": ([wandb, csv], "logs/csv/3"),
    "csv-and-tensorboard": ([csv, board], "logs/csv/3"),
    "service": ([lambda folder: Unplaced()], "root/team_project/7"),
    "service-and-csv": ([lambda folder: Unplaced(), csv], "logs/csv/3"),
}


def trained(folder: Path, loggers: list[Logger] | bool, **options: Any) -> L.Trainer:
    fixed = {"max_epochs": 1, "limit_train_batches": 2, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    given = {"enable_checkpointing": False, "default_root_dir": folder / "root", "callbacks": [DynamoCallback(QUICK)], **options}
    trainer = L.Trainer(**fixed, logger=loggers, **given)
    trainer.fit(Regression(), loader(), loader())
    return trainer


def ours(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for pattern in ("compile_*", "summary*") for path in folder.rglob(pattern)}


@pytest.fixture(autouse=True)
def no_run_left():
    yield
    wandb_package.finish()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The working folder, which is no run's."""
    place = tmp_path / "working"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


@pytest.mark.parametrize("case", CASES)
def test_files_lie_in_the_runs_folder(case, compiler, tmp_path, elsewhere):
    makers, place = CASES[case]
    trainer = trained(tmp_path, [make(tmp_path) for make in makers])
    version = trainer.loggers[0].version if trainer.loggers else ""
    assert ours(tmp_path) == {f"{place.format(version=version)}/{name}" for name in NAMES}
    assert not list(elsewhere.iterdir())


def test_without_a_logger_in_the_working_folder_runs_have_folders_of_their_own(compiler, tmp_path, elsewhere):
    for _ in range(2):
        trained(tmp_path, [], default_root_dir=None)
    assert ours(elsewhere) == {f"lightning_logs/version_{n}/{name}" for n in (0, 1) for name in NAMES}


def test_with_lightnings_own_logger_files_lie_beside_its_own(compiler, tmp_path, elsewhere):
    trained(tmp_path, True, default_root_dir=None)
    assert ours(elsewhere) == {f"lightning_logs/version_0/{name}" for name in NAMES}


def test_wandb_without_a_folder_of_its_own(compiler, tmp_path, elsewhere):
    trainer = trained(tmp_path, [WandbLogger(project="p", mode="disabled")], default_root_dir=None)
    assert ours(elsewhere) == {f"p/{trainer.logger.version}/{name}" for name in NAMES}


def test_the_working_folder_where_the_user_chose_it(compiler, tmp_path, elsewhere):
    trained(tmp_path, [CSVLogger(".", name="", version="")])
    assert ours(elsewhere) == set(NAMES)


def test_no_file_of_an_earlier_run_or_of_the_user_is_written_over(compiler, tmp_path, elsewhere):
    place = tmp_path / "root"
    place.mkdir()
    (place / "summary.json").write_text("mine")
    (place / "compile_report-2.html").symlink_to(tmp_path / "nowhere")
    for _ in range(2):
        trained(tmp_path, [])
    assert (place / "summary.json").read_text() == "mine" and not (tmp_path / "nowhere").exists()
    kinds = {name.partition(".") for name in NAMES}
    assert ours(place) == {"summary.json", "compile_report-2.html"} | {f"{stem}-{n}.{ending}" for n in (3, 4) for stem, _, ending in kinds}
    assert json.loads((place / "summary-4.json").read_text())["steps"] == 2


def test_two_fits_of_one_trainer_keep_both_reports(compiler, tmp_path, elsewhere):
    trainer = trained(tmp_path, [csv(tmp_path)])
    trainer.fit_loop.max_epochs = 2
    trainer.fit(Regression(), loader())
    assert len(ours(tmp_path)) == 2 * len(NAMES)


def test_a_file_that_comes_to_be_there_meanwhile_is_kept(tmp_path):
    files = RunFiles(tmp_path)
    files.make("compile_events.jsonl", Path.touch)
    (tmp_path / "summary.json").write_text("mine")

    def write(path: Path) -> Path:
        path.touch(exist_ok=False)
        return path

    assert files.make("summary.json", write).name == "summary-2.json" and (tmp_path / "summary.json").read_text() == "mine"


def test_fast_dev_run_writes_nothing(compiler, tmp_path, elsewhere):
    trained(tmp_path, [csv(tmp_path)], fast_dev_run=True)
    assert not ours(tmp_path)


def test_a_remote_folder_is_no_folder_below_the_working_folder(compiler, tmp_path, elsewhere):
    trainer = trained(tmp_path, [], default_root_dir="memory://bucket/run")
    assert not list(elsewhere.iterdir())
    files = files_of_run(trainer, "fit")
    assert files.folder is None and files.reason == "memory://bucket/run is no folder of this machine"


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_files_of_each_loop_have_names_of_their_own(stage, tmp_path):
    files = RunFiles(tmp_path, stage)
    files.make("summary.json", Path.touch)
    assert [path.name for path in files.written] == ["summary.json" if stage == "fit" else f"summary-{stage}.json"]


class Whole(Regression):
    def test_step(self, batch, index):
        self.log("test/loss", self.net(batch[0]).mean())

    def predict_step(self, batch, index):
        return self.net(batch[0])


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_each_loop_writes_its_own_files_beside_those_of_the_fit(stage, tmp_path, elsewhere):
    callback = DynamoCallback({**QUICK, "backend": "eager"})
    trainer = trained(tmp_path, [csv(tmp_path)], callbacks=[callback])
    module = Whole()
    getattr(trainer, stage)(module, loader())
    stems = [name.partition(".") for name in NAMES]
    assert ours(tmp_path / "logs" / "csv" / "3") == {*NAMES, *(f"{stem}-{stage}.{ending}" for stem, _, ending in stems)}
    name = "validation_step" if stage == "validate" else f"{stage}_step"
    told = json.loads((tmp_path / "logs" / "csv" / "3" / f"summary-{stage}.json").read_text())
    assert told["modules"] == [name] and not told["eager"]
    assert {f"{stage}/compile/graphs", f"{stage}/compile/{name}/recompiles"} <= set(trainer.callback_metrics)
    assert not [known for known in trainer.callback_metrics if known.startswith("compile/")], "Lightning's own reset"
    rows = (tmp_path / "logs" / "csv" / "3" / "metrics.csv").read_text().splitlines()
    assert f"{stage}/compile/graphs" in rows[0] and "compile/fit_seconds" in rows[0]


def short(folder: Path, steps: int = 4, **options: Any) -> L.Trainer:
    quiet = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    return L.Trainer(
        max_steps=steps, limit_val_batches=0, **{"default_root_dir": folder, "logger": False, "callbacks": [DynamoCallback(QUICK)], **quiet, **options}
    )


def test_a_file_where_only_our_files_would_go_is_said(tmp_path, capsys):
    file = tmp_path / "taken"
    file.touch()
    trainer = short(file, enable_checkpointing=False)
    trainer.fit(Regression(), loader())
    assert trainer.callbacks[0].outcome.logs == (f"no files of ours: {file} is a file, not a folder",)


def test_a_file_where_checkpoints_would_go_ends_the_fit_before_it_begins(tmp_path):
    file = tmp_path / "taken"
    file.touch()
    model = Regression()
    with pytest.raises(ConfigError, match="taken is a file, where the run needs a folder: name one as default_root_dir"):
        short(file).fit(model, loader())
    assert model.calls == 0
    short(file, fast_dev_run=True).fit(model, loader())
    assert model.calls == 1, "no checkpoint is written then"


def test_the_error_of_a_logger_ends_with_the_file_in_its_way(tmp_path):
    file = tmp_path / "taken"
    file.touch()
    with pytest.raises(NotADirectoryError) as found:
        short(file, logger=CSVLogger(file)).fit(Regression(), loader())
    (note,) = found.value.__notes__
    assert note.startswith(f"{file} is a file, where the run needs a folder")


def test_a_fit_that_goes_on_from_a_checkpoint_says_so(tmp_path):
    kept = ModelCheckpoint(tmp_path / "kept", filename="at", every_n_train_steps=3)
    first = short(tmp_path / "one", callbacks=[DynamoCallback(QUICK), kept])
    first.fit(Regression(), loader())
    assert not first.callbacks[0].outcome.ledger.resumed
    again = short(tmp_path / "two", 6)
    again.fit(Regression(), loader(), ckpt_path=tmp_path / "kept" / "at.ckpt")
    outcome = again.callbacks[0].outcome
    (event,) = outcome.ledger.of(Resumed)
    assert (event.step, event.after) == (3, "") and event.checkpoint.endswith("at.ckpt")
    assert ("resumed", f"from {event.checkpoint} at step 3") in screen.facts(outcome)
    text = (tmp_path / "two" / "compile_report.html").read_text()
    assert f"The fit was resumed from {event.checkpoint} at step 3." in text
    assert outcome.ledger.from_cache and outcome.ledger.from_cache in text and "did not wait for their compiler" in text


def test_a_job_that_begins_again_after_it_was_killed_says_so(tmp_path):
    (tmp_path / "compile_events.jsonl").touch()
    for resumed in ("from the start; the run of compile_events.jsonl was killed, or still goes on", ""):
        trainer = short(tmp_path)
        trainer.fit(Regression(), loader())
        assert trainer.callbacks[0].outcome.ledger.resumed == resumed
