"""What recompiles of compiled steps suggest is a setting of the callback, and prevents them."""

from __future__ import annotations

import ast

import lightning as L
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

from dynacompile.callbacks import DynamoCallback, paths
from dynacompile.errors import ConfigError
from tests.callbacks.conftest import Net

QUICK = {"backend": "eager", "measure_steps": 0}


class Plain(L.LightningModule):
    """Its last batch is smaller, and its loss is scaled by a number that changes."""

    def __init__(self):
        super().__init__()
        self.net = Net()
        self.scale = 1.5

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]) * self.scale

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Scaled(Plain):
    def on_train_batch_start(self, batch, index):
        self.scale += 0.5


def recompiles(cls, rows, tmp_path, region="training_step", dispatch=None, **settings):
    callback = DynamoCallback({**QUICK, **settings}, dispatch=dispatch)
    data = TensorDataset(torch.randn(rows, 4), torch.randn(rows, 1))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "accelerator": "cpu"}
    trainer = L.Trainer(max_epochs=1, logger=CSVLogger(tmp_path), callbacks=[callback], **quiet)
    trainer.fit(cls(), DataLoader(data, batch_size=4))
    return [event for event in callback.outcome.ledger.recompiles if event.region == region]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("cls", "rows", "told"),
    [
        (Plain, 18, "modules={'training_step': {'dynamic': {'batch.0': {0: {}}, 'batch.1': {0: {}}}}}"),
        (Scaled, 16, "modules={'training_step': {'varying': ['self.scale']}}"),
        (Scaled, 18, "modules={'training_step': {'dynamic': {'batch.0': {0: {}}, 'batch.1': {0: {}}}}}"),
    ],
    ids=["last-batch", "number", "both"],
)
def test_what_a_step_is_told_prevents_it(cls, rows, told, tmp_path):
    found = recompiles(cls, rows, tmp_path)
    assert told in [event.override for event in found]
    modules: dict = {}
    for event in found:
        for name, options in ast.literal_eval(event.override.removeprefix("modules=")).items():
            modules.setdefault(name, {}).update(options)
    assert recompiles(cls, rows, tmp_path, modules=modules) == []


@pytest.mark.parametrize("line", ["compile.modules={net.blocks.0: {dynamic: {batch.x: {0: {}}}}}", "compile.modules={net: {varying: [self.scale, lr]}}"])
def test_settings_are_told_as_the_program_takes_them(line, monkeypatch):
    told = paths.as_setting(line)
    assert DynamoCallback(modules=ast.literal_eval(told.removeprefix("modules="))).settings.overrides
    monkeypatch.setattr(paths, "has_group", lambda: True)
    assert paths.as_setting(line) == line
    assert OverridesParser.create().parse_override(line).value() == ast.literal_eval(told.removeprefix("modules="))


def test_what_is_no_line_of_config_is_told_as_it_is():
    for text in ("", "dynamic={'x': {0: {}}}"):
        assert paths.as_setting(text) == text


@pytest.mark.parametrize("glob", ["*", "**.mlp", "on", "null", "true", "7"])
def test_a_glob_is_a_text_whatever_yaml_reads_there(glob):
    assert paths.as_setting(f"compile.modules={{{glob}: {{recompile_limit: 4}}}}") == f"modules={{{glob!r}: {{'recompile_limit': 4}}}}"


class Forward(Plain):
    """Its step calls its own forward."""

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])


@pytest.mark.filterwarnings("ignore")
def test_what_the_module_itself_is_told_prevents_it(tmp_path):
    """It has the name of its class, in settings, too."""
    alone = {"step": False, "region": "Forward"}
    (found,) = recompiles(Forward, 18, tmp_path, modules=[""], **alone)
    assert found.override == "modules={'Forward': {'dynamic': {'x': {0: {}}}}}"
    assert recompiles(Forward, 18, tmp_path, modules=ast.literal_eval(found.override.removeprefix("modules=")), **alone) == []


def test_a_dispatch_of_the_module_itself_goes_by_the_name_of_its_class(tmp_path):
    dispatch = {"Forward": {"by": lambda x: len(x), "options": {}}}
    asked = recompiles(Forward, 18, tmp_path, modules=["Forward"], step=False, region="Forward", dispatch=dispatch)
    assert asked == [], "calls of other lengths have entries of their own"
    with pytest.raises(ConfigError, match="dispatch: '' is no step and no module .* valid names: .*Forward"):
        recompiles(Forward, 18, tmp_path, modules=["Forward"], step=False, dispatch={"": dispatch["Forward"]})
