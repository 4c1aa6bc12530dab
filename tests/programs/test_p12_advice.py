"""What a recompile suggests is true: applied as it stands, that recompile does not happen; and what is called expected happens under other settings, too."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import nn

import dynacompile
from dynacompile.callbacks.settings import CompileSettings, call_arguments
from dynacompile.errors import RecompileLimitError
from dynacompile.events import LimitHit, Recompiled
from dynacompile.guards.kinds import KINDS
from dynacompile.recompiles import EXPECTED

OWN = {"backend": "eager", "isolate_recompiles": True, "options": {"fallback": "none", "verify": True}}


@pytest.fixture(autouse=True)
def fresh():
    dynacompile.reset()


def merged(given: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**given, **more, "options": {**given.get("options", {}), **more.get("options", {})}}


def told_by(run: Callable[..., Any], calls: list[tuple], kind: type = Recompiled) -> list[Any]:
    """The events of one kind while `run` takes each of the calls."""
    seen: list[Any] = []
    end = dynacompile.subscribe(seen.append)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for call in calls:
                run(*call)
    finally:
        end()
    return [event for event in seen if isinstance(event, kind)]


def applied(override: str) -> dict[str, Any]:
    """The arguments of compile() that an override for a function gives, as a user pastes it."""
    return eval(f"dict({override})", {})


def of_config(override: str, name: str) -> dict[str, Any]:
    """The arguments of compile() for the module `name` that a line of config gives."""
    parsed = OverridesParser.create().parse_override(override)
    assert parsed.key_or_group == "compile.modules"
    settings = CompileSettings.of({"modules": parsed.value()})
    assert list(settings.overrides) == [name]
    return call_arguments(settings.options(name))


@dataclass
class Case:
    """fn is called with each of `calls`, the second of which needs another entry. advice: a part of what is said of that. options: of the compile."""

    fn: Callable[..., Any]
    calls: list[tuple]
    advice: str
    options: dict[str, Any] = field(default_factory=dict)


def rows(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


ONE = torch.randn(4)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", rows(4, 3))
        self.scale = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.table.sum()


PREVENTED = {
    "size": Case(lambda x: x * 2, [(rows(4, 3),), (rows(5, 3),)], "dynamic={'x': {0: {}}}"),
    "two-sizes": Case(lambda x, y: x @ y, [(rows(4, 3), rows(3, 6)), (rows(5, 7), rows(7, 6))], "dynamic={'x': {0: {}, 1: {}}, 'y': {0: {}}}"),
    "equal-sizes": Case(lambda x, y: x + y, [(rows(4, 3), rows(4, 3)), (rows(5, 3), rows(5, 3))], "dynamic={'x': {0: {}}, 'y': {0: {}}}"),
    "size-of-an-item": Case(lambda batch: batch[0] + batch[1], [((rows(4), rows(4)),), ((rows(3), rows(3)),)], "{'batch.0': {0: {}}, 'batch.1': {0: {}}}"),
    "size-by-a-key": Case(lambda batch: batch["x"] + 1, [({"x": rows(4)},), ({"x": rows(3)},)], "dynamic={'batch.x': {0: {}}}"),
    "size-by-a-key-that-is-no-name": Case(lambda batch: batch["my x"] + 1, [({"my x": rows(4)},), ({"my x": rows(3)},)], "dynamic=True"),
    "size-of-varargs": Case(lambda *xs: xs[1] * 2, [(rows(2), rows(4)), (rows(2), rows(3))], "dynamic={'xs.1': {0: {}}}"),
    "transposed": Case(lambda x: x.t() * 2, [(rows(4, 3).t(),), (rows(5, 3).t(),)], "dynamic={'x': {1: {}}}"),
    "beside-a-named-dimension": Case(lambda x: x * 2, [(rows(4, 3),), (rows(4, 5),)], "{'x': {0: {'min': 2}, 1: {}}}", {"dynamic": {"x": {0: {"min": 2}}}}),
    "int": Case(lambda x, k: x + k, [(rows(2), 2), (rows(2), 3)], "options={'varying': ('k',)}"),
    "float": Case(lambda x, k: x + k, [(rows(2), 2.5), (rows(2), 3.5)], "options={'varying': ('k',)}"),
    "size-and-int": Case(lambda x, k: x + k, [(rows(2), 2), (rows(3), 3)], "dynamic={'x': {0: {}}}, options={'varying': ('k',)}"),
    "int-zero": Case(lambda x, k: x + k, [(rows(4), 0), (rows(4), 3)], "'varying': ('k',)"),
    "int-of-an-item": Case(lambda x, k: x + k[0], [(rows(4), [2]), (rows(4), [3])], "'varying': ('k[0]',)"),
    "int-by-a-key": Case(lambda x, k: x + k["n"], [(rows(4), {"n": 2}), (rows(4), {"n": 3})], "k['n']"),
    "another-int": Case(lambda x, k, n: x + k * n, [(rows(4), 2, 3), (rows(4), 2, 5)], "'varying': ('k', 'n')", {"options": {"varying": ["k"]}}),
    "int-by-an-attribute": Case(lambda x, o: x + o.n, [(rows(4), SimpleNamespace(n=2)), (rows(4), SimpleNamespace(n=3))], "'varying': ('o.n',)"),
    "branch-that-both-take": Case(lambda x: x + 1 if x.size(0) < 10 else x - 1, [(rows(4),), (rows(5),)], "dynamic={'x': {0: {}}}"),
}


@pytest.mark.parametrize("name", PREVENTED)
def test_what_is_suggested_prevents_it(name):
    case = PREVENTED[name]
    given = merged(OWN, case.options)
    (again,) = told_by(dynacompile.compile(case.fn, **given), case.calls)
    assert case.advice in again.override and not again.expected
    helped = dynacompile.compile(case.fn, **merged(given, applied(again.override)))
    assert told_by(helped, case.calls) == []
    for call in case.calls:
        torch.testing.assert_close(helped(*call), case.fn(*call))


def of_a_flag(x: torch.Tensor, flag: object) -> torch.Tensor:
    return x + 1 if flag else x - 1


def of_a_name(x: torch.Tensor, name: str) -> torch.Tensor:
    return x + len(name)


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + y


class Attributed:
    pass


def attributed(**names: Any) -> Attributed:
    made = Attributed()
    made.__dict__.update(names)
    return made


def in_order(found, x):
    for n in found:
        x = x * n + 1
    return x


EXPECTED_CASES = {
    "order-of-a-set": Case(in_order, [({8, 16}, rows(3)), ({16, 8}, rows(3))], "another order of a set"),
    "dtype": Case(lambda x: x + 1, [(rows(3),), (rows(3).double(),)], "each dtype has an entry of its own"),
    "requires-grad": Case(lambda x: x + 1, [(rows(3),), (rows(3).requires_grad_(),)], "a tensor that requires gradients and one that does not"),
    "dimensions": Case(lambda x: x + 1, [(rows(3),), (rows(3, 3),)], "each number of dimensions"),
    "kind-of-tensor": Case(lambda x: x + 1, [(rows(3),), (nn.Parameter(rows(3)),)], "each kind of tensor"),
    "layout": Case(lambda x: x + 1, [(rows(4, 4),), (rows(4, 4).t(),)], "something else for these sizes and numbers"),
    "size-and-layout": Case(lambda x: x + 1, [(rows(4, 6),), (rows(6, 5).t(),)], "something else for these sizes and numbers"),
    "size-and-dtype": Case(lambda x: x + 1, [(rows(4),), (rows(5).double(),)], "each dtype"),
    "size-one": Case(lambda x: x + 1, [(rows(4, 3),), (rows(1, 3),)], "sizes 0 and 1 have entries of their own; under specialize_zero_one=False"),
    "size-zero": Case(lambda x: x + 1, [(rows(4, 3),), (rows(0, 3),)], "sizes 0 and 1 have entries of their own"),
    "size-that-is-a-constant": Case(lambda x: x + [1, 2, 3, 4, 5, 6][x.size(0)], [(rows(4),), (rows(5),)], "needs them as constants"),
    "branch": Case(lambda x: x + 1 if x.size(0) < 5 else x - 1, [(rows(4),), (rows(7),)], "the program does something else for these sizes"),
    "branch-of-symbols": Case(lambda x: x + 1 if x.size(0) < 5 else x - 1, [(rows(4),), (rows(7),)], "something else", {"dynamic": True}),
    "size-under-dynamic-false": Case(lambda x: x + 1, [(rows(4),), (rows(7),)], "dynamic=False: each size", {"dynamic": False}),
    "int-under-dynamic-false": Case(lambda x, k: x + k, [(rows(4), 2), (rows(4), 3)], "dynamic=False: each number", {"dynamic": False}),
    "specialized-int": Case(lambda x, k: x + k, [(ONE, 2), (ONE, 3)], "specialize_int=True: each value", {"options": {"specialize_int": True}}),
    "specialized-float": Case(lambda x, k: x + k, [(ONE, 2.5), (ONE, 3.5)], "specialize_float=True", {"options": {"specialize_float": True}}),
    "float-for-inductor": Case(lambda x, k: x + k, [(ONE, 2.5), (ONE, 3.5)], "backend=inductor: each float", {"backend": "inductor"}),
    "int-by-a-key-that-is-no-name": Case(lambda x, k: x + k["my n"], [(ONE, {"my n": 2}), (ONE, {"my n": 3})], "is a constant at first"),
    "branch-on-an-int": Case(lambda x, k: x + 1 if k > 5 else x, [(rows(4), 2), (rows(4), 9)], "the program does something else"),
    "flag": Case(of_a_flag, [(ONE, True), (ONE, False)], "each value has an entry of its own"),
    "string": Case(of_a_name, [(ONE, "abc"), (ONE, "de")], "an entry of its own"),
    "none": Case(of_a_flag, [(ONE, None), (ONE, 3.0)], "None and other values have an entry each"),
    "type": Case(of_a_flag, [(ONE, [1]), (ONE, {})], "an entry of its own"),
    "length": Case(lambda xs: sum(xs), [([ONE, ONE * 2],), ([ONE, ONE * 2, ONE * 3],)], "each length"),
    "keys": Case(lambda d: sum(d.values()), [({"a": ONE},), ({"b": ONE},)], "other keys are another program"),
    "key": Case(lambda d: d["a"] if "a" in d else d["b"], [({"a": ONE, "c": ONE},), ({"b": ONE, "c": ONE},)], "other keys are another program"),
    "attribute": Case(lambda x, o: x + hasattr(o, "a"), [(ONE, attributed(a=1)), (ONE, attributed(b=1))], "comes or goes"),
    "object": Case(lambda x, f: f(x), [(ONE, torch.relu), (ONE, torch.tanh)], "each object has an entry of its own"),
    "same-object": Case(lambda x, y: x + y, [(ONE, ONE.clone()), (ONE, ONE)], "arguments that are one object"),
    "shared-memory": Case(writes, [(rows(4), rows(4)), ((m := rows(6))[:4], m[2:])], ""),
    "elements": Case(lambda x, s: x + (3 in s), [(ONE, {1, 3}), (ONE, {1, 2})], "an"),
}


@pytest.mark.parametrize("name", EXPECTED_CASES)
def test_what_is_expected_happens_under_other_settings_too(name):
    case = EXPECTED_CASES[name]
    given = merged(OWN, case.options)
    first = told_by(dynacompile.compile(case.fn, **given), case.calls)
    if name == "shared-memory" and not first:
        return  # such a call is left to Python
    (again,) = first
    assert case.advice in again.expected and not again.override
    if "=False: " not in again.expected and "=True: " not in again.expected:  # the user's own choice
        assert told_by(dynacompile.compile(case.fn, **merged(given, {"dynamic": True})), case.calls)


@pytest.mark.parametrize("change", ["grad mode", "autocast", "default dtype", "training", "size of a buffer"])
def test_what_is_expected_of_settings_and_modules(change):
    net = nn.Sequential(nn.Dropout(0.5), Scaled())
    run = dynacompile.compile(net, inplace=True, name="net", **OWN)
    x = rows(4, 3)

    def calls():
        run(x)
        with contextlib.ExitStack() as stack:
            match change:
                case "grad mode":
                    stack.enter_context(torch.no_grad())
                case "autocast":
                    stack.enter_context(torch.autocast("cpu"))
                case "default dtype":
                    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
                    torch.set_default_dtype(torch.float64)
                case "training":
                    net.eval()
                case "size of a buffer":
                    net[1].table = rows(5, 3)
            run(x)

    (again,) = told_by(calls, [()])
    wanted = {"training": "training and evaluation", "size of a buffer": "sizes of parameters and buffers"}
    assert wanted.get(change, "each grad mode, autocast and other setting of torch") in again.expected and not again.override


def test_a_number_of_a_module_that_changes_beside_a_size_is_told_as_that():
    class Tempered(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 1.5

        def forward(self, x):
            return x * self.temperature

    def calls(run):
        net.temperature = 1.5
        run(rows(3, 2))
        net.temperature = 2.5
        run(rows(5, 2))

    net = Tempered()
    (again,) = told_by(functools.partial(calls, dynacompile.compile(net, **OWN)), [()])
    assert again.expected == "self.temperature, a number of a module, stays a constant where a size changes in the same call: `varying` names a symbol"
    named = {"dynamic": {"x": {0: {}}}, "options": {"varying": ("self.temperature",)}}
    assert told_by(functools.partial(calls, dynacompile.compile(net, **merged(OWN, named))), [()]) == []


def test_every_kind_of_guard_is_explained():
    assert set(EXPECTED) == set(KINDS) - {"TENSOR_MATCH", "SHAPE"}


# the form


def test_a_module_of_a_config_is_told_its_line():
    class Net(nn.Module):
        def forward(self, batch):
            return batch["x"] * 2

    calls = [({"x": rows(4)},), ({"x": rows(3)},)]
    (again,) = told_by(dynacompile.compile(Net(), inplace=True, name="net.blocks.0", **OWN), calls)
    assert again.override == "compile.modules={net.blocks.0: {dynamic: {batch.x: {0: {}}}}}"
    helped = dynacompile.compile(Net(), inplace=True, name="net.blocks.0", **merged(OWN, of_config(again.override, "net.blocks.0")))
    assert told_by(helped, calls) == []


def test_a_number_of_a_module_of_a_config_is_told_its_line():
    def calls(**options):
        net = Scaled()
        run = dynacompile.compile(net, inplace=True, name="net", **merged(OWN, options))
        run(ONE)
        net.scale = 3
        run(ONE)

    (again,) = told_by(calls, [()])
    assert again.override == "compile.modules={net: {varying: [self.scale]}}"
    assert told_by(lambda: calls(**of_config(again.override, "net")), [()]) == []


def test_a_module_that_no_config_names_is_told_a_keyword():
    net = nn.Sequential(nn.Flatten(0))
    for run in (dynacompile.compile(net, **OWN), dynacompile.compile(net, inplace=True, **OWN)):
        (again,) = told_by(run, [(rows(4),), (rows(3),)])
        assert again.override == "dynamic={'input': {0: {}}}"
        dynacompile.reset()


def test_modules_that_share_a_bucket_are_told_to_have_their_own():
    class Block(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.act = act

        def forward(self, x):
            return x + 1 if self.act == "relu" else x - 1

    def trained(**options):
        blocks = [Block("relu"), Block("tanh")]
        for i, block in enumerate(blocks):
            dynacompile.compile(block, inplace=True, name=f"blocks.{i}", backend="eager", **options)
        return told_by(lambda: [block(ONE) for block in blocks], [()])

    (again,) = trained()
    assert again.region == "blocks.1" and again.override == "compile.modules={blocks.1: {isolate_recompiles: true}}"
    dynacompile.reset()
    assert trained(**of_config(again.override, "blocks.1")) == []


@pytest.mark.parametrize("limit", ["recompile_limit", "accumulated_recompile_limit"])
def test_what_a_limit_suggests_allows_the_call(limit):
    def fn(x, flag):
        return x + len(flag)

    calls = [(ONE, "a" * n) for n in range(1, 4)]
    given = merged(OWN, {limit: 2} if limit == "recompile_limit" else {"options": {limit: 2}})
    (hit,) = told_by(dynacompile.compile(fn, **given), calls, LimitHit)
    dynacompile.reset()
    assert told_by(dynacompile.compile(fn, **merged(given, applied(hit.override))), calls, LimitHit) == []
    dynacompile.reset()
    with pytest.raises(RecompileLimitError, match="To allow more: "):
        told_by(dynacompile.compile(fn, **merged(given, {"options": {"fail_on_recompile_limit_hit": True}})), calls)


def test_a_limit_of_a_module_of_a_config_is_told_its_line():
    class Net(nn.Module):
        def forward(self, x, name):
            return x + len(name)

    calls = [(ONE, "a" * n) for n in range(1, 4)]
    (hit,) = told_by(dynacompile.compile(Net(), inplace=True, name="net", **merged(OWN, {"recompile_limit": 2})), calls, LimitHit)
    assert hit.override == "compile.modules={net: {recompile_limit: 4}}"
    helped = dynacompile.compile(Net(), inplace=True, name="net", **merged(OWN, of_config(hit.override, "net")))
    assert told_by(helped, calls, LimitHit) == []


def test_a_key_of_a_dispatch_is_told_its_entry():
    calls = [(rows(4),), (rows(3),)]
    by_key = {"dispatch": lambda x: "a"}
    (again,) = told_by(dynacompile.compile(lambda x: x + 1, **OWN, **by_key), calls)
    assert again.override == "dispatch_options={'a': {'dynamic': {'x': {0: {}}}}}"
    assert told_by(dynacompile.compile(lambda x: x + 1, **OWN, **by_key, **applied(again.override)), calls) == []


def test_strides_that_follow_from_sizes_are_not_told():
    (again,) = told_by(dynacompile.compile(lambda x: x * 2, **OWN), [(torch.ones(4, 3),), (torch.ones(4, 5),)])
    assert again.failed == ("x.size(1): 3 -> 5",)
    (again,) = told_by(dynacompile.compile(lambda x: x * 3, **OWN), [(torch.ones(4, 4),), (torch.ones(4, 4).t(),)])
    assert all(".stride(" in text for text in again.failed)


def test_values_without_names_are_told_in_words():
    def fn(x, y):
        return (x * 2) + len(str(dynacompile.graph_break())) * y

    events = told_by(dynacompile.compile(fn, **OWN), [(rows(4), rows(4)), (rows(3), rows(3))])
    failed = [text for event in events for text in event.failed if "resume" in event.frame]
    assert "<value 0 at the break>.size(0): 4 -> 3" in failed and not [text for text in failed if ".s0" in text]


def test_a_limit_is_told_at_the_line_of_the_function():
    def fn(x, flag):
        return x + len(flag)

    compiled = dynacompile.compile(fn, **merged(OWN, {"recompile_limit": 1}))
    compiled(ONE, "a")
    with pytest.warns(RuntimeWarning, match="reached recompile_limit=1") as told:
        compiled(ONE, "bb")
    assert [(warned.filename, warned.lineno) for warned in told] == [(fn.__code__.co_filename, fn.__code__.co_firstlineno)]
