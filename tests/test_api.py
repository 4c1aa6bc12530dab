"""The public functions, as a user calls them."""

import abc
import copy
import inspect
import io
import marshal
import pickle
import types

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, LimitHit, Recompiled, StageFinished


@pytest.fixture(autouse=True)
def no_entries():
    dynacompile.reset()


def scaled(x, factor=2.0):
    """Scales."""
    return (x * factor).sin()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def x():
    return torch.linspace(-1, 1, 12).reshape(3, 4)


@pytest.mark.parametrize("backend", ["default", "eager", "aot_eager"])
def test_backends_agree_with_eager(backend):
    ours, theirs = net(), net()
    compiled = dynacompile.compile(ours, backend=backend)
    compiled(x()).square().sum().backward()
    theirs(x()).square().sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.further
def test_inductor_backend():
    ours, theirs = net(), net()
    out = dynacompile.compile(ours, backend="inductor")(x())
    torch.testing.assert_close(out, theirs(x()))
    out.sum().backward()
    theirs(x()).sum().backward()
    torch.testing.assert_close(ours[0].weight.grad, theirs[0].weight.grad)


def test_a_callable_as_backend():
    seen = []

    def backend(graph, example_inputs):
        seen.append((graph, example_inputs))
        return graph.forward

    assert torch.equal(dynacompile.compile(scaled, backend=backend)(x()), scaled(x()))
    ((graph, inputs),) = seen
    assert isinstance(graph, torch.fx.GraphModule) and [tuple(i.shape) for i in inputs] == [(3, 4)]


def test_a_backend_that_returns_no_callable():
    def useless(graph, example_inputs):
        return 3

    with pytest.raises(dynacompile.exc.BackendError, match="useless returned int"):
        dynacompile.compile(scaled, backend=useless)(x())


def test_entries_of_another_backend_do_not_serve():
    made = []

    def first(graph, example_inputs):
        made.append("first")
        return graph.forward

    def second(graph, example_inputs):
        made.append("second")
        return graph.forward

    for backend in (first, second, first):
        dynacompile.compile(scaled, backend=backend)(x())
    assert made == ["first", "second"]


def test_list_backends():
    assert dynacompile.list_backends() == ("default", "eager", "aot_eager", "inductor")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"backend": "inducter"}, "did you mean 'inductor'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'"),
        ({"options": {"memory_budge": 0.5}}, "did you mean 'memory_budget'"),
        ({"options": {"mode": "default"}}, "parameter of compile"),
        ({"recompile_limit": 0}, "recompile_limit"),
        ({"isolate_recompiles": "module"}, "isolate_recompiles"),
        ({"options": {"memory_budget": 3.0}}, "memory_budget"),
        ({"inplace": True}, "takes an nn.Module"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(dynacompile.exc.ConfigError, match=said):
        dynacompile.compile(scaled, **options)


def test_what_is_not_called_and_classes_without_calls_in_python_are_refused():
    for thing in (3, int, property(abs), ValueError):
        with pytest.raises(dynacompile.exc.ConfigError, match="takes what can be called|takes a class whose objects"):
            dynacompile.compile(thing)


def test_a_function_keeps_its_face():
    compiled = dynacompile.compile(scaled)
    assert compiled.__name__ == "scaled" and compiled.__doc__ == "Scales." and compiled.__module__ == scaled.__module__
    assert inspect.signature(compiled) == inspect.signature(scaled)
    torch.testing.assert_close(compiled(x(), factor=3.0), scaled(x(), 3.0))
    with pytest.raises(TypeError, match="scaled"):
        compiled()


def sign_of(t):
    return bool(t.sum() > 0)


also_scaled = dynacompile.compile(scaled, backend="eager", options={"precise": True})
compiled_sine = dynacompile.compile(torch.sin, backend="eager")
scaled_by_sign = dynacompile.compile(scaled, backend="eager", dispatch=sign_of)


@pytest.mark.parametrize(
    ("compiled", "eager"), [(also_scaled, scaled), (compiled_sine, torch.sin), (scaled_by_sign, scaled)], ids=["function", "in-c", "dispatch"]
)
def test_what_is_compiled_under_another_name_is_pickled_as_its_function_and_options(compiled, eager):
    loaded = pickle.loads(pickle.dumps(compiled))
    torch.testing.assert_close(loaded(x()), eager(x()))
    assert loaded is not compiled and len(dynacompile.cache_entries(loaded)) == 1
    assert loaded._region_state.owner.config == compiled._region_state.owner.config
    assert copy.copy(compiled) is compiled and copy.deepcopy(compiled) is compiled


def function_of(code, name, cells):
    return types.FunctionType(marshal.loads(code), globals(), name, None, tuple(map(types.CellType, cells)))


class PicklerOfFunctions(pickle.Pickler):
    """Takes functions of functions by their code, as cloudpickle does."""

    def reducer_override(self, given):
        if not isinstance(given, types.FunctionType) or "<locals>" not in given.__qualname__:
            return NotImplemented
        return function_of, (marshal.dumps(given.__code__), given.__name__, [cell.cell_contents for cell in given.__closure__ or ()])


def test_what_is_compiled_inside_of_a_function_is_pickled_as_the_pickler_takes_functions():
    factor = 5

    def times(t):
        return t * factor

    compiled, file = dynacompile.compile(times, backend="eager"), io.BytesIO()
    PicklerOfFunctions(file).dump(compiled)
    loaded = pickle.loads(file.getvalue())
    assert torch.equal(loaded(x()), times(x())) and len(dynacompile.cache_entries(loaded)) == 1
    for refused in (times, compiled):
        with pytest.raises(AttributeError, match="Can't pickle local object"):
            pickle.dumps(refused)


def test_as_a_decorator_with_and_without_options():
    @dynacompile.compile
    def plain(t):
        return t + 1

    @dynacompile.compile(fullgraph=True, recompile_limit=2)
    def with_options(t):
        return t + 2

    assert torch.equal(plain(x()), x() + 1) and torch.equal(with_options(x()), x() + 2)


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    @dynacompile.compile
    def run(self, t):
        return t * self.factor

    @staticmethod
    @dynacompile.compile
    def shift(t):
        return t + 1

    @classmethod
    def make(cls):
        return cls(5.0)


def test_on_methods():
    a, b = Scaler(2.0), Scaler(3.0)
    for _ in range(2):
        assert torch.equal(a.run(x()), x() * 2) and torch.equal(b.run(x()), x() * 3)
    assert torch.equal(Scaler.shift(x()), x() + 1)
    assert torch.equal(dynacompile.compile(a.run)(x()), x() * 2)


def test_a_twin_shares_state_and_leaves_the_original_eager():
    module = net()
    twin = dynacompile.compile(module)
    assert isinstance(twin, nn.Sequential) and type(twin).__name__ == "Sequential"
    assert list(twin.state_dict()) == list(module.state_dict())
    assert all(a is b for a, b in zip(twin.parameters(), module.parameters(), strict=True))
    events = []
    end = dynacompile.subscribe(events.append)
    module(x())
    assert not events
    twin(x())
    end()
    assert any(isinstance(e, Compiled) for e in events)
    module.eval()
    assert not twin.training
    with torch.no_grad():
        module[0].weight.zero_()
    torch.testing.assert_close(twin(x()), module(x()))


def test_copies_and_pickles_of_twins():
    twin = dynacompile.compile(net())
    for copied in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        torch.testing.assert_close(copied(x()), twin(x()))
        assert copied[0].weight is not twin[0].weight


class Factor(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.weight, self.factor = nn.Parameter(torch.ones(3)), factor

    def forward(self, x):
        return x * self.weight * self.factor

    def like(self, factor):
        return type(self)(factor)


def replica(twin):
    made = twin._replicate_for_data_parallel()
    made.weight, made.factor = twin.weight, 5.0
    return made


def bare(twin):
    made = object.__new__(type(twin))
    made.__dict__ = {**twin.__dict__, "factor": 5.0}
    return made


def shallow(twin):
    made = copy.copy(twin)
    made.factor = 5.0
    return made


OTHERS = {
    "class": lambda twin: type(twin)(5.0),
    "method": lambda twin: twin.like(5.0),
    "replica": replica,
    "bare": bare,
    "shallow": shallow,
    "copied": lambda twin: copy.deepcopy(type(twin)(5.0)),
    "copied shallow": lambda twin: copy.copy(type(twin)(5.0)),
    "pickled": lambda twin: pickle.loads(pickle.dumps(type(twin)(5.0))),
    "compiled": lambda twin: dynacompile.compile(type(twin)(5.0), backend="eager"),
    "subclass": lambda twin: type("Other", (type(twin),), {})(5.0),
    "copied subclass": lambda twin: copy.deepcopy(type("Other", (type(twin),), {})(5.0)),
    "copied subclass, shallow": lambda twin: copy.copy(type("Other", (type(twin),), {})(5.0)),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("inside", [False, True])
def test_other_objects_of_a_twins_class_are_themselves(name, inside):
    twin = dynacompile.compile(Factor(2.0), backend="eager")
    t = torch.ones(3)
    twin(t)
    other = OTHERS[name](twin)
    call = dynacompile.compile(lambda m, t: m(t), backend="eager") if inside else lambda m, t: m(t)
    for _ in range(2):
        assert torch.equal(call(other, t), t * 5) and torch.equal(call(twin, t), t * 2)
    assert twin.factor == 2.0
    for _ in range(3):
        other(t)
    events = []
    end = dynacompile.subscribe(events.append)
    other(t)
    end()
    assert not events


@pytest.mark.parametrize("made", [lambda twin: twin, copy.copy, copy.deepcopy, lambda twin: type(twin)(2.0)], ids=["twin", "copy", "deep copy", "class"])
@pytest.mark.parametrize("base", [nn.Module, abc.ABC])
def test_what_is_set_on_the_class_of_a_twin_is_set_on_the_modules(made, base):
    own = type("Own", (Factor, base) if base is abc.ABC else (Factor,), {})
    module = own(2.0)
    twin = dynacompile.compile(module, backend="eager")
    t = torch.ones(3)
    other = made(twin)
    other(t), twin(t)
    type(other).forward = lambda self, x: x + self.count
    type(twin).count = 4
    for each in (other, twin, module):
        assert torch.equal(each(t), t + 4) and each.count == own.count == 4
    del type(other).forward, type(twin).count
    assert torch.equal(other(t), t * 2) and not hasattr(own, "count")
    type("Other", (type(twin),), {}).count = 5
    assert not hasattr(own, "count") and not hasattr(type(twin), "count")


def test_a_twin_whose_class_changes_runs_as_that_class():
    twin = dynacompile.compile(nn.Linear(4, 3), backend="eager")
    twin(x())
    nn.utils.parametrizations.weight_norm(twin)
    with torch.no_grad():
        twin.parametrizations.weight.original0.mul_(2)
    copied = copy.deepcopy(twin)
    with torch.no_grad():
        copied.parametrizations.weight.original0.mul_(2)
    for module in (twin, copied):
        torch.testing.assert_close(module(x()), nn.functional.linear(x(), module.weight, module.bias))
    assert not torch.equal(copied.weight, twin.weight)


@pytest.mark.parametrize("copied", [replica, bare])
@pytest.mark.parametrize("inside", [False, True])
def test_objects_with_the_dict_of_a_module_compiled_in_place_are_themselves(copied, inside):
    """The slot that has the region goes along."""
    module = dynacompile.compile(Factor(2.0), inplace=True, backend="eager")
    t = torch.ones(3)
    module(t)
    other = copied(module)
    call = dynacompile.compile(lambda m, t: m(t) + 0, backend="eager") if inside else lambda m, t: m(t)
    for _ in range(2):
        assert torch.equal(call(other, t), t * 5) and torch.equal(call(module, t), t * 2)
    assert torch.equal(other(x=t), t * 5)
    events = []
    end = dynacompile.subscribe(events.append)
    other(t)
    end()
    assert not events


def test_in_place_and_restored():
    module = net()
    want = module(x())
    assert dynacompile.compile(module, inplace=True) is module
    events = []
    end = dynacompile.subscribe(events.append)
    torch.testing.assert_close(module(x()), want)
    end()
    assert any(isinstance(e, Compiled) for e in events)
    copied = pickle.loads(pickle.dumps(module))
    torch.testing.assert_close(copied(x()), want)
    dynacompile.restore(module)
    assert module._compiled_call_impl is None
    with pytest.raises(dynacompile.exc.ConfigError, match="not compiled in place"):
        dynacompile.restore(module)


def test_reset_compiles_again():
    compiled = dynacompile.compile(scaled)
    compiled(x())
    events = []
    end = dynacompile.subscribe(events.append)
    compiled(x())
    assert not events
    dynacompile.reset()
    compiled(x())
    end()
    assert sum(isinstance(e, Compiled) for e in events) == 1


def test_a_recompile_says_what_changed_and_where():
    compiled = dynacompile.compile(scaled, isolate_recompiles=True)
    compiled(x())
    events = []
    end = dynacompile.subscribe(events.append)
    compiled(torch.ones(5, 4))
    end()
    (again,) = (e for e in events if isinstance(e, Recompiled))
    assert any("x.size(0): 3 -> 5" in f for f in again.failed) and again.entries == 2 and __file__ in again.site


def test_the_limit_is_per_region_and_says_so_once():
    compiled = dynacompile.compile(scaled, isolate_recompiles=True, recompile_limit=2, dynamic=False)
    other = dynacompile.compile(scaled, isolate_recompiles=True)
    events = []
    end = dynacompile.subscribe(events.append)
    with pytest.warns(RuntimeWarning, match="recompile_limit=2") as warned:
        for n in (1, 2, 3, 4, 3, 1):
            torch.testing.assert_close(compiled(torch.ones(n)), scaled(torch.ones(n)))
    assert len(warned) == 1 and sum(isinstance(e, LimitHit) for e in events) == 1
    assert sum(isinstance(e, Compiled) for e in events) == 2
    other(torch.ones(7))
    end()
    assert sum(isinstance(e, Compiled) for e in events) == 3


def test_fullgraph_raises_at_the_limit():
    compiled = dynacompile.compile(scaled, isolate_recompiles=True, recompile_limit=1, fullgraph=True)
    compiled(torch.ones(2))
    with pytest.raises(dynacompile.exc.RecompileLimitError, match="recompile_limit=1"):
        compiled(torch.ones(3))


def test_explain_tells_and_prints():
    told = dynacompile.explain(scaled)(x())
    assert told.graph_count == 1 and told.ops == 2 and told.kernels == 1 and not told.breaks
    torch.testing.assert_close(told.result, scaled(x()))
    text = str(told)
    assert "1 graph, 2 ops, 0 breaks" in text and "seconds by stage" in text
    assert dynacompile.explain(dynacompile.compile(scaled))(x()).graph_count == 1


def test_stages_come_in_order():
    events = []
    end = dynacompile.subscribe(events.append)
    dynacompile.compile(scaled, isolate_recompiles=True)(x())
    end()
    assert [e.stage for e in events if isinstance(e, StageFinished)] == ["capture", "differentiate", "lower", "schedule", "generate", "guards", "build", "link"]


def test_reference_kernels_agree():
    torch.testing.assert_close(dynacompile.compile(scaled, options={"reference": True})(x()), scaled(x()))


def test_is_compiling_is_true_under_capture():
    def branch(t):
        return t + 1 if dynacompile.is_compiling() and torch.compiler.is_compiling() else t - 1

    assert torch.equal(branch(x()), x() - 1)
    assert torch.equal(dynacompile.compile(branch)(x()), x() + 1)
