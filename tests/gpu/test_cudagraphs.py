"""Programs recorded as CUDA graphs, on the GPU."""

from __future__ import annotations

import gc

import pytest
import torch

from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.graphs import Fresh, RuntimeContract
from dynacompile.runtime import differentiable, link
from dynacompile.runtime.cudagraphs import WARM_UP, record
from tests.runtime.ptx import cuda_module
from tests.runtime.schedules import Allocate, Launch, Place, Ref, buffer, extern, given

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


@pytest.fixture
def env(tmp_path):
    events = []
    return Env(CompileConfig(mode="reduce-overhead"), events.append, "region", -1, tmp_path), events


def recorded(module, env):
    return record(link(module), module.schedule, env[0])


def mlp():
    steps = [
        Place("t", 0),
        Launch("twice", ("a", "t")),
        Place("h", 512),
        extern(aten.mm.default, (Ref("t"), Ref("w")), ("h",), aten.mm.out),
        Allocate("o"),
        Launch("mul", ("h", "a", "o")),
    ]
    return cuda_module(("a", "w"), ("o",), [given("a"), given("w", (3, 3)), buffer("t"), buffer("h"), buffer("o")], steps, arena=1024)


def randn(*size, **kwargs):
    return torch.randn(*size, device="cuda", **kwargs)


def test_replays_with_new_inputs_and_changing_parameters(env):
    run = recorded(mlp(), env)
    w = torch.nn.Parameter(randn(3, 3))
    kept = []
    for _ in range(WARM_UP + 5):
        a = randn(2, 3)
        kept.append((run(a, w)[0], (2 * a @ w.detach()) * a))
        with torch.no_grad():
            w.mul_(1.1)
    for actual, expected in kept:
        torch.testing.assert_close(actual, expected)
    assert [(e.recorded, e.reason) for e in env[1]] == [(True, "1 inputs in place, 1 copied")]


def test_random_numbers_go_on(env):
    buffers = [given("a", (64,)), buffer("r", (64,), kind="extern")]
    run = recorded(cuda_module(("a",), ("r",), buffers, [extern(aten.rand_like.default, (Ref("a"),), ("r",))]), env)
    a = randn(64)
    torch.manual_seed(7)
    actual = [run(a)[0].clone() for _ in range(WARM_UP + 3)]
    assert env[1][0].recorded
    torch.manual_seed(7)
    for i, r in enumerate(actual):
        assert torch.equal(r, torch.rand_like(a)), f"call {i}"


def test_an_op_whose_result_the_host_reads_is_refused(env):
    buffers = [given("a", (8,)), buffer("i", (8, 1), kind="extern", dtype=torch.int64)]
    run = recorded(cuda_module(("a",), ("i",), buffers, [extern(aten.nonzero.default, (Ref("a"),), ("i",))]), env)
    assert torch.equal(run(torch.ones(8, device="cuda"))[0], torch.arange(8, device="cuda")[:, None])
    assert [(e.recorded, e.reason) for e in env[1]] == [(False, "the host waits for results of aten.nonzero.default")]


@torch.library.custom_op("dynacompile_tests::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    torch.cuda.current_stream().synchronize()
    return x + 1


def test_a_capture_that_fails_leaves_nothing_behind(env):
    run = recorded(
        cuda_module(("a",), ("o",), [given("a"), buffer("o", kind="extern")], [extern(torch.ops.dynacompile_tests.waits.default, (Ref("a"),), ("o",))]), env
    )
    for _ in range(WARM_UP + 3):
        a = randn(2, 3)
        assert torch.equal(run(a)[0], a + 1)
    assert [e.recorded for e in env[1]] == [False] and "capturing" in env[1][0].reason
    torch.manual_seed(5)
    first = randn(4)
    torch.manual_seed(5)
    assert torch.equal(first, randn(4))
    after = recorded(mlp(), env)
    w = torch.nn.Parameter(randn(3, 3))
    for _ in range(WARM_UP + 2):
        a = randn(2, 3)
        torch.testing.assert_close(after(a, w)[0], (2 * a @ w.detach()) * a)
    assert env[1][-1].recorded
    torch.cuda.empty_cache()


def square(env):
    forward = cuda_module(
        ("x",), ("o", "s"), [given("x"), buffer("o"), buffer("s")], [Allocate("o"), Launch("mul", ("x", "x", "o")), Allocate("s"), Launch("twice", ("x", "s"))]
    )
    backward = cuda_module(("s", "g"), ("gx",), [given("s"), given("g"), buffer("gx")], [Allocate("gx"), Launch("mul", ("s", "g", "gx"))])
    contract = RuntimeContract(1, (Fresh(0, True),), saved_positions=(1,), tangents=(0,), grads=(0,))
    return differentiable(recorded(forward, env), lambda: recorded(backward, env), contract)


def test_training(env):
    call = square(env)
    for _ in range(8):
        x = randn(2, 3, requires_grad=True)
        call(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
    assert [e.reason for e in env[1]] == ["0 inputs in place, 1 copied", "1 inputs in place, 1 copied"]


def test_two_forwards_before_their_backwards_and_accumulation(env):
    call = square(env)
    for _ in range(6):
        xs = [randn(2, 3, requires_grad=True) for _ in range(2)]
        ys = [call(x)[0] for x in xs]
        for _x, y in zip(xs, ys, strict=True):
            y.sum().backward()
        call(xs[0])[0].sum().backward()
        torch.testing.assert_close(xs[0].grad, 4 * xs[0].detach())
        torch.testing.assert_close(xs[1].grad, 2 * xs[1].detach())
        torch.testing.assert_close(ys[0], xs[0] * xs[0])


def test_another_stream_waits(env):
    run = recorded(mlp(), env)
    w = torch.nn.Parameter(randn(3, 3))
    side = torch.cuda.Stream()
    for i in range(WARM_UP + 6):
        a = randn(2, 3)
        expected = (2 * a @ w.detach()) * a
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
            (o,) = run(a, w)
        torch.cuda.synchronize()
        torch.testing.assert_close(o, expected)


def test_the_users_own_capture_gets_the_plain_program(env):
    run = recorded(mlp(), env)
    a, w = randn(2, 3), torch.nn.Parameter(randn(3, 3))
    for _ in range(WARM_UP + 2):
        run(randn(2, 3), w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (o,) = run(a, w)
    a.fill_(2)
    graph.replay()
    torch.testing.assert_close(o, (2 * a @ w.detach()) * a)


def test_memory_is_given_back(env):
    torch.cuda.synchronize()
    run = recorded(mlp(), env)
    w = torch.nn.Parameter(randn(3, 3))
    for _ in range(WARM_UP + 2):
        o = run(randn(2, 3), w)[0]
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    expected = o.clone()
    del run
    env[1].clear()
    gc.collect()
    assert torch.equal(o, expected)
    del o
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < reserved
