from __future__ import annotations

import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from torch import nn

from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.globs import pattern, resolve
from dynacompile.callbacks.overrides import check_compile_overrides, missing_package, read_arguments
from dynacompile.callbacks.settings import CompileSettings, by_glob, call_arguments
from dynacompile.config import CompileConfig
from dynacompile.errors import ConfigError


def net() -> nn.Module:
    root = nn.Module()
    root.net = nn.Module()
    root.net.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3))
    root.net.head = nn.Linear(2, 2)
    return root


def names(modules: dict) -> list[str]:
    return [target.name for target in resolve(CompileSettings.of({"modules": modules}), net())]


def test_no_module_is_compiled_by_itself_unless_it_is_named():
    assert CompileSettings().step and resolve(CompileSettings(), net()) == []


@pytest.mark.parametrize("modules", ["net", ["net"], {"net": None}, {"net": {}}, {"net": "default"}])
def test_short_forms_of_modules(modules):
    (target,) = resolve(CompileSettings.of({"modules": modules}), net())
    assert (target.name, target.options) == ("net", CompileConfig())


def test_steps_have_options_of_their_own():
    settings = CompileSettings.of({"recompile_limit": 3, "modules": {"training_step": {"mode": "max-autotune"}, "optimizer_step.1": {"fullgraph": True}}})
    assert resolve(settings, net()) == []
    assert (settings.of_step("training_step").mode, settings.of_step("validation_step").mode) == ("max-autotune", "default")
    assert (settings.of_step("optimizer_step.1").fullgraph, settings.of_step("optimizer_step.0").fullgraph) == (True, False)
    assert settings.of_step("training_step").recompile_limit == 3


def test_the_root_is_a_target():
    (target,) = resolve(CompileSettings.of({"modules": {"": "max_autotune"}}), net())
    assert (target.name, target.options.mode) == ("Module", "max-autotune")


@pytest.mark.parametrize(
    ("short", "values"),
    [
        (None, {}),
        ("max_autotune", {"mode": "max_autotune"}),
        (["encoder"], {"modules": ["encoder"]}),
        ({"encoder": "max-autotune"}, {"modules": {"encoder": "max-autotune"}}),
        ({"mode": "max-autotune"}, {"mode": "max-autotune"}),
    ],
)
def test_short_forms_of_the_settings(short, values):
    assert CompileSettings.of(short) == CompileSettings.of(values)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"step": 1}, "compile.step must be a bool, not 1"),
        ({"fullgraph": "yes"}, "fullgraph must be a bool, not 'yes'"),
        ({"measure_after": "3"}, "compile.measure_after must be an int, not '3'"),
        ({"measure_steps": -1}, "compile.measure_steps must be an int >= 0, not -1"),
        ({"memory_budget": "half"}, "memory_budget must be a float, not 'half'"),
        ({"modules": 3}, "compile.modules must map globs to options"),
        ({"modules": {"net": 3}}, r"compile.modules\['net'\] must map options to values, or name a mode, not 3"),
        ({"modules": {"net": "max-autotun"}}, "unknown mode 'max-autotun': did you mean 'max-autotune'"),
        ({"mode": "max-autotun"}, "unknown mode 'max-autotun'"),
        ({"meassure_after": 3}, "unknown key compile.meassure_after: did you mean 'measure_after'"),
        ({"capture_values": 2}, "capture_values must be a bool or null, not 2"),
        ({"modules": {"training_step.foo": {"fuse": False}}}, "'training_step.foo' is no step: the step is 'training_step'"),
        ({"modules": {"optimizer_step.x": {"fuse": False}}}, "'optimizer_step.x' is no step: .* optimizer_step.0, optimizer_step.1"),
        ({"compile": {"mode": "default"}, "model": {}}, r"hold a group `compile`.*: pass that group, config\.compile"),
        ("fastest", "unknown mode 'fastest'"),
        ({"step": False}, "nothing would be compiled"),
        ({"varying": "lr"}, "varying must list names"),
        ({"dynamic": {"batch": {0: 3}}}, r"dynamic\['batch'\]\[0\] must be {min, max}, or None for any size, not 3"),
    ],
)
def test_every_key_is_checked_before_anything_trains(values, said):
    with pytest.raises(ConfigError, match=said):
        CompileSettings.of(values)


def test_options_of_the_callback_one_by_one():
    assert DynamoCallback(mode="max_autotune", step=True).settings.base.mode == "max-autotune"
    assert DynamoCallback(["net"], step=False).settings.modules == ["net"]
    settings = CompileSettings.of({"mode": "max-autotune", "measure_after": 3})
    changed = DynamoCallback(settings, recompile_limit=4, measure_steps=2).settings
    assert (changed.base.mode, changed.base.recompile_limit) == ("max-autotune", 4) and (changed.measure_after, changed.measure_steps) == (3, 2)


@pytest.mark.parametrize("given", [(), (CompileSettings(),)], ids=["alone", "beside settings"])
def test_options_of_the_callback_are_keys_of_the_group(given):
    with pytest.raises(ConfigError, match=r"unknown key compile\.options: valid names: .*recompile_limit"):
        DynamoCallback(*given, options={"fallback": "none"})
    with pytest.raises(ConfigError, match=r"unknown key compile\.fulgraph: did you mean 'fullgraph'"):
        DynamoCallback(*given, fulgraph=True)


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("net.blocks.*", ["net.blocks.0", "net.blocks.1", "net.blocks.2"]),
        ("net.blocks.1", ["net.blocks.1"]),
        ("net.*", ["net.blocks", "net.head"]),
        ("net.blocks.**", [f"net.blocks.{i}{rest}" for i in range(3) for rest in ("", ".0", ".1")]),
        ("net.h*d", ["net.head"]),
    ],
)
def test_glob_stays_within_a_part_unless_doubled(glob, expected):
    assert names({glob: {}}) == expected


def test_dots_and_brackets_in_a_glob_are_literal():
    assert not pattern("net.head").fullmatch("netxhead")
    assert not pattern("net.[h]ead").fullmatch("net.head")


def options_of(name: str, modules: dict, root: nn.Module | None = None) -> CompileConfig:
    return next(target.options for target in resolve(CompileSettings.of({"modules": modules}), root or net()) if target.name == name)


@pytest.mark.parametrize(
    ("general", "specific"),
    [
        ("**", "net.**"),
        ("net.**", "type:Sequential"),
        ("type:S*", "type:Sequential"),
        ("type:Sequential", "net.*.1"),
        ("net.*.1", "net.blocks.*"),
        ("net.blocks.*", "net.blocks.1"),
        ("type:Sequential", "net.blocks.1"),
    ],
)
def test_the_most_specific_glob_wins_in_whichever_order_they_are_written(general, specific):
    options = {general: {"recompile_limit": 2, "fullgraph": True}, specific: {"recompile_limit": 3}}
    for order in (list(options), list(options)[::-1]):
        assert options_of("net.blocks.1", {glob: options[glob] for glob in order}) == CompileConfig(recompile_limit=3, fullgraph=True)


def test_of_globs_as_specific_the_later_wins():
    assert options_of("net.blocks.1", {"net.block*.1": {"recompile_limit": 2}, "net.*locks.1": {"recompile_limit": 3}}).recompile_limit == 3


@pytest.mark.parametrize("glob", ["type:Linear", "type:nn.modules.linear.Linear", "type:torch.nn.modules.linear.Linear", "type:Lin*"])
def test_a_type_matches_by_name_or_by_an_ending_of_its_path(glob):
    assert names({glob: {}}) == ["net.blocks.0.0", "net.blocks.1.0", "net.blocks.2.0", "net.head"]


def test_a_type_matches_classes_below_it_and_the_class_itself_is_more_specific():
    class Own(nn.Linear):
        pass

    root = nn.Sequential(Own(2, 2), nn.Linear(2, 2))
    assert [target.name for target in resolve(CompileSettings.of({"modules": ["type:Linear"]}), root)] == ["0", "1"]
    assert [target.name for target in resolve(CompileSettings.of({"modules": ["type:Own"]}), root)] == ["0"]


def test_an_unmatched_type_names_the_nearest_class():
    with pytest.raises(ConfigError, match="no module matches 'type:Linaer': did you mean 'type:Linear'"):
        names({"type:Linaer": {}})


@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        ({"net": {"blocks": {"$": {"mode": "max-autotune"}}}}, {"net.blocks.*": {"mode": "max-autotune"}}),
        ({"net": {"mode": "default", "head": {"fuse": False}}}, {"net": {"mode": "default"}, "net.head": {"fuse": False}}),
        ({"$$": {"fuse": False}}, {"**": {"fuse": False}}),
        ({"type$$$Linear": "max_autotune"}, {"type:Linear": {"mode": "max_autotune"}}),
        ({"type$$$nn": {"modules": {"linear": {"Linear": {"fuse": False}}}}}, {"type:nn.modules.linear.Linear": {"fuse": False}}),
        ({"net": {"blocks": {"$$$1$": {"fuse": False}}}, "type$": {"fuse": True}}, {"net.blocks.1*": {"fuse": False}, "type*": {"fuse": True}}),
        ({"net": {"blocks": {"1": None}}}, {"net.blocks.1": {}}),
        ({"net": {"head": "max-autotune"}}, {"net.head": {"mode": "max-autotune"}}),
        ({"net": {"dynamic": {"x": {0: None}}}}, {"net": {"dynamic": {"x": {0: None}}}}),
        ({"net.blocks": {"1": {"fuse": False}}, "net": {"blocks": {"1": {"verify": True}}}}, {"net.blocks.1": {"fuse": False, "verify": True}}),
    ],
)
def test_nested_names_of_modules_mean_dotted_ones(nested, flat):
    assert by_glob(nested) == flat


@pytest.mark.parametrize("modules", [{"net": {"head": {"modee": "default"}}}, {"net": {"fuze": None}}])
def test_an_option_mistyped_among_nested_names_is_refused_by_name(modules):
    with pytest.raises(ConfigError, match=r"unknown compile option '(modee|fuze)': did you mean '(mode|fuse)'"):
        CompileSettings.of({"modules": modules})


def test_flags_of_the_compiler_in_nested_names_are_refused(monkeypatch):
    monkeypatch.delenv("DYNACOMPILE_ALLOW_CPP_FLAGS", raising=False)
    with pytest.raises(ConfigError, match="compile.cpp_flags=.* comes from a config"):
        CompileSettings.of({"modules": {"net": {"head": {"cpp_flags": "-O1"}}}})


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("compile.modules.net.blocks.*.mode=default,max-autotune", "++compile.modules.net.blocks.$.mode=default,max-autotune"),
        ("compile.modules.**.fuse=false", "++compile.modules.$$.fuse=false"),
        ("compile.modules.type:nn.Linear.recompile_limit=2,8", "++compile.modules.type$$$nn.Linear.recompile_limit=2,8"),
        ("compile.modules.net.blocks.1*.fuse=false", "++compile.modules.net.blocks.$$$1$.fuse=false"),
        ("compile.modules.type*.fuse=false", "++compile.modules.type$.fuse=false"),
        ("+compile.modules.net.mode=default", "+compile.modules.net.mode=default"),
        ("compile.modules={net.*: {fuse: false}}", "compile.modules={net.*: {fuse: false}}"),
        ("compile.recompile_limit=2", "compile.recompile_limit=2"),
        ("--multirun", "--multirun"),
    ],
)
def test_command_lines_name_modules_by_globs_without_quotes(typed, read, monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", typed])
    read_arguments()
    assert sys.argv == ["train.py", read]
    if not read.startswith("-"):
        OverridesParser.create().parse_override(read)


def test_later_globs_win_key_by_key_over_the_base():
    settings = CompileSettings.of(
        {"recompile_limit": 3, "modules": {"net.blocks.*": {"mode": "max-autotune", "fullgraph": True}, "net.blocks.1": {"mode": "reduce-overhead"}}}
    )
    found = {target.name: target.options for target in resolve(settings, net())}
    assert found["net.blocks.0"] == CompileConfig(recompile_limit=3, mode="max-autotune", fullgraph=True)
    assert found["net.blocks.1"] == CompileConfig(recompile_limit=3, mode="reduce-overhead", fullgraph=True)


def test_null_for_a_glob_means_no_difference():
    assert names({"net": None}) == ["net"]


def test_an_unmatched_glob_names_the_nearest_globs():
    with pytest.raises(ConfigError, match=r"no module matches 'net.blcks.\*': did you mean 'net.blocks.\*'"):
        names({"net.blcks.*": {}})
    with pytest.raises(ConfigError, match="no module matches 'trainin_step': did you mean 'training_step'"):
        names({"trainin_step": {}})


def test_the_root_has_the_name_of_its_class_unless_a_module_in_it_has():
    assert names({"Module": {}}) == names({"": {}}) == ["Module"]
    root = nn.Module()
    root.Module = nn.Linear(1, 1)
    (target,) = resolve(CompileSettings.of({"modules": ["Module"]}), root)
    assert target.module is root.Module


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recompile_limt": 3}, "unknown key compile.recompile_limt: did you mean 'recompile_limit'"),
        (
            {"modules": {"net": {"isolate_recompile": True}}},
            r"compile.modules\['net'\]: unknown compile option 'isolate_recompile': did you mean 'isolate_recompiles'",
        ),
        ({"modules": {"net": {"mode": "max-autotun"}}}, r"compile.modules\['net'\]: unknown mode 'max-autotun': did you mean 'max-autotune'"),
        ({"modules": {"net": 4}}, r"compile.modules\['net'\] must map options to values"),
        ({"modules": [1]}, "compile.modules must map globs to options"),
        ({"mode": "fast"}, "unknown mode 'fast'"),
        ({"measure_steps": -1}, "compile.measure_steps must be an int >= 0"),
    ],
)
def test_wrong_settings_are_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        CompileSettings.of(values)


@pytest.mark.parametrize("config", [CompileConfig(), CompileConfig(mode="max-autotune", isolate_recompiles="class", fuse=False, threads=2, fallback="none")])
def test_call_arguments_mean_the_config(config):
    arguments = call_arguments(config)
    options = arguments.pop("options", {})
    assert CompileConfig.of({**arguments, **options}) == config
    assert not set(options) & {"mode", "backend", "isolate_recompiles"}


def test_command_line_keys_are_checked_before_hydra_sees_them():
    check_compile_overrides(
        [
            "-m",
            "compile=none,default",
            "compile.mode=default",
            "compile.modules={net.blocks.*: {recompile_limit: 4}}",
            "trainer.max_steps=3",
            "+compile.fuse=true",
        ]
    )
    with pytest.raises(SystemExit, match="unknown key compile.recompile_limt: did you mean 'recompile_limit'"):
        check_compile_overrides(["compile.recompile_limt=3"])


@pytest.mark.parametrize("argument", ["compile=null", "compile="])
def test_no_config_of_the_group_is_an_error_that_says_what_there_is(argument):
    with pytest.raises(SystemExit, match="compile=none compiles nothing"):
        check_compile_overrides([argument])


def test_steps_that_a_run_does_not_have_are_an_error():
    settings = CompileSettings.of({"modules": {"optimizer_step.2": {"fuse": False}}})
    with pytest.raises(ConfigError, match="a fit with 2 optimizers has no 'optimizer_step.2'"):
        settings.check_steps(("optimizer_step", "optimizer_step.0", "optimizer_step.1"), "a fit with 2 optimizers")


@pytest.mark.parametrize(("target", "package"), [("nosuch.Settings", "nosuch"), ("os.nosuch", ""), ("os.path.nosuch.Made", "")])
def test_a_package_that_a_config_needs_and_that_is_not_installed_is_named(target, package):
    with pytest.raises(InstantiationException) as raised:
        instantiate({"logger": {"mine": {"_target_": target}}})
    assert missing_package(raised.value) == package
