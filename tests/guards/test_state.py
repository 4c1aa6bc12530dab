"""GLOBAL_STATE: each part of it is seen by the machine and named by its twin."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dynacompile.guards.program import compile_guards, failures
from dynacompile.ir.captured import Guard
from dynacompile.ir.guard_facts import Flag, global_state
from dynacompile.ir.wording import shown


class Mode(TorchFunctionMode):
    """One that says nothing."""


@contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def default_device():
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@contextmanager
def module_hook():
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
    yield
    handle.remove()


CHANGES = {
    "grad mode": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast on cpu": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": default_dtype,
    "deterministic algorithms": deterministic,
    "default device": default_device,
    "torch function modes": Mode,
    "dispatch modes": TorchDispatchMode,
    "torch function": torch._C.DisableTorchFunctionSubclass,
    "hooks for all modules": module_hook,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_seen(change):
    guards = [Guard("GLOBAL_STATE", None, global_state())]
    program = compile_guards(guards)
    assert program.check((), None, {}, {}) and not failures(guards, {})
    with CHANGES[change]():
        assert not program.check((), None, {}, {})
        assert change in [f.subject for f in failures(guards, {})]
        inside = [Guard("GLOBAL_STATE", None, global_state())]
        assert compile_guards(inside).check((), None, {}, {})
    assert program.check((), None, {}, {}) and not failures(guards, {})


def test_autocast_dtype_and_mode_identity():
    with torch.autocast("cpu", torch.bfloat16):
        program = compile_guards([Guard("GLOBAL_STATE", None, global_state())])
    with torch.autocast("cpu", torch.float16):
        assert not program.check((), None, {}, {})
    with Mode():
        program = compile_guards([Guard("GLOBAL_STATE", None, global_state())])
        assert program.check((), None, {}, {})
    with Mode():
        assert not program.check((), None, {}, {})


def test_default_devices_are_compared_by_device():
    with torch.device("meta"):
        guards = [Guard("GLOBAL_STATE", None, global_state())]
        program = compile_guards(guards)
    with torch.device("meta"):
        assert program.check((), None, {}, {}) and not failures(guards, {})
    with default_device():
        assert program.check((), None, {}, {}) and not failures(guards, {})
    with torch.device("cpu"):
        assert not program.check((), None, {}, {})
        assert [f.text for f in failures(guards, {})] == ["default device: meta -> cpu"]
    with torch.device("meta"), torch.device("meta"):
        assert not program.check((), None, {}, {})
    with torch.device("meta"), Mode():
        assert not program.check((), None, {}, {})
        assert [f.text for f in failures(guards, {})] == ["torch function modes: meta -> meta, Mode"]
    assert not program.check((), None, {}, {})


def test_a_default_device_by_another_class_is_another_mode():
    class Context(torch.utils._device.DeviceContext):
        pass

    with torch.device("meta"):
        program = compile_guards([Guard("GLOBAL_STATE", None, global_state())])
    with Context("meta"):
        assert not program.check((), None, {}, {})


def test_functorch_levels_are_seen():
    program = compile_guards([Guard("GLOBAL_STATE", None, global_state())])
    answers = []

    def body(x):
        answers.append(program.check((), None, {}, {}))
        return x

    torch.func.vmap(body)(torch.zeros(2))
    assert answers == [False]


def test_forward_mode_is_seen():
    program = compile_guards([Guard("GLOBAL_STATE", None, global_state())])
    with torch.autograd.forward_ad.dual_level():
        assert not program.check((), None, {}, {})
        assert compile_guards([Guard("GLOBAL_STATE", None, global_state())]).check((), None, {}, {})
    assert program.check((), None, {}, {})


def test_settings_are_called():
    settings = {"level": "high"}
    guards = [Guard("FLAG", None, Flag("the level", lambda: settings["level"], "high"))]
    program = compile_guards(guards)
    assert program.check((), None, {}, {}) and not failures(guards, {})
    settings["level"] = "low"
    assert not program.check((), None, {}, {})
    assert [f.text for f in failures(guards, {})] == [f"the level: {shown('high')} -> {shown('low')}"]
    del settings["level"]
    assert not program.check((), None, {}, {})
