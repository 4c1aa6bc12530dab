"""What can't be differentiated is refused by name, and errors carry the user's line."""

from __future__ import annotations

import pytest
import torch

from dynacompile.autograd import differentiate
from dynacompile.errors import Unsupported
from dynacompile.ir.captured import Site
from tests.autograd.graphs import V, chain, fakes_of
from tests.autograd.programs import rand
from tests.autograd.recording import record
from tests.autograd.running import differentiable, env_of


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x * 0.5, None


def scaled(x, factor):
    return Scale.apply(x, factor)


def test_custom_function_keeps_its_backward():
    x = rand(4, grad=True)
    pair = differentiate(chain(1, (scaled, V(0), 3.0)), fakes_of(x), env_of())
    (y,) = differentiable(pair)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 3.0 + x.detach() * 0.5)


def assert_refused(code, fn, *args):
    with pytest.raises(Unsupported) as caught:
        differentiate(*record(fn, args)[:2], env_of())
    assert caught.value.code == code, caught.value
    return caught.value


@torch.library.custom_op("dynacompile_test_autograd::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@opaque.register_fake
def _(x):
    return torch.empty_like(x)


def test_op_without_a_gradient():
    with pytest.raises(Unsupported, match="opaque") as caught:
        differentiate(chain(1, (torch.ops.dynacompile_test_autograd.opaque.default, V(0)), (torch.sin, V(1))), fakes_of(rand(4, grad=True)), env_of())
    assert caught.value.code == "no-gradient"
    pair = differentiate(chain(1, (torch.ops.dynacompile_test_autograd.opaque.default, V(0))), fakes_of(rand(4)), env_of())
    assert [n.target for n in pair.forward.graph.nodes if n.op == "call_function"] == [torch.ops.dynacompile_test_autograd.opaque.default]


def test_data_dependent_value():
    graph = chain(1, ("item", V(0)), (torch.add, V(0), V(1)))
    graph_node = next(n for n in graph.graph.nodes if n.op == "call_method")
    graph_node.meta["site"] = Site("model.py", 41, "forward")
    with pytest.raises(Unsupported, match="model.py:41") as caught:
        differentiate(graph, fakes_of(rand(1)), env_of())
    assert caught.value.code == "data-dependent"


def test_overlapping_inputs_mutated():
    x = rand(6)
    assert_refused("overlapping-inputs", lambda a, b: a.add_(b[0]), x[:4], x[2:])


def test_metadata_mutation():
    assert_refused("input-geometry-mutated", lambda a: a.t_().mul_(2), rand(3, 4))


def test_leaf_made_inside():
    assert_refused("leaf-inside", lambda a: (a * 2).requires_grad_(), rand(3))


def test_undeclared_statistics():
    assert_refused("hidden-mutation", lambda x, m, v: torch.native_batch_norm(x, None, None, m, v, True, 0.1, 1e-5)[0], rand(2, 3, 4), rand(3), rand(3).abs())


@pytest.mark.parametrize("train", [True, False])
def test_recurrent_layer_with_gradients(train):
    w = [rand(16, 3, grad=True), rand(16, 4, grad=True), rand(16, grad=True), rand(16, grad=True)]

    def run(x, h, c, *weights):
        return torch.lstm(x, (h, c), weights, True, 1, 0.0, train, False, False)[0]

    assert_refused("recurrent-layer", run, rand(5, 2, 3), rand(1, 2, 4), rand(1, 2, 4), *w)


def test_output_of_another_dtype_over_the_same_memory():
    assert_refused("aliased-outputs", lambda x: x.view(torch.int32), rand(4))


def test_state_is_restored_after_an_error():
    before = (torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), torch.is_autocast_enabled("cpu"))
    graph = chain(1, (torch._C._set_grad_enabled, False), ("item", V(0)))
    with pytest.raises(Unsupported):
        differentiate(graph, fakes_of(rand(1)), env_of())
    assert before == (torch.is_grad_enabled(), torch.is_autocast_cache_enabled(), torch.is_autocast_enabled("cpu"))
    assert not torch._is_functional_tensor(torch.zeros(2))
