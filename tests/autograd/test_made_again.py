"""What the backward makes again rather than keeping it, where a device says that memory traffic is cheap; here the CPU is taken for such a device."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch.nn import functional as F

from dynacompile.autograd import differentiate, made_again
from dynacompile.autograd.made_again import DEVICES, Device
from tests.autograd.programs import PROGRAMS, rand
from tests.autograd.recording import autocast, record
from tests.autograd.running import compare, env_of

FREE = Device(4.0e6, {2: 1.0, 4: 1.0}, 1e9, 0)


@pytest.fixture(autouse=True)
def the_cpu_makes_again():
    with patch.dict(DEVICES, {"cpu": FREE}), patch.object(made_again, "LARGE", 1):
        yield


def saved(fn, *args, **options):
    """Shapes and dtypes of what is saved for backward beside inputs, vectors left out, and the pair."""
    pair = differentiate(*record(fn, args)[:2], env_of(**options))
    outputs = list(pair.forward.graph.nodes)[-1].args[0]
    values = [outputs[p].meta["val"] for p in pair.contract.saved_positions]
    return sorted((tuple(v.shape), str(v.dtype)[6:]) for v in values if v.dim() > 1 and v.shape[-1] > 1), pair


def layers(x, w, v, activation):
    return F.linear(activation(F.linear(x, w)), v)


def weights():
    return rand(32, 16, grad=True), rand(64, 16, grad=True), rand(16, 64, grad=True)


def test_what_an_activation_gives_is_made_again_from_what_it_took():
    found, _ = saved(lambda x, w, v: layers(x, w, v, F.gelu), *weights())
    assert found == [((32, 64), "float32")]


def test_of_an_activation_that_its_result_differentiates_the_result_is_kept():
    found, pair = saved(lambda x, w, v: layers(x, w, v, torch.tanh), *weights())
    assert found == [((32, 64), "float32")]
    assert not any(n.target is torch.ops.aten.tanh.default for n in pair.backward.graph.nodes)


def test_what_a_norm_gives_is_made_again_from_what_it_took():
    found, _ = saved(lambda x, w, v: layers(x, w, v, lambda y: F.layer_norm(y, (64,))), *weights())
    assert found == [((32, 64), "float32")]


def test_products_are_never_made_again():
    _, pair = saved(lambda x, w, v: layers(x, w, v, lambda y: F.layer_norm(F.gelu(y), (64,))), *weights())
    targets = [n.target for n in pair.backward.graph.nodes]
    assert targets.count(torch.ops.aten.mm.default) == 4, "gradients of two weights, of x, and of what lies between"


def stream(count):
    """A residual stream in float32, to which each of `count` layers adds a result in bfloat16."""

    def net(x, *ws):
        with autocast("cpu"):
            for w in ws:
                x = x + F.linear(F.layer_norm(x, (8,)), w)
            return x.sum()

    return net, [rand(16, 8, grad=True), *(rand(8, 8, grad=True) for _ in range(count))]


@pytest.mark.parametrize(("most", "sums", "added"), [(0, 5, 0), (1, 2, 3), (3, 1, 4)])
def test_sums_of_a_stream_are_made_again_from_what_was_added_in_half_precision(most, sums, added):
    net, args = stream(6)
    with patch.object(made_again, "MOST_SUMS", most):
        found, _ = saved(net, *args)
    assert found.count(((16, 8), "float32")) == sums
    assert found.count(((16, 8), "bfloat16")) == added


def test_sums_in_one_precision_are_kept():
    def net(x, *ws):
        for w in ws:
            x = x + F.linear(F.layer_norm(x, (8,)), w)
        return x

    found, pair = saved(net, *stream(6)[1])
    assert found == [((16, 8), "float32")] * 5
    assert not any(n.target is torch.ops.aten.addmm.default for n in pair.backward.graph.nodes)


@pytest.mark.parametrize(
    ("device", "kept"),
    [
        pytest.param(Device(4.0e6, {4: 1.0}, 0.0, 0), 2, id="no share of the step"),
        pytest.param(Device(4.0e6, {4: 1.0}, 1e9, 1 << 30), 2, id="a step that keeps little"),
        pytest.param(Device(32 * 64 * 4.0, {4: 1e9}, 1.0, 0), 1, id="a share that one value fits into"),
    ],
)
def test_how_much_is_made_again_is_bounded(device, kept):
    with patch.dict(DEVICES, {"cpu": device}):
        found, _ = saved(lambda x, w, v: layers(x, w, v, F.gelu), *weights())
    assert len(found) == kept


def test_a_weight_whose_cast_eager_keeps_is_not_read_again():
    """An optimizer may write it before the backward."""

    def net(x, w):
        with autocast("cpu"):
            return F.linear(F.gelu(x), w).float().sum()

    weight = rand(256, 128, grad=True)
    found, pair = saved(net, rand(32, 128, grad=True), weight)
    assert found == [((256, 128), "bfloat16")] and pair.contract.saved_inputs == (0,)
    small = rand(16, 128, grad=True)
    assert saved(net, rand(32, 128, grad=True), small)[0] == [((16, 128), "bfloat16")]


def moved_for(fn, *args):
    """Bytes that making each candidate again moves, in its own size."""
    found = []
    whole = made_again.candidates

    def listed(*given):
        found.extend(whole(*given))
        return iter(found)

    with patch.object(made_again, "candidates", listed):
        saved(fn, *args)
    return [c.moved / c.gained for c in found]


def test_what_a_call_needs_that_gives_both_gradients_is_read_once_more():
    """The kernel that differentiates gelu comes after the convolution's backward, and can't make its operand as well; a product's weight can wait for it."""
    images = rand(2, 4, 8, 8, grad=True), rand(4, 4, 3, 3, grad=True), rand(4, 4, 3, 3, grad=True)
    assert moved_for(lambda x, w, v: F.conv2d(F.gelu(F.conv2d(x, w, padding=1)), v, padding=1), *images) == [2.0]
    assert moved_for(lambda x, w, v: layers(x, w, v, F.gelu), *weights()) == [1.0]


def test_devices_without_a_row_make_nothing_again():
    with patch.dict(DEVICES, clear=True):
        assert len(saved(lambda x, w, v: layers(x, w, v, F.gelu), *weights())[0]) == 2


def test_a_budget_counts_from_what_is_kept_so():
    args = weights()
    whole = saved(lambda x, w, v: layers(x, w, v, F.gelu), *args)[1].facts["saved_bytes"]
    assert saved(lambda x, w, v: layers(x, w, v, F.gelu), *args, memory_budget=0.5)[1].facts["saved_bytes"] <= whole / 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    program = PROGRAMS[name]
    compare(program.fn, program.leaves(), program.prepare, program.tolerance)
