"""Compiles in the background: calls run eagerly meanwhile, with eager's results, and find the entry when it is there."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
import warnings
import weakref
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile import native
from dynacompile.background import BACKGROUND
from dynacompile.errors import RecompileLimitError, Unsupported
from dynacompile.events import BuiltInBackground, Compiled, FrameSkipped, Recompiled
from dynacompile.guards.facts import FrameCopy
from dynacompile.session import SESSION

OPTIONS = {"background": True, "fallback": "none"}


def compiled(fn, backend="eager", **more):
    options = {**OPTIONS, **more.pop("options", {})}
    return dynacompile.compile(fn, backend=backend, isolate_recompiles=True, options=options, **more)


def function(text):
    """One whose code is its own."""
    return eval(text)


def entries(target):
    return len(dynacompile.cache_entries(target))


def built():
    assert dynacompile.wait(120)


@contextmanager
def held_back():
    """Nothing is compiled in the background inside of the block."""
    begun, go_on = threading.Event(), threading.Event()

    def backend(graph, inputs):
        begun.set()
        assert go_on.wait(60)
        return graph.forward

    dynacompile.wait(60)
    made = compiled(lambda x: x * 7 + 5, backend=backend)
    made(torch.ones(1))
    assert begun.wait(60)
    try:
        yield
    finally:
        go_on.set()


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert dynacompile.wait(120)
    assert not BACKGROUND.jobs and BACKGROUND.thread is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
def test_the_first_call_runs_eagerly_and_a_later_one_is_compiled(backend):
    def f(x, w):
        return torch.relu(x @ w).sin().sum() * 2

    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    with SESSION.bus.recording() as events:
        c = compiled(f, backend)
        with held_back():
            first = c(x, w)
            assert "Dynacompile" not in type(first.grad_fn).__name__
            assert entries(c) == 0
        built()
        second = c(x, w)
    assert "Dynacompile" in type(second.grad_fn).__name__ or backend == "eager"
    assert entries(c) == 1 and dynacompile.cache_entries(c)[0].hits == 1
    assert torch.allclose(first, second)
    (want,), (got,) = torch.autograd.grad(first, w), torch.autograd.grad(second, w)
    assert torch.allclose(want, got)
    told = [e for e in events if isinstance(e, BuiltInBackground) and "test_the_first_call" in e.frame]
    assert len(told) == 1 and told[0].eager_seconds >= told[0].seconds > 0


def test_the_backward_is_ready_with_the_forward():
    """No first backward waits for its kernels."""
    stages = []
    end = dynacompile.subscribe(lambda event: stages.append(getattr(event, "stage", None)))
    try:
        c = compiled(lambda x: (x.exp() * 2).sum(), "default")
        x = torch.randn(5, requires_grad=True)
        c(x)
        built()
        assert stages.count("link") == 2
        c(x).backward()
        assert stages.count("link") == 2
    finally:
        end()
    assert torch.allclose(x.grad, x.detach().exp() * 2)


def test_calls_while_a_compile_is_queued_run_eagerly_and_queue_nothing_more():
    c = compiled(lambda x: x * 3)
    with held_back():
        for n in range(1, 6):
            assert c(torch.ones(n)).tolist() == [3.0] * n
        assert len(BACKGROUND.jobs) == 1
    built()
    assert entries(c) == 1


def test_functions_that_are_called_by_the_frame_queue_nothing():
    def inner(x):
        return x + 1

    def outer(x):
        return inner(inner(x)) * 2

    c = compiled(outer)
    with held_back():
        assert c(torch.ones(2)).tolist() == [6.0, 6.0]
        assert [job.frame.code for job in BACKGROUND.jobs] == [outer.__code__]
    built()
    assert c(torch.ones(2)).tolist() == [6.0, 6.0]


def test_another_size_is_a_recompile_that_no_call_waits_for():
    c = compiled(lambda x: x * 3)
    with SESSION.bus.recording() as events:
        for n in (2, 3, 4):
            c(torch.ones(n))
            built()
            assert c(torch.ones(n)).tolist() == [3.0] * n
    assert entries(c) == 2  # one for size 2, one for all sizes
    assert sum(isinstance(e, Recompiled) for e in events) == 1


def test_frames_after_a_graph_break_are_queued_when_they_are_met():
    def f(x):
        y = x * 2
        dynacompile.graph_break()
        return y + 1

    c = compiled(f)
    with SESSION.bus.recording() as events:
        for _ in range(3):
            assert c(torch.ones(2)).tolist() == [3.0, 3.0]
            built()
    assert sum(isinstance(e, Compiled) for e in events) == 2


def test_a_compile_error_is_raised_by_the_next_call():
    def f(x):
        y = x * 2
        dynacompile.graph_break()
        return y + 1

    c = compiled(f, fullgraph=True)
    assert c(torch.ones(2)).tolist() == [3.0, 3.0]
    built()
    with pytest.raises(Unsupported, match="asked"):
        c(torch.ones(2))


def test_an_error_of_a_backend_is_raised_by_a_later_call():
    def backend(graph, inputs):
        raise ZeroDivisionError("of the backend")

    c = compiled(lambda x: x * 2, backend)
    raised = []
    for _ in range(4):
        try:
            assert c(torch.ones(1)).item() == 2.0
        except Exception as error:  # noqa: BLE001  (it is looked at)
            raised.append(str(error))
        built()
    assert raised and all("of the backend" in text for text in raised)


def test_a_recompile_that_is_an_error_is_raised_at_once():
    c = compiled(lambda x: x * 3, dynamic=False, options={"error_on_recompile": True})
    c(torch.ones(2))
    built()
    c(torch.ones(2))
    with pytest.raises(RecompileLimitError):
        c(torch.ones(3))


def test_the_limit_of_recompiles_is_told_by_the_call():
    c = compiled(lambda x: x * 3, dynamic=False, recompile_limit=2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(1, 6):
            assert c(torch.ones(n)).tolist() == [3.0] * n
            built()
    assert entries(c) == 2
    assert sum("recompile_limit=2" in str(w.message) for w in told) == 1


def test_what_is_left_to_python_is_warned_of_once():
    def f(x):
        for i in iter([x * 2, x * 3].pop, None):
            return [i * 1, locals()][0]

    c = compiled(f)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(8):
            assert c(torch.ones(1)).item() == 3.0
            built()
    assert entries(c) == 0 or dynacompile.cache_entries(c)[0].hits
    assert sum("runs as Python" in str(w.message) for w in told) <= 1


@pytest.mark.parametrize("state", ["no_grad", "inference", "autocast", "autocast-cache-off"])
def test_the_state_of_the_calling_thread_is_taken_over(state):
    managers = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.float16),
        "autocast-cache-off": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    }

    def f(x, w):
        return x @ w * 2

    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    c = compiled(f)
    with held_back(), managers[state]():
        want = c(x, w)
    built()
    assert entries(c) == 1
    with managers[state]():
        got = c(x, w)
    assert dynacompile.cache_entries(c)[0].hits == 1, "the entry is for the call's state"
    assert got.dtype is want.dtype and torch.equal(got, want) and got.requires_grad == want.requires_grad and got.is_inference() == want.is_inference()
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


def test_context_variables_are_those_of_the_call():
    variable = contextvars.ContextVar("variable", default=1)
    seen = []

    def backend(graph, inputs):
        seen.append(variable.get())
        return graph.forward

    variable.set(2)
    c = compiled(lambda x: x + 1, backend)
    c(torch.ones(1))
    variable.set(3)
    built()
    assert seen == [2]


def test_a_profiler_of_the_call_sees_none_of_the_compile_and_may_end_before_it():
    c = compiled(lambda x: x.sin() * 3, "default")
    with torch.profiler.profile() as profile:
        c(torch.ones(3))
        time.sleep(0.02)
    counts = {event.key: event.count for event in profile.key_averages()}
    built()
    assert counts["aten::sin"] == 1
    assert c(torch.ones(3)).shape == (3,)


def test_random_numbers_are_those_of_eager():
    def f(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(8)

    def numbers(fn):
        torch.manual_seed(3)
        found = []
        for n in range(6):
            found.append(fn(torch.ones(8)))
            if n == 2:
                built()
        return found

    assert all(torch.equal(a, b) for a, b in zip(numbers(f), numbers(compiled(f, "default"))))


@pytest.mark.parametrize("settings", [{}, {"foreach": False}, {"fused": True}, {"set_to_none": False}], ids=["foreach", "single", "fused", "zeros-kept"])
def test_an_optimizers_step_sees_the_gradients_of_the_call(settings):
    """The program clears them before the compile begins."""
    settings = dict(settings)
    to_none = settings.pop("set_to_none", True)

    def run(wrap):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, **settings)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

        def update():
            torch.nn.utils.clip_grad_norm_(list(net.parameters()), 0.5)
            optimizer.step()

        step = wrap(update)
        for n in range(8):
            net(torch.full((3, 4), float(n))).square().sum().backward()
            step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=to_none)
            if n in (1, 3, 5):
                dynacompile.wait(120)
        return [p.detach() for p in net.parameters()], step

    want, _ = run(lambda fn: fn)
    got, step = run(lambda fn: compiled(fn, options={"reference": True}, backend="default"))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(got, want))
    assert sum(entry.hits for entry in dynacompile.cache_entries(step)) >= 3


def test_a_module_in_place_in_a_training_loop():
    def train(prepare):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        prepare(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        losses = []
        for n in range(12):
            net.train(n % 4 != 3)
            loss = net(torch.randn(6, 4)).square().mean()
            if net.training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
            if n == 5:
                dynacompile.wait(120)
        return losses

    def in_place(net):
        dynacompile.compile(net, inplace=True, isolate_recompiles=True, backend="aot_eager", options=OPTIONS)

    assert train(in_place) == pytest.approx(train(lambda net: None), rel=1e-4)


def test_a_counter_that_the_program_goes_on_counting_becomes_a_symbol():
    """The count of the call is gone by the time of the compile: what has changed meanwhile is told by the capture's own guards."""

    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.count = 0

        def forward(self, x):
            self.count += 1
            return x * self.count

    net = Counts()
    c = compiled(net)
    for n in range(40):
        assert c(torch.ones(2)).tolist() == [n + 1.0] * 2
        if n % 4 == 3:
            built()
    assert net.count == 40
    assert sum(entry.hits for entry in dynacompile.cache_entries(c)) >= 10


def test_what_changes_while_it_is_captured_makes_no_entry():
    """A capture sees one value, and the program has another at its end."""
    state = {"scale": [2.0]}

    def f(x):
        return x * len(state["scale"])

    c = compiled(f)
    with SESSION.bus.recording() as events:
        with held_back():
            c(torch.ones(1))
        end = FrameCopyPatch(state)
        try:
            built()
        finally:
            end()
        assert entries(c) == 0
        assert any(isinstance(e, FrameSkipped) and "[changing]" in e.reason for e in events)
        assert c(torch.ones(1)).item() == 2.0
        built()
    assert c(torch.ones(1)).item() == 2.0 and entries(c) == 1


def test_what_changes_in_every_capture_is_left_to_python_with_a_warning():
    state = {"scale": [2.0]}
    c = compiled(lambda x: x * len([*state["scale"]]))
    end = FrameCopyPatch(state)
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(9):
                assert c(torch.ones(1)).item() == len(state["scale"])
                built()
    finally:
        end()
    assert len(state["scale"]) == 1 + 6  # captures
    assert sum("[changing]" in str(w.message) and "background=False" not in str(w.message) for w in told) == 1
    strict = compiled(lambda x: x * len([*state["scale"]]), fullgraph=True)
    end = FrameCopyPatch(state)
    try:
        with pytest.raises(Unsupported, match="changing"):
            for _ in range(9):
                strict(torch.ones(1))
                built()
    finally:
        end()


def test_a_frame_that_sets_deterministic_algorithms_waits():
    """The setting is the process's: no other thread is to see that of a compile."""

    def f(x):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        y = x.cumsum(0) * 2
        torch.use_deterministic_algorithms(before)
        return y

    c = compiled(f, "aot_eager")
    x = torch.arange(4.0)
    want = f(x)
    for _ in range(3):
        assert torch.equal(c(x), want) and not torch.are_deterministic_algorithms_enabled()
        built()
    assert torch.equal(c(x), want) and not torch.are_deterministic_algorithms_enabled()


class FrameCopyPatch:
    """Has the program's state change at the end of each capture."""

    def __init__(self, state):
        self.owner, self.before = FrameCopy, FrameCopy.end_capture

        def end_capture(frame, captured):
            state["scale"].append(1.0)
            return self.before(frame, captured)

        FrameCopy.end_capture = end_capture

    def __call__(self):
        self.owner.end_capture = self.before


def test_reset_drops_what_is_queued_and_what_runs():
    c = compiled(lambda x: x * 3)
    with held_back():
        c(torch.ones(1))
        dynacompile.reset()
        assert not BACKGROUND.jobs
    built()
    assert entries(c) == 0
    c(torch.ones(1))
    built()
    assert entries(c) == 1 and c(torch.ones(1)).item() == 3.0


def test_a_region_that_is_dropped_leaves_nothing():
    x = torch.ones(2)
    kept = weakref.ref(x)
    fn = function("lambda x: x * 3")
    code = fn.__code__
    c = compiled(fn)
    with held_back():
        c(x)
        del c, x, fn
    built()
    gc.collect()
    assert native.core().entries(code) == []
    assert kept() is None


def test_a_compile_does_not_keep_its_arguments():
    x = torch.ones(2)
    kept = weakref.ref(x)
    c = compiled(lambda x: x * 3)
    c(x)
    built()
    del x
    gc.collect()
    assert kept() is None and entries(c) == 1


def test_several_threads_call_one_region():
    def f(x, k):
        return torch.relu(x) * k + x.size(0)

    c = compiled(f, recompile_limit=20)
    wrong = []

    def work(index):
        for n in range(120):
            x, k = torch.randn(1 + (index + n) % 4, 3), (1, 2.5, True)[n % 3]
            with torch.set_grad_enabled(n % 2 == 0):
                if not torch.equal(c(x, k), f(x, k)):
                    wrong.append((index, n))
            time.sleep(0.001)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    built()
    assert not wrong
    work(0)
    assert not wrong and entries(c) >= 1


def test_a_region_that_waits_shares_its_bucket_with_one_that_does_not():
    fn = function("lambda x: x * 11")
    later = dynacompile.compile(fn, backend="eager", options={"background": True})
    at_once = dynacompile.compile(fn, backend="eager")
    with held_back():
        assert later(torch.ones(1)).item() == 11.0
        assert at_once(torch.ones(1)).item() == 11.0  # runs as Python, or waits for nobody
    built()
    assert at_once(torch.ones(1)).item() == 11.0 and later(torch.ones(1)).item() == 11.0
    assert len(native.core().entries(fn.__code__)) == 1
    dynacompile.reset()


def test_dispatch_by_key_has_a_compile_for_each():
    c = compiled(lambda x, mode: x * (2 if mode else 3), dispatch=lambda x, mode: mode)
    for _ in range(2):
        assert [c(torch.ones(1), mode).item() for mode in (True, False)] == [2.0, 3.0]
        built()
    assert entries(c) == 2


def test_under_a_torch_function_mode_the_call_runs_as_without():
    with torch.device("cpu"):
        c = compiled(lambda x: x * 3)
        assert c(torch.ones(1)).item() == 3.0
        built()


def test_wait_says_whether_all_is_done_in_time():
    c = compiled(lambda x: x * 3)
    with held_back():
        c(torch.ones(1))
        assert not dynacompile.wait(0.05)
    assert dynacompile.wait(60)
    assert dynacompile.wait()


def test_explain_waits():
    told = dynacompile.explain(lambda x: x.sin() + 1, backend="eager", options={"background": True})(torch.ones(2))
    assert told.graph_count == 1
