"""`compile.show=true`, and where settings come from in a Hydra app."""

from __future__ import annotations

import sys

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.globs import resolve
from dynacompile.callbacks.origins import Origins, comes_last, origins
from dynacompile.callbacks.plan import planned
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.errors import ConfigError
from tests.callbacks.conftest import Regression

APP = """
defaults: {defaults}
hydra: {{run: {{dir: .}}, output_subdir: null, job_logging: {{root: {{level: WARNING}}}}}}
compile: {own}
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """job(task, *arguments, defaults, own): runs a task in an app of one's own."""

    def run(task, *arguments, defaults="[{compile: default}, _self_]", own="{}"):
        (tmp_path / "own.yaml").write_text(APP.format(defaults=defaults, own=own))
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        try:
            hydra.main(version_base="1.3", config_path=str(tmp_path), config_name="own")(task)()
        finally:
            GlobalHydra.instance().clear()
            HydraConfig.instance().cfg = None

    return run


def test_show_prints_modules_options_and_origins_and_trains_nothing(fit, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    module = fit(DynamoCallback({"show": True, "recompile_limit": 4, "modules": {"net.blocks.*": {"mode": "reduce-overhead"}, "net.head": None}}))
    shown = capsys.readouterr().out
    assert module.calls == 0
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if line.startswith("│")]
    assert ["training_step", "step", "recompile_limit=4", "settings"] in rows and ["optimizer_step", "step", "recompile_limit=4", "settings"] in rows
    assert ["net.blocks.1", "Sequential", "mode=reduce-overhead", "modules[net.blocks.*]"] in rows
    assert ["net.head", "Linear", "recompile_limit=4", "settings"] in rows


def test_show_with_nothing_to_compile_says_so(fit, capsys):
    assert fit(DynamoCallback(show=True, enabled=False)).calls == 0
    assert "nothing" in capsys.readouterr().out


def test_origins_tell_the_command_line_the_own_config_and_the_group(job):
    found = {}

    def task(cfg):
        settings = DynamoCallback(cfg.compile).settings
        module = Regression()
        for part in planned(settings, module, resolve(settings, module), ("training_step",), origins()):
            found[part.name] = dict(part.options)

    job(
        task,
        "compile.fullgraph=true",
        "++compile.modules.net.blocks.$.fuse=false",
        defaults="[{compile: max_autotune}, _self_]",
        own="{recompile_limit: 3, modules: {net.head: {verify: true}}}",
    )
    base = {"mode=max-autotune": "compile=max_autotune", "recompile_limit=3": "own.yaml", "fullgraph=True": "command line"}
    assert found["training_step"] == base
    assert found["net.blocks.1"] == base | {"fuse=False": "modules[net.blocks.*], command line"}
    assert found["net.head"] == base | {"verify=True": "modules[net.head]"}


def test_origins_tell_the_experiment_that_sets_an_option(job, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "apart.yaml").write_text("# @package _global_\ncompile: {recompile_limit: 5, modules: {net: {head: {fuse: false}}}}\n")
    (tmp_path / "experiment" / "other.yaml").write_text("compile: {mode: max-autotune}\n")  # of its own package: no setting of ours
    told = []

    def task(cfg):
        known = origins()
        told.append(
            (DynamoCallback(cfg.compile).settings.base.recompile_limit, known.of("recompile_limit"), known.of_module("net.head", "fuse"), known.of("mode"))
        )

    job(task, "experiment=apart", defaults="[{compile: default}, {experiment: null}, _self_]", own="{recompile_limit: 3}")
    job(task, "experiment=apart", defaults="[{compile: default}, _self_, {experiment: null}]", own="{recompile_limit: 3}")
    job(task, "experiment=other", "compile.recompile_limit=2", defaults="[{compile: default}, _self_, {experiment: null}]")
    assert told == [
        (3, "own.yaml", "modules[net.head]", "settings"),
        (5, "experiment=apart", "modules[net.head], experiment=apart", "settings"),
        (2, "command line", "modules[net.head]", "settings"),
    ]


def test_own_keys_that_the_group_would_replace_are_refused(job):
    with pytest.raises(ConfigError, match="own.yaml sets compile.mode, and its defaults list composes `compile` after `_self_`.*put `_self_` after"):
        job(lambda cfg: DynamoCallback(cfg.compile), defaults="[_self_, {compile: default}]", own="{mode: max-autotune}")


@pytest.mark.parametrize(
    ("defaults", "arguments"),
    [("[{compile: default}, _self_]", ()), ("[{compile: default}]", ()), ("[_self_, {compile: default}]", ("compile.mode=max-autotune",))],
)
def test_own_keys_that_hold_are_not_refused(job, defaults, arguments):
    modes = []
    job(lambda cfg: modes.append(DynamoCallback(cfg.compile).settings.base.mode), *arguments, defaults=defaults, own="{mode: max-autotune}")
    assert modes == ["max-autotune"]


@pytest.mark.parametrize(
    ("defaults", "last"),
    [
        (["_self_", {"compile": "none"}], True),
        (["_self_", {"/compile": "none"}], True),
        (["_self_", {"optional compile": "none"}], True),
        ([{"compile": "none"}, "_self_"], False),
        ([{"compile": "none"}], False),
        (["_self_", {"model": "none"}], False),
        (None, False),
    ],
)
def test_order_of_a_defaults_list(defaults, last):
    assert comes_last(defaults) is last


def test_without_hydra_settings_come_from_the_settings():
    assert Origins().of("mode") == "settings"
    assert CompileSettings().show is False
