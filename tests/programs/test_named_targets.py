"""What compile() takes: every callable is compiled, or an event and one warning say why not; under fullgraph that is an error."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from types import FunctionType

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.errors import Unsupported
from dynacompile.events import Compiled, FrameSkipped


def shifted(x, y=1):
    return x.sin() + y


def generator(x):
    yield x + 1


async def coroutine(x):
    return x + 1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x).relu()


@pytest.mark.parametrize(
    "target",
    [
        torch.abs,
        torch.ops.aten.sin,
        torch.Tensor.cos,
        functools.partial(torch.add, torch.ones(3)),
        functools.partial(shifted, y=2),
        torch.ones(3).__mul__,
        torch.no_grad()(shifted),
        nn.functional.gelu,
    ],
    ids=["builtin", "operator", "method-descriptor", "partial-of-builtin", "partial", "method-wrapper", "no-grad", "torch-function"],
)
def test_callables_without_python_code_are_compiled(target):
    x = torch.linspace(-1, 1, 3)
    compiled = dynacompile.compile(target, backend="eager", fullgraph=True, isolate_recompiles=True)
    torch.testing.assert_close(compiled(x), target(x))
    assert len(dynacompile.cache_entries(compiled)) == 1
    assert len(dynacompile.cache_entries(dynacompile.compile(target, backend="eager", isolate_recompiles=True))) == 0


def test_a_cached_function_runs_as_python_and_counts_each_call():
    """Its cache looks a tensor up by identity, which no guard does."""
    target, x = functools.lru_cache(shifted), torch.ones(3)
    with pytest.raises(Unsupported, match="a cached function"):
        dynacompile.compile(target, backend="eager", fullgraph=True, isolate_recompiles=True)(x)
    with pytest.warns(RuntimeWarning, match="compiled in name only"):
        compiled = dynacompile.compile(target, backend="eager", isolate_recompiles=True)
        first = compiled(x)
    assert compiled(x) is first and target.cache_info()[:2] == (1, 1)
    torch.testing.assert_close(first, shifted(x))


@contextlib.contextmanager
def managed():
    yield


def breaks_twice(x):
    x = x.sin()
    dynacompile.graph_break()
    x = x.cos()
    dynacompile.graph_break()
    return x * 2


@pytest.mark.parametrize(
    "wraps",
    [torch.no_grad(), torch.enable_grad(), managed(), functools.singledispatch],
    ids=["no-grad", "enable-grad", "manager", "dispatch"],
)
@pytest.mark.parametrize("times", [1, 2])
def test_wrappers_of_libraries_add_no_break(wraps, times):
    target = breaks_twice
    for _ in range(times):
        target = wraps(target)
    x, events = torch.linspace(-1, 1, 3), []
    end = dynacompile.subscribe(events.append)
    result = dynacompile.compile(target, backend="eager", isolate_recompiles=True)(x)
    end()
    torch.testing.assert_close(result, breaks_twice(x))
    assert len([e for e in events if isinstance(e, Compiled)]) == 3


@pytest.mark.parametrize(
    "target",
    [
        generator,
        coroutine,
        dynacompile.disable(shifted),
        torch.jit.trace(shifted, (torch.ones(3),)),
    ],
    ids=["generator", "coroutine", "disabled", "traced"],
)
def test_what_runs_as_python_is_said_once(target):
    if isinstance(type(target).__call__, FunctionType) and not isinstance(target, FunctionType):
        pytest.skip("helpers of torch's own tests, which this process has loaded, call such objects by a Python function")
    events = []
    end = dynacompile.subscribe(events.append)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled = dynacompile.compile(target, backend="eager")
        for _ in range(3):
            result = compiled(torch.ones(3))
            if hasattr(result, "close"):
                result.close()
    end()
    assert len([w for w in told if "compiled in name only" in str(w.message)]) == 1, (told, events)
    assert any(isinstance(e, (FrameSkipped, Compiled)) for e in events)
    with pytest.raises(Unsupported):
        dynacompile.compile(target, backend="eager", fullgraph=True)(torch.ones(3))


def fn_refused_if_asked(x, asked=True):
    return x + len(sys._getframe().f_locals) if asked else x + 1


def test_each_compile_of_what_was_refused_before_says_so():
    """The refusal of one compile is no answer for another, whose options, or calls, may be captured."""
    x, events = torch.ones(3), []
    end = dynacompile.subscribe(events.append)
    for _ in range(3):
        events.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            compiled = dynacompile.compile(fn_refused_if_asked, backend="eager")
            for _ in range(4):
                torch.testing.assert_close(compiled(x), fn_refused_if_asked(x))
        texts = [str(w.message) for w in told if "compiled in name only" in str(w.message)]
        assert len(texts) == 1 and "refused it before" not in texts[0]
        assert len([e for e in events if isinstance(e, FrameSkipped)]) == 1
    end()
    for _ in range(2):
        strict = dynacompile.compile(fn_refused_if_asked, backend="eager", fullgraph=True, isolate_recompiles=True)
        torch.testing.assert_close(strict(x, False), x + 1)
        assert len(dynacompile.cache_entries(strict)) == 1
        for _ in range(2):
            with pytest.raises(Unsupported):
                strict(x)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_steps_of_optimizers_are_compiled(kind, backend):
    torch.manual_seed(0)
    plain = nn.Linear(3, 1)
    module = copy.deepcopy(plain)
    optimizers = kind(plain.parameters(), lr=0.1), kind(module.parameters(), lr=0.1)
    step = dynacompile.compile(optimizers[1].step, backend=backend, fullgraph=True, isolate_recompiles=True)
    zero = dynacompile.compile(optimizers[1].zero_grad, backend=backend, fullgraph=True, isolate_recompiles=True)
    for _ in range(3):
        optimizers[0].zero_grad()
        zero()
        assert all(p.grad is None for p in module.parameters())
        for net in (plain, module):
            net(torch.ones(2, 3)).sum().backward()
        optimizers[0].step()
        step()
    for a, b in zip(plain.parameters(), module.parameters()):
        torch.testing.assert_close(a, b)
    assert dynacompile.cache_entries(step) and dynacompile.cache_entries(zero)


def test_a_target_in_a_folder_that_is_left_to_python_is_one_for_its_own_region_alone():
    clip = dynacompile.compile(nn.utils.clip_grad_norm_, backend="eager", isolate_recompiles=True)
    parameters = [nn.Parameter(torch.ones(3))]
    parameters[0].grad = torch.full((3,), 2.0)
    clip(parameters, 1.0)
    assert dynacompile.cache_entries(clip) and parameters[0].grad.norm() < 1.001

    def other(of):
        dynacompile.graph_break()
        nn.utils.clip_grad_norm_(of, 1.0)
        return of[0].grad + 1

    events = []
    end = dynacompile.subscribe(events.append)
    dynacompile.compile(other, backend="eager", isolate_recompiles=True)(parameters)
    end()
    assert not [e for e in events if isinstance(e, Compiled) and "clip_grad" in e.frame.partition(" ")[0] and "_no_grad_wrapper" in e.frame]


def test_a_class_has_the_calls_of_its_objects_compiled():
    @functools.partial(dynacompile.compile, backend="eager", isolate_recompiles=True)
    class Compiled_(Layer):
        pass

    module, x = Compiled_(), torch.ones(2, 3)
    torch.testing.assert_close(module(x), module.forward(x))
    assert len(dynacompile.cache_entries(Compiled_._call_impl)) == 1


def test_twins_graph_modules_and_modules_without_gradients():
    class Plain(nn.Module):
        @torch.no_grad()
        def forward(self, x):
            return x * 2

    twin = dynacompile.compile(Layer(), backend="eager")
    x = torch.ones(2, 3)
    for module in (twin, torch.fx.symbolic_trace(Layer()), Plain()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled = dynacompile.compile(module, backend="eager", fullgraph=True, isolate_recompiles=True)
            torch.testing.assert_close(compiled(x), module(x))
        assert dynacompile.cache_entries(compiled)
