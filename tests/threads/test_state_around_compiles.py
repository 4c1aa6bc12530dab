"""Torch's state after a compile is the state before it, whichever that is, and however the compile ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
import sympy  # noqa: F401 - its first import adds a filter of warnings
import torch

import dynacompile
from dynacompile import native
from dynacompile.errors import Unsupported
from dynacompile.ir import determinism
from tests.fuzz.interrupts import Stopped, compiled, source, torch_state


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def inference_with_gradients():
    with torch.inference_mode(), torch.enable_grad():
        yield


@contextmanager
def autocast_without_cache():
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        yield


STATES = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "inference_with_gradients": inference_with_gradients,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast_without_cache": autocast_without_cache,
    "deterministic": deterministic,
    "default_dtype": default_dtype,
    "default_device": lambda: torch.device("cpu"),
    "one_thread_of_autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "functions_of_subclasses_off": torch._C.DisableTorchFunctionSubclass,
}
LEFT_TO_PYTHON = frozenset({"inference_with_gradients"})  # nothing is compiled there
BACKENDS = {"eager": {}, "aot_eager": {"backend": "aot_eager"}, "reference": {"backend": "default", "options": {"reference": True}}}

PLAIN = "def f(x, w):\n    return (x @ w).sin() + torch.ones(3)"
PROGRAMS = {
    "compiles": PLAIN,
    "breaks": "def f(x, w):\n    y = x @ w\n    dynacompile.graph_break()\n    return y.cos()",
    "breaks_in_modes": (
        "def f(x, w):\n    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16):\n        y = x @ w\n        dynacompile.graph_break()\n"
        "        y = y @ w\n"
        "    return y.float() + x @ w"
    ),
    "enters_modes": (
        "def f(x, w):\n    with torch.no_grad():\n        y = x @ w\n    with torch.autocast('cpu', torch.bfloat16):\n        z = x @ w\n"
        "    return y + z.float()"
    ),
    "refused": "def f(x, w):\n    y = x @ w\n    return y * len(locals())",
    "calls": "def g(x):\n    dynacompile.graph_break()\n    return x.exp()\ndef f(x, w):\n    return g(x @ w) * 2",
    "asks": "def f(x, w):\n    return x @ w if torch.is_grad_enabled() and not torch.is_inference_mode_enabled() else x @ w * 2",
}
RAISES = {
    "raises": "def f(x, w):\n    y = x @ w\n    raise KeyError(y.shape[0])",
    "raises_after_a_break": (
        "def f(x, w):\n    y = x @ w\n    dynacompile.graph_break()\n    with torch.no_grad():\n        y = y + 1\n        raise KeyError(y.shape[0])"
    ),
    "operation_fails": "def f(x, w):\n    with torch.autocast('cpu', torch.bfloat16), torch.no_grad():\n        return x @ w @ torch.ones(7, 7)",
}


def state():
    """threads: not of builds; files: those of the store may open meanwhile."""
    found = torch_state()
    del found["files"], found["threads"]
    return {**found, "dtype": torch.get_default_dtype(), "device": torch.get_default_device(), "warns": torch.is_deterministic_algorithms_warn_only_enabled()}


def arguments(manager):
    with manager():
        return torch.linspace(0, 1, 9).reshape(3, 3), torch.eye(3).requires_grad_()


def check_results(wanted, found, what):
    assert (wanted.dtype, wanted.requires_grad, wanted.is_inference()) == (found.dtype, found.requires_grad, found.is_inference()), what
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2, msg=lambda text: f"{what}: {text}")  # fused bfloat16 is rounded less often


@pytest.mark.parametrize("made_inside", [False, True], ids=["outer_inputs", "inner_inputs"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("around", STATES)
def test_programs(around, backend, made_inside):
    for name, text in PROGRAMS.items():
        fn = source(text)
        c = compiled(fn, **BACKENDS[backend])
        x, w = arguments(STATES[around] if made_inside else nullcontext)
        x, w = (x, w) if made_inside or around != "default_dtype" else (x.double(), w.detach().double().requires_grad_())
        with STATES[around]():
            wanted, before = fn(x, w), state()
            for call in range(2):
                found = c(x, w)
                assert state() == before, (name, call)
                check_results(wanted, found, (name, call))
            if wanted.requires_grad and around != "default_device":
                check_results(*torch.autograd.grad(wanted.sum(), w), *torch.autograd.grad(found.sum(), w), name)
                assert state() == before, f"{name}, after the backward"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("around", STATES)
def test_calls_that_raise(around, backend):
    for name, text in RAISES.items():
        fn = source(text)
        c = compiled(fn, **BACKENDS[backend])
        x, w = arguments(STATES[around])
        with STATES[around]():
            before = state()
            with pytest.raises((KeyError, RuntimeError)) as wanted:
                fn(x, w)
            for call in range(2):
                with pytest.raises(wanted.type):
                    c(x, w)
                assert state() == before, (name, call)


@pytest.mark.parametrize("around", [name for name in STATES if name not in LEFT_TO_PYTHON])
def test_compiles_that_raise(around):
    def backend(error):
        def failing(graph, inputs):
            torch.set_grad_enabled(True).__enter__()
            torch.set_autocast_enabled("cpu", True)
            raise error("of the backend")

        return failing

    x, w = arguments(STATES[around])
    with STATES[around]():
        before = state()
        for error in (Stopped, KeyError):
            with pytest.raises((Stopped, KeyError, dynacompile.errors.BackendError)):
                compiled(source(PLAIN), backend=backend(error))(x, w)
            assert state() == before, error
        for name in ("breaks", "breaks_in_modes", "refused"):
            with pytest.raises(Unsupported):
                compiled(source(PROGRAMS[name]), fullgraph=True)(x, w)
            assert state() == before, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_of_the_process_seen_by_another_thread_during_a_compile(backend):
    """Those of a program that does not set them: at every event of the compile, on a thread of its own, as they are outside."""
    program = source("def f(x, w):\n    return (x @ w).sin() + torch.empty(3).fill_(2)")
    before, seen = determinism.now(), []
    with ThreadPoolExecutor(1) as other:
        end = dynacompile.subscribe(lambda event: seen.append(other.submit(determinism.now).result()))
        try:
            x, w = torch.ones(2, 3), torch.ones(3, 3, requires_grad=True)
            torch.testing.assert_close(compiled(program, **BACKENDS[backend])(x, w), program(x, w))
        finally:
            end()
    assert len(seen) > 2 and all(settings == before for settings in seen)


def test_what_another_thread_sets_during_a_compile_stays():
    before, apply = determinism.now(), native.core().set_deterministic_algorithms
    wanted = {"enabled": True, "warn_only": True, "fill": False}
    try:
        with determinism.under({"enabled": True}, apply), ThreadPoolExecutor(1) as other:
            other.submit(apply, *wanted.values()).result()
        assert determinism.now() == wanted
        apply(*before.values())
        with determinism.under({"enabled": True}, apply):
            assert determinism.now()["enabled"]
        assert determinism.now() == before
    finally:
        apply(*before.values())


@pytest.mark.parametrize("sets", [False, True], ids=["alone", "beside-a-thread-that-sets"])
@pytest.mark.parametrize("program", ["plain", "deterministic"])
def test_a_compile_that_raises_puts_back_what_it_changed_itself(program, sets):
    """The settings about deterministic algorithms are the process's: what another thread has set during the compile stays."""
    setting = "torch.use_deterministic_algorithms(True)" if program == "deterministic" else "pass"
    before, theirs, seen = determinism.now(), {"enabled": True, "warn_only": True, "fill": False}, []

    def failing(graph, inputs):
        seen.append(determinism.now()["enabled"])
        if sets:
            with ThreadPoolExecutor(1) as other:
                other.submit(native.core().set_deterministic_algorithms, *theirs.values()).result()
        raise Stopped

    try:
        with pytest.raises(Stopped):
            compiled(source(f"def f(x):\n    {setting}\n    return x.sin()"), backend=failing)(torch.ones(3))
        assert seen == [program == "deterministic"] and determinism.now() == (theirs if sets else before)
    finally:
        native.core().set_deterministic_algorithms(*before.values())
