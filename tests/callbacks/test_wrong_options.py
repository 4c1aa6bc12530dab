"""Every option of compile() and of the callback, misspelt, of a wrong type, and out of range: an error that names it, what was given, and the nearest name."""

from __future__ import annotations

import inspect
import warnings

import pytest
import torch

import dynacompile
from dynacompile.callbacks import DynamoCallback
from dynacompile.callbacks.settings import CompileSettings
from dynacompile.config import KEYWORDS, LARGEST, CompileConfig
from dynacompile.errors import ConfigError

NO_BOOL = ("three", "true", 1, 0, 0.5, [], {}, object())
NO_INT = ("three", "3", 0.5, float("nan"), [], {"a": 1}, True, object())
NO_FLOAT = ("three", "0.5", [], {"a": 1}, True, object())
NO_STR = (3, 0.5, ["x"], {"a": 1}, True, b"x", object())
NO_MODE = (*NO_STR, "fast", "max-autotun", "")
NO_LIST = ("lr", 3, 0.5, True, {"a": 1}, [3], object())
NO_NAMES = (3, 0.5, True, [3], [None], {3: {}}, {"net": 3}, {"net": ["fuse"]}, {"net": {"fusee": True}}, object())
NO_SHAPES = ("batch", 3, 0.5, ["batch"], {}, {0: {0: None}}, {"x": {}}, {"x": 3}, {"x": {"a": None}}, {"x": {-1: None}}, {"x": {0: 3}}, {"x": {0: {"mn": 1}}})
NO_RANGES = ({"x": {0: {"min": -1}}}, {"x": {0: {"min": 4, "max": 3}}}, {"x": {0: {"max": "4"}}}, {"x": {True: None}}, object())
NO_CHOICE = ("", "clas", "nne", "eagr", 1, 0, 0.5, [], {}, object())
LIMITS = (*NO_INT, 0, -1, LARGEST + 1)
SIZES = (*NO_INT, -1, LARGEST + 1)
SIZES_OR_ALL = (*NO_INT, -2, LARGEST + 1)

WRONG: dict[str, tuple[object, ...]] = {
    "modules": NO_NAMES,
    "measure_after": SIZES,
    "measure_steps": SIZES,
    "auto": (*NO_FLOAT, -1.0, float("nan")),
    "log_prefix": NO_STR,
    "backend": (3, 0.5, [], {}, True, "inducter", ""),
    "mode": NO_MODE,
    "dynamic": (*NO_SHAPES, *NO_RANGES),
    "isolate_recompiles": NO_CHOICE,
    "recompile_limit": LIMITS,
    "accumulated_recompile_limit": LIMITS,
    "fallback": NO_CHOICE,
    "max_entries": SIZES,
    "max_bytes": SIZES,
    "varying": NO_LIST,
    "trace_limit": SIZES,
    "rng": NO_CHOICE,
    "reports": NO_CHOICE,
    "memory_budget": (*NO_FLOAT, -0.1, 1.1, float("nan"), float("inf")),
    "logits_bytes": SIZES_OR_ALL,
    "gradient_bytes": SIZES,
    "collective_bytes": SIZES,
    "flight_bytes": SIZES,
    "attention_scores": SIZES_OR_ALL,
    "cpp_flags": NO_STR,
    "threads": SIZES,
    "workers": SIZES,
}
"""What each option that is no bool refuses."""


def wrong_values(name: str) -> tuple[object, ...]:
    known = {**{f.name: f for f in CompileSettings.__dataclass_fields__.values()}, **{f.name: f for f in CompileConfig.__dataclass_fields__.values()}}
    return NO_BOOL if str(known[name].type).startswith("bool") and name not in WRONG else WRONG[name]


def ways(name: str, value: object):
    """Each way in which a user may give an option: to the callback, for one step, to compile(), and for one key of its dispatch."""
    yield lambda: DynamoCallback(**{name: value})
    yield lambda: DynamoCallback({"measure_steps": 1, name: value})
    if name in CompileConfig.names():
        yield lambda: DynamoCallback(modules={"training_step": {name: value}})
        yield lambda: DynamoCallback(dispatch={"training_step": {"by": len, "options": {"*": {name: value}}}})
        yield lambda: dynacompile.compile(len, **({name: value} if name in KEYWORDS else {"options": {name: value}}))
        yield lambda: dynacompile.compile(torch.sin, dispatch=len, dispatch_options={"*": {name: value}})


def nothing(*arguments: object) -> None: ...


@pytest.mark.parametrize("name", CompileSettings.names())
def test_each_option_refuses_what_it_can_not_be(name):
    for value in wrong_values(name):
        for number, given in enumerate(ways(name, value)):
            with pytest.raises(ConfigError) as raised:
                given()
            told = str(raised.value)
            assert name in told and (repr(value) in told or type(value).__name__ in told or isinstance(value, (dict, list))), (number, value, told)


@pytest.mark.parametrize("name", CompileSettings.names())
def test_each_name_misspelt_is_an_error_with_the_right_one(name):
    for wrong in {name[:-1], name[:2] + name[3:], name + "s", name.replace("_", "-") if "_" in name else name + "_"} - {*CompileSettings.names()}:
        ways = [lambda wrong=wrong: DynamoCallback(**{wrong: True}), lambda wrong=wrong: DynamoCallback({wrong: True, "measure_steps": 1})]
        if name in CompileConfig.names():
            ways += [
                lambda wrong=wrong: DynamoCallback(modules={"training_step": {wrong: True}}),
                lambda wrong=wrong: DynamoCallback(dispatch={"training_step": {"by": len, "options": {"*": {wrong: True}}}}),
                lambda wrong=wrong: dynacompile.compile(nothing, options={wrong: True}),
                lambda wrong=wrong: dynacompile.compile(nothing, **{wrong: True}),
            ]
        for given in ways:
            with pytest.raises(ConfigError, match="did you mean") as raised:
                given()
            assert repr(name) in str(raised.value) and wrong in str(raised.value)


def test_each_parameter_of_compile_misspelt_is_an_error_with_the_right_one():
    for name, parameter in inspect.signature(dynacompile.compile).parameters.items():
        if parameter.kind == parameter.KEYWORD_ONLY:
            with pytest.raises(ConfigError, match=f"no parameter '{name}_': did you mean .*'{name}'"):
                dynacompile.compile(nothing, **{f"{name}_": None})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"options": 3}, "options must be a mapping of options to values, not 3"),
        ({"options": ["fuse"]}, "options must be a mapping"),
        ({"inplace": "yes"}, "inplace must be a bool, not 'yes'"),
        ({"name": 3}, "name must be a str, not 3"),
        ({"dispatch": 3}, "dispatch must be a callable"),
        ({"dispatch_options": [3]}, "dispatch_options must be a mapping"),
        ({"dispatch": len, "dispatch_options": {"a": 3}}, r"dispatch_options\['a'\] must map options to values, not 3"),
        ({"dispatch_options": {"a": {}}}, "dispatch_options are for the keys of dispatch="),
        ({"memory_budget": 0.5}, r"'memory_budget' is no parameter of compile\(\), but an option: options=\{'memory_budget': 0.5\}"),
        ({"disable": True}, "no parameter 'disable', as torch.compile has"),
    ],
)
def test_parameters_of_compile_that_are_no_options(given, said):
    with pytest.raises(ConfigError, match=said):
        dynacompile.compile(nothing, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"dispatch": 3}, "dispatch must map names of steps or modules"),
        ({"dispatch": {"training_step": 3}}, r"dispatch\['training_step'\] must be \{by"),
        ({"dispatch": {"training_step": {"by": len, "optons": {}}}}, "unknown key 'optons': did you mean 'options'"),
        (
            {"modules": {"training_step": {"measure_steps": 1}}},
            r"modules\['training_step'\]: 'measure_steps' is no option of single modules: set compile\.measure_steps",
        ),
        ({"modules": {"training_step": {"enabled": False}}}, "'enabled' is no option of single modules"),
    ],
)
def test_settings_of_the_callback_that_are_no_options(given, said):
    with pytest.raises(ConfigError, match=said):
        DynamoCallback(**given)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.rates = 2.0, {"lr": 0.5}

    def forward(self, x, steps, unread=3):
        return x * self.scale + self.rates["lr"] + steps


class Around(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.offset = Scaled(), 3

    def forward(self, x, count, far=False):
        return self.inner(x, count) + (self.offset if far else 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "") for name in ("scale", "inner.scale", "self.inner.scale", "lr", "rates['lr']", "count", "far", "offset", "self.offset")),
        ("self.inner.scal", "'self.inner.scal', and no number that the call reads is called so: did you mean 'self.inner.scale'"),
        ("coutn", "did you mean 'count'"),
        ("nothing_like_it", "valid names: count, lr, scale"),
    ],
)
def test_a_number_that_varying_names_and_the_program_does_not_have_is_a_warning(name, said):
    compiled = dynacompile.compile(Around(), options={"varying": [name]})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for count in (3, 4, 5):
            compiled(torch.ones(2), count)
    told = [str(warning.message) for warning in seen if "varying names" in str(warning.message)]
    assert len(told) == bool(said) and all(said in text for text in told), told
