"""DynacompileCallback in transformers' Trainer: trains as without it, counts what it compiles, tells what it came to, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch

import dynacompile
from dynacompile import events
from dynacompile.callbacks import DynamoCallback
from dynacompile.errors import ConfigError
from tests.callbacks.conftest import Regression, loader
from tests.forked import TORCH, run

transformers = pytest.importorskip("transformers")
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from dynacompile.callbacks.huggingface import DynacompileCallback  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


def rows(count: int = 64) -> list[dict[str, torch.Tensor]]:
    ids = torch.randint(0, 100, (count, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in ids]


def trainer(folder: Path, callbacks: list, cls: type = Trainer, **options) -> Trainer:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=12, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1))
    told = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "logging_steps": 4, "max_steps": 16, **options}
    return cls(model, TrainingArguments(str(folder), per_device_train_batch_size=4, **told), train_dataset=rows(), eval_dataset=rows(8), callbacks=callbacks)


def losses(of: Trainer) -> list[float]:
    return [row[name] for row in of.state.log_history for name in ("loss", "eval_loss") if name in row]


def same(ours: Trainer, plain: Trainer, tolerance: float = 1e-4) -> None:
    assert losses(ours) == pytest.approx(losses(plain), abs=10 * tolerance) and losses(ours)
    for a, b in zip(ours.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def left_nothing(of: Trainer) -> None:
    assert "_compiled_call_impl" not in of.model.__dict__
    assert not isinstance(getattr(of.optimizer, "optimizer", of.optimizer).__dict__.get("step"), dynacompile.callbacks.optimizer_step.OptimizerStep)


CASES = {  # arguments of training, entries that are compiled, and how far the parameters may lie from the eager ones
    "plain": ({}, 2, 1e-4),
    "accumulation": ({"gradient_accumulation_steps": 2, "max_steps": 14}, 2, 1e-4),
    "evaluation": ({"eval_strategy": "steps", "eval_steps": 5}, 3, 1e-4),
    "bfloat16": ({"bf16": True}, 2, 2e-3),
    "a schedule and no clipping": ({"lr_scheduler_type": "cosine", "warmup_steps": 4, "max_grad_norm": 0.0}, 2, 1e-4),
    "an optimizer of transformers": ({"optim": "adafactor"}, 2, 2e-3),
    "SGD": ({"optim": "sgd", "learning_rate": 0.1}, 2, 1e-4),
}
OFTEN = ("evaluation",)


@pytest.mark.whole
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "plain" else pytest.mark.slow if name in OFTEN else pytest.mark.further) for name in CASES]
)
def test_trains_as_without_it(tmp_path, name, capsys):
    options, entries, tolerance = CASES[name]
    callback = DynacompileCallback(measure_after=3, measure_steps=2)
    plain = trainer(tmp_path / "plain", [], **options)
    plain.train()
    ours = trainer(tmp_path / "ours", [callback], **options)
    ours.train()
    same(ours, plain, tolerance)
    left_nothing(ours)
    outcome = callback.outcome
    assert outcome.ledger.count(events.Compiled) == entries and not outcome.ledger.breaks
    assert len(outcome.ledger.recompiles) == entries - 2  # evaluation has an entry of its own: no gradients are made
    assert set(outcome.compiled) == {"GPT2LMHeadModel", "optimizer_step"}
    assert outcome.times.steps == 2 and len(outcome.times.rounds) == 2 and outcome.times.samples == 4 * options.get("gradient_accumulation_steps", 1)
    assert "speed-up" in capsys.readouterr().out


def test_what_is_written_and_logged(tmp_path):
    callback = DynacompileCallback(measure_steps=0)
    ours = trainer(tmp_path, [callback], max_steps=3)
    ours.train()
    folder = tmp_path / "dynacompile"
    assert {path.name for path in folder.iterdir()} == {"compile_events.jsonl", "compile_report.html", "summary.json"}
    assert json.loads((folder / "summary.json").read_text())["modules"] == ["GPT2LMHeadModel", "optimizer_step"]
    assert ours.state.log_history[-1]["compile/graphs"] == 2 and callback.outcome.times is None
    ours.train()
    assert len(list(folder.iterdir())) == 6  # a second training has files of its own


def test_numbers_are_those_of_lightnings_callback(tmp_path):
    """The same names, but for those of parts, and in the log what the summary has."""
    settings = {"measure_after": 2, "measure_steps": 2, "backend": "eager"}
    ours = trainer(tmp_path, [DynacompileCallback(settings)], max_steps=8)
    ours.train()
    logged = {name: value for name, value in ours.state.log_history[-1].items() if name.startswith("compile/")}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu", "logger": False}
    of_lightning = L.Trainer(max_steps=8, default_root_dir=tmp_path, callbacks=[DynamoCallback({**settings, "trace": False})], **quiet)
    of_lightning.fit(Regression(), loader())
    names = {name for name in of_lightning.callback_metrics if name.startswith("compile/") and name.count("/") == 1}
    pays = {"compile/payoff_step"}  # is told where compiled steps were faster
    assert {name for name in logged if name.count("/") == 1} - pays == names - pays and {"compile/speedup", "compile/recompiles"} <= names
    known = json.loads((tmp_path / "dynacompile" / "summary.json").read_text())["compile"]
    assert {name.removeprefix("compile/"): value for name, value in logged.items()} == known


@pytest.mark.slow
def test_goes_on_from_a_checkpoint(tmp_path):
    whole = trainer(tmp_path / "whole", [], max_steps=12, save_strategy="steps", save_steps=6)
    whole.train()
    ours = trainer(tmp_path / "ours", [DynacompileCallback(measure_after=1, measure_steps=1)], max_steps=12, save_strategy="steps", save_steps=6)
    ours.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    for a, b in zip(ours.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    (callback,) = [callback for callback in ours.callback_handler.callbacks if isinstance(callback, DynacompileCallback)]
    assert re.fullmatch(r"from .+ at step 6", callback.outcome.ledger.resumed)
    saved = torch.load(tmp_path / "ours" / "checkpoint-12" / "optimizer.pt", weights_only=True)
    assert saved["state"].keys() == whole.optimizer.state_dict()["state"].keys()


class Fails(TrainerCallback):
    def on_step_end(self, args, state, control, **objects):
        if state.global_step == 3:
            raise RuntimeError("stopped by the user")


def test_an_exception_leaves_what_release_puts_back_and_a_report(tmp_path, capsys):
    callback = DynacompileCallback(measure_after=1)
    ours = trainer(tmp_path, [callback, Fails()])
    with pytest.raises(RuntimeError, match="stopped by the user"), callback:
        ours.train()
    left_nothing(ours)
    assert callback.outcome.ended == "RuntimeError" and "ended by" in capsys.readouterr().out
    assert "The run was ended by RuntimeError" in (tmp_path / "dynacompile" / "compile_report.html").read_text()


def test_modules_by_name_and_nothing_else(tmp_path):
    callback = DynacompileCallback(modules=["transformer.h.*"], step=False, measure_steps=0)
    trainer(tmp_path, [callback], max_steps=3).train()
    assert callback.outcome.compiled == ("transformer.h.0", "transformer.h.1")


def test_without_compiling_steps_are_measured_all_the_same(tmp_path):
    callback = DynacompileCallback(enabled=False, measure_after=1, measure_steps=2)
    trainer(tmp_path, [callback], max_steps=8).train()
    assert callback.outcome.times.compiled is None and callback.outcome.times.steps == 2 and not callback.outcome.compiled


@pytest.mark.parametrize("options, told", [({"mod": "default"}, "mode"), ({"auto": 3.0}, "not supported"), ({"modules": {"h.*": "fast"}}, "fast")])
def test_bad_settings_are_errors_at_once(options, told):
    with pytest.raises(ConfigError, match=told):
        DynacompileCallback(**options)


def test_a_glob_that_matches_nothing_is_an_error_when_training_starts(tmp_path):
    with pytest.raises(ConfigError, match=re.escape("transformer.h.*")):
        trainer(tmp_path, [DynacompileCallback(modules={"transformer.g.*": {}})]).train()


@pytest.mark.slow
def test_the_example_of_the_page(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "huggingface.md").read_text(), re.S)[1]
    done = run(TORCH, "-c", code, cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.strip().splitlines()[-1]) > 0 and (tmp_path / "out" / "dynacompile" / "compile_report.html").exists()


def test_neither_framework_needs_the_other():
    code = "import sys; sys.modules['lightning'] = None; import dynacompile.callbacks.huggingface"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0


def test_steps_that_transformers_does_not_have_are_an_error():
    with pytest.raises(ConfigError, match="transformers' Trainer has no 'training_step'"):
        DynacompileCallback(modules={"training_step": {"fuse": False}})
