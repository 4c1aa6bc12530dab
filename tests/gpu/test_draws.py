"""Random numbers that kernels of ours draw: eager's bit by bit, and the generator left as eager leaves it."""

import pytest
import torch

import dynacompile
from dynacompile.events import Drawn
from dynacompile.ir.schedule import Launch
from dynacompile.ops.draws import most_blocks
from dynacompile.runtime.cudagraphs import capture_cuda
from tests.gpu.test_loops import modules

pytestmark = pytest.mark.gpu

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DEVICE = torch.device("cuda", 0)


def from_seed(fn, *args, offset: int = 0):
    """Of three calls the results, and the generator's state after them."""
    torch.manual_seed(2**62 + 12345)
    torch.cuda.default_generators[0].set_offset(offset)
    results = [fn(*args).clone() for _ in range(3)]
    return results, torch.cuda.get_rng_state(0)


def same(fn, *args, offset: int = 0, **options) -> None:
    compiled = dynacompile.compile(fn, isolate_recompiles=True, dynamic=False, **options)
    compiled(*args)
    (wanted, after), (got, state) = from_seed(fn, *args, offset=offset), from_seed(compiled, *args, offset=offset)
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    assert torch.equal(after, state)


def sizes() -> list[int]:
    whole = 256 * most_blocks(DEVICE) if torch.cuda.is_available() else 1024
    return [1, 5, 255, 257, 1000, whole - 1, whole, whole + 1, 4 * whole, 4 * whole + 1, 9 * whole + 1234]


@pytest.mark.parametrize("n", sizes())
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("offset", [0, 4 * (2**32 - 1)])
def test_eagers_numbers(n, dtype, offset):
    x = torch.rand(n, device=DEVICE).to(dtype)
    same(lambda t: torch.rand_like(t), x, offset=offset)
    same(lambda t: torch.rand_like(t) + t.float() * 2.0, x, offset=offset)
    same(lambda t: torch.empty_like(t).bernoulli_(0.3), x, offset=offset)
    same(lambda t: torch.bernoulli(t), x, offset=offset)


@pytest.mark.parametrize("dtype", [F64, torch.uint8, torch.bool, torch.int64])
def test_coins_of_other_dtypes(dtype):
    x = torch.rand(70001, device=DEVICE, dtype=F64)
    same(lambda t: torch.empty_like(t, dtype=dtype).bernoulli_(0.7), x)
    same(lambda t: torch.bernoulli(t), x)


def test_layouts():
    x = torch.rand(8, 16, 33, 31, device=DEVICE)
    for y in (x.to(memory_format=torch.channels_last), x.permute(3, 0, 2, 1)):
        same(lambda t: torch.rand_like(t) * 2, y)
        same(lambda t: torch.empty_like(t).bernoulli_(0.5), y)
        same(lambda t: torch.bernoulli(t), y)


def several(t):
    a = torch.rand_like(t)
    b = torch.bernoulli(t)
    c = torch.randn_like(t)
    d = torch.nn.functional.dropout(t, 0.2)
    e = torch.nn.functional.alpha_dropout(t, 0.3, training=True)
    return torch.stack((a, b, c, d)) + torch.rand(t.shape, device=t.device) + e.isnan()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_draws_in_order_beside_calls_that_draw(mode):
    same(several, torch.rand(300, 1000, device=DEVICE), mode=mode)


def test_a_recorded_graph_goes_on_with_the_generator():
    x = torch.rand(3_000_000, device=DEVICE)
    compiled = dynacompile.compile(lambda t: torch.rand_like(t) + torch.bernoulli(t), isolate_recompiles=True, mode="reduce-overhead")
    torch.manual_seed(3)
    got = [compiled(x).clone() for _ in range(8)]
    torch.manual_seed(3)
    for one in got:
        assert torch.equal(one, torch.rand_like(x) + torch.bernoulli(x))


def test_what_torch_stores_before_it_records_comes_before_the_first_replay(monkeypatch):
    """It stores an offset of 0 on the stream that it records on: behind the offset of the call, a replay would draw from the generator's start."""
    x, empty_cache = torch.rand(1000, device=DEVICE), torch.cuda.empty_cache
    first = capture_cuda(lambda t: (torch.rand_like(t),), (x,), x.device)  # waits by itself: torch allocates what the later ones share

    def and_keeps_back() -> None:
        """torch calls this between its last wait for the device and what it stores."""
        empty_cache()
        with torch.cuda.stream(torch.cuda.graph.default_capture_stream):
            torch.cuda._sleep(10**9)

    monkeypatch.setattr(torch.cuda, "empty_cache", and_keeps_back)
    recorded = capture_cuda(lambda t: (torch.rand_like(t),), (x,), x.device)
    torch.cuda.current_stream().synchronize()
    assert torch.cuda.graph.default_capture_stream.query()
    for one in (first, recorded):
        torch.manual_seed(8)
        one.replay()
        torch.manual_seed(8)
        assert torch.equal(one.outputs[0], torch.rand_like(x))


def test_a_graph_of_the_users():
    x = torch.rand(3_000_000, device=DEVICE)
    compiled = dynacompile.compile(lambda t: torch.rand_like(t) + torch.bernoulli(t), isolate_recompiles=True)
    compiled(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
        z = compiled(x)
    torch.manual_seed(4)
    got = []
    for _ in range(3):
        graph.replay()
        got += [y.clone(), z.clone()]
    torch.manual_seed(4)
    for one in got:
        assert torch.equal(one, torch.rand_like(x) + torch.bernoulli(x))


def test_a_generator_of_the_users():
    def fn(generator):
        return torch.rand(5000, device=DEVICE, generator=generator) + 1

    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    one, other = (torch.Generator(DEVICE).manual_seed(5) for _ in range(2))
    for _ in range(3):
        assert torch.equal(fn(one), compiled(other))
    assert torch.equal(one.get_state(), other.get_state())


def test_one_kernel():
    events: list[Drawn] = []
    stop = dynacompile.subscribe(lambda e: events.append(e) if isinstance(e, Drawn) else None)
    fn = dynacompile.compile(lambda t: torch.rand_like(t) + t, isolate_recompiles=True)
    (module,), _ = modules(fn, torch.rand(1000, 1000, device=DEVICE))
    stop()
    assert sum(isinstance(s, Launch) for s in module.schedule.steps) == 1
    assert [e.kernel for e in events] == [True]


def test_gradients_through_a_drawn_mask():
    x = torch.rand(1000, 1000, device=DEVICE, requires_grad=True)

    def fn(t):
        return (t * (torch.rand_like(t) < 0.8) * torch.bernoulli(t.detach())).sum()

    compiled = dynacompile.compile(fn, isolate_recompiles=True)
    compiled(x)
    grads = []
    for call in (fn, compiled):
        torch.manual_seed(6)
        grads.append(torch.autograd.grad(call(x), x)[0])
    assert torch.equal(*grads)
