"""Kernels over lists of tensors on the GPU: tables of pointers, changed pointers, more pointers than a launch takes, recorded graphs, numbers of the CPU."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from dynacompile.events import GraphRecorded, StageFinished

pytestmark = pytest.mark.gpu
FORMS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def training(count, form, wrap, steps=5):
    torch.manual_seed(0)
    shapes = [(33, 64), (64,), (7,), (1000, 17)]
    parameters = [torch.nn.Parameter(torch.randn(shapes[i % 4], device="cuda")) for i in range(count)]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, **FORMS[form])
    update = wrap(lambda: optimizer.step())
    held = []
    for i in range(steps):
        torch.manual_seed(i)
        for p in parameters:
            p.grad = torch.randn_like(p)
        held.append(torch.empty(1 << (10 + i), device="cuda"))  # gradients of the next step are elsewhere
        update()
    return [p.detach() for p in parameters]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [4, 40, 300])
def test_adamw(form, count):
    """The counters of steps lie on the CPU, but for the fused form: one launch computes with them where they are, one updates all parameters."""
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        got = training(count, form, lambda f: dynacompile.compile(f, isolate_recompiles=True, options={"fallback": "none"}))
    finally:
        end()
    torch.testing.assert_close(got, training(count, form, lambda f: f), rtol=1e-4, atol=1e-5)
    facts = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "schedule"]
    assert facts and max(f["launches"] for f in facts) <= 4 and not any(f["externs"] for f in facts)


def test_numbers_of_the_cpu_that_a_kernel_reads():
    """By their value at the launch: what is written to them afterwards does not reach it."""

    def program(x, s, k):
        y = x * (s + 1).sqrt() + k
        s.add_(0.5)
        return y, x.sum() * s, s.double() * 2

    compiled = dynacompile.compile(program, isolate_recompiles=True, options={"fallback": "none"})
    x = torch.randn(3000, device="cuda")
    ours, eagers = (torch.tensor(0.25) for _ in range(2))
    for k in range(20):
        got, wanted = compiled(x, ours, torch.tensor(k)), program(x, eagers, torch.tensor(k))
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, eagers)


def test_numbers_of_the_cpu_of_many_members():
    """More pointers and numbers than the arguments of one launch hold."""
    tensors = [torch.randn(n % 50 + 1, device="cuda") for n in range(1500)]
    numbers = [torch.tensor(float(n)) for n in range(1500)]
    compiled = dynacompile.compile(lambda ts, ns: [t * n for t, n in zip(ts, ns, strict=True)], isolate_recompiles=True, options={"fallback": "none"})
    for _ in range(3):
        torch.testing.assert_close(compiled(tensors, numbers), [t * n for t, n in zip(tensors, numbers, strict=True)])


def test_a_program_with_numbers_of_the_cpu_is_not_recorded():
    events = []
    compiled = dynacompile.compile(lambda x, s: x * s, mode="reduce-overhead", isolate_recompiles=True)
    end = dynacompile.subscribe(events.append)
    try:
        x = torch.randn(100, device="cuda")
        for k in range(5):
            torch.testing.assert_close(compiled(x, torch.tensor(float(k))), x * k)
    finally:
        end()
    assert {(e.recorded, "CPU" in e.reason) for e in events if isinstance(e, GraphRecorded)} == {(False, True)}


@pytest.mark.parametrize("shape", [(2048, 2048), (3,)])
def test_large_parameters_are_one_launch(shape):
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        parameters = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for _ in range(6)]
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer = torch.optim.AdamW(parameters)
        update = dynacompile.compile(lambda: optimizer.step(), isolate_recompiles=True, options={"fallback": "none"})
        update()
        update()
    finally:
        end()
    facts = [dict(e.facts) for e in events if isinstance(e, StageFinished) and e.stage == "schedule"]
    assert facts[-1]["launches"] == 2 and facts[-1]["externs"] == 0


def test_recorded_graphs_have_the_pointers_of_their_recording():
    given = [torch.randn(n, device="cuda") for n in (1000, 33, 7, 4097)]
    compiled = dynacompile.compile(lambda ts: [t.exp() + 1 for t in ts], mode="reduce-overhead", isolate_recompiles=True)
    for _ in range(4):
        fresh = [t + 1 for t in given]
        torch.testing.assert_close([t.clone() for t in compiled(fresh)], [t.exp() + 1 for t in fresh])


def test_lists_on_a_stream_of_the_caller():
    given = [torch.randn(n, device="cuda") for n in (100000, 33)]
    compiled = dynacompile.compile(lambda ts: [t * 2 for t in ts], isolate_recompiles=True)
    compiled(given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = [compiled(given) for _ in range(20)]
    stream.synchronize()
    for one in got:
        torch.testing.assert_close(one, [t * 2 for t in given])


def test_misaligned_members():
    memory = torch.randn(5000, device="cuda")
    given = [memory[1:1000], memory[1003:1040], memory[2048:4000]]
    compiled = dynacompile.compile(lambda ts: torch._foreach_mul_(ts, 3.0), isolate_recompiles=True)
    wanted = [t * 3 for t in given]
    compiled(given)
    torch.testing.assert_close(given, wanted)


def test_lists_of_one_body_with_small_and_with_large_members():
    """Their kernels are told apart by the sizes that they are for: of small inputs, and of larger products later on."""
    given = [torch.randn(s, device="cuda") for s in ((32, 1), (2, 1), (96, 32), (3, 2))]

    def doubled(a, b, c, d):
        a, b = a * 2, b * 2
        return (c @ a) * 2, (d @ b) * 2

    for _ in range(2):
        got = dynacompile.compile(doubled, isolate_recompiles=True)(*given)
        torch.testing.assert_close(got, doubled(*given), rtol=1e-4, atol=1e-4)
