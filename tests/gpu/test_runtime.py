"""Programs on the GPU: driver launches, streams, the arena, alignment, backward on autograd's threads."""

from __future__ import annotations

import threading

import pytest
import torch

from dynacompile.ir.graphs import Fresh, RuntimeContract
from dynacompile.runtime import differentiable, link
from tests.runtime.ptx import cuda_module
from tests.runtime.schedules import Allocate, Launch, Place, Ref, buffer, extern, given

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


def randn(*size, **kwargs):
    return torch.randn(*size, device="cuda", **kwargs)


def adder(**kwargs):
    return cuda_module(("a", "b"), ("o",), [given("a"), given("b"), buffer("o")], [Allocate("o"), Launch("add", ("a", "b", "o"))], **kwargs)


def test_one_kernel():
    a, b = randn(2, 3), randn(2, 3)
    assert torch.equal(link(adder())(a, b)[0], a + b)


def test_many_blocks_and_shared_memory_beyond_48_kib():
    n = 100_000
    module = cuda_module(("a",), ("o",), [given("a", (n,)), buffer("o", (n,))], [Allocate("o"), Launch("twice", ("a", "o"))], elements=n, shared=100 * 1024)
    a = randn(n)
    assert torch.equal(link(module)(a)[0], 2 * a)


def test_arena_and_externs():
    steps = [
        Place("t", 0),
        Launch("twice", ("a", "t")),
        Place("h", 512),
        extern(aten.mm.default, (Ref("t"), Ref("w")), ("h",), aten.mm.out),
        Allocate("o"),
        Launch("mul", ("h", "a", "o")),
    ]
    program = link(cuda_module(("a", "w"), ("o",), [given("a"), given("w", (3, 3)), buffer("t"), buffer("h"), buffer("o")], steps, arena=1024))
    a, w = randn(2, 3), randn(3, 3)
    torch.testing.assert_close(program(a, w)[0], (2 * a @ w) * a)


def test_inputs_that_are_not_16_byte_aligned():
    pool = randn(7)
    a = pool[1:].view(2, 3)
    assert a.data_ptr() % 16
    b = randn(2, 3)
    assert torch.equal(link(adder())(a, b)[0], a + b)
    mutating = link(cuda_module(("n",), ("n", "row"), [given("n"), buffer("row", (3,), offset=3, base="n")], [Launch("increment", ("n",))]))
    before = a.clone()
    n, row = mutating(a)
    assert n is a and torch.equal(a, before + 1) and row.data_ptr() == a[1].data_ptr() and torch.equal(row, before[1] + 1)


def test_runs_on_the_current_stream():
    program = link(adder())
    a, b = randn(2, 3), randn(2, 3)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        a.add_(1)
        (o,) = program(a, b)
    assert not side.query()
    side.synchronize()
    assert torch.equal(o, a + b)


def test_a_fresh_thread_has_a_context():
    program, results = link(adder()), []
    a, b = randn(2, 3), randn(2, 3)
    thread = threading.Thread(target=lambda: results.append(program(a, b)[0]))
    thread.start()
    thread.join()
    assert torch.equal(results[0], a + b)


def test_backward_on_autograds_thread():
    forward = link(cuda_module(("x", "y"), ("o",), [given("x"), given("y"), buffer("o")], [Allocate("o"), Launch("mul", ("x", "y", "o"))]))
    steps = [Allocate("gx"), Launch("mul", ("g", "y", "gx")), Allocate("gy"), Launch("mul", ("g", "x", "gy"))]
    threads = []

    def make_backward():
        threads.append(threading.get_ident())
        return link(cuda_module(("x", "y", "g"), ("gx", "gy"), [given("x"), given("y"), given("g"), buffer("gx"), buffer("gy")], steps))

    call = differentiable(forward, make_backward, RuntimeContract(2, (Fresh(0, True),), saved_inputs=(0, 1), tangents=(0,), grads=(0, 1)))
    x, y = randn(2, 3, requires_grad=True), randn(2, 3, requires_grad=True)
    for _ in range(2):
        call(x, y)[0].square().sum().backward()
    expected = torch.autograd.grad((x * y).square().sum(), (x, y))
    torch.testing.assert_close((x.grad, y.grad), tuple(2 * e for e in expected))
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        loss = call(x, y)[0].square().sum()
    grads = torch.autograd.grad(loss, (x, y))
    torch.cuda.synchronize()
    torch.testing.assert_close(grads, expected)


def test_a_kernel_that_does_not_load():
    module = adder()
    broken = type(module)(module.schedule, {n: type(k)(k.cubin, "missing", k.grid, k.warps, k.shared, k.extra) for n, k in module.kernels.items()})
    with pytest.raises(RuntimeError, match="preparing missing failed: CUDA driver error"):
        link(broken)
    with pytest.raises(RuntimeError, match="dynacompile: loading add failed"):
        link(type(module)(module.schedule, {n: type(k)(b"nonsense\0", k.symbol, k.grid, k.warps, k.shared, k.extra) for n, k in module.kernels.items()}))


def test_the_second_device():
    if torch.cuda.device_count() < 2:
        return  # the machine has one; the first device's tests cover the rest
    device = torch.device("cuda", 1)
    a, b = torch.randn(2, 3, device=device), torch.randn(2, 3, device=device)
    (o,) = link(adder(device=device))(a, b)
    assert o.device == device and torch.equal(o, a + b) and torch.cuda.current_device() == 0


@torch.library.custom_op("dynacompile_tests::draws_seed", mutates_args=())
def draws_seed(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, 3)


@torch.library.custom_op("dynacompile_tests::uses_seed", mutates_args=())
def uses_seed(x: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    return x + seed.shape[0] + (1 if seed.device.type == "cpu" else 0)


def test_a_result_on_another_device_than_its_fake():
    """Fused attention gives its seed on the CPU though its fake is on the GPU: fine for ops and outputs, never for kernels."""
    ops = torch.ops.dynacompile_tests
    steps = [extern(ops.draws_seed.default, (Ref("a"),), ("s",)), extern(ops.uses_seed.default, (Ref("a"), Ref("s")), ("o",))]
    buffers = [given("a"), buffer("s", kind="extern"), buffer("o", kind="extern")]
    a = randn(2, 3)
    o, seed = link(cuda_module(("a",), ("o", "s"), buffers, steps))(a)
    assert torch.equal(o, a + 2 + 1) and seed.device.type == "cpu"
    taken = link(cuda_module(("a", "s"), ("o",), [given("a"), given("s"), buffer("o", kind="extern")], [steps[1]]))
    assert torch.equal(taken(a, seed)[0], a + 2 + 1)
    wrong = [steps[0], Allocate("o"), Launch("add", ("a", "s", "o"))]
    with pytest.raises(RuntimeError, match="an op returned float"):
        link(cuda_module(("a",), ("o",), [given("a"), buffer("s", kind="extern"), buffer("o")], wrong))(a)
