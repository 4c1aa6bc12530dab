"""The logic around recorded graphs, with a stand-in for CUDA's capture that repeats a program into fixed memory."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import pytest
import torch

from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.graphs import Fresh, RuntimeContract
from dynacompile.runtime import differentiable, link
from dynacompile.runtime.cudagraphs import RECORDINGS, WARM_UP, Capture, Recorder, record
from tests.runtime.schedules import Allocate, Launch, buffer, given


def at_address(tensor):
    """The memory as a recorded graph knows it: an address, whatever becomes of the tensor."""
    raw = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    return torch.frombuffer(raw, dtype=torch.float32).view(tensor.shape)


class Device:
    """Stands in for a CUDA device: counts captures and replays."""

    def __init__(self):
        self.captures = self.replays = 0
        self.error = ""

    def capture(self, program, inputs, device):
        if self.error:
            raise RuntimeError(self.error)
        self.captures += 1
        outputs = program(*[torch.zeros_like(t) for t in inputs])
        inputs = [at_address(t) for t in inputs]

        def replay():
            self.replays += 1
            for into, value in zip(outputs, program(*inputs), strict=True):
                if into is not None and value is not None and into.data_ptr() != value.data_ptr():
                    into.copy_(value)

        return Capture(outputs, replay)


@pytest.fixture
def env(tmp_path):
    events = []
    made = Env(CompileConfig(mode="reduce-overhead"), events.append, "region", 3, tmp_path)
    return made, events


ADD = (
    ("a", "w"),
    ("o", "t"),
    [given("a"), given("w"), buffer("t"), buffer("o")],
    [Allocate("t"), Launch("twice", ("a", "t")), Allocate("o"), Launch("add", ("t", "w", "o"))],
)


def recorder(module, env, parts=ADD):
    made, device = module(*parts), Device()
    return Recorder(link(made), made.schedule, env, device.capture), device


def expected(a, w):
    return 2 * a + w, 2 * a


def test_on_cpu_the_program_runs_plainly(module, env):
    made = module(*ADD)
    program = link(made)
    assert record(program, made.schedule, env[0]) is program
    (event,) = env[1]
    assert not event.recorded and event.reason == "no CUDA device: graphs don't apply" and (event.region, event.bucket) == ("region", 3)


def test_parameters_stay_in_place_and_other_inputs_are_copied(module, env):
    run, device = recorder(module, env[0])
    w = torch.nn.Parameter(torch.randn(2, 3))
    for _i in range(6):
        a = torch.randn(2, 3)
        torch.testing.assert_close(run(a, w), expected(a, w.detach()))
        with torch.no_grad():
            w.add_(1)
    assert device.captures == 1 and device.replays == 6 - WARM_UP
    assert [(e.recorded, e.reason) for e in env[1]] == [(True, "1 inputs in place, 1 copied")]


def test_outputs_are_never_overwritten(module, env):
    run, device = recorder(module, env[0])
    w = torch.nn.Parameter(torch.zeros(2, 3))
    kept = []
    for i in range(6):
        o, t = run(torch.full((2, 3), float(i)), w)
        kept.append((o[0], t.view(6)))  # views keep the memory alive, too
    for i, (o, t) in enumerate(kept):
        assert torch.equal(o, torch.full((3,), 2.0 * i)) and torch.equal(t, torch.full((6,), 2.0 * i))
    assert device.replays == 6 - WARM_UP


def test_outputs_that_are_dropped_share_the_graphs_memory(module, env):
    run, _ = recorder(module, env[0])
    w = torch.nn.Parameter(torch.zeros(2, 3))
    addresses = []
    for _ in range(WARM_UP + 3):
        outputs = run(torch.ones(2, 3), w)
        addresses.append(outputs[0].data_ptr())
        del outputs
    assert len(set(addresses[WARM_UP:])) == 1


def test_a_parameter_that_moves_is_recorded_anew(module, env):
    run, device = recorder(module, env[0])
    w = torch.nn.Parameter(torch.zeros(2, 3))
    run(torch.ones(2, 3), w), run(torch.ones(2, 3), w), run(torch.ones(2, 3), w)
    w.data = torch.full((2, 3), 5.0)
    for _ in range(4):
        torch.testing.assert_close(run(torch.ones(2, 3), w), expected(torch.ones(2, 3), w.detach()))
    assert device.captures == 2 and device.replays == 1 + 2


def test_the_same_object_stays_in_place_until_it_does_not(module, env):
    run, device = recorder(module, env[0])
    a, w = torch.randn(2, 3), torch.randn(2, 3)
    for _ in range(4):
        torch.testing.assert_close(run(a, w), expected(a, w))
    assert env[1][0].reason == "2 inputs in place, 0 copied"
    for _ in range(6):
        a = torch.randn(2, 3)
        torch.testing.assert_close(run(a, w), expected(a, w))
        w = w.clone()
    assert env[1][-1].recorded and device.captures == len(env[1]) <= 3


def test_mutated_inputs(module, env):
    parts = (("n",), ("n", "v", "c"), [given("n"), buffer("v", (3,), offset=3, base="n"), buffer("c", (2, 3), kind="constant")], [Launch("increment", ("n",))])
    constant = torch.ones(2, 3)
    made, device = module(*parts, constants={"c": constant}), Device()
    run = Recorder(link(made), made.schedule, env[0], device.capture)
    for _ in range(WARM_UP + 2):
        n = torch.zeros(2, 3)
        same, row, held = run(n)
        assert same is n and torch.equal(n, torch.ones(2, 3)) and row.data_ptr() == n[1].data_ptr() and held is constant
    assert device.replays == 2


def test_failure_to_capture_is_told_and_final(module, env):
    run, device = recorder(module, env[0])
    device.error = "operation not permitted when stream is capturing\nmore"
    w = torch.randn(2, 3)
    for _ in range(5):
        torch.testing.assert_close(run(w, w), expected(w, w))
    assert [(e.recorded, e.reason) for e in env[1]] == [(False, "operation not permitted when stream is capturing")]


def test_gives_up_when_addresses_keep_changing(module, env):
    run, device = recorder(module, env[0])
    w = torch.nn.Parameter(torch.zeros(2, 3))
    for _ in range(4 * RECORDINGS):
        w.data = torch.randn(2, 3)
        a = torch.randn(2, 3)
        torch.testing.assert_close(run(a, w), expected(a, w.detach()))
        del a
    assert device.captures <= RECORDINGS and torch.equal(run(w, w)[1], 2 * w)


def test_a_second_thread_runs_plainly(module, env):
    run, device = recorder(module, env[0])
    w = torch.nn.Parameter(torch.ones(2, 3))
    for _ in range(WARM_UP + 1):
        run(torch.ones(2, 3), w)
    entered, go = threading.Event(), threading.Event()
    replay = run.replay
    run.replay = lambda: (entered.set(), go.wait(10), replay())
    results = []
    thread = threading.Thread(target=lambda: results.append(run(torch.full((2, 3), 3.0), w)))
    thread.start()
    assert entered.wait(10)
    plain = run(torch.full((2, 3), 4.0), w)
    go.set()
    thread.join()
    assert torch.equal(plain[1], torch.full((2, 3), 8.0)) and torch.equal(results[0][1], torch.full((2, 3), 6.0))


def square_recorded(module, env):
    """x * x with both graphs recorded; the forward saves a copy of x twice over (an output that only backward reads)."""
    forward_parts = (
        ("x",),
        ("o", "s"),
        [given("x"), buffer("o"), buffer("s")],
        [Allocate("o"), Launch("mul", ("x", "x", "o")), Allocate("s"), Launch("twice", ("x", "s"))],
    )
    backward_parts = (("s", "g"), ("gx",), [given("s"), given("g"), buffer("gx")], [Allocate("gx"), Launch("mul", ("s", "g", "gx"))])
    f, forward_device = recorder(module, env, forward_parts)
    b, backward_device = recorder(module, env, backward_parts)
    contract = RuntimeContract(1, (Fresh(0, True),), saved_positions=(1,), tangents=(0,), grads=(0,))
    return differentiable(f, lambda: b, contract), forward_device, backward_device


def test_training_with_recorded_forward_and_backward(module, env):
    call, forward_device, backward_device = square_recorded(module, env[0])
    for _ in range(7):
        x = torch.randn(2, 3, requires_grad=True)
        call(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
    assert forward_device.replays == 5 and backward_device.replays == 5
    assert [e.reason for e in env[1]] == ["0 inputs in place, 1 copied", "1 inputs in place, 1 copied"]  # saved activations are read in place


def test_two_forwards_before_their_backwards(module, env):
    call, _, backward_device = square_recorded(module, env[0])
    for _ in range(4):
        call(torch.randn(2, 3, requires_grad=True))[0].sum().backward()
    for _ in range(3):
        xs = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
        ys = [call(x)[0] for x in xs]
        for x, y in zip(xs, ys, strict=True):
            torch.testing.assert_close(y, x * x)
            y.sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach())


def test_gradients_accumulate(module, env):
    call, _, backward_device = square_recorded(module, env[0])
    x = torch.randn(2, 3, requires_grad=True)
    for i in range(6):
        call(x)[0].sum().backward()
        torch.testing.assert_close(x.grad, (i + 1) * 2 * x.detach())
    assert backward_device.replays > 0


def test_outputs_outlive_the_recorder_and_nothing_is_kept(module, env):
    run, _ = recorder(module, env[0])
    w = torch.nn.Parameter(torch.ones(2, 3))
    for _ in range(WARM_UP + 2):
        o, t = run(torch.ones(2, 3), w)
    gone = weakref.ref(run)
    watched = weakref.ref(w)
    del run, w
    gc.collect()
    assert gone() is None and watched() is None
    assert torch.equal(o, torch.full((2, 3), 3.0))
