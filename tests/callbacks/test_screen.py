"""The closing screen and the page: what is compiled by name, what runs as Python and why, and no speed-up of what is not compiled."""

from __future__ import annotations

import dataclasses
import io
import os
import platform
import re
import signal
from html import unescape
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

import dynacompile
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.outcome import NOT_CALLED, Outcome
from dynacompile.callbacks.screen import screen, show
from tests.callbacks.conftest import Regression

EAGER = {"backend": "eager", "measure_after": 2, "measure_steps": 1}
ALONE = {**EAGER, "step": False}
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def shown(outcome: Outcome) -> str:
    """The screen as one line of text."""
    text = io.StringIO()
    Console(file=text, width=200).print(screen(outcome))
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text.getvalue()).split())


def page(tmp_path: Path) -> str:
    """The text of the page's cells and paragraphs."""
    (file,) = tmp_path.rglob("compile_report.html")
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]*>", " ", file.read_text(), flags=re.DOTALL).split())


def test_steps_and_modules_are_named(fit, tmp_path):
    callback = DynamoCallback({**EAGER, "modules": {"net.head": {}}})
    fit(callback)
    names = "net.head, training_step, validation_step and 1 more in mode default"
    assert callback.outcome.compiled == ("net.head", "training_step", "validation_step", "optimizer_step") and not callback.outcome.eager
    assert f"compiled {names}" in shown(callback.outcome) and "speed-up" in shown(callback.outcome)
    for name in callback.outcome.compiled:
        assert f"{name} compiled " in page(tmp_path)


class Unused(Regression):
    def __init__(self):
        super().__init__()
        self.spare = torch.nn.Linear(4, 4)


def test_a_target_that_no_step_called_is_said_once(fit):
    callback = DynamoCallback({**ALONE, "modules": {"net": {}, "spare": {}}})
    fit(callback, cls=Unused)
    assert f"spare: {NOT_CALLED}" in shown(callback.outcome) and "left to Python" not in shown(callback.outcome)


def test_a_target_that_no_step_called_is_said_to_be_that(fit, tmp_path):
    callback = DynamoCallback({**ALONE, "modules": {"net": {}, "spare": {}}})
    fit(callback, cls=Unused)
    assert callback.outcome.compiled == ("net",) and callback.outcome.eager == {"spare": NOT_CALLED}
    assert f"not compiled spare: {NOT_CALLED}" in shown(callback.outcome) and f"spare as Python: {NOT_CALLED}" in page(tmp_path)


def test_nothing_has_a_speed_up_where_no_target_was_called(fit, tmp_path):
    callback = DynamoCallback({**ALONE, "modules": {"spare": {}}})
    module = fit(callback, cls=Unused)
    text = shown(callback.outcome)
    assert "compiled nothing" in text and "speed-up none: no step called what was to be compiled" in text and "paid off" not in text
    assert "speedup" not in callback.outcome.metrics() and not module.trainer.callback_metrics["compile/speedup"] > 0


class Marked(torch.nn.Module):
    @dynacompile.disable
    def forward(self, x):
        return x * 2


class LeftToPython(Regression):
    def __init__(self):
        super().__init__()
        self.net.head = torch.nn.Sequential(torch.nn.Linear(4, 1), Marked())


def test_what_is_left_to_python_says_why_and_has_no_speed_up(fit, tmp_path):
    callback = DynamoCallback({**ALONE, "modules": {"net.head.1": {}}})
    fit(callback, cls=LeftToPython)
    assert list(callback.outcome.eager) == ["net.head.1"] and not callback.outcome.compiled
    text = shown(callback.outcome)
    assert "not compiled net.head.1: " in text and "left to Python" not in text and "speed-up" not in text and "step time, compiled" not in text
    assert "net.head.1 as Python: " in page(tmp_path) and "runs as Python" in page(tmp_path)


class Renamed(Regression):
    """Its module reads a name that is another one in each batch."""

    def on_train_batch_start(self, batch, index):
        self.net.head.kind = "abcdefgh"[: index % 8]


class Kinds(torch.nn.Linear):
    kind = ""

    def forward(self, x):
        return super().forward(x) * (1 + len(self.kind))


class Limited(Renamed):
    def __init__(self):
        super().__init__()
        self.net.head = Kinds(4, 1)


def test_limits_and_recompiles_are_shown_with_what_to_do(fit, tmp_path):
    callback = DynamoCallback({**ALONE, "measure_steps": 0, "modules": {"net": {"recompile_limit": 3}}})
    fit(callback, cls=Limited)
    text = shown(callback.outcome)
    assert "limits hit 1: eager from there on" in text and "to allow more: modules={'net': {'recompile_limit': 6}}" in text
    assert "expected: each value has an entry of its own" in text
    assert "limit of 3 entries: " in page(tmp_path) and "modules={'net': {'recompile_limit': 6}}" in unescape(page(tmp_path))


def test_the_screen_names_the_page_of_the_run(fit, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    fit(DynamoCallback({**EAGER, "measure_steps": 0}))
    (file,) = tmp_path.rglob("compile_report.html")
    assert f"report {file}" in " ".join(capsys.readouterr().out.split())


def test_a_run_that_called_no_step_does_not_blame_the_settings(fit, tmp_path):
    callback = DynamoCallback(EAGER)
    fit(callback, max_epochs=0, num_sanity_val_steps=0)
    assert "compiled nothing: no step was called" in shown(callback.outcome)


def test_a_run_without_a_compiler_says_so(fit, tmp_path):
    callback = DynamoCallback({**EAGER, "enabled": False})
    fit(callback)
    text = shown(callback.outcome)
    assert "compiled nothing (compile=none)" in text and "speed-up" not in text
    assert "Nothing was compiled." in page(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_run_that_is_ended_has_its_report(error, fit, tmp_path):
    class Ends(L.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            if index == 4:
                raise error

    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    with pytest.raises((SystemExit, error)):
        fit(callback, Ends())
    assert f"ended by {error.__name__}" in shown(callback.outcome) and f"ended by {error.__name__}" in page(tmp_path)
    assert callback.outcome.steps == 4


def test_many_changes_are_cut_on_the_screen_and_whole_in_the_page(fit, tmp_path):
    class Long(Regression):
        def on_train_batch_start(self, batch, index):
            for i, block in enumerate(self.net.blocks):
                block[1].eps, block[2].p, block[1].momentum = 1e-5 * (index + 1), 0.1 + index / 40, 0.1 + index / 50 + i

    callback = DynamoCallback({**ALONE, "measure_steps": 0, "modules": {"net": {"specialize_float": True}}})
    fit(callback, cls=Long)
    (event, *_) = callback.outcome.ledger.recompiles
    assert len(event.failed) > 3 and f"; and {len(event.failed) - 3} more" in shown(callback.outcome)
    assert f"(and {len(event.failed) - 1} more)" in page(tmp_path)
    (trace,) = tmp_path.rglob("compile_events.jsonl")
    assert trace.read_text().count('"GuardFailed"') >= len(event.failed)


HOOKS = ("on_train_start", "on_train_epoch_start", "on_before_backward", "on_after_backward", "on_validation_batch_start", "on_train_epoch_end")


@pytest.mark.parametrize("hook", HOOKS)
def test_wherever_a_fit_runs_out_of_memory_it_leaves_its_report(hook, fit, tmp_path, compiler):
    def out_of_memory(*args, **kwargs):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    with pytest.raises(torch.cuda.OutOfMemoryError):
        fit(callback, type("Fails", (L.Callback,), {hook: out_of_memory})(), num_sanity_val_steps=0)
    assert "The run was ended by OutOfMemoryError" in page(tmp_path) and "ended by OutOfMemoryError" in shown(callback.outcome)


def test_a_fit_that_is_told_to_end_leaves_its_report(fit, tmp_path, compiler):
    class Ends(L.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    with pytest.raises(SIGTERMException):
        fit(callback, Ends())
    assert "The run was ended by SIGTERMException after 4 batches" in page(tmp_path)


def test_the_page_of_a_fit_has_its_settings_versions_and_hardware(fit, tmp_path, compiler):
    fit(DynamoCallback({**EAGER, "measure_steps": 0, "recompile_limit": 5}))
    told = page(tmp_path)
    assert "Settings of this run" in told and "measure_after 2" in told and "recompile_limit 5" in told
    assert f"torch {torch.__version__}" in told and f"python {platform.python_version()}" in told and f"lightning {L.__version__}" in told
    assert f"{os.cpu_count()} threads, of which torch uses {torch.get_num_threads()}" in told


def test_a_run_of_wrong_settings_has_no_screen_and_no_files(fit, tmp_path, capsys):
    with pytest.raises(dynacompile.exc.ConfigError, match="no module matches 'ned'"):
        fit(DynamoCallback({**EAGER, "modules": {"ned": {"fuse": False}}}))
    assert "dynacompile" not in capsys.readouterr().out
    assert not list(tmp_path.rglob("compile_*"))


class Counts(Regression):
    """Calls the number of a batch `i`."""

    def training_step(self, batch, i):
        self.log("at", i * 1.0)
        return super().training_step(batch, i)


def test_the_number_of_a_batch_may_have_any_name(fit):
    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    fit(callback, cls=Counts)
    assert not [event for event in callback.outcome.ledger.recompiles if event.region == "training_step" and any("i:" in text for text in event.failed)]


class Within(Regression):
    """A part of it is compiled by torch.compile."""

    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net, backend="eager")


def test_what_torch_compile_has_compiled_is_a_part_of_the_step(fit):
    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    fit(callback, cls=Within)
    assert not callback.outcome.ledger.breaks and "training_step" in callback.outcome.compiled


def test_a_module_that_torch_compile_has_compiled_is_refused(tmp_path):
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 4), torch.ones(4, 1)), batch_size=2)
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[DynamoCallback({**EAGER, "measure_steps": 0})], **quiet)
    with pytest.raises(dynacompile.exc.ConfigError, match="torch.compile has compiled Regression.*give the trainer the module itself"):
        trainer.fit(torch.compile(Regression(), backend="eager"), data)


@pytest.mark.parametrize("length", [20, 200])
def test_places_are_told_unbroken(fit, length):
    callback = DynamoCallback({**EAGER, "measure_steps": 0})
    fit(callback)
    place, text = "/" + "x" * (length - 1), io.StringIO()
    show(dataclasses.replace(callback.outcome, logs=(place,)), f"{place}/report.html", Console(file=text, width=80))
    boxed = [line for line in text.getvalue().splitlines() if line.startswith("│")]
    assert f"{place}/report.html" in text.getvalue() and re.search(f"logs +{place}", text.getvalue())
    assert all(len(line) <= 80 for line in boxed) and any(place in line for line in boxed) == (length < 60)
