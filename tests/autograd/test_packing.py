"""Parameters that are packed once under `freeze`: which products take them, how often they are packed, and when again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import dynacompile
from dynacompile.ops.product_costs import library_multiplies

PACKINGS = {torch.float32: "mkl::_mkl_reorder_linear_weight", torch.bfloat16: "mkldnn::_reorder_linear_weight"}
PRODUCTS = {torch.float32: "mkl::_mkl_linear", torch.bfloat16: "mkldnn::_linear_pointwise"}
DTYPES = [
    pytest.param(torch.float32, marks=pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL")),
    pytest.param(torch.bfloat16, marks=pytest.mark.skipif(not library_multiplies(torch.bfloat16), reason="oneDNN has no products of it here")),
]


def counted(run: Callable[[], torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, int, int]:
    """(result, packings, products with packed weights)."""
    with profile(activities=[ProfilerActivity.CPU]) as seen, torch.no_grad():
        result = run()
    counts = {e.key: e.count for e in seen.key_averages()}
    return result, counts.get(PACKINGS[dtype], 0), counts.get(PRODUCTS[dtype], 0)


def model(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 128)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_packed_once(dtype):
    net, x = model(dtype), torch.randn(16, 256).to(dtype)
    compiled = dynacompile.compile(net, options={"freeze": True})
    with torch.no_grad():
        eager = net(x)
    for packings in (2, 0, 0):
        result, found, products = counted(lambda: compiled(x), dtype)
        assert (found, products) == (packings, 2)
        torch.testing.assert_close(result, eager)


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda layer: layer.weight.mul_(2.0),
    "a part": lambda layer: layer.weight[3:5].fill_(1.0),
    "a state": lambda layer: layer.load_state_dict({k: torch.randn_like(v) for k, v in layer.state_dict().items()}),
    "data of its own": lambda layer: setattr(layer.weight, "data", torch.randn_like(layer.weight)),
    "another parameter": lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn_like(layer.weight))),
    "other memory": lambda layer: layer.weight.set_(torch.randn_like(layer.weight)),
    "an optimizer": lambda layer: stepped(layer),
}


def stepped(layer: nn.Linear) -> None:
    layer.weight.grad = torch.ones_like(layer.weight)
    torch.optim.AdamW([layer.weight], lr=0.1).step()
    layer.weight.grad = None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_weight_that_changed_is_packed_again(dtype, change):
    net, x = model(dtype), torch.randn(16, 256).to(dtype)
    compiled = dynacompile.compile(net, options={"freeze": True})
    with torch.no_grad():
        compiled(x)
        compiled(x)
        CHANGES[change](net[0])
        eager = net(x)
    for packings in (1, 0):
        result, found, _ = counted(lambda: compiled(x), dtype)
        assert found == packings
        torch.testing.assert_close(result, eager)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_that_keeps_changing_stays_as_it_is(dtype):
    net, x = model(dtype), torch.randn(16, 256).to(dtype)
    compiled = dynacompile.compile(net, options={"freeze": True})
    found = 0
    for _ in range(20):
        with torch.no_grad():
            net[0].weight.mul_(1.01)
            eager = net(x)
        result, packings, _ = counted(lambda: compiled(x), dtype)
        found += packings
        torch.testing.assert_close(result, eager)
    assert found == 8 + 1, "the second layer's weight, and the first one's while it might have settled"


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_packed(dtype):
    """Without the option, where gradients are recorded, of what is no parameter, and of parameters that the graph writes."""
    net, x = model(dtype), torch.randn(16, 256).to(dtype)
    assert counted(lambda: dynacompile.compile(net)(x), dtype)[1] == 0
    frozen = dynacompile.compile(net, options={"freeze": True})
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        frozen(x).sum().backward()
    assert PACKINGS[dtype] not in {e.key for e in seen.key_averages()}
    product = dynacompile.compile(lambda a, b: a @ b, options={"freeze": True})
    assert counted(lambda: product(x, torch.randn(256, 256).to(dtype)), dtype)[1] == 0

    def writes(x, weight):
        result = x @ weight.t()
        weight.add_(1.0)
        return result

    writing, weight = dynacompile.compile(writes, options={"freeze": True}), nn.Parameter(torch.randn(256, 256).to(dtype))
    assert counted(lambda: writing(x, weight), dtype)[1] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_lie_transposed(dtype):
    weight, x = nn.Parameter(torch.randn(256, 192).to(dtype)), torch.randn(16, 256).to(dtype)
    compiled = dynacompile.compile(lambda x: x @ weight, options={"freeze": True})
    for packings in (1, 0):
        result, found, _ = counted(lambda: compiled(x), dtype)
        assert found == packings
        torch.testing.assert_close(result, (x @ weight).detach())


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_entry_keeps_no_weight_alive(dtype):
    net, x = model(dtype), torch.randn(16, 256).to(dtype)
    compiled = dynacompile.compile(net, options={"freeze": True})
    with torch.no_grad():
        compiled(x)
        gone = []
        torch.utils.weak.weakref.finalize(net[0].weight, gone.append, True)
        net[0].weight = nn.Parameter(torch.randn_like(net[0].weight))
    assert gone == [True]


def test_inference_tensors_are_not_packed():
    with torch.inference_mode():
        net, x = model(torch.float32), torch.randn(16, 256)
        compiled = dynacompile.compile(net, options={"freeze": True})
        torch.testing.assert_close(compiled(x), net(x))
        net[0].weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), net(x))


def test_threads_share_a_program():
    net = model(torch.float32)
    xs = [torch.randn(16, 256) for _ in range(4)]
    compiled = dynacompile.compile(net, options={"freeze": True})
    with torch.no_grad():
        eager = [net(x) for x in xs]
    wrong: list[int] = []

    def run(i: int) -> None:
        with torch.no_grad():
            for _ in range(30):
                if not torch.allclose(compiled(xs[i]), eager[i], atol=1e-4):
                    wrong.append(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(xs))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
