"""What each logger holds after a fit, read from its files."""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
import wandb
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.ledger import COLUMNS
from dynacompile.callbacks.screen import facts
from dynacompile.callbacks.wandb_hooks import hooks_of_wandb
from dynacompile.events import GraphBroke
from tests.callbacks.conftest import FakeCompiler, Regression, loader
from tests.callbacks.logged import OfflineRun, tensorboard_events
from tests.callbacks.test_reports import Busy

ROOT = Path(__file__).parents[2]
GIVEN = {"measure_after": 2, "measure_steps": 1, "step": False, "modules": {"net": {"mode": "max-autotune"}}, "recompile_limit": 5}


class Breaks(L.Callback):
    """Has the compiler tell of a graph break in the third batch."""

    def __init__(self, compiler: FakeCompiler):
        self.compiler = compiler

    def on_train_batch_end(self, trainer, module, outputs, batch, index) -> None:
        if index == 2:
            self.compiler.bus.emit(GraphBroke(region="net", code="print", reason="print() has an effect", hint="remove it", site="net.py:4 in forward"))


@pytest.fixture
def trained(fit, compiler, tmp_path):
    """trained(*loggers): a fit with events, its files below tmp_path."""
    return lambda *loggers: fit(Breaks(compiler), Busy(compiler, 4, 9), DynamoCallback(GIVEN), logger=list(loggers))


# CSV


def test_csv_keeps_every_column_though_keys_come_and_go(trained, tmp_path):
    trained(CSVLogger(tmp_path, name="csv", version="", flush_logs_every_n_steps=1))
    with open(tmp_path / "csv" / "metrics.csv", newline="") as lines:
        rows = list(csv.DictReader(lines))
    names = {name for row in rows for name, value in row.items() if value}
    assert {"train/loss", "val/loss", "compile/graphs", "compile/speedup", "compile/net/recompiles", "compile/fit_seconds", "step"} <= names
    graphs = {int(row["step"]): float(row["compile/graphs"]) for row in rows if row["compile/graphs"]}
    assert graphs[0] == 1 and graphs[4] == 2 and graphs[9] == 3 and graphs[15] == 4
    assert all(len(row) == len(rows[0]) and None not in row for row in rows)
    assert [row["step"] for row in rows if row["train/loss"]] == [str(n) for n in range(16)], "no row of the user's is lost"


def test_csv_keeps_the_settings_among_the_hyperparameters(trained, tmp_path):
    trained(CSVLogger(tmp_path, name="csv", version=""))
    told = yaml.safe_load((tmp_path / "csv" / "hparams.yaml").read_text())["dynacompile"]
    assert told["parts"] == {"net": {"mode": "max-autotune"}} and told["settings"]["recompile_limit"] == 5 and told["settings"]["measure_after"] == 2
    assert told["versions"]["torch"] == torch.__version__


# TensorBoard


def test_tensorboard_has_scalars_settings_and_events(trained, tmp_path):
    pytest.importorskip("tensorboardX")
    trained(TensorBoardLogger(tmp_path, name="board", version=""))
    events = tensorboard_events(tmp_path / "board")
    scalars: dict[str, dict[int, float]] = {}
    texts: dict[str, str] = {}
    for event in events:
        for value in event.summary.value:
            if value.HasField("tensor"):
                texts[value.tag] = b"".join(value.tensor.string_val).decode()
            else:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    assert scalars["compile/graphs"] == {0: 1.0, 2: 1.0, 4: 2.0, 9: 3.0, 15: 4.0} and set(scalars["train/loss"]) == set(range(16))
    assert scalars["compile/speedup"][15] > 0 and "compile/net/recompiles" in scalars
    (settings,), (table,) = ([text for tag, text in texts.items() if name in tag] for name in ("compile/settings", "compile/events"))
    assert "recompile_limit: 5" in settings and "| [print] print() has an effect |" in table and table.count("\n") == 6


# Weights & Biases


@pytest.fixture
def offline(trained, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield lambda **options: trained(WandbLogger(project="p", save_dir=tmp_path, offline=True, mode="offline", **options))
    wandb.finish()


def test_an_offline_run_holds_all_of_it(offline, tmp_path):
    module = offline()
    run_id = module.trainer.logger.version
    wandb.finish()
    run = OfflineRun(tmp_path)

    told = run.config["dynacompile"]
    assert told["parts"] == {"net": {"mode": "max-autotune"}}
    assert (told["settings"]["mode"], told["settings"]["recompile_limit"], told["settings"]["enabled"]) == ("default", 5, True)
    assert told["versions"]["torch"] == torch.__version__ and told["versions"]["python"] == platform.python_version()
    assert {"dynacompile", "lightning", "compiler"} <= set(told["versions"])

    columns, rows = run.table("compile/events")
    assert tuple(columns) == COLUMNS == ("module", "step", "trigger", "old -> new", "line", "seconds", "action", "advice")
    assert rows[0] == ["net", 0, "first call", "", "Net.forward (net.py:1)", 1.0, "compiled: 7 ops, 0 kernels", ""]
    assert rows[1] == ["net", 2, "[print] print() has an effect", "", "net.py:4 in forward", 0.0, "the graph ends here, and Python goes on", "remove it"]
    assert rows[2][:4] == ["net", 4, "L['self'].training", "True -> False"] and rows[2][5:] == [1.0, "new entry", ""]
    assert [row[1] for row in rows] == [0, 2, 4, 9, 16]

    chart = run.config["_wandb/visualize/compile/step_ms"]
    assert chart["panel_config"]["panelDefId"] == "wandb/bar/v0" and "before and after" in chart["panel_config"]["stringSettings"]["title"]
    columns, times = run.table("compile/step_ms_table")
    assert columns == ["step", "ms"] and [name for name, _ in times] == ["eager", "compiled"] and all(ms > 0 for _, ms in times)

    assert run.summary["compile/graphs"] == 4 and run.summary["compile/speedup"] > 0 and run.summary["compile/net/recompiles"] == 3
    assert set(run.artifacts[f"compile-report/compile-{run_id}"]) == {"compile_events.jsonl", "compile_report.html", "summary.json"}

    on_axis = [(row["trainer/global_step"], row["compile/graphs"]) for row in run.history if "compile/graphs" in row]
    assert on_axis == [(0, 1.0), (2, 1.0), (4, 2.0), (9, 3.0), (15, 4.0)]
    (at,) = {row["trainer/global_step"] for row in run.history if "compile/events/path" in row}
    assert at == 15


@pytest.mark.slow
def test_the_users_config_and_prefix_stay(offline, tmp_path):
    offline(prefix="mine", config={"compile": "yours"})
    wandb.finish()
    run = OfflineRun(tmp_path)
    configs = [record for record in run.config if record in ("compile", "dynacompile")]
    assert configs == ["dynacompile"] and any("mine-compile/graphs" in row for row in run.history)


SECRETS = ("pass word 1", "token=abc", "sk-123 456")


@pytest.mark.slow
def test_neither_tables_nor_pages_show_values_of_strings(fit, tmp_path, monkeypatch):
    """The compiler itself: a module that reads secrets from an attribute and the environment, which change."""

    class Keeper(torch.nn.Module):
        secret = SECRETS[0]

        def forward(self, x):
            return x * len(self.secret) + len(os.environ["MY_TOKEN"])

    class Reads(Regression):
        def __init__(self):
            super().__init__()
            self.net.head = torch.nn.Sequential(torch.nn.Linear(4, 1), Keeper())

        def on_train_batch_start(self, batch, index):
            self.net.head[1].secret = SECRETS[index % 3]
            monkeypatch.setenv("MY_TOKEN", SECRETS[index % 2])

    monkeypatch.setenv("MY_TOKEN", SECRETS[1])
    monkeypatch.setenv("WANDB_SILENT", "true")
    fit(DynamoCallback({"measure_steps": 0, "backend": "eager"}), cls=Reads, logger=[WandbLogger(project="p", save_dir=tmp_path, offline=True, mode="offline")])
    wandb.finish()
    run = OfflineRun(tmp_path)
    assert len(run.table("compile/events")[1]) > 3
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = file.read_bytes()
        assert not [secret for secret in SECRETS if secret.encode() in content], file


# wandb.watch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "log", "told"),
    [
        ("net", "gradients", "hooks on 11 gradients. They run as Python"),
        ("net", "parameters", "a hook that logs parameters. They run"),
        ("net", "all", "hooks on 11 gradients, a hook that logs parameters"),
        ("root", "parameters", "a hook that logs parameters, which never runs, since Lightning calls training_step and not the module"),
    ],
)
def test_wandb_watch_is_explained(what, log, told, compiler, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    module = Regression()
    logger = WandbLogger(project="p", save_dir=tmp_path, offline=True, mode="offline")
    try:
        assert not hooks_of_wandb(module)
        logger.watch(module if what == "root" else module.net, log=log, log_freq=100, log_graph=False)
        assert told in hooks_of_wandb(module)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu"}
        callback = DynamoCallback({**GIVEN, "measure_steps": 0})
        L.Trainer(max_epochs=1, limit_train_batches=2, logger=logger, callbacks=[callback], default_root_dir=tmp_path, **quiet).fit(module, loader())
        assert told.partition(".")[0] in dict(facts(callback.outcome))["wandb.watch"]
    finally:
        logger.experiment.unwatch(module.net)
        wandb.finish()


# without wandb

BLOCKED = """
import sys
from importlib.machinery import PathFinder
class WithoutWandb(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "wandb" else super().find_spec(name, path, target)
if BLOCK:
    sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutWandb
import lightning as L
from lightning.pytorch.loggers import CSVLogger
from dynacompile.callbacks import DynamoCallback
from tests.callbacks.conftest import Regression, loader
callback = DynamoCallback({"measure_steps": 0, "backend": "eager"})
quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu"}
L.Trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=0, logger=CSVLogger("."), callbacks=[callback], **quiet).fit(Regression(), loader())
print([name for name in sys.modules if name.partition(".")[0] == "wandb"], callback.outcome.steps)
"""


@pytest.mark.slow
@pytest.mark.parametrize("block", [True, False], ids=["absent", "installed"])
def test_nothing_of_wandb_is_imported_without_its_logger(block, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = BLOCKED.replace("BLOCK:", f"{block}:", 1)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[] 2"
    assert json.loads((tmp_path / "lightning_logs" / "version_0" / "summary.json").read_text())["steps"] == 2
