"""Frames over subclasses of torch.Tensor: breaks, aliases, what is left to Python, and what an entry relies on."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import Compiled, GraphBroke, Recompiled
from tests.checking import check
from tests.programs.subclasses import EAGER, Below, Copied, Double, Logged, Plain, Unrelated, arg, check_both, compiled_of, dense


def broken(x):
    y = x * 2
    y.tag = 5
    dynacompile.graph_break()
    return y + 1, y.tag


def test_a_break():
    check_both(broken, arg(), graphs=2, breaks=1)


def broken_while_disabled(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
        dynacompile.graph_break()
        z = y + x
    return y, z, x * 3, torch._C._is_torch_function_enabled()


def test_a_break_while_nobody_is_asked():
    check_both(broken_while_disabled, arg(), graphs=3, breaks=2)


class Breaking(Copied, torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        if func is torch.sin:
            dynacompile.graph_break()
        return super().__torch_function__(func, types, args, kwargs)


def breaks_inside(x):
    Breaking.calls = 0
    return torch.sin(x * 2) + x.shape[0], Breaking.calls


def test_a_break_inside_of_an_override():
    check_both(breaks_inside, arg(Breaking), graphs=3, breaks=2)


def detached(x):
    y = x * 2
    dynacompile.graph_break()
    return y.detach_()


def test_results_are_aliases_as_in_eager():
    """Of which `detach_` is refused."""
    check_both(detached, arg(), graphs=1, breaks=None)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_the_mode_of_the_caller(context, backend):
    def fn(x):
        return x * 2, x.view(-1), x.as_subclass(Below), x.sum()

    compiled, x = compiled_of(fn, backend=backend), arg()
    for _ in range(2):
        with context():
            got, want = compiled(x), fn(x)
        for a, b in zip(got, want, strict=True):
            assert type(a) is type(b) and torch.equal(a, b) and a.requires_grad == b.requires_grad and a.is_inference() == b.is_inference()


def data_written(x):
    Logged.log, Logged.calls = [], 0
    x.data.add_(1)
    return x * 2, list(Logged.log)


class Hooked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.linear.register_full_backward_hook(ignored)

    def forward(self, x):
        return self.linear(x)


def ignored(module, grad_input, grad_output):
    return None


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[a.x if isinstance(a, cls) else a for a in args], **(kwargs or {})))


WRAPPER = Wrapper(dense())


def leaf(x):
    return x.is_leaf, x * 2


def gradient(x):
    return x.grad, x * 2


@pytest.mark.parametrize(
    "fn, args, code",
    [
        (lambda x: (WRAPPER + 1).x * x, (dense(),), "tensor-subclass"),
        (lambda x: (Wrapper(x) + 1).x * x, (dense(),), "unknown-function"),
        (lambda x: torch.func.vmap(lambda a: a * 2)(x), (arg(grad=False),), "sub-graph"),
        (lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,)), (arg(grad=False),), "sub-graph"),
        (lambda x: Double.apply(x), (arg(),), "autograd-function"),
        (Hooked(), (arg(),), "hooks"),
        (data_written, (arg(Logged, False),), "mutation"),
        (leaf, (arg(),), "tensor-attribute"),
        (gradient, (arg(grad=False),), "tensor-attribute"),
        (lambda x: (x.sum().item(), x * 2), (arg(grad=False),), "to-python"),
        (lambda x, y: torch.add(x, y), (arg(), arg(Unrelated)), "would-raise"),
    ],
)
@pytest.mark.parametrize("options", [EAGER, {}])
def test_what_is_left_to_python(fn, args, code, options):
    events = check(fn, *args, graphs=None, breaks=None, options=options)
    assert code in {e.code for e in events if isinstance(e, GraphBroke)}


def told(compiled, x):
    """The result, and whether the call made an entry."""
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        return compiled(x), any(isinstance(e, (Compiled, Recompiled)) for e in events)
    finally:
        end()


def test_each_class_is_an_entry():
    compiled, seen = compiled_of(lambda x: x * 2), set()
    for cls in (torch.Tensor, torch.Tensor, Plain, Plain, Below, Below, Plain, torch.Tensor):
        result, again = told(compiled, dense().as_subclass(cls))
        assert type(result) is cls and again == (cls not in seen)
        seen.add(cls)


def test_a_replaced_override_is_another_entry():
    class Changing(torch.Tensor):
        pass

    def doubling(cls, func, types, args=(), kwargs=None):
        return super(Changing, cls).__torch_function__(func, types, args, kwargs) * 1 if func is torch.sin else torch.zeros(1)

    compiled, x = compiled_of(lambda x: (x * 2).as_subclass(torch.Tensor)), dense().as_subclass(Changing)
    assert torch.equal(told(compiled, x)[0], dense() * 2)
    assert not told(compiled, x)[1]
    Changing.__torch_function__ = classmethod(doubling)
    result, again = told(compiled, x)
    assert again and torch.equal(result, torch.zeros(1))
    assert not told(compiled, x)[1]
    Changing.__torch_function__ = torch._C._disabled_torch_function_impl
    result, again = told(compiled, x)
    assert again and torch.equal(result, dense() * 2)
    del Changing.__torch_function__
    assert torch.equal(told(compiled, x)[0], dense() * 2)


def test_a_method_that_the_class_gets_later_is_another_entry():
    class Growing(torch.Tensor):
        pass

    compiled, x = compiled_of(lambda x: (x.sum(), x + 1)), dense().as_subclass(Growing)
    assert told(compiled, x)[0][0] == dense().sum()
    Growing.sum = lambda self: "sum"
    assert told(compiled, x)[0][0] == "sum"
    Growing.__add__ = lambda self, other: "add"
    assert told(compiled, x)[0] == ("sum", "add")
    assert not told(compiled, x)[1]


def test_attributes_of_inputs_are_guarded():
    compiled, x = compiled_of(lambda x: x * getattr(x, "factor", 1)), dense().as_subclass(Plain)
    assert torch.equal(told(compiled, x)[0], dense())
    x.factor = 3
    assert torch.equal(told(compiled, x)[0], dense() * 3)
    assert not told(compiled, x)[1]
    x.factor = 4
    assert torch.equal(told(compiled, x)[0], dense() * 4)
    del x.factor
    assert torch.equal(told(compiled, x)[0], dense())


def test_an_attribute_that_hides_one_of_the_class():
    class Tagged(torch.Tensor):
        tag = 2

    compiled, x = compiled_of(lambda x: x * x.tag), dense().as_subclass(Tagged)
    assert torch.equal(told(compiled, x)[0], dense() * 2)
    x.tag = 3
    assert torch.equal(told(compiled, x)[0], dense() * 3)
    Tagged.tag = 5
    assert torch.equal(told(compiled, dense().as_subclass(Tagged))[0], dense() * 5)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_sizes_may_vary(backend):
    compiled = compiled_of(lambda x: (x * x.shape[0]).sum(0), backend=backend)
    for rows in (3, 4, 5, 6, 7):
        x = torch.arange(rows * 2.0).reshape(rows, 2).as_subclass(Plain)
        result, again = told(compiled, x)
        assert type(result) is Plain and torch.equal(result, (x * rows).sum(0))
        assert again == (rows < 5)


def test_capture_runs_none_of_the_users_code():
    class Counting(torch.Tensor):
        calls: list = []

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.calls.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    compiled = compiled_of(lambda x: x * 2 + 1)
    for rows in (3, 3, 4, 5):
        x = torch.ones(rows, 2).as_subclass(Counting)
        Counting.calls.clear()
        compiled(x)
        assert Counting.calls == [torch.Tensor.mul, torch.Tensor.add]
