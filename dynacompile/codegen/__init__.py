"""Schedule -> Sources: the text of every kernel, for the device that it runs on."""

from __future__ import annotations

from dynacompile.codegen.cpp import emit_kernel as emit_cpp
from dynacompile.codegen.triton import emit_kernel as emit_triton
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.schedule import Kernel, KernelSource, Schedule, Sources

EMITTERS = {"cpu": emit_cpp, "cuda": emit_triton}


def generate(schedule: Schedule, env: Env) -> Sources:
    """Sources for every kernel of `schedule`. Raises Unsupported for a device or dtype without a target."""
    if not env.config.reference and schedule.device.type not in EMITTERS:
        raise Unsupported("device", f"there is no code generator for {schedule.device.type}", 'use a CPU or CUDA device, or backend="aot_eager"')
    return Sources(schedule, {name: emit(kernel, env) for name, kernel in schedule.kernels.items()})


def emit(kernel: Kernel, env: Env) -> KernelSource:
    """The text of a kernel, for its own device: a program for a GPU has kernels on the CPU, too, where it computes with numbers there."""
    return emit_reference(kernel, env) if env.config.reference else EMITTERS[kernel.device.type](kernel, env)


def emit_reference(kernel: Kernel, env: Env) -> KernelSource:
    """Stands for a kernel that is interpreted."""
    return KernelSource(kernel, "reference", kernel.text(), kernel.name)
