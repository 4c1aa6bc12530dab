from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from dynacompile import conf
from dynacompile.callbacks import CompileSettings, DynamoCallback
from dynacompile.callbacks.config_text import config_text, default_values
from dynacompile.config import MODES
from scripts import bench_lightning
from tests.forked import LIGHTNING, run

FOLDER = conf.folder()
GROUPS = {
    group: sorted(p.stem for p in (FOLDER / group).glob("*.yaml")) for group in ("compile", "model", "data", "trainer", "logger", "callbacks", "experiment")
}


def composed(*overrides: str):
    with initialize_config_dir(version_base="1.3", config_dir=str(FOLDER)):
        return compose("train", overrides=[*overrides, "output=out"])


def test_default_compile_config_is_what_the_dataclasses_say():
    assert (FOLDER / "compile" / "default.yaml").read_text() == config_text(), "run `make conf`"


def test_the_group_has_the_keys_and_defaults_of_the_settings():
    group = OmegaConf.to_container(composed().compile)
    assert group == {name: list(value) if isinstance(value, tuple) else value for name, value in default_values().items()}
    assert tuple(group) == CompileSettings.names()
    assert CompileSettings.of(group) == CompileSettings()


@pytest.mark.parametrize("name", GROUPS["compile"])
def test_each_compile_config_is_valid_settings(name):
    settings = CompileSettings.of(composed(f"compile={name}").compile)
    assert settings.enabled is (name != "none")


def test_every_mode_has_a_config():
    assert {CompileSettings.of(composed(f"compile={name}").compile).base.mode for name in GROUPS["compile"]} == set(MODES)
    assert set(GROUPS["compile"]) == {"none", "debug", "verify", "background", "auto", *(mode.replace("-", "_") for mode in MODES)}


@pytest.mark.whole
@pytest.mark.parametrize("override", [f"{group}={name}" for group, names in GROUPS.items() for name in names])
def test_each_config_composes_and_resolves(override):
    model = {"data=digits": ["model=vit"], "data=rollouts": ["model=ppo"]}.get(override, [])  # nets of text ask the data for its context
    assert "callbacks" in OmegaConf.to_container(composed(override, *model), resolve=True, throw_on_missing=True)


@pytest.mark.parametrize("name", GROUPS["model"])
def test_each_model_is_made(name):
    kinds = {"distill": "Distill", "ppo": "PPO"} | dict.fromkeys(("vit", "resnet", "additive"), "Classify")
    assert type(instantiate(composed(f"model={name}").model)).__name__ == kinds.get(name, "NextByte")


def test_override_of_modules_reaches_the_callback_as_it_was_typed():
    cfg = composed("compile.modules={net.blocks.*: {isolate_recompiles: true, recompile_limit: 4, mode: max-autotune}}")
    callback = instantiate(cfg.callbacks.dynamo)
    assert isinstance(callback, DynamoCallback)
    assert dict(callback.settings.overrides["net.blocks.*"]) == {"isolate_recompiles": True, "recompile_limit": 4, "mode": "max-autotune"}


def test_wandb_is_offline_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert composed().logger.wandb.mode == "offline"
    monkeypatch.setenv("WANDB_MODE", "online")
    assert composed().logger.wandb.mode == "online"


def test_a_users_own_app_composes_compile_without_torch_and_finds_nothing_else_of_ours(tmp_path):
    (tmp_path / "own.yaml").write_text("defaults: [{compile: max_autotune}, _self_]\n")
    others = {group: names[0] for group, names in GROUPS.items() if group != "compile"}
    script = "\n".join(
        [
            "import sys",
            "from hydra import compose, initialize_config_dir",
            "from hydra.core.global_hydra import GlobalHydra",
            f"with initialize_config_dir(version_base='1.3', config_dir={str(tmp_path)!r}):",
            "    loader = GlobalHydra.instance().config_loader()",
            "    print(compose('own').compile.mode, 'torch' in sys.modules, loader.list_groups(''), *loader.get_group_options('compile'))",
            f"    for group, name in {others!r}.items():",
            "        print(compose('own', [f'+{group}={name}'])[group])",  # a plain key: there is no such group
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    first, *values = done.stdout.splitlines()
    assert first.startswith("max-autotune False ") and first.endswith(" ".join(GROUPS["compile"]))
    assert "'compile'" in first and not [group for group in others if f"'{group}'" in first]
    assert values == list(others.values())


APP = """
import sys, hydra
@hydra.main(version_base="1.3", config_path=".", config_name="own")
def main(cfg):
    print("began", cfg.compile.modules, "torch" in sys.modules)
main()
"""


def own_app(folder, config: str, *arguments: str) -> subprocess.CompletedProcess:
    (folder / "own.yaml").write_text(f"defaults: [{{compile: default}}, _self_]\n{config}")
    (folder / "app.py").write_text(APP)
    return subprocess.run([sys.executable, "app.py", *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("config", "arguments"),
    [("", ["compile.moode=default"]), ("compile: {moode: default}", []), ("", ["-m", "hydra/sweeper=each_alone", "compile.moode=default"])],
    ids=["command line", "file", "job of a sweep"],
)
def test_an_own_app_with_a_wrong_key_ends_before_it_begins_and_says_the_nearest(config, arguments, tmp_path):
    done = own_app(tmp_path, config, *arguments)
    assert "unknown key compile.moode: did you mean 'mode' or 'modules'?" in done.stderr + done.stdout
    assert "began" not in done.stdout and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("compile.modules.net.modee=default", "unknown compile option 'modee': did you mean 'mode'"),
        ("compile.modules.net.mode=max-autotun", "unknown mode 'max-autotun': did you mean 'max-autotune'"),
        ("compile.mode=max-autotun", "unknown mode 'max-autotun': did you mean 'max-autotune'"),
        ("compile=max_autotun", "Available options in 'compile':"),
    ],
    ids=["option of a module", "mode of a module", "mode", "config of the group"],
)
def test_an_own_app_with_a_wrong_name_is_told_the_nearest_before_it_trains(argument, said, tmp_path):
    (tmp_path / "own.yaml").write_text("defaults: [{compile: default}, _self_]\n")
    made = 'from dynacompile.callbacks import DynamoCallback\n    DynamoCallback(cfg.compile)\n    print("trains")'
    (tmp_path / "app.py").write_text(APP.replace('print("began", cfg.compile.modules, "torch" in sys.modules)', made))
    done = run(LIGHTNING, "app.py", argument, cwd=tmp_path, env=os.environ)
    assert done.returncode == 1 and said in done.stderr and "trains" not in done.stdout, done.stderr


def test_an_own_app_takes_options_of_modules_without_a_plus_and_imports_no_torch_for_it(tmp_path):
    done = own_app(tmp_path, "", "compile.modules.net.mode=default", "compile.modules.net.blocks.$.fuse=false")
    assert done.returncode == 0 and done.stdout.strip() == "began {'net': {'mode': 'default', 'blocks': {'$': {'fuse': False}}}} False"


def test_help_of_train_py_names_every_group_and_the_forms_of_overrides():
    text = (FOLDER / "hydra" / "help" / "train.yaml").read_text()
    for said in ("$APP_CONFIG_GROUPS", "compile.show=true", "compile.modules.net.blocks.*.mode=", "type:Block", "compile=none,default", "--cfg job"):
        assert said in text
    assert all(recipe in text for recipe in GROUPS["experiment"] if recipe != "gpt2_small")


@pytest.mark.parametrize("name", bench_lightning.RECIPES)
def test_each_recipe_of_the_benchmark_composes_with_its_callback(name):
    callback = instantiate(composed(*bench_lightning.RECIPES[name], "compile.mode=default").callbacks.dynamo)
    assert isinstance(callback, DynamoCallback)
